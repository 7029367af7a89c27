"""A random instance: numbers for everything that a setting gives, and what follows from them.

What the recurrence computes, and its gradients, come from `run.py`; what the setting defines by formulas, from
`evaluate.py`. An instance can be special: dims of size 1, two quantities equal, a decay of 1 (see `conditions.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import sympy

from chunkform.spec.language.claims import LENGTH, Quantity, Setting
from chunkform.spec.language.formula import Formula

from .arithmetic import FIELD, Arithmetic, Undefined
from .branches import Around, Taken
from .conditioned import of_scalar
from .forward_run import Runner, Trajectory, Vary
from .special import GENERIC, Likeness, Special, likeness
from .values import ShapeFault, Value


class OutOfRange(Undefined):
    """A quantity at an index where it doesn't exist."""


class Beyond(OutOfRange):
    """A sum or a product, `node`, runs to where a term has no value, though others have one."""

    def __init__(self, message: str, node: Formula) -> None:
        super().__init__(message)
        self.node = node


class TooMany(Exception):
    """A formula runs an index over more values than are tried."""


LONGEST = 10_000  # the most values of an index


@dataclass
class Instance:
    """`bodies` overrides definitions: a reading's choice, or a repaired definition. `around`: what is drawn near which
    constants; `taken`: the branches that were taken."""

    setting: Setting
    sizes: dict[str, int]
    arithmetic: Arithmetic = FIELD
    seed: int = 0
    bodies: Mapping[str, Formula] = field(default_factory=dict)
    special: Special = GENERIC
    spread: int = 3
    assigned: dict[tuple[str, tuple[int, ...]], np.ndarray] = field(default_factory=dict)
    sampled: dict[tuple[str, tuple[int, ...]], np.ndarray] = field(default_factory=dict)
    around: Around = ()
    taken: Taken = field(default_factory=dict)
    evaluate: Callable[[Formula], Value] | None = None  # set by who reads formulas in this instance

    def __post_init__(self) -> None:
        for name, body in self.setting.derived_sizes.items():
            self.sizes = {**self.sizes, name: integer(body, {}, self.sizes)}

    def like(self, name: str, index: tuple[int, ...]) -> Likeness:
        """What is so of a quantity with this index."""
        so = self.setting.premises
        always = not so.step or not index or (index == (0,) and name in self.fixed)
        return likeness(self.special, so, always or index == (self.special.only,))

    @cached_property
    def fixed(self) -> set[str]:
        """Inputs of the recurrence that are the same at every step."""
        r = self.setting.recurrence
        return {v.name for v in r.variables if v.is_timeless} if r is not None else set()

    def restart(self, assigned: dict[tuple[str, tuple[int, ...]], np.ndarray]) -> None:
        """Take these values instead of others; what was computed of others is forgotten."""
        self.assigned, self.evaluate = assigned, None
        self.sampled.clear()
        for name in [n for n, x in vars(type(self)).items() if isinstance(x, cached_property)]:
            self.__dict__.pop(name, None)

    def size(self, dim: str) -> int:
        if dim == "1":
            return 1
        if "+" in dim:
            return sum(self.size(x) for x in dim.split("+"))
        return self.sizes[dim]

    # --- what is given

    def sample(self, name: str, index: tuple[int, ...], dims: tuple[str, str], domain: str) -> np.ndarray:
        """The value of something given: assigned, or random, the same each time."""
        name = self.like(name, index).name_of(name)
        key = (name, () if name in self.setting.premises.constant else index)
        if key not in self.sampled:
            self.sampled[key] = self.assigned[key] if key in self.assigned else self._draw(key, dims, domain)
        return self.sampled[key]

    def _draw(self, key: tuple[str, tuple[int, ...]], dims: tuple[str, str], domain: str) -> np.ndarray:
        rng = random.Random(f"{self.seed}/{key}")
        shape = self.size(dims[0]), self.size(dims[1])
        a = np.empty(shape, dtype=object)
        constants = dict(self.around).get(key[0])
        if constants is not None:
            centre = rng.choice([Fraction(0), *constants, *(-c for c in constants)])
            width = rng.choice([Fraction(1), Fraction(8), *constants])
        for i in range(shape[0]):
            for j in range(shape[1]):
                if self.arithmetic.kind == "symbolic":
                    a[i, j] = symbol_of(key, (i, j), shape)
                elif constants is not None:
                    a[i, j] = self.arithmetic.near(rng, domain, centre, width)
                else:
                    a[i, j] = self.arithmetic.sample(rng, domain, self.spread)
        name = key[0]
        limits = of_scalar(self.setting.premises, name) if self.arithmetic.kind in ("fraction", "real") else None
        if limits is not None and constants is None:
            for at in np.ndindex(shape):
                a[at] = self.arithmetic.number(limits.drawn(rng, domain))
        so = self.like(*key)
        if name in so.value:
            a[:] = self.arithmetic.number(so.value[name])
        if name in so.identity:
            a[:] = self.arithmetic.number(0)
            np.fill_diagonal(a, self.arithmetic.number(1))
        if name in so.unit:
            a = self._of_norm_one(a)
        if (name in so.symmetric or domain == "symmetric") and shape[0] == shape[1]:
            a = self.arithmetic.reduce(a + a.T)
        if domain == "matrix" and self.arithmetic.kind == "real":
            a = around_identity(a, (0.3, 0.6, 0.8, 1.2, 1.6, 2.5)[self.seed % 6])
        return a

    def _of_norm_one(self, a: np.ndarray) -> np.ndarray:
        """The point of the unit sphere that a line through its pole and the other entries of a meets."""
        rest = a.flat[1:]
        if not len(rest):
            return np.full_like(a, self.arithmetic.number(1))
        below = self.arithmetic.invert(self.arithmetic.reduce(sum(x * x for x in rest) + self.arithmetic.number(1)))
        point = [1 - 2 * below, *(2 * x * below for x in rest)]
        return self.arithmetic.reduce(np.array(point, dtype=object).reshape(a.shape))

    def given(self, q: Quantity, index: tuple[int, ...]) -> np.ndarray:
        for i, (low, high) in zip(index, q.ranges):
            if not integer(low, {}, self.sizes) <= i <= integer(high, {}, self.sizes):
                raise OutOfRange(f"{q.name} has no value at {i}")
        return self.sample(q.name, index, q.dims, q.domain)

    # --- what the recurrence gives

    @cached_property
    def runner(self) -> Runner:
        r = self.setting.recurrence
        assert r is not None
        return Runner(r, self.sizes, self.sizes[LENGTH], self.arithmetic, self.taken)

    @cached_property
    def inputs(self) -> dict[str, dict[int, np.ndarray]]:
        r = self.setting.recurrence
        assert r is not None
        found: dict[str, dict[int, np.ndarray]] = {}
        for v in r.variables:
            dims = dims_of(v.dims)
            steps = (0,) if v.is_timeless else range(1, self.sizes[LENGTH] + 1)
            said = self.setting.quantities.get(v.name)
            domain = "decay" if v.is_decay else said.domain if said is not None else "real"
            found[v.name] = {t: self.sample(v.name, (t,), dims, domain) for t in steps}
        return found

    @cached_property
    def initial(self) -> dict[str, np.ndarray]:
        r = self.setting.recurrence
        assert r is not None
        return {s.name: self.first(s) for s in r.states if s.initial is None}

    def first(self, s: Any) -> np.ndarray:
        """A state's first value: what the setting says, or anything."""
        said = self.setting.initial.get(s.name)
        rows, cols = dims_of(s.dims)
        if said is None:
            return self.sample(s.name, (0,), (rows, cols), "real")
        assert self.evaluate is not None, "an instance is read through an Evaluator"
        value = self.evaluate(said)
        if not value.is_scalar and value.shape != (rows, cols):
            raise ShapeFault(f"{s.name}(0) is {rows} x {cols}, but its first value {said} is {value.shown}")
        return np.broadcast_to(value.a, (self.size(rows), self.size(cols))).copy()

    @cached_property
    def trajectory(self) -> Trajectory:
        return self.runner.run(self.inputs, self.initial)

    @cached_property
    def cotangents(self) -> dict[str, dict[int, np.ndarray]]:
        r = self.setting.recurrence
        assert r is not None
        return {
            x.name: {
                t: self.sample(f"d{x.name}", (t,), term_dims(x.term), "real") for t in range(1, self.sizes[LENGTH] + 1)
            }
            for x in r.outputs
        }

    @cached_property
    def final(self) -> dict[str, np.ndarray]:
        r = self.setting.recurrence
        assert r is not None
        if not self.setting.final_loss:
            zero = self.arithmetic.number(0)
            return {s.name: np.full(tuple(map(self.size, dims_of(s.dims))), zero, dtype=object) for s in r.states}
        return {s.name: self.sample(f"d{s.name}", (self.sizes[LENGTH],), dims_of(s.dims), "real") for s in r.states}

    def spec(self, q: Quantity, t: int) -> np.ndarray:
        """An input, state, let or output of the recurrence at step t."""
        if q.source in self.inputs:
            by_step = self.inputs[q.source]
            if not q.parameters:
                return by_step[0]
        else:
            by_step = self.trajectory.values[q.source]
        if t not in by_step:
            raise OutOfRange(f"{q.name} has no value at step {t}")
        return by_step[t]

    @cached_property
    def gradients(self) -> dict[str, dict[int, np.ndarray]]:
        """Of the loss, by quantity and step, as far as they were asked for."""
        return {}

    def gradient(self, q: Quantity, t: int) -> np.ndarray:
        """The gradient of the loss by a quantity of the recurrence at step t, by dual numbers."""
        r = self.setting.recurrence
        assert r is not None
        if q.source in {x.name for x in r.outputs}:
            by_step = self.cotangents[q.source]
        else:
            if q.source not in self.gradients:
                self.gradients[q.source] = self._differentiate(q)
            by_step = self.gradients[q.source]
        if t not in by_step:
            raise OutOfRange(f"{q.name} has no value at step {t}")
        if q.kind != "log gradient":
            return by_step[t]
        return self.arithmetic.reduce(by_step[t] * self.inputs[q.source][t])

    def _differentiate(self, q: Quantity) -> dict[int, np.ndarray]:
        r = self.setting.recurrence
        assert r is not None
        name, _, how = q.source.partition(".")
        shape = self.size(q.dims[0]), self.size(q.dims[1])
        n = self.sizes[LENGTH]
        if any(s.name == name for s in r.states):
            steps = range(n + 1)
        else:
            steps = range(1, n + 1) if q.parameters else range(1)
        entries = shape[0] * shape[1]
        vary = Vary(name, bool(how), {t: k * entries for k, t in enumerate(steps)}, entries * len(steps))
        loss = self.runner.run(self.inputs, self.initial, self.cotangents, self.final, vary).loss
        assert loss is not None
        slope = loss.slope if loss.slope is not None else np.full(vary.count, self.arithmetic.number(0), dtype=object)
        return {t: slope[vary.slots[t] : vary.slots[t] + entries].reshape(shape) for t in steps}

    def response(self, of: Quantity, at: int, by: Quantity, when: int, along: np.ndarray) -> np.ndarray:
        """<along, of(at)> differentiated by by(when)."""
        shape = self.size(by.dims[0]), self.size(by.dims[1])
        vary = Vary(by.source, False, {when: 0}, shape[0] * shape[1])
        if of.source in self.inputs or not self.runner.r.states:
            raise Undefined(f"{of.name} is an input")
        run = self.runner.run(self.inputs, self.initial, {of.source: {at: along}}, None, vary)
        assert run.loss is not None
        if run.loss.slope is None:
            return np.full(shape, self.arithmetic.number(0), dtype=object)
        return run.loss.slope.reshape(shape)


