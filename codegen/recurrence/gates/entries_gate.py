"""The gate of steps that are affine entry by entry: several steps are the map that is composed of theirs."""

from __future__ import annotations

import numpy as np

from ...exact.random_points import Compared, GateResult, Point, compare
from ...ir.evaluate import Env, evaluate
from ...ir.expr import Node, expand
from ...ir.step_program import StepProgram
from ..step.entries import EntryMaps
from .run_steps import random_sequences, run_steps, stored


def gate_entries(step: StepProgram, found: EntryMaps) -> GateResult:
    """The last states are A S_0 + b, entry by entry, with A and b composed of what each step multiplies by and adds."""

    def check(point: Point) -> Compared:
        m, sizes = point.arithmetic, point.sizes
        given, initial = random_sequences(step, m, sizes, point.steps, point.rng)
        axes = {s.name: s.axes for s in step.states}
        states: dict[str, np.ndarray] = dict(initial)
        for t in range(point.steps):
            env = {(v.kind, v.name): given[v.name][t] if v.per_step else given[v.name] for v in step.variables}

            def value(x: Node, name: str, env: Env = env) -> np.ndarray:
                whole = expand(x, axes[name])
                return stored(evaluate(whole, env, m, sizes), whole.axes, axes[name])

            after = {n: value(x, n) for n, x in found.added.items()}
            for (to, of), x in found.factors.items():
                after[to] = m.add(after[to], m.mul(value(x, to), states[of]))
            states = after
        _, expected, _ = run_steps(step, given, initial, m, sizes, point.steps)
        for name, last in expected.items():
            yield f"the last state {name}", states[name], last

    return compare("entries", "the steps multiply each entry of the states, and add to it", step, check)
