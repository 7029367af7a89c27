"""The gates of scans and of strata."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from chunkform.runtime.torch_form.scans import LAWS

from ...exact.random_points import Compared, GateResult, Point, compare
from ...ir.evaluate import Arithmetic, Env, evaluate, stacked
from ...ir.expr import Node, dim_of, expand, leaf, leaves
from ...ir.step_program import DECAYS
from ..chunkwise.compiled import Part
from ..step.adjoint import Adjoint, gradient_name
from ..step.decays import domain_of, known_range
from ..step.elementwise import Scans
from ..step.monoids import applied
from .gates import random_cotangents, run_adjoint
from .run_steps import random_sequences, run_steps, stored, within


@dataclass(frozen=True)
class _Number:
    """A value with the signs that laws of maps are written with."""

    value: Any
    m: Arithmetic

    def __add__(self, other: _Number) -> _Number:
        return _Number(self.m.add(self.value, other.value), self.m)

    def __mul__(self, other: _Number) -> _Number:
        return _Number(self.m.mul(self.value, other.value), self.m)

    def __truediv__(self, other: _Number) -> _Number:
        return _Number(self.m.mul(self.value, self.m.pow(other.value, Fraction(-1))), self.m)

    def larger(self, other: _Number, sign: int) -> _Number:
        """The larger of both for sign = 1, the smaller for -1."""
        s = self.m.const(Fraction(sign))
        largest = self.m.maximum(self.m.mul(s, self.value), self.m.mul(s, other.value))
        return _Number(self.m.mul(s, largest), self.m)

    def log_of_sum(self, other: _Number) -> _Number:
        """log(exp(this) + exp(other))."""
        m = self.m
        return _Number(m.fn("log", m.add(m.fn("exp", self.value), m.fn("exp", other.value))), m)


def gate_scans(a: Adjoint, found: Scans) -> GateResult:
    """The maps of a step, applied to a state, are its update, forwards and backwards; and two of them compose."""

    def check(point: Point) -> Compared:
        m, rng = point.arithmetic, point.rng
        for program, entries in ((a.forward, found.forward), (a.program, found.backward)):
            env: Env = {}
            for e in entries:
                s = program.state(e.state)
                update = program.updates[e.state]
                same = applied(e.kind, e.maps, leaf("state", s.name, s.axes))
                for x in sorted(leaves(update, same)):
                    if x.attrs[:2] not in env:
                        drawn = point.array(rng, x.attrs[2], decay=x.attrs[0] in DECAYS)
                        known = known_range(a.forward, x)
                        env[x.attrs[:2]] = within(m, drawn, None if known is None else domain_of(known))
                yield (
                    f"the state {e.state} after a step",
                    _value(expand(same, s.axes), env, m, point),
                    _value(expand(update, s.axes), env, m, point),
                )
            for kind in sorted({e.kind for e in entries}):
                yield f"two maps of the kind {kind}", *_one_after_other(kind, point)

    return compare("scans", "each entry of a state goes through maps that compose", a.forward, check, steps=1)


def _value(x: Node, env: Env, m: Arithmetic, point: Point) -> np.ndarray:
    return np.asarray(evaluate(x, env, m, point.sizes), dtype=object)


def _one_after_other(kind: str, point: Point) -> tuple[object, object]:
    """What two maps of positive numbers make of a number: as one map, and one after the other."""
    law, rng, m = LAWS[kind], point.rng, point.arithmetic
    first, second = (tuple(_Number(m.random(rng, (3,), True), m) for _ in law.identity) for _ in range(2))
    if kind == "logaddexp":  # whose states aren't multiplied
        one = _Number(m.const(Fraction(1)), m)
        first, second = (one, *first[1:]), (one, *second[1:])
    x = _Number(m.random(rng, (3,), True), m)

    def extreme(p: _Number, q: _Number) -> _Number:
        if kind == "logaddexp":
            return p.log_of_sum(q)
        return p.larger(q, -1 if kind == "minimum" else 1)

    whole = law.applied(law.then(first, second, extreme), x, extreme)
    return whole.value, law.applied(second, law.applied(first, x, extreme), extreme).value


def gate_strata(a: Adjoint, parts: tuple[Part, ...]) -> GateResult:
    """The strata in order, each over what earlier ones hand on, are the step; and backwards, in reverse order."""

    def check(point: Point) -> Compared:
        m, sizes, rng, steps = point.arithmetic, point.sizes, point.rng, point.steps
        given, initial = random_sequences(a.forward, m, sizes, steps, rng)
        cotangents, last = random_cotangents(a.forward, point, rng)
        expected, finals, _ = run_steps(a.forward, given, initial, m, sizes, steps)
        gradients, starts = run_adjoint(a, given, initial, cotangents, last, m, sizes, steps)
        known = dict(given)
        for part in parts:
            p = part.compiled.step
            own = {s.name: initial[s.name] for s in p.states}
            outputs, states, _ = run_steps(p, known, own, m, sizes, steps)
            for name, values in outputs.items():
                axes = p.outputs[name].axes
                if name in part.hands:
                    known[name] = stacked([stored(x, axes, p.output_axes[name]) for x in values])
                    continue
                for t, value in enumerate(values):
                    yield f"the output {name} of step {t + 1}", value, expected[name][t]
            for name, value in states.items():
                yield f"the last state {name}", value, finals[name]
        sums: dict[str, list[Any]] = {}
        for part in reversed(parts):
            c, p = part.compiled, part.compiled.step
            own = {s.name: initial[s.name] for s in p.states}
            incoming = {f"d{n}": cotangents[f"d{n}"] for n in p.outputs if n not in part.hands}
            for n in part.hands:
                whole = sums.get(f"d{n}")
                shape = (steps, *(sizes[dim_of(x)] for x in p.output_axes[n]))
                incoming[f"d{n}"] = stacked(whole) if whole else np.broadcast_to(m.const(Fraction(0)), shape)
            ends = {f"d{s.name}": last[f"d{s.name}"] for s in p.states}
            found, first = run_adjoint(c.adjoint, known, own, incoming, ends, m, sizes, steps)
            for name, values in found.items():
                sums[name] = [m.add(x, y) for x, y in zip(sums[name], values, strict=True)] if name in sums else values
            for name, value in first.items():
                yield f"the gradient of the first state, {name}", value, starts[name]
        for v in a.forward.variables:
            name = gradient_name(v)
            if v.kind == "constant" or name not in sums:
                continue
            for t, value in enumerate(gradients[name]):
                yield f"the gradient {name} of step {t + 1}", sums[name][t], value

    what = f"the strata of {a.forward.name}, one after the other, are a step of it, forwards and backwards"
    return compare("strata", what, a.forward, check, steps=3)
