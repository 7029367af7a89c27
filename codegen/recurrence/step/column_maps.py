"""Steps that are affine in their states column by column: every column goes through one matrix, and something is added that
depends on no state.

    S'_i = sum_j A_ij S_j + B_i        for states i, j over the same columns

A correction beside decays of either sign, momentum of channels that reads back, a write of several vectors at once that reads:
whatever A is, a segment of a sequence is such a map too (`runtime/torch_form/entry_segments.py`). Columns may be counted by
either axis of a state: in S' = S A rows go through one matrix. A state that is a vector or a number may be one column itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...ir.expr import ZERO, Node, add, expand, leaf_names, mul, total
from ...ir.step_program import StateVar, StepProgram
from .entries import EntryMaps, entry_maps, groups_of


@dataclass(frozen=True)
class ColumnMaps:
    """`columns` has for each state the place of the axis that counts its columns, None where it is one column, and how many axes
    it has. `groups`: states that get into each other."""

    columns: dict[str, tuple[int | None, int]]
    groups: tuple[tuple[str, ...], ...]


def segment_maps(p: StepProgram) -> EntryMaps | ColumnMaps | None:
    """How a segment of a sequence is a map of the states; None where it is none of these."""
    entries = entry_maps(p)
    return column_maps(p) if entries is None else entries


def why_no_map(p: StepProgram) -> str:
    """Why segments aren't maps either, of a step that is affine in its states; empty where it isn't."""
    if not all(_linear(x) for x in p.updates.values()):
        return ""
    return "a state's columns don't all go through the same matrix"


def without_added(p: StepProgram) -> StepProgram:
    """The steps of a map's A alone: what a step makes of the states, without what it adds, and without outputs."""
    updates = {n: expand(_of_states(x), p.state(n).axes) for n, x in p.updates.items()}
    states = tuple(replace(s, initial=None) for s in p.states)
    return replace(p, states=states, updates=updates, outputs={}, output_axes={})


def _of_states(x: Node) -> Node:
    """x, which is affine in the states, less what holds none of them."""
    if not any(kind == "state" for kind, _ in leaf_names(x)):
        return ZERO
    if x.op == "add":
        return add(*map(_of_states, x.args))
    if x.op == "sum":
        return total(_of_states(x.args[0]), *x.attrs)
    if x.op == "expand":
        return expand(_of_states(x.args[0]), x.axes)
    if x.op == "mul":
        return mul(*(_of_states(a) if any(kind == "state" for kind, _ in leaf_names(a)) else a for a in x.args))
    return x


def column_maps(p: StepProgram) -> ColumnMaps | None:
    """The columns of a step's states; None where an update is anything else."""
    if not p.states:
        return None
    states = {s.name: s for s in p.states}
    pairs = [(to, of) for to, x in p.updates.items() for kind, of in leaf_names(x) if kind == "state"]
    groups = groups_of(list(states), pairs)
    columns: dict[str, int | None] = {}
    for group in groups:
        found = _columns_of(group, p, states)
        if found is None:
            return None
        columns |= found
    return ColumnMaps({n: (place, len(states[n].axes)) for n, place in columns.items()}, groups)


def _columns_of(group: tuple[str, ...], p: StepProgram, states: Mapping[str, StateVar]) -> dict[str, int | None] | None:
    """The columns of states that get into each other: one is taken on trial, and what an update reads tells those of others."""

    def spread(known: dict[str, int | None], waiting: frozenset[str]) -> dict[str, int | None] | None:
        if not waiting:
            return known
        name = next((n for n in group if n in waiting and n in known), None)
        tried = [name] if name is not None else [n for n in group if n in waiting]
        for n in tried:
            axes = states[n].axes
            for place in [known[n]] if n in known else _places(axes):
                more = {**known, n: place}
                if _affine(p.updates[n], None if place is None else axes[place], more):
                    found = spread(more, waiting - {n})
                    if found is not None:
                        return found
        return None

    return spread({}, frozenset(group))


def _places(axes: tuple[str, ...]) -> list[int | None]:
    """The axes that may count a state's columns, mostly values: the last; None for one column."""
    return [*reversed(range(len(axes))), *([None] if len(axes) < 2 else [])]


def _affine(x: Node, column: str | None, columns: dict[str, int | None]) -> bool:
    """Is x affine in the states, each column of it in the same one of theirs, by the same numbers? Adds to `columns`."""
    if not any(kind == "state" for kind, _ in leaf_names(x)):
        return True
    if x.op == "leaf":
        _, name, axes = x.attrs
        if column is None:
            return len(axes) < 2 and columns.setdefault(name, None) is None
        return column in axes and columns.setdefault(name, axes.index(column)) == axes.index(column)
    if x.op == "add":
        return all(_affine(a, column, columns) for a in x.args)
    if x.op == "sum":
        return x.attrs != (column,) and _affine(x.args[0], column, columns)
    if x.op == "expand":
        return _affine(x.args[0], column, columns)
    if x.op == "mul":
        own = [a for a in x.args if any(kind == "state" for kind, _ in leaf_names(a))]
        others = (a for a in x.args if a is not own[0])
        return len(own) == 1 and all(column not in a.axes for a in others) and _affine(own[0], column, columns)
    return False


def _linear(x: Node) -> bool:
    """Is x affine in the states, whatever it multiplies them by?"""
    if not any(kind == "state" for kind, _ in leaf_names(x)) or x.op == "leaf":
        return True
    own = [a for a in x.args if any(kind == "state" for kind, _ in leaf_names(a))]
    return x.op in ("add", "sum", "expand", "mul") and (x.op != "mul" or len(own) == 1) and all(map(_linear, own))
