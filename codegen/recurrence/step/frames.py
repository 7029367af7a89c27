"""A frame that moves with the states: a coefficient of a state as a magnitude and a unit, whose products over steps are a state
of their own.

A unit is a sign for each channel, or a rotation of two states into each other by an angle for each channel. With the product U_t
of all units up to a step, the states U_t^-1 S_t are multiplied by magnitudes alone:

    S_t = M_t U_t U_{t-1}^-1 S_{t-1} + B_t        so        U_t^-1 S_t = M_t U_{t-1}^-1 S_{t-1} + U_t^-1 B_t

What reads S_t by q reads the state in the frame by U_t^T q, and what was written is turned back by U_t^-1. The product begins as
1, so the first states are what they were; the last ones are turned at the end. A sum of angles is summed in float64 (`turns.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations

from ...ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    dim_of,
    expand,
    factors_of,
    fn,
    leaf,
    leaf_names,
    leaves,
    mul,
    rebuild,
    rename,
    terms_of,
)
from ...ir.expr import replace as replaced
from ...ir.functions import APART, MAGNITUDE, UNIT_OF
from ...ir.step_program import StateVar, StepProgram, Var
from .entries import groups_of

TURNED = "turned_"  # a state after the last step, as the step has it


@dataclass(frozen=True)
class Frame:
    """A step over states in a moving frame. `hidden` are its states that hold products of units, `moved` those that units turn.
    `ends`: each state of the step that it takes the place of, over its own states."""

    step: StepProgram
    hidden: tuple[str, ...]
    moved: tuple[str, ...]
    ends: dict[str, Node]


def moving_frame(p: StepProgram, positive: Callable[[Node], bool]) -> Frame | None:
    """The step in a frame that moves with its states; None where no state has a unit. positive(x): is x seen to be above 0?"""
    found = _found(p, positive)
    return _Moved(p, *found).frame() if found[0] else None


def begins_with(s: StateVar) -> int:
    """What a product of units is before the first step."""
    return 0 if s.initial is None else 1


def ends_program(frame: Frame) -> StepProgram:
    """The last states as the step has them, of those in the frame, as a program of its own."""
    p = frame.step
    states = [s for s in p.states if s.name in (*frame.hidden, *frame.moved)]
    ends = leaves(*frame.ends.values())
    inputs: dict[Node, Node] = {x: leaf("input", *x.attrs[1:]) for x in ends if x.attrs[0] == "state"}
    outputs = {f"{TURNED}{n}": replaced(frame.ends[n], inputs) for n in frame.moved}
    axes = {f"{TURNED}{n}": p.state(n).axes for n in frame.moved}
    variables = tuple(Var(s.name, "input", s.axes) for s in states)
    return StepProgram(f"{p.name}_ends", p.dims, variables, (), {}, outputs, output_axes=axes)


@dataclass(frozen=True)
class _Rotation:
    """What turns two states into each other: by `angle`, with a magnitude beside it."""

    states: tuple[str, ...]
    angle: Node
    magnitude: Node
    word = "angle"

    @property
    def axes(self) -> tuple[str, ...]:
        return self.angle.axes

    def hidden(self, name: str) -> StateVar:
        return StateVar(name, _own(self.axes), turns=True)

    def then(self, angle: Node) -> Node:
        """The product with one more unit."""
        return add(angle, self.angle)

    def turned(self, angle: Node, values: list[Node], back: bool = False) -> list[Node]:
        """Values turned by a product of units, or back."""
        (x, y), c, s = values, fn("cos", angle), fn("sin", angle)
        t = mul(-1, s) if back else s
        return [add(mul(c, x), mul(-1, t, y)), add(mul(t, x), mul(c, y))]


@dataclass(frozen=True)
class _Sign:
    """What a state is multiplied by, of either sign: `factor` is that along one axis, or none, and `magnitude` the whole with
    that factor's magnitude. Where the factor is 0 the sign is one all the same, and the magnitude 0."""

    states: tuple[str, ...]
    factor: Node
    magnitude: Node
    word = "sign"

    @property
    def axes(self) -> tuple[str, ...]:
        return self.factor.axes

    def hidden(self, name: str) -> StateVar:
        return StateVar(name, _own(self.axes), expand(ONE, _own(self.axes)))

    def then(self, sign: Node) -> Node:
        """The product with one more unit."""
        return mul(sign, fn(UNIT_OF, self.factor))

    def turned(self, sign: Node, values: list[Node], back: bool = False) -> list[Node]:
        """Values times a product of signs, or divided by it, which is the same."""
        return [mul(sign if sign.op == "leaf" else fn(APART, sign), x) for x in values]