def symbol_of(key: tuple[str, tuple[int, ...]], at: tuple[int, int], shape: tuple[int, int]) -> sympy.Symbol:
    """The symbol of one entry: q2_1 is entry 1 of q at step 2."""
    entry = [str(k + 1) for k, size in zip(at, shape) if size > 1]
    step = "".join(map(str, key[1]))
    return sympy.Symbol("_".join([key[0] + step, *(["".join(entry)] if entry else [])]), positive=True)


def around_identity(a: np.ndarray, radius: float) -> np.ndarray:
    """I - G, with G scaled so that its eigenvalues reach this radius: on both sides of where a Neumann series
    converges."""
    own = max(abs(np.linalg.eigvals(a.astype(float))))
    return np.array([[int(i == j) for j in range(len(a))] for i in range(len(a))], dtype=object) - a * radius / own


def dims_of(dims: Any) -> tuple[str, str]:
    first, second = (*(str(x) for x in dims), "1", "1")[:2]
    return first, second


def term_dims(term: object) -> tuple[str, str]:
    rows, cols = getattr(term, "shape", ("1", "1"))
    return str(rows), str(cols)


def integer(x: Formula, env: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The value of a formula of indices and sizes."""
    match x.op:
        case "number":
            if x.attrs[0].denominator != 1:
                raise Undefined(f"{x} is not a whole number")
            return int(x.attrs[0])
        case "index":
            if x.attrs[0] not in env:
                raise Undefined(f"the index {x} has no value here")
            return env[x.attrs[0]]
        case "size":
            return sizes[x.attrs[0]]
        case "add":
            return sum(integer(a, env, sizes) for a in x.args)
        case "negative":
            return -integer(x.args[0], env, sizes)
        case "product":
            result = 1
            for a in x.args:
                result *= integer(a, env, sizes)
            return result
        case "function" if x.attrs == ("relu",):
            return max(0, integer(x.args[0], env, sizes))
    raise Undefined(f"{x} can't be an index")
