"""Do two specs say the same? Both are run from the terms that their authors wrote, over the same random inputs.

Where they agree in the field of integers modulo 2^61 - 1, they are equal as expressions, up to a tiny probability; where an
identity between functions is meant, 50 digits decide. Where they differ, small whole numbers are sought that show it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction

import mpmath
import numpy as np
import sympy

from chunkform.errors import SpecError
from chunkform.spec.language import Recurrence
from chunkform.spec.language.expression import Contraction, Dim, Matrix
from chunkform.spec.language.recurrence import Variable

from ..ir.evaluate import Field, RandomNumbers, Reals
from ..ir.step_program import DECAYS
from .run_spec import NoExactMeaning, Values, initial_value, run_spec

STEPS = 6  # over which both run at least, and MOST for the sake of a count that is compared with a number
MOST = 40
SIZES = (2, 3, 4)  # of dims, in turn; each dim has another
POINTS = 3
SMALL = (0, 1, -1, 2, -2, 3)  # numbers of a counterexample
KEPT = (Fraction(1, 2), Fraction(1), Fraction(1, 4))  # decays of one
DIGITS = (6, 12, 40)  # of what both make, as few as tell them apart
FLOAT = 16  # that a float has
TRIES = 12  # counterexamples that are tried for each number of steps
FAILS = (ZeroDivisionError, ValueError, TypeError, OverflowError)  # outside of a function's domain
REACHED = 10**4  # numbers of specs that inputs are drawn as large as


@dataclass(frozen=True)
class Difference:
    """What both make of the same inputs: an output of a step."""

    output: str
    step: int
    values: tuple[str, str]
    sizes: dict[str, int]
    given: dict[str, str]


@dataclass(frozen=True)
class Same:
    """Whether two specs give the same outputs from the same inputs, from their own first states on. `exact`: as expressions.
    `notes`: what was found beside it, or not looked at."""

    first: str
    second: str
    difference: Difference | None
    exact: bool
    steps: int = STEPS
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return self.difference is None

    def to_json(self) -> str:
        """As `chunkform verify --same-as .. --json` writes it."""
        return json.dumps({**asdict(self), "same": self.same}, indent=2) + "\n"

    def __str__(self) -> str:
        if self.difference is None:
            how = "exactly" if self.exact else "to 35 digits"
            told = (
                f"{self.first} and {self.second} are the same: at {POINTS} random points, over {self.steps} steps, their outputs "
                f"agree {how}"
            )
            return "; ".join([told, *self.notes])
        x = self.difference
        return "\n".join(
            [
                f"{self.first} and {self.second} differ: {x.output} of step {x.step} is {x.values[0]} in {self.first} and "
                f"{x.values[1]} in {self.second}, where",
                *(f"    {name} = {value}" for name, value in (*x.sizes.items(), *x.given.items())),
            ]
        )


def same(a: Recurrence, b: Recurrence, names: Mapping[str, str] | None = None) -> Same:
    """Compare two specs. `names`: what is called otherwise in b, by its name in a: inputs, parameters, constants and outputs.

    Raises:
        SpecError: one has an input or an output that the other hasn't, or one over other dims.
    """
    pair = _Pair(a.validate(), b.validate(), dict(names or {}))
    notes = tuple(pair.defaults())
    try:
        if _differ(pair, Field()) is None:
            return Same(a.name, b.name, None, True, pair.steps, (*notes, *_domain(pair)))
    except NoExactMeaning:
        pass
    m = _Watched()
    found = _differ(pair, m) or _beyond(pair, m)
    notes = (
        *notes,
        *_domain(pair),
        *(f"only one side of {x} was met" for x, sides in m.sides.items() if len(sides) < len(x.args)),
    )
    return Same(a.name, b.name, found and (pair.smaller() or found), False, pair.steps, notes)


def _differ(pair: _Pair, m: RandomNumbers) -> Difference | None:
    """Where both differ at random points, numbers of the size of 1 and larger ones in turn; positive ones where there is no value
    otherwise."""
    done, failed = 0, False
    for n in range(20):
        try:
            found = pair.difference(pair.point(m, n, 1 + 3 * (n % 2), failed))
        except FAILS:
            failed = True
            continue
        done += 1
        if found is not None or done == POINTS:
            return found
    raise SpecError(f"no numbers were found for which both {pair.a.name} and {pair.b.name} have values")


def _beyond(pair: _Pair, m: RandomNumbers) -> Difference | None:
    """Where both differ among inputs that reach the numbers which the specs compare with."""
    for x, n in itertools.product((x for x in pair.compared if 2 < x <= REACHED), range(POINTS)):
        with contextlib.suppress(*FAILS):
            found = pair.difference(pair.point(m, n, math.ceil(2 * x), False))
            if found is not None:
                return found
    return None


def _domain(pair: _Pair) -> Iterator[str]:
    """Where one has a value and the other has none, as log(x) where x is negative."""
    for n in range(POINTS):
        point = pair.point(Reals(), n, 1, False)
        first, second = (pair.lacks(point, x) for x in (False, True))
        if first != second:
            has, lacks = (pair.b.name, pair.a.name) if first else (pair.a.name, pair.b.name)
            yield f"{lacks} has no value for some numbers for which {has} has one, as a logarithm has none of what is negative"
            return


class _Watched(Reals):
    """Which side of each maximum and minimum was the one."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: dict[sympy.Expr, set[int]] = {}


