"""Steps that map each entry of their states by maps that compose (`monoids.py`), which a scan computes: mostly S' = a S + b or
a (S + b), whatever a and b are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.expr import ONE, ZERO, Node, add, factors_of, leaf, leaf_names, mul, power, terms_of, walk
from ...ir.expr import replace as replaced
from ...ir.ranges import Ranges
from ...ir.step_program import StepProgram
from .adjoint import Adjoint, adjoint
from .decays import known_range
from .monoids import found_in
from .quotient_slopes import divided_in_turn, multiplied_out, over_one_divisor

BEFORE, AFTER = "before", "after"  # a step


@dataclass(frozen=True)
class Entry:
    """The update of one state: `factor` times it, plus `added`, or `factor` times the sum of both, where `early`. Of another kind
    of map of the table than affine ones, `others` are the numbers. `turns`: it's a sum of angles, in float64."""

    state: str
    factor: Node
    added: Node
    early: bool
    kind: str = "affine"
    others: tuple[Node, ...] = ()
    turns: bool = False

    @property
    def maps(self) -> tuple[Node, ...]:
        """The numbers of the map."""
        return self.others or (self.factor, mul(self.factor, self.added) if self.early else self.added)

    @property
    def printed(self) -> tuple[Node, ...]:
        """What is printed of it."""
        return (self.factor, self.added, *self.others)

    def over(self, nodes: list[Node]) -> Entry:
        """The same with others in the place of what is printed."""
        return replace(self, factor=nodes[0], added=nodes[1], others=tuple(nodes[2:]))


def entrywise(p: StepProgram) -> list[Entry] | None:
    """The updates of a step's states, each after those that it reads; None where a state has two axes, is summed over or put
    through a function of no map in its own update, or where states read each other."""
    if any(len(s.axes) > 1 for s in p.states):
        return None
    waiting = {s.name: s for s in p.states}
    ranges = Ranges(lambda x: known_range(p, x))
    entries: list[Entry] = []
    while waiting:
        for s in waiting.values():
            entry = _entry(s.name, p.updates[s.name], leaf("state", s.name, s.axes), ranges)
            if entry is not None and s.turns:
                entry = replace(entry, turns=True)
            if entry is not None and not any(_reads(x, set(waiting)) for x in entry.maps):
                entries.append(entry)
                del waiting[s.name]
                break
        else:
            return None
    return entries


def adjoint_of(p: StepProgram) -> Adjoint:
    """The adjoint of a step. Where it divides by states, and a scan may compute it, quotients are put together for that."""
    updates = walk(*p.updates.values())
    divides = any(x.op == "pow" and x.attrs[0] < 0 and any(n == "state" for n, _ in leaf_names(x)) for x in updates)
    return adjoint(p, divides and entrywise(p) is not None)


@dataclass(frozen=True)
class Scans:
    """The updates of the states of both passes, each after those that it reads."""

    forward: tuple[Entry, ...]
    backward: tuple[Entry, ...]


def scans(step: StepProgram, backwards: Adjoint) -> Scans | None:
    """The scans of a step and of its adjoint; None where a state of either isn't scanned."""
    forward, backward = entrywise(step), entrywise(backwards.program)
    return None if forward is None or backward is None else Scans(tuple(forward), tuple(backward))


def value_of(state: str, when: str, axes: tuple[str, ...]) -> Node:
    """A state before or after a step, as a value of the step."""
    return leaf("stored", f"{state}.{when}", axes)


def over_stored(x: Node, step: StepProgram, backward: bool, making: str | None = None) -> Node:
    """x over states as values of the step: before it, and, in the forward pass, after it, where x has an update in it; but not of
    the state that x is for `making`, which may be all of x."""
    made = [s for s in step.states if s.name != making and not backward]
    updates = {step.updates[s.name]: value_of(s.name, AFTER, s.axes) for s in made}
    x = replaced(x, {u: y for u, y in updates.items() if u.op != "leaf"})
    states = [y for y in walk(x) if y.op == "leaf" and y.attrs[0] in ("state", "trajectory")]
    return replaced(x, {y: value_of(y.attrs[1], BEFORE, y.attrs[2]) for y in states})


def _entry(name: str, update: Node, state: Node, ranges: Ranges) -> Entry | None:
    parts = _affine(update, state)
    if parts is not None:
        factor, added = (divided_in_turn(over_one_divisor(x) or x, lambda y: False) for x in parts)
        inner = _divided(added, factor)
        return Entry(name, factor, added if inner is None else inner, inner is not None)
    found = found_in(update, state, ranges)
    if found is None:
        return None
    kind, maps = found[0], tuple(map(multiplied_out, found[1]))
    if (
        kind == "rational" and ranges(maps[3]).positive
    ):  # as any multiple of its numbers is the same map: numbers near 1
        share = power(maps[3], -1)
        maps = tuple(divided_in_turn(mul(x, share), lambda y: False) for x in maps[:3]) + (ONE,)
    return Entry(name, maps[0], maps[1], False) if kind == "affine" else Entry(name, ONE, ZERO, False, kind, maps)


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
