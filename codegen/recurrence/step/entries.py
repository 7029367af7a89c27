"""Steps that are affine in their states entry by entry: each entry is multiplied, those of several states at the same place may
be mixed, and something is added that depends on no state.

    S'_i = sum_j a_ij S_j + b_i        entry by entry, for states i, j over the same axes

A decay of either sign for each channel, a decay for every entry, a rotation of two states' entries into each other: whatever a_ij
are, a segment of a sequence is such a map too (`runtime/torch_form/entry_segments.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.expr import ONE, ZERO, Node, add, leaf_names, mul
from ...ir.step_program import StepProgram


@dataclass(frozen=True)
class EntryMaps:
    """`factors` has a_ij by (i, j), without those that are zero; `added` has b_i. `groups`: states whose entries get into each
    other."""

    factors: dict[tuple[str, str], Node]
    added: dict[str, Node]
    groups: tuple[tuple[str, ...], ...]


def entry_maps(p: StepProgram) -> EntryMaps | None:
    """The maps of a step's states; None where an update is anything else."""
    factors: dict[tuple[str, str], Node] = {}
    added: dict[str, Node] = {}
    for s in p.states:
        found = _affine(p.updates[s.name], s.axes, {("state", x.name) for x in p.states})
        if found is None:
            return None
        added[s.name] = found.pop("", ZERO)
        factors |= {(s.name, of): a for of, a in found.items() if a is not ZERO}
    if any(to != of and p.state(to).axes != p.state(of).axes for to, of in factors):
        return None
    return EntryMaps(factors, added, groups_of([s.name for s in p.states], factors))


def groups_of(names: list[str], pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """States in any order in which one gets into the other."""
    group = {n: {n} for n in names}
    for to, of in pairs:
        whole = group[to] | group[of]
        group |= dict.fromkeys(whole, whole)
    return tuple(dict.fromkeys(tuple(n for n in names if n in group[m]) for m in names))


def _affine(x: Node, axes: tuple[str, ...], states: set[tuple[str, str]]) -> dict[str, Node] | None:
    """x as a sum over states, by name, of a factor times that state, and of what holds no state, by ""."""
    if x.op == "leaf" and x.attrs[:2] in states:
        return {x.attrs[1]: ONE} if x.attrs[2] == axes else None
    if not leaf_names(x) & states:
        return {"": x}
    if x.op == "expand" and set(x.axes) == set(x.args[0].axes):
        return _affine(x.args[0], axes, states)
    if x.op == "add":
        parts = [_affine(a, axes, states) for a in x.args]
        if any(part is None for part in parts):
            return None
        names = dict.fromkeys(n for part in parts if part for n in part)
        return {n: add(*(part[n] for part in parts if part and n in part)) for n in names}
    if x.op == "mul":
        own = [a for a in x.args if leaf_names(a) & states]
        inner = _affine(own[0], axes, states) if len(own) == 1 else None
        if inner is None:
            return None
        rest = mul(*(a for a in x.args if a is not own[0]))
        return {n: mul(rest, a) for n, a in inner.items()}
    return None
