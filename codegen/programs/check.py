"""Compare a program's op with its oracle, and see that its solves converge: `chunkform check` for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ConditionError
from chunkform.spec.language.methods import neumann

from ..recurrence.check import Row, judge_all
from ..recurrence.definition import defined
from ..recurrence.samples import Case, Sample
from .compiled import CompiledProgram
from .graph import SolveNode
from .oracle import matrices_of, oracle, sample

CONVERGED = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def check_program(c: CompiledProgram, op: Callable[..., Any], case: Case, backend: str | None = None) -> list[Row]:
    """The errors of one call, forward and backward, against dense solves in float64; and for each solve its residual, and of the
    Neumann iteration the largest eigenvalue of step * H_t less 1, in size, which must be below 1.

    A quantity that misses its bound is judged by the problem's own conditioning: what one rounding of the inputs makes of it.
    """
    s = sample(c, case)
    keys = {v.name: v.argument for v in c.step.variables}
    reference = defined(c, s, of=oracle)
    computed, residuals = run(c, op, s, backend)
    plain = {f"d{keys[n]}": f"d{n}" for n in keys}
    judged = judge_all(c, {plain.get(n, n): x for n, x in computed.items()}, reference, s, case, oracle)
    rows = [
        Row(c.name, n, case, j.error, j.bound, j.rounding, j.head)
        for n, j in zip(computed, judged.values(), strict=True)
    ]
    rows += conditions(c, s, case)
    for name, x in residuals.items():
        node = c.graph.node(name)
        if isinstance(node, SolveNode) and not node.unrolled and x.numel():
            rows.append(Row(c.name, f"residual of {name}", case, float(x.max()), CONVERGED[case.dtype], solve=name))
    return rows


def run(
    c: CompiledProgram, op: Callable[..., Any], s: Sample, backend: str | None = None
) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
    """(outputs, last states and gradients of one call, the residuals of its solves)."""
    keys = {v.name: v.argument for v in c.step.variables}
    arguments = {n: x.detach().clone().requires_grad_() for n, x in s.given.items()}
    states = {n: None if x is None else x.detach().clone().requires_grad_() for n, x in s.states.items()}
    solves = [n.name for n in c.graph.solves]
    whole = bool(c.graph.attends)  # has no state that a call begins or ends with
    found = op(
        **{keys[n]: x for n, x in arguments.items()},
        **s.constants,
        initial_state=None if all(x is None for x in states.values()) else tuple(states.values()),
        output_final_state=not whole,
        backend=backend,
        **({"output_residual": True} if solves else {}),
    )
    last = found[-1] if isinstance(found[-1], tuple) else (found[-1],)
    outputs = dict(zip(c.step.outputs, found, strict=False))
    lasts = {} if whole else dict(zip(states, last, strict=True))
    residuals = dict(zip(solves, found[len(outputs) : -1], strict=True))
    wanted = [*arguments.values(), *(x for x in states.values() if x is not None)]
    torch.autograd.backward(
        [*outputs.values(), *lasts.values()],
        [*(s.cotangents[n] for n in outputs), *(s.final_cotangents[n] for n in lasts)],
        inputs=wanted,
    )
    computed: dict[str, Tensor | None] = {**outputs, **{f"final {n}": x for n, x in lasts.items()}}
    computed |= {f"d{keys[n]}": x.grad for n, x in arguments.items()}
    computed |= {f"d initial {n}": x.grad for n, x in states.items() if x is not None}
    return computed, residuals


def conditions(c: CompiledProgram, s: Sample, case: Case) -> list[Row]:
    """What a Neumann iteration needs: |1 - step * eigenvalue| < 1 for each eigenvalue of each matrix."""
    rows = []
    wide = {n: x.to(torch.float64) for n, x in s.given.items()}
    starts = {n: None if x is None else x.to(torch.float64) for n, x in s.states.items()}
    for n in c.graph.solves:
        if not isinstance(n.method, neumann) or isinstance(n.step, str):
            continue
        if n.right not in wide or any(q not in wide and q not in s.constants for q in n.inputs.values()):
            continue  # what other ops make isn't at hand here; the residual tells
        matrix, _ = matrices_of(n, wide, starts, s.constants)
        values = (1.0 if n.step is None else n.step) * torch.linalg.eigvalsh(matrix)
        worst = float((1 - values).abs().max()) if values.numel() else 0.0
        rows.append(Row(c.name, f"|1 - step eigenvalue| of {n.name}", case, worst, 1.0 - 1e-9, solve=n.name))
    return rows


def require_conditions(c: CompiledProgram, rows: list[Row]) -> None:
    """Raise for a condition of a solve that fails.

    Raises:
        ConditionError: names the solve, and says what to do.
    """
    for r in rows:
        if not r.ok:
            node = next(n for n in c.graph.solves if n.name == r.solve)
            raise ConditionError(f"{c.name}: {r.quantity} is {r.error:.2f}, and must be below 1. {node.method.advice}")


def named(keys: dict[str, str], found: tuple[dict[str, Tensor], ...]) -> dict[str, Tensor]:
    outputs, lasts, gradients, initial = found
    return {
        **outputs,
        **{f"final {n}": x for n, x in lasts.items()},
        **{f"d{keys[n]}": x for n, x in gradients.items()},
        **{f"d initial {n}": x for n, x in initial.items()},
    }
