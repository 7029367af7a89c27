"""Run a step program over a sequence, step by step: the definition that everything else is checked against."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import numpy as np

from ...ir.evaluate import Arithmetic, Dual, Entries, Env, Field, Pair, RandomNumbers, Reals, V, each, evaluate_all
from ...ir.expr import dim_of
from ...ir.step_program import Domain, StepProgram, Var

Sequences = dict[str, np.ndarray]  # name -> one array, with a leading time axis where the variable is per step


def run_steps(
    program: StepProgram,
    given: Mapping[str, V],
    initial: Mapping[str, V],
    arithmetic: Arithmetic[V],
    sizes: dict[str, int],
    steps: int,
) -> tuple[dict[str, list[V]], dict[str, V], dict[str, list[V]]]:
    """(outputs of each step, final states, states before each step). Output axes are sorted, as in `node.axes`."""
    states = dict(initial)
    times = range(steps) if program.direction > 0 else range(steps - 1, -1, -1)
    outputs: dict[str, list[V]] = {n: [None] * steps for n in program.outputs}  # type: ignore[list-item]
    before: dict[str, list[V]] = {s.name: [None] * steps for s in program.states}  # type: ignore[list-item]
    nodes = [*program.updates.values(), *program.outputs.values()]
    for t in times:
        env: Env = {(v.kind, v.name): _at(given[v.name], t) if v.per_step else given[v.name] for v in program.variables}
        for s in program.states:
            env["state", s.name] = states[s.name]
            before[s.name][t] = states[s.name]
        values = evaluate_all(nodes, env, arithmetic, sizes)
        for name, value in zip(program.outputs, values[len(program.updates) :], strict=True):
            outputs[name][t] = value
        for name, value, node in zip(program.updates, values, program.updates.values(), strict=False):
            states[name] = _stored(value, node.axes, program.state(name).axes)
    return outputs, states, before


def _at(value: V, t: int) -> V:
    return each(value, lambda a: a[t] if hasattr(a[t], "ndim") else np.asarray(a[t], dtype=object))


def _stored(value: V, axes: tuple[str, ...], order: tuple[str, ...]) -> V:
    """A value over sorted axes, in storage order."""
    if axes == order:
        return value

    def permuted(a: Entries) -> Entries:
        lead = a.ndim - len(axes)
        permutation = [*range(lead), *(lead + axes.index(x) for x in order)]
        return a.transpose(permutation) if isinstance(a, np.ndarray) else a.permute(permutation)

    return each(value, permuted)


def stored(value: V, axes: tuple[str, ...], order: tuple[str, ...]) -> V:
    return _stored(value, axes, order)


def shape_of(v: Var, sizes: dict[str, int], steps: int) -> tuple[int, ...]:
    own = tuple(sizes[dim_of(a)] for a in v.axes)
    return (steps, *own) if v.per_step else own


def random_sequences(
    program: StepProgram, arithmetic: RandomNumbers, sizes: dict[str, int], steps: int, rng: random.Random
) -> tuple[Sequences, Sequences]:
    """Random values of each variable, and random initial states."""
    given = {v.name: _random(arithmetic, rng, shape_of(v, sizes, steps), v) for v in program.variables}
    initial = {
        s.name: within(arithmetic, arithmetic.random(rng, tuple(sizes[dim_of(a)] for a in s.axes)), s.domain)
        for s in program.states
    }
    return given, initial


def _random(m: RandomNumbers, rng: random.Random, shape: tuple[int, ...], v: Var) -> np.ndarray:
    return within(m, m.random(rng, shape, decay=v.is_decay), v.domain)


def within(m: RandomNumbers, value: np.ndarray, domain: Domain | None) -> np.ndarray:
    """A random value, moved into a domain."""
    if domain is None or m.exact:
        return value
    low, high = domain
    if low is None or high is None:
        sign, bound = (1, low) if low is not None else (-1, high)
        return m.add(m.const(Fraction(bound or 0)), m.mul(m.const(Fraction(sign)), m.fn("exp", value)))
    share = m.fn("sigmoid", value)
    return m.add(m.const(low), m.mul(m.const(high - low), share))


class Far(Reals):
    """RandomNumbers of 200 digits, random ones of which are far from 0 as well."""

    def __init__(self) -> None:
        super().__init__(200)

    def random(self, rng: Random, shape: tuple[int, ...], decay: bool = False) -> np.ndarray:
        usual = super().random(rng, shape, decay)
        return usual if decay else self.mul(usual, self.const(Fraction(60)))

    def random_of(self, rng: Random, shape: tuple[int, ...], v: Var) -> np.ndarray:
        """Of a variable, within its domain."""
        return _random(self, rng, shape, v)


def directional(
    program: StepProgram,
    given: Sequences,
    initial: Sequences,
    tangents: Sequences,
    cotangents: Sequences,
    base: Arithmetic[np.ndarray],
    sizes: dict[str, int],
    steps: int,
) -> np.ndarray:
    """d/dh of the sum of cotangent . output, along `tangents` of variables and initial states, by dual numbers."""
    dual = Dual(base)

    def pair(name: str, value: np.ndarray) -> Pair:
        zero = base.mul(value, dual.zero)
        return Pair(value, tangents.get(name, zero))

    outputs, finals, _ = run_steps(
        program,
        {n: pair(n, v) for n, v in given.items()},
        {n: pair(n, v) for n, v in initial.items()},
        dual,
        sizes,
        steps,
    )
    change = dual.zero
    for name, node in program.outputs.items():
        for t, value in enumerate(outputs[name]):
            own = _stored(value, node.axes, program.output_axes[name])
            change = base.add(change, _inner(own.tangent, cotangents[f"d{name}"][t], base))
    for s in program.states:
        change = base.add(change, _inner(finals[s.name].tangent, cotangents[f"d{s.name}"], base))
    return change


def _inner(a: np.ndarray, b: np.ndarray, base: Arithmetic[np.ndarray]) -> np.ndarray:
    a, b = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    product = base.mul(np.broadcast_to(a, b.shape), b)
    while np.ndim(product):
        product = base.sum(np.asarray(product, dtype=object), -1)
    return product


def inner(a: np.ndarray, b: np.ndarray, base: Arithmetic[np.ndarray]) -> np.ndarray:
    """The sum of products of entries."""
    return _inner(a, b, base)


FIELD = Field()