@dataclass(frozen=True)
class _Point:
    arithmetic: RandomNumbers
    sizes: dict[str, int]
    given: Values
    steps: int


class _Pair:
    """Two specs, and what in the second is what in the first."""

    def __init__(self, a: Recurrence, b: Recurrence, names: dict[str, str]) -> None:
        self.a, self.b, self.names = a, b, names
        own = {v.name for v in a.variables} | {x.name for x in a.outputs}
        if unknown := [n for n in names if n not in own]:
            theirs = {v.name for v in b.variables} | {x.name for x in b.outputs}
            turned = unknown[0] in theirs and names[unknown[0]] in own
            hint = f"; {b.name} has: write it as {names[unknown[0]]}={unknown[0]}" if turned else ""
            raise SpecError(
                f"{a.name} has no {unknown[0]!r}: names are of its inputs, parameters, constants and outputs{hint}"
            )
        self.compared = sorted(_compared(a) | _compared(b))
        counts = [math.ceil(x) + 2 for x in self.compared if x <= MOST]
        self.steps = max([STEPS, len(a.states) + 2, len(b.states) + 2, *counts])
        self.dims: dict[str, str] = {}  # of b, by those of a
        known = {v.name: v for v in b.variables}
        for v in a.variables:
            other = known.pop(self.of(v.name), None)
            if other is None:
                raise SpecError(f"{b.name} has no {self.of(v.name)!r}, as {a.name} has: {_names_hint(a, b)}")
            self._meet(v, other)
        if known:
            raise SpecError(f"{a.name} has no {next(iter(known))!r}, as {b.name} has: {_names_hint(a, b)}")
        outputs, others = {self.of(x.name) for x in a.outputs}, {x.name for x in b.outputs}
        if outputs != others:
            missing = sorted(outputs ^ others)[0]
            raise SpecError(
                f"the output {missing!r} is of one of {a.name} and {b.name} alone: give the names of the second by those of the "
                "first"
            )

    def of(self, name: str) -> str:
        return self.names.get(name, name)

    def _meet(self, v: Variable, other: Variable) -> None:
        if v.kind != other.kind or len(v.dims) != len(other.dims):
            raise SpecError(f"{v.name} is {_said(v)} in {self.a.name}, and {_said(other)} in {self.b.name}")
        for d, e in zip(v.dims, other.dims, strict=True):
            if self.dims.setdefault(d.name, e.name) != e.name:
                raise SpecError(
                    f"the dim {d} of {self.a.name} is {self.dims[d.name]} in {self.b.name}, and {v.name} is over {e} there"
                )

    def defaults(self) -> Iterator[str]:
        """Constants whose defaults differ."""
        known = {v.name: v.default for v in self.b.variables}
        for v in self.a.variables:
            other = known[self.of(v.name)]
            if v.default != other:
                yield f"the default of {v.name} is {v.default} in {self.a.name}, and {other} in {self.b.name}"

    def lacks(self, p: _Point, second: bool) -> bool:
        """Has one of both no value at a point?"""
        try:
            self._run(p, second)
        except FAILS:
            return True
        return False

    def _run(self, p: _Point, second: bool) -> dict[str, list[np.ndarray]]:
        if not second:
            return _outputs(self.a, p.given, p.arithmetic, p.sizes, p.steps)
        sizes = {self.dims[d]: k for d, k in p.sizes.items()}
        return _outputs(self.b, {self.of(n): x for n, x in p.given.items()}, p.arithmetic, sizes, p.steps)

    def point(self, m: RandomNumbers, n: int, scale: int, positive: bool) -> _Point:
        """Random values; nothing is 0 or 1 in them."""
        rng = random.Random(f"{self.a.name}/{self.b.name}/{n}")
        dims = [d.name for d in self.a.dim_list]
        sizes = {d: SIZES[(k + n) % len(SIZES)] for k, d in enumerate(dims)}

        def value(v: Variable) -> np.ndarray:
            decay = v.kind in DECAYS
            found = m.random(rng, self._shape(v, sizes, self.steps), decay)
            if not decay and not m.exact:
                found = m.mul(np.asarray(abs(found) if positive else found, dtype=object), m.const(Fraction(scale)))
            return found if v.domain is None or m.exact else _within(m, found, v)

        return _Point(m, sizes, {v.name: value(v) for v in self.a.variables}, self.steps)

    def _shape(self, v: Variable, sizes: dict[str, int], steps: int) -> tuple[int, ...]:
        own = tuple(sizes[d.name] for d in v.dims)
        return (steps, *own) if v.kind in ("input", "decay") else own

    def difference(self, p: _Point) -> Difference | None:
        """The first output in which both differ."""
        m = p.arithmetic
        one, other = self._run(p, False), self._run(p, True)
        for t, x in itertools.product(range(p.steps), self.a.outputs):
            mine, theirs = (np.asarray(y[t], dtype=object).ravel() for y in (one[x.name], other[self.of(x.name)]))
            if mine.shape != theirs.shape or not m.equal(mine, theirs):
                shown = {v.name: _text(self._until(p, v, t)) for v in self.a.variables}
                return Difference(x.name, t + 1, _apart(mine, theirs), p.sizes, shown)
        return None

    def _until(self, p: _Point, v: Variable, t: int) -> np.ndarray:
        """What is given of a quantity up to a step."""
        return p.given[v.name][: t + 1] if v.kind in ("input", "decay") else p.given[v.name]

    def smaller(self) -> Difference | None:
        """The same with few steps, small sizes and small numbers, if such are found."""
        m = Reals()
        for size, steps in itertools.product((1, 2), range(1, self.steps + 1)):
            sizes = {d.name: size for d in self.a.dim_list}
            for given in self._small(m, sizes, steps):
                try:
                    found = self.difference(_Point(m, sizes, given, steps))
                except FAILS:
                    continue
                if found is not None:
                    return found
        return None

    def _small(self, m: Reals, sizes: dict[str, int], steps: int) -> Iterator[Values]:
        rng = random.Random(steps)
        for _ in range(TRIES):
            given = {}
            for v in self.a.variables:
                shape = self._shape(v, sizes, steps)
                some = [Fraction(x) for x in (KEPT if v.kind in DECAYS or v.domain is not None else SMALL)]
                drawn = [m.const(rng.choice(some)).item() for _ in range(int(np.prod(shape)))]
                given[v.name] = np.array([*drawn, None], dtype=object)[:-1].reshape(shape)
                if v.domain is not None:
                    given[v.name] = _within(m, given[v.name], v)
            yield given


