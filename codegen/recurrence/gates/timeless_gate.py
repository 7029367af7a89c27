"""The gate of steps over what parameters alone make."""

from __future__ import annotations

from collections.abc import Mapping

from ...exact.random_points import Compared, GateResult, Point, compare
from ...ir.evaluate import Env, evaluate
from ...ir.expr import Node
from ..step.adjoint import Adjoint, gradient_name
from .gates import random_cotangents, run_adjoint
from .run_steps import random_sequences, run_steps


def gate_timeless(a: Adjoint, over: Adjoint, made: Mapping[str, Node], gradients: Mapping[str, Node]) -> GateResult:
    """The steps over what is `made` of parameters are those of the recurrence; and with `gradients`, of the parameters by it, so
    are all gradients."""

    def check(point: Point) -> Compared:
        m, sizes, steps = point.arithmetic, point.sizes, point.steps
        given, initial = random_sequences(a.forward, m, sizes, steps, point.rng)
        cotangents, last = random_cotangents(a.forward, point, point.rng)
        env: Env = {(v.kind, v.name): given[v.name] for v in a.forward.variables if not v.per_step}
        more = {**given, **{name: evaluate(x, env, m, sizes) for name, x in made.items()}}
        expected, finals, _ = run_steps(a.forward, given, initial, m, sizes, steps)
        outputs, states, _ = run_steps(over.forward, more, initial, m, sizes, steps)
        for name, values in outputs.items():
            for t, value in enumerate(values):
                yield f"the output {name} of step {t + 1}", value, expected[name][t]
        for name, value in states.items():
            yield f"the last state {name}", value, finals[name]
        wanted, starts = run_adjoint(a, given, initial, cotangents, last, m, sizes, steps)
        found, first = run_adjoint(over, more, initial, cotangents, last, m, sizes, steps)
        for name, value in first.items():
            yield f"the gradient of the first state, {name}", value, starts[name]
        for v in (v for v in a.forward.variables if v.kind != "constant"):
            name = gradient_name(v)
            for t, value in enumerate(wanted[name]):
                parts = [found[name][t]] if name in found else []
                if v.name in gradients:
                    through = {("cotangent", f"d{n}"): found[f"d{n}"][t] for n in made}
                    parts.append(evaluate(gradients[v.name], {**env, **through}, m, sizes))
                whole = parts[0] if len(parts) == 1 else m.add(*parts)
                yield f"the gradient {name} of step {t + 1}", whole, value

    what = f"steps of {a.forward.name} over what parameters alone make are its steps, forwards and backwards"
    return compare("timeless", what, a.forward, check)