_Unit = _Rotation | _Sign


def _own(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a state that has these, as a state of its own has them: the second axis of a square one is its dim alone."""
    return tuple(map(dim_of, axes))


def _found(p: StepProgram, positive: Callable[[Node], bool]) -> tuple[list[_Unit], dict[str, Node]]:
    """The units of a step's states, and what each update adds to multiples of states."""
    factors: dict[tuple[str, str], Node] = {}
    rests: dict[str, Node] = {}
    states = {("state", s.name) for s in p.states}
    for s in p.states:
        found, rests[s.name] = _multiples(p.updates[s.name], s.axes, states)
        factors |= {(s.name, of): a for of, a in found.items() if a is not ZERO}
    groups = groups_of([s.name for s in p.states], factors)
    units: list[_Unit | None] = [_rotation(p, group, factors) for group in groups if len(group) == 2]
    for name, *others in groups:
        alone = not others and not _holds(rests[name])
        if alone and len(p.state(name).axes) == 2 and (name, name) in factors:
            units.append(_sign(name, factors[name, name], positive))
    return [u for u in units if u is not None], rests


def _rotation(p: StepProgram, group: tuple[str, ...], factors: dict[tuple[str, str], Node]) -> _Rotation | None:
    """Are both states multiplied by one magnitude, and turned into each other?"""
    one, two = group
    if p.state(one).axes != p.state(two).axes or not {(x, y) for x in group for y in group} <= factors.keys():
        return None
    own, other = factors[one, one], factors[two, one]
    if factors[two, two] is not own or add(factors[one, two], other) is not ZERO:
        return None
    for f in factors_of(own):
        if f.op != "fn" or f.attrs[0] != "cos" or len(f.axes) > 1:
            continue
        magnitude = mul(*(g for g in factors_of(own) if g is not f))
        for sign in (1, -1):
            if add(other, mul(-sign, magnitude, fn("sin", f.args[0]))) is ZERO:
                return _Rotation(group, mul(sign, f.args[0]), magnitude)
    return None


def _sign(name: str, factor: Node, positive: Callable[[Node], bool]) -> _Sign | None:
    """Is a state multiplied by something of either sign along one axis?"""
    signed = [f for f in factors_of(factor) if not positive(f) and not (f.op == "fn" and f.attrs[0] == MAGNITUDE)]
    if len({f.axes for f in signed if f.axes}) > 1 or any(len(f.axes) > 1 for f in signed) or not signed:
        return None
    own = mul(*signed)
    rest = mul(*(f for f in factors_of(factor) if f not in signed))
    return _Sign((name,), own, mul(rest, fn(MAGNITUDE, own)))


def _multiples(x: Node, axes: tuple[str, ...], states: set[tuple[str, str]]) -> tuple[dict[str, Node], Node]:
    """x as a sum over states, by name, of a factor times that state, and the rest, which may read states."""
    if x.op == "leaf" and x.attrs[:2] in states and x.attrs[2] == axes:
        return {x.attrs[1]: ONE}, ZERO
    if x.op == "expand" and set(x.axes) == set(x.args[0].axes):
        return _multiples(x.args[0], axes, states)
    if x.op == "add":
        parts = [_multiples(a, axes, states) for a in x.args]
        names = dict.fromkeys(n for found, _ in parts for n in found)
        return {n: add(*(found.get(n, ZERO) for found, _ in parts)) for n in names}, add(*(rest for _, rest in parts))
    if x.op == "mul":
        own = [a for a in x.args if leaf_names(a) & states]
        if len(own) == 1:
            found, rest = _multiples(own[0], axes, states)
            others = mul(*(a for a in x.args if a is not own[0]))
            if found:
                return {n: mul(others, a) for n, a in found.items()}, mul(others, rest)
    return {}, x


class _Moved:
    """A step, moved into the frame."""

    def __init__(self, p: StepProgram, units: list[_Unit], rests: dict[str, Node]) -> None:
        self.p, self.rests = p, rests
        taken = {*(v.name for v in p.variables), *(s.name for s in p.states), *p.outputs, *p.names.values()}
        self.unit: dict[str, _Unit] = {n: u for u in units for n in u.states}
        self.hidden = {u: u.hidden(_fresh(f"{u.states[0]}_{u.word}", taken)) for u in units}
        self.updates: dict[str, Node] = {}
        self.memo: dict[Node, Node] = {}

    def frame(self) -> Frame:
        p = self.p
        updates = {s.name: self.update(s.name) for s in p.states}
        outputs = {n: expand(self(x), x.axes) for n, x in p.outputs.items()}
        step = replace(
            p,
            states=(*self.hidden.values(), *p.states),
            updates={**{s.name: self._then(u) for u, s in self.hidden.items()}, **updates},
            outputs=outputs,
            names={x: n for x, n in p.names.items() if not _reads(x)},
            origins={self(x): where for x, where in p.origins.items()},
        )
        ends = {s.name: self._state(s.name, s.axes) for s in p.states}
        return Frame(step, tuple(s.name for s in self.hidden.values()), tuple(self.unit), ends)

    def update(self, name: str) -> Node:
        """What a state in the frame is after the step."""
        if name not in self.updates and name not in self.unit:
            self.updates[name] = expand(self(self.p.updates[name]), self.p.state(name).axes)
        elif name not in self.updates:
            u = self.unit[name]
            after = u.then(self._unit(u))
            found = {n: mul(u.magnitude, self.p.state(n).leaf) for n in u.states}
            for k, n in enumerate(u.states):
                for term in terms_of(self(self.rests[n])):
                    values = [term if k == j else ZERO for j in range(len(u.states))]
                    for m, x in zip(u.states, u.turned(after, values, back=True), strict=True):
                        found[m] = add(found[m], x)
            self.updates |= {n: expand(x, self.p.state(n).axes) for n, x in found.items()}
        return self.updates[name]

    def __call__(self, x: Node) -> Node:
        """A value of the step, over states in the frame."""
        if x not in self.memo:
            self.memo[x] = self._moved(x)
        return self.memo[x]

    def _moved(self, x: Node) -> Node:
        if not _reads(x):
            return x
        if x.op == "leaf":
            return self._state(x.attrs[1], x.attrs[2])
        for n in self.unit:
            mapping = _renaming(self.p.updates[n], x)
            if mapping is not None:
                return rename(self._after(n), mapping)
        args = [self(a) for a in x.args]
        if x.op == "mul":
            sums = [a for a in args if a.op == "add" and any(map(_holds, a.args))]
            if len(sums) == 1:
                rest = [a for a in args if a is not sums[0]]
                return add(*(mul(*rest, t) for t in sums[0].args))
        return rebuild(x, args)

    def _state(self, name: str, axes: tuple[str, ...]) -> Node:
        """A state before the step."""
        own = self.p.state(name)
        if name not in self.unit:
            return leaf("state", name, axes)
        u = self.unit[name]
        turned = u.turned(self._unit(u), [self.p.state(n).leaf for n in u.states])
        return rename(turned[u.states.index(name)], dict(zip(own.axes, axes, strict=True)))

    def _unit(self, u: _Unit) -> Node:
        """The product of all units before the step, over the axes of what it turns."""
        own = self.hidden[u]
        return rename(own.leaf, dict(zip(own.axes, u.axes, strict=True)))

    def _then(self, u: _Unit) -> Node:
        """That with the step's, over its own."""
        return rename(u.then(self._unit(u)), dict(zip(u.axes, self.hidden[u].axes, strict=True)))

    def _after(self, name: str) -> Node:
        """A state after the step."""
        u = self.unit[name]
        turned = u.turned(u.then(self._unit(u)), [self.update(n) for n in u.states])
        return expand(turned[u.states.index(name)], self.p.state(name).axes)


def _renaming(x: Node, other: Node) -> dict[str, str] | None:
    """What renames x's axes so that it is the other node; None where nothing does."""
    if x is other:
        return {}
    if x.op != other.op or len(x.axes) < 2 or sorted(map(dim_of, x.axes)) != sorted(map(dim_of, other.axes)):
        return None
    for axes in permutations(other.axes):
        mapping = dict(zip(x.axes, axes, strict=True))
        if all(dim_of(a) == dim_of(b) for a, b in mapping.items()) and rename(x, mapping) is other:
            return mapping
    return None


def _reads(x: Node) -> bool:
    return any(kind == "state" for kind, _ in leaf_names(x))


def _holds(x: Node) -> bool:
    """Does x hold a state as a whole?"""
    if x.op == "leaf":
        return x.attrs[0] == "state" and len(x.axes) > 1
    return x.op in ("add", "mul", "expand") and any(map(_holds, x.args))


def _fresh(wanted: str, taken: set[str]) -> str:
    name, n = wanted, 2
    while name in taken:
        name, n = f"{wanted}{n}", n + 1
    taken.add(name)
    return name