def _outputs(
    r: Recurrence, given: Values, m: RandomNumbers, sizes: dict[str, int], steps: int
) -> dict[str, list[np.ndarray]]:
    zero = np.asarray(m.const(Fraction(0)), dtype=object).item()
    first = {}
    for s in r.states:
        shape = tuple(sizes[d.name] for d in s.dims)
        if s.initial is None:
            first[s.name] = np.full(shape, zero, dtype=object)
        else:
            first[s.name] = np.array(initial_value(r, s.name, given, m, sizes), dtype=object)
    return run_spec(r, given, first, m, sizes, steps)[0]


def _compared(r: Recurrence) -> set[Fraction]:
    """Numbers that something is compared with: of maxima, minima and magnitudes."""
    found: set[Fraction] = set()
    todo: list[object] = [x.term for x in (*r.lets, *r.updates, *r.outputs)]
    while todo:
        x = todo.pop()
        if isinstance(x, Matrix):
            todo += x.args
        elif isinstance(x, sympy.Basic):
            todo += [c.matrix for c in x.atoms(Contraction)]
            for y in x.atoms(sympy.Max, sympy.Min, sympy.Abs):
                found |= {abs(Fraction(str(n))) for n in y.atoms(sympy.Number) if n.is_Rational or n.is_Float}
    return found


def _within(m: RandomNumbers, x: np.ndarray, v: Variable) -> np.ndarray:
    """Numbers of what the author says of a quantity."""
    assert v.domain is not None
    low, high = v.domain
    if low is not None and high is not None:
        return m.add(m.const(low), m.mul(m.const(high - low), m.fn("sigmoid", x)))
    sign, bound = (1, low) if low is not None else (-1, high)
    return m.add(m.const(Fraction(bound or 0)), m.mul(m.const(Fraction(sign)), m.fn("exp", x)))


def _apart(x: np.ndarray, y: np.ndarray) -> tuple[str, str]:
    """Both as texts, of as many digits as it takes for them to differ."""
    return next((_text(x, n), _text(y, n)) for n in DIGITS if n == DIGITS[-1] or _text(x, n) != _text(y, n))


def _text(x: np.ndarray, digits: int = DIGITS[0]) -> str:
    """Numbers as a person writes them, in lists where there are several."""
    if isinstance(x, np.ndarray) and x.ndim:
        return _text(x[0], digits) if x.shape == (1,) else f"[{', '.join(_text(y, digits) for y in x)}]"
    number = x.item() if isinstance(x, np.ndarray) else x
    return mpmath.nstr(number, digits) if digits > FLOAT else f"{float(number):.{digits}g}"


def _said(v: Variable) -> str:
    dims: tuple[Dim, ...] = v.dims
    return f"{'an' if v.kind[0] in 'aeiou' else 'a'} {v.kind}" + (f" over {' x '.join(map(str, dims))}" if dims else "")


def _names_hint(a: Recurrence, b: Recurrence) -> str:
    mine, theirs = (", ".join(v.name for v in r.variables) for r in (a, b))
    told = f"{a.name} is given {mine}, and {b.name} {theirs}"
    return f"{told}; give the names of the second by those of the first"
