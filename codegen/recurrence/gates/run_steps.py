"""Run a step program over a sequence, step by step: the definition that everything else is checked against."""

from __future__ import annotations

import random
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from ...ir.evaluate import Dual, Env, Field, Pair, Reals, evaluate_all
from ...ir.expr import dim_of
from ...ir.step_program import StepProgram, Var

Sequences = dict[str, Any]  # name -> one array, with a leading time axis where the variable is per step


def run_steps(
    program: StepProgram, given: Sequences, initial: Sequences, arithmetic: Any, sizes: dict[str, int], steps: int
) -> tuple[dict[str, list[Any]], dict[str, Any], dict[str, list[Any]]]:
    """(outputs of each step, final states, states before each step). Output axes are sorted, as in `node.axes`."""
    states = dict(initial)
    times = range(steps) if program.direction > 0 else range(steps - 1, -1, -1)
    outputs: dict[str, list[Any]] = {n: [None] * steps for n in program.outputs}
    before: dict[str, list[Any]] = {s.name: [None] * steps for s in program.states}
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


def _at(value: Any, t: int) -> Any:
    if isinstance(value, Pair):
        return Pair(_at(value.value, t), _at(value.tangent, t))
    return value[t] if hasattr(value[t], "ndim") else np.asarray(value[t], dtype=object)


def _stored(value: Any, axes: tuple[str, ...], order: tuple[str, ...]) -> Any:
    """A value over sorted axes, in storage order."""
    if axes == order:
        return value
    permutation = [axes.index(a) for a in order]
    if isinstance(value, Pair):
        return Pair(_stored(value.value, axes, order), _stored(value.tangent, axes, order))
    lead = value.ndim - len(axes)
    permutation = [*range(lead), *(lead + i for i in permutation)]
    return value.transpose(permutation) if isinstance(value, np.ndarray) else value.permute(permutation)


def stored(value: Any, axes: tuple[str, ...], order: tuple[str, ...]) -> Any:
    return _stored(value, axes, order)


def shape_of(v: Var, sizes: dict[str, int], steps: int) -> tuple[int, ...]:
    own = tuple(sizes[dim_of(a)] for a in v.axes)
    return (steps, *own) if v.per_step else own


def random_sequences(
    program: StepProgram, arithmetic: Any, sizes: dict[str, int], steps: int, rng: random.Random
) -> tuple[Sequences, Sequences]:
    """Random values of each variable, and random initial states."""
    given = {v.name: _random(arithmetic, rng, shape_of(v, sizes, steps), v) for v in program.variables}
    initial = {s.name: arithmetic.random(rng, tuple(sizes[dim_of(a)] for a in s.axes)) for s in program.states}
    return given, initial


def _random(m: Any, rng: random.Random, shape: tuple[int, ...], v: Var) -> Any:
    value = m.random(rng, shape, decay=v.is_decay)
    if v.domain is None or m.exact:
        return value
    low, high = v.domain
    if low is None or high is None:
        sign, bound = (1, low) if low is not None else (-1, high)
        return m.add(m.const(Fraction(bound or 0)), m.mul(m.const(Fraction(sign)), m.fn("exp", value)))
    share = m.fn("sigmoid", value)
    return m.add(m.const(low), m.mul(m.const(high - low), share))


class Far(Reals):
    """Numbers of 200 digits, random ones of which are far from 0 as well."""

    def __init__(self) -> None:
        super().__init__(200)

    def random(self, rng: Random, shape: tuple[int, ...], decay: bool = False) -> Any:
        usual = super().random(rng, shape, decay)
        return usual if decay else self.mul(usual, self.const(Fraction(60)))

    def random_of(self, rng: Random, shape: tuple[int, ...], v: Var) -> Any:
        """Of a variable, within its domain."""
        return _random(self, rng, shape, v)


def directional(
    program: StepProgram,
    given: Sequences,
    initial: Sequences,
    tangents: Sequences,
    cotangents: Sequences,
    base: Any,
    sizes: dict[str, int],
    steps: int,
) -> Any:
    """d/dh of the sum of cotangent . output, along `tangents` of variables and initial states, by dual numbers."""
    dual = Dual(base)

    def pair(name: str, value: Any) -> Pair:
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


def _inner(a: Any, b: Any, base: Any) -> Any:
    a, b = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    product = base.mul(np.broadcast_to(a, b.shape), b)
    while np.ndim(product):
        product = base.sum(np.asarray(product, dtype=object), -1)
    return product


def inner(a: Any, b: Any, base: Any) -> Any:
    """The sum of products of entries."""
    return _inner(a, b, base)


FIELD = Field()
