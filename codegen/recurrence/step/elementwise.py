"""Steps that multiply each entry of their states, and add to it: S' = a S + b or a (S + b), which a scan computes whatever a and
b are."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.expr import ONE, ZERO, Node, add, factors_of, leaf, mul, terms_of, walk
from ...ir.step_program import StepProgram


@dataclass(frozen=True)
class Entry:
    """The update of one state: `factor` times it, plus `added`, or `factor` times the sum of both, where `early`."""

    state: str
    factor: Node
    added: Node
    early: bool


def entrywise(p: StepProgram) -> list[Entry] | None:
    """The updates of a step's states, each after those that it reads; None where a state has two axes, is summed over or put
    through a function in its own update, or where states read each other."""
    if any(len(s.axes) > 1 for s in p.states):
        return None
    waiting = {s.name: s for s in p.states}
    entries: list[Entry] = []
    while waiting:
        for s in waiting.values():
            others = {n for n in waiting if n != s.name}
            parts = _affine(p.updates[s.name], leaf("state", s.name, s.axes))
            if parts is not None and not any(_reads(x, others | {s.name}) for x in parts):
                factor, added = parts
                inner = _divided(added, factor)
                entries.append(Entry(s.name, factor, added if inner is None else inner, inner is not None))
                del waiting[s.name]
                break
        else:
            return None
    return entries


def _divided(x: Node, factor: Node) -> Node | None:
    """x / factor, where each of its terms has it as a factor."""
    terms = []
    for term in terms_of(x) if factor.op != "const" else ():
        factors = list(factors_of(term))
        for f in factors_of(factor):
            if f not in factors:
                return None
            factors.remove(f)
        terms.append(mul(*factors))
    return add(*terms) if terms else None


def _reads(x: Node, states: set[str]) -> bool:
    return any(y.op == "leaf" and y.attrs[0] == "state" and y.attrs[1] in states for y in walk(x))


def _affine(x: Node, state: Node) -> tuple[Node, Node] | None:
    """(a, b) where x = a state + b; None where it isn't."""
    if x is state:
        return ONE, ZERO
    if all(y is not state for y in walk(x)):
        return ZERO, x
    if x.op == "add":
        parts = [_affine(a, state) for a in x.args]
        if any(p is None for p in parts):
            return None
        return add(*(p[0] for p in parts if p)), add(*(p[1] for p in parts if p))
    if x.op == "mul":
        own = [a for a in x.args if any(y is state for y in walk(a))]
        inner = _affine(own[0], state) if len(own) == 1 else None
        if inner is None:
            return None
        rest = mul(*(a for a in x.args if a is not own[0]))
        return mul(rest, inner[0]), mul(rest, inner[1])
    return None
