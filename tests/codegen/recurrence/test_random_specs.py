"""Random affine recurrences: every one is chunk-parallel, and its chunks and its adjoint are exact.

A number draws each, the same in every run: what hypothesis draws depends on which modules have been imported.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from chunkform.codegen.exact.random_points import Point
from chunkform.codegen.ir.evaluate import Field
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.gates.gates import random_cotangents, run_adjoint
from chunkform.codegen.recurrence.gates.run_plan import run_plan
from chunkform.codegen.recurrence.gates.run_steps import directional, inner, random_sequences, run_steps, stored
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.adjoint import gradient_name
from chunkform.spec.language import Recurrence, diag, dot, exp, hadamard, ones, sigmoid, tanh

FEW, MANY = 8, 48  # the others are long


class Grammar:
    """One spec, drawn part by part. `self.d` is the axis of keys, `self.e` that of values."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.r = r = Recurrence("drawn")
        self.d, self.e = r.dims("d e")
        self.keys = list(r.inputs("q k x", self.d))
        self.values = list(r.inputs("v u", self.e))
        self.scalars = list(r.inputs("b c"))
        self.lam, self.al, self.be = r.decay("lam"), r.decay("al", self.d), r.decay("be", self.e)
        self.gamma, self.weight = r.head_decay("gamma"), r.parameter("weight", self.d)

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def scalar(self) -> Any:
        b, c = self.scalars
        return self.one(1, b, -c, sigmoid(b), 1 - self.lam, b * c, dot(self.keys[1], self.keys[2]), Fraction(1, 2))

    def key(self) -> Any:
        _, k, x = self.keys
        return self.one(k, x, self.scalar() * k, hadamard(k, self.weight), 1 - self.al, tanh(x), k + x, ones(self.d))

    def value(self) -> Any:
        v, u = self.values
        return self.one(v, self.scalar() * u, hadamard(v, u), v - u, tanh(u), ones(self.e))

    def decayed(self, S: Any, vector: bool) -> Any:
        """The previous state, decayed in a way that keeps a decay to one axis."""
        b = self.scalars[0]
        factor = self.one(1, self.lam, self.gamma, sigmoid(b), exp(-exp(b)), self.lam * sigmoid(b))
        if vector:
            return factor * self.one(S, diag(self.al) * S, S * diag(self.be))
        return factor * S

    def update(self, S: Any, others: list[Any]) -> Any:
        decayed = self.decayed(S, vector=self.one(True, False))
        term = decayed
        for _ in range(self.one(0, 1, 2)):
            error = self.value()
            if self.one(True, False):
                error = error - self.one(S, decayed).T * self.one(*self.keys)
            if others and self.one(True, False):
                error = error + self.scalar() * (self.one(*others).T * self.one(*self.keys))
            term = term + self.key() * error.T
        if self.one(True, False):
            term = self.lam * (term + self.key() * self.value().T)
        return term

    def output(self, state: Any) -> Any:
        q, k, _ = self.keys
        S = self.one(state.prev, state.next)
        return self.one(
            S.T * q,
            self.scalar() * (S.T * k) + self.value(),
            S * self.values[0],
            hadamard(tanh(self.values[1]), S.T * q),
            dot(S.T * q, self.values[0]) * self.keys[1],
        )

    def recurrence(self) -> Recurrence:
        names = ["S", "R"][: self.one(1, 1, 2)]
        states = [self.r.state(n, self.d, self.e) for n in names]
        done: list[Any] = []
        for s in states:
            self.r.update(s, self.update(s.prev, done))
            done.append(s.next)
        for n, s in enumerate(states):
            self.r.output(f"o{n}", self.output(s))
        return self.r


def flat(values: dict[str, Any]) -> list[Any]:
    return [x for v in values.values() for x in np.ravel(np.asarray(v, dtype=object))]


def check_forward(c: Compiled, point: Point, lengths: list[int], rng: random.Random) -> None:
    m, sizes = point.arithmetic, point.sizes
    given_, initial = random_sequences(c.step, m, sizes, point.steps, rng)
    outputs, finals, _ = run_steps(c.step, given_, initial, m, sizes, point.steps)
    env = {(v.kind, v.name): given_[v.name] for v in c.step.variables}
    assert c.forward is not None
    values, states, _ = run_plan(c.forward, env, initial, m, sizes, lengths)
    assert flat(values) == flat({n: np.stack(outputs[n]) for n in values})
    assert flat({n: states[n] for n in finals}) == flat(finals)


def check_adjoint(c: Compiled, point: Point, rng: random.Random) -> None:
    """The derivative along one input, by dual numbers and by the adjoint."""
    m, sizes, steps = point.arithmetic, point.sizes, point.steps
    given_, initial = random_sequences(c.step, m, sizes, steps, rng)
    cotangents, last = random_cotangents(c.step, point, rng)
    gradients, _ = run_adjoint(c.adjoint, given_, initial, cotangents, last, m, sizes, steps)
    for v in c.step.variables:
        tangent = m.random(rng, np.shape(given_[v.name]))
        forward = directional(c.step, given_, initial, {v.name: tangent}, {**cotangents, **last}, m, sizes, steps)
        scaled = m.mul(tangent, m.pow(given_[v.name], Fraction(-1))) if v.is_decay else tangent
        axes = c.adjoint.program.outputs[gradient_name(v)].axes
        total = m.const(Fraction(0))
        for t in range(steps):
            value = stored(gradients[gradient_name(v)][t], axes, v.axes)
            total = m.add(total, inner(value, scaled[t] if v.per_step else scaled, m))
        assert m.equal(total, forward), v.name


@pytest.mark.parametrize("seed", [*range(FEW), *(pytest.param(n, marks=pytest.mark.long) for n in range(FEW, MANY))])
def test_chunks_and_adjoint_of_a_random_affine_recurrence(seed: int) -> None:
    rng = random.Random(seed)
    r, sizes = Grammar(rng).recurrence(), (rng.randint(1, 3), rng.randint(1, 3))
    lengths = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    compiled = compile_spec(r)
    assert compiled.family == "chunk-parallel", compiled.reason
    point = Point(Field(), dict(zip("de", sizes, strict=True)), sum(lengths), seed=1)
    check_forward(compiled, point, lengths, random.Random(1))
    check_adjoint(compiled, replace(point, steps=2), random.Random(2))
