"""The gate of moving frames."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ...exact.random_points import Compared, GateResult, Point, compare
from ...ir.evaluate import Env, evaluate
from ...ir.expr import dim_of, expand
from ...ir.step_program import StepProgram
from ..step.frames import Frame, begins_with
from .run_steps import random_sequences, run_steps, stored


def gate_frame(p: StepProgram, frame: Frame) -> GateResult:
    """The step in a frame makes the outputs of the step; and its last states, turned, are those of the step."""

    def check(point: Point) -> Compared:
        m, sizes, steps = point.arithmetic, point.sizes, point.steps
        given, initial = random_sequences(p, m, sizes, steps, point.rng)
        expected, lasts, _ = run_steps(p, given, initial, m, sizes, steps)
        begun = dict(initial)
        for name in frame.hidden:
            s = frame.step.state(name)
            begun[name] = np.broadcast_to(m.const(Fraction(begins_with(s))), tuple(sizes[dim_of(a)] for a in s.axes))
        outputs, found, _ = run_steps(frame.step, given, begun, m, sizes, steps)
        for name, values in outputs.items():
            for t, value in enumerate(values):
                yield f"the output {name} of step {t + 1}", value, expected[name][t]
        env: Env = {("state", name): x for name, x in found.items()}
        for name, node in frame.ends.items():
            axes = p.state(name).axes
            whole = expand(node, axes)
            value = stored(evaluate(whole, env, m, sizes), whole.axes, axes)
            yield f"the last state {name}", value, lasts[name]

    return compare("frame", f"{p.name} in a frame that moves with its states has the same outputs and states", p, check)
