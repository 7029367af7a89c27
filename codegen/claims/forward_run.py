"""The forward recurrence, step by step, on dual numbers: where the verifier takes the truth from.

It reads the spec's own equations, one scalar at a time, and shares nothing with the evaluator of formulas, nor with the
compiler. A dual number carries a vector of derivatives, one for each entry of the quantity that is varied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.expression import ONE, Atom, Contraction, entry

from .arithmetic import Arithmetic, Transcendental
from .branches import SIGNED, Branching, Taken, note
from .effort import WORK


class Dual:
    """A number and its derivatives (None where they are zero)."""

    __slots__ = ("arithmetic", "slope", "value")

    def __init__(self, arithmetic: Arithmetic, value: Any, slope: np.ndarray | None = None) -> None:
        self.arithmetic, self.value, self.slope = arithmetic, value, slope

    def __add__(self, other: Dual) -> Dual:
        a = self.arithmetic
        if self.slope is None or other.slope is None:
            slope = other.slope if self.slope is None else self.slope
        else:
            slope = a.reduce(self.slope + other.slope)
        return Dual(a, a.reduce(self.value + other.value), slope)

    def __mul__(self, other: Dual) -> Dual:
        a = self.arithmetic
        slope = None
        if self.slope is not None:
            slope = self.slope * other.value
        if other.slope is not None:
            slope = other.slope * self.value if slope is None else slope + other.slope * self.value
        return Dual(a, a.reduce(self.value * other.value), None if slope is None else a.reduce(slope))

    def chain(self, value: Any, derivative: Any) -> Dual:
        a = self.arithmetic
        return Dual(a, value, None if self.slope is None else a.reduce(self.slope * derivative))

    def inverted(self) -> Dual:
        a = self.arithmetic
        value = a.invert(self.value)
        return self.chain(value, a.reduce(-value * value))

    def power(self, exponent: sympy.Rational) -> Dual:
        if exponent == sympy.Rational(1, 2):
            a = self.arithmetic
            root = a.sqrt(self.value)
            return self.chain(root, a.reduce(a.invert(root) * a.number(sympy_fraction(exponent))))
        if not exponent.is_Integer:
            if exponent.q == 2:
                return self.power(sympy.Rational(1, 2)).power(sympy.Integer(exponent.p))
            raise Transcendental(f"power {exponent}")
        base = self if exponent > 0 else self.inverted()
        result = base
        for _ in range(abs(int(exponent)) - 1):
            result = result * base
        return result


def sympy_fraction(x: Any) -> Any:
    from fractions import Fraction

    return Fraction(int(x.p), int(x.q))


Table = list[list[Dual]]  # rows of entries


@dataclass
class Trajectory:
    """Every quantity of a run: `values[name][t]` as an array of plain numbers, and the loss."""

    values: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    loss: Dual | None = None


@dataclass(frozen=True)
class Vary:
    """Which quantity the derivatives are by: its name, or a state as it is `carried` to the next step; at all steps."""

    name: str
    carried: bool
    slots: dict[int, int]  # step -> offset of its first entry
    count: int


@dataclass(frozen=True)
class Step:
    """One step of a run: its number, the states before it, and what is known of it so far. `vary` is that of the run."""

    t: int
    vary: Vary | None = None
    previous: dict[str, Table] = field(default_factory=dict)
    memo: dict[str, Table] = field(default_factory=dict)


class Runner:
    """Runs a recurrence for n steps on given inputs."""

    def __init__(
        self, r: Recurrence, sizes: dict[str, int], steps: int, arithmetic: Arithmetic, taken: Taken | None = None
    ) -> None:
        self.r, self.sizes, self.steps, self.arithmetic = r, sizes, steps, arithmetic
        self.taken: Taken = {} if taken is None else taken
        self.inside: Matrix | None = None  # the map whose entries are computed
        # an output that is a let has its name: the let says what it is
        self.terms = {x.name: x.term for x in (*r.outputs, *r.lets)}
        self.updates = {x.name: x.term for x in r.updates}

    def run(
        self,
        inputs: dict[str, dict[int, np.ndarray]],
        initial: dict[str, np.ndarray],
        cotangents: dict[str, dict[int, np.ndarray]] | None = None,
        final: dict[str, np.ndarray] | None = None,
        vary: Vary | None = None,
    ) -> Trajectory:
        """The trajectory; `inputs` by name and step (step 0 for what doesn't change), `initial` the first values of states
        to which the recurrence gives none. With cotangents, also the loss."""
        self.inputs = inputs
        self.at = Step(0, vary)
        result = Trajectory()
        keep = result.values.setdefault
        states = {s.name: self.first(s, initial) for s in self.r.states}
        for name, x in states.items():
            keep(name, {})[0] = self.plain(x)
        loss = Dual(self.arithmetic, self.arithmetic.number(0))
        for t in range(1, self.steps + 1):
            previous = {name: self.nudge(x, name, t - 1, carried=True) for name, x in states.items()}
            self.at = Step(t, vary, previous)
            states = {name: self.quantity(f"{name}.next") for name in states}
            for name in (*states, *self.terms):
                value = states[name] if name in states else self.quantity(name)
                keep(name, {})[t] = self.plain(value)
            if cotangents is not None:
                for name, by_step in cotangents.items():
                    if t in by_step:
                        value = states[name] if name in states else self.quantity(name)
                        loss = loss + self.paired(value, by_step[t])
        if final is not None:
            last = {name: self.nudge(x, name, self.steps, carried=True) for name, x in states.items()}
            for name, weights in final.items():
                loss = loss + self.paired(last[name], weights)
        result.loss = loss
        return result

    # --- values

    def first(self, s: Any, initial: dict[str, np.ndarray]) -> Table:
        """A state before the first step."""
        if s.initial is None:
            return self.table(initial[s.name], s.name, 0)
        return self.nudge(self.spread(self.term(s.initial), s.dims), s.name, 0)

    def spread(self, value: Table, dims: Any) -> Table:
        """A value of a state, where it may be one number for all entries."""
        if len(value) == 1 and len(value[0]) == 1 and dims:
            rows, cols = self.shape(dims)
            return [[value[0][0]] * cols for _ in range(rows)]
        return value

    def quantity(self, name: str) -> Table:
        base, _, which = name.partition(".")
        if which == "prev":
            return self.at.previous[base]
        memo, t = self.at.memo, self.at.t
        if name not in memo:
            if which == "next":
                state = next(s for s in self.r.states if s.name == base)
                value = self.spread(self.term(self.updates[base]), state.dims)
                memo[name] = self.nudge(value, base, t)
            elif name in self.terms:
                memo[name] = self.nudge(self.term(self.terms[name]), name, t)
            else:
                by_step = self.inputs[name]
                at = t if t in by_step else 0
                memo[name] = self.table(by_step[at], name, at)
        return memo[name]

    def shape(self, dims: Any) -> tuple[int, int]:
        rows, cols = (*dims, ONE, ONE)[:2]
        return self.size(rows), self.size(cols)

    def size(self, dim: Any) -> int:
        return 1 if dim is ONE or str(dim) == "1" else self.sizes[str(dim)]

    def constant(self, x: Any) -> Dual:
        return Dual(self.arithmetic, self.arithmetic.number(x))

    def table(self, x: np.ndarray, name: str, t: int) -> Table:
        return self.nudge([[Dual(self.arithmetic, v) for v in row] for row in x], name, t)

    def plain(self, x: Table) -> np.ndarray:
        return np.array([[v.value for v in row] for row in x], dtype=object)

    def nudge(self, x: Table, name: str, t: int, carried: bool = False) -> Table:
        """x, with a derivative direction for each entry if it is what is varied."""
        v = self.at.vary
        if v is None or v.name != name or v.carried != carried or t not in v.slots:
            return x
        rows: Table = []
        for i, row in enumerate(x):
            rows.append([])
            for j, entry_ in enumerate(row):
                slope = np.full(v.count, self.arithmetic.number(0), dtype=object)
                slope[v.slots[t] + i * len(row) + j] = self.arithmetic.number(1)
                rows[-1].append(entry_ + Dual(self.arithmetic, self.arithmetic.number(0), slope))
        return rows

    def paired(self, x: Table, weights: np.ndarray) -> Dual:
        result = self.constant(0)
        for i, row in enumerate(x):
            for j, value in enumerate(row):
                result = result + value * Dual(self.arithmetic, weights[i, j])
        return result

    # --- the spec's terms

    def term(self, m: Any) -> Table:
        found = self.computed(m)
        WORK.done += 1 + len(found) * len(found[0]) * (1 if self.at.vary is None else 2 + self.at.vary.count // 16) // 8
        return found

    def computed(self, m: Any) -> Table:
        if not isinstance(m, Matrix):
            return [[self.scalar(m, {})]]
        match m.op:
            case "symbol":
                return self.quantity(m.args[0])
            case "add":
                a, b = (self.term(x) for x in m.args)
                return [[x + y for x, y in zip(r, s)] for r, s in zip(a, b)]
            case "matmul":
                a, b = (self.term(x) for x in m.args)
                return [[self.dot(row, [r[j] for r in b]) for j in range(len(b[0]))] for row in a]
            case "scale":
                factor = self.scalar(m.args[0], {})
                return [[factor * x for x in row] for row in self.term(m.args[1])]
            case "transpose":
                return [list(row) for row in zip(*self.term(m.args[0]))]
            case "hadamard":
                a, b = (self.term(x) for x in m.args)
                return [[x * y for x, y in zip(r, s)] for r, s in zip(a, b)]
            case "diag":
                a = self.term(m.args[0])
                zero = self.constant(0)
                return [[a[i][0] if i == j else zero for j in range(len(a))] for i in range(len(a))]
            case "map":
                body, *args = m.args
                tables = [self.term(x) for x in args]
                outside, self.inside = self.inside, m
                result = [
                    [
                        self.scalar(body, {entry(k): table[i][j] for k, table in enumerate(tables)})
                        for j in range(len(tables[0][0]))
                    ]
                    for i in range(len(tables[0]))
                ]
                self.inside = outside
                return result
            case "eye":
                size = self.size(m.rows)
                return [[self.constant(int(i == j)) for j in range(size)] for i in range(size)]
            case "full":
                return [[self.scalar(m.args[0], {})] * self.size(m.cols) for _ in range(self.size(m.rows))]
        raise AssertionError(m.op)

    def dot(self, a: list[Dual], b: list[Dual]) -> Dual:
        result = a[0] * b[0]
        for x, y in zip(a[1:], b[1:]):
            result = result + x * y
        return result

    def scalar(self, x: Any, slots: dict[Any, Dual]) -> Dual:
        if x in slots:
            return slots[x]
        if isinstance(x, Contraction):
            return self.term(x.matrix)[0][0]
        if isinstance(x, Atom):
            return self.quantity(x.name)[0][0]
        if x.is_Rational:
            return self.constant(sympy_fraction(x))
        if x.is_Add or x.is_Mul:
            parts = [self.scalar(a, slots) for a in x.args]
            result = parts[0]
            for other in parts[1:]:
                result = result + other if x.is_Add else result * other
            return result
        if x.is_Pow and x.args[1].is_Rational:
            return self.scalar(x.args[0], slots).power(x.args[1])
        if isinstance(x, sympy.Max | sympy.Min):
            return self.extreme(x, [self.scalar(a, slots) for a in x.args])
        if x.is_number and self.arithmetic.kind == "real":
            return Dual(self.arithmetic, self.arithmetic.real(str(x.evalf(60))))
        if x.is_Pow:
            base, exponent = (self.scalar(a, slots) for a in x.args)
            inner = exponent * base.chain(*self.arithmetic.function("log", base.value))
            return inner.chain(*self.arithmetic.function("exp", inner.value))
        if x.is_Function and len(x.args) == 1:
            inner = self.scalar(x.args[0], slots)
            name = x.func.__name__.rstrip("_").lower()
            if name in SIGNED and self.arithmetic.kind == "real" and inner.value != 0:
                note(self.taken, Branching(x, self.inside), int(inner.value > 0))
            return inner.chain(*self.arithmetic.function(name, inner.value))
        raise Transcendental(str(x))

    def extreme(self, x: Any, parts: list[Dual]) -> Dual:
        if self.arithmetic.kind in ("field", "symbolic"):
            raise Transcendental("max")
        sign = 1 if isinstance(x, sympy.Max) else -1
        best = max(parts, key=lambda part: sign * part.value)
        if sum(part.value == best.value for part in parts) == 1:
            note(self.taken, Branching(x, self.inside), parts.index(best))
        return best
