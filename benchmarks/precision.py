"""Errors and times of an op's precisions, and of states kept in few bits.

    python -m benchmarks.precision [--device cuda] [--out DIR] [NAME..]

Error: the largest ||out - ref|| / ||ref|| of results (outputs and final states), and of gradients, on fresh random inputs, which
the reference, the float64 oracle, gets as they are in the op's dtype. Time: both passes, the median of five runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunkform.codegen.recurrence.check import error_of
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from chunkform.errors import ChunkformError
from chunkform.spec.language import catalogue

NAMES = ("lightning_attention", "gated_linear_attention", "gated_delta_rule", "kimi_delta_attention")
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
STATES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Row:
    """One precision of an op. `milliseconds` is None where it isn't timed."""

    op: str
    inputs: str
    precision: str
    results: float
    gradients: float
    milliseconds: float | None


@dataclass
class Kept:
    """Errors of outputs, bfloat16 inputs, where the state is in a dtype between two halves, and between all steps."""

    op: str
    state: str
    halves: float
    steps: float


@dataclass(frozen=True)
class Problem:
    """An op and arguments for it, by public names."""

    compiled: Compiled
    op: Callable[..., Any]
    sample: Sample

    @property
    def arguments(self) -> dict[str, Tensor]:
        keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in self.compiled.step.variables}
        return {keys[n]: x for n, x in self.sample.given.items()}


def problem(name: str, case: Case) -> Problem:
    c = compile_spec(next(r for r in catalogue() if r.name == name))
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    return Problem(c, op, sample(c, case))


def both_passes(p: Problem, precision: str) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """(outputs and final states, gradients)."""
    given = {n: x.detach().requires_grad_() for n, x in p.arguments.items()}
    s = p.sample
    *outputs, last = p.op(
        **given, **s.constants, initial_state=tuple(s.states.values()), output_final_state=True, precision=precision
    )
    results = [*outputs, *(last if isinstance(last, tuple) else (last,))]
    incoming = [*s.cotangents.values(), *s.final_cotangents.values()]
    return results, torch.autograd.grad(results, list(given.values()), incoming)


def measured(name: str, case: Case, timed: Case | None, precision: str) -> Row:
    p = problem(name, case)
    s = p.sample
    outputs, finals, gradients, _ = oracle(p.compiled, s.given, s.states, s.constants, s.cotangents, s.final_cotangents)
    results, found = both_passes(p, precision)
    times = []
    if timed is not None:
        p = problem(name, timed)
        both_passes(p, precision)
        for _ in range(5):
            start = _now(timed.device)
            both_passes(p, precision)
            times.append(_now(timed.device) - start)
    return Row(
        name, str(case.dtype)[6:], precision,
        worst(p.compiled, results, outputs | {f"final {n}": x for n, x in finals.items()}),
        worst(p.compiled, found, {f"d{n}": x for n, x in gradients.items()}),
        1e3 * sorted(times)[2] if times else None,
    )  # fmt: skip


def kept(name: str, case: Case, dtype: torch.dtype) -> Kept:
    """What it costs to keep the state in `dtype` from one call to the next."""
    p = problem(name, case)
    s, given = p.sample, p.arguments
    exact = oracle(p.compiled, s.given, s.states, s.constants)[0]
    with torch.no_grad():
        half, initial, parts = case.steps // 2, tuple(s.states.values()), []
        for part in (slice(0, half), slice(half, case.steps)):
            *outputs, last = p.op(
                **{n: x[:, part] for n, x in given.items()}, **s.constants,
                initial_state=initial, output_final_state=True, state_dtype=dtype,
            )  # fmt: skip
            initial, parts = last, [*parts, outputs]
        halves = [torch.cat(x, 1) for x in zip(*parts, strict=True)]
        state = tuple(x.to(dtype) for x in s.states.values())
        state, parts = state[0] if len(state) == 1 else state, []
        for t in range(case.steps):
            *outputs, state = p.op.step(state, **{n: x[:, t] for n, x in given.items()}, **s.constants)  # type: ignore[attr-defined]
            parts.append(outputs)
        steps = [torch.stack(x, 1) for x in zip(*parts, strict=True)]
    return Kept(name, str(dtype)[6:], *(worst(p.compiled, found, exact) for found in (halves, steps)))


def worst(c: Compiled, found: Iterable[Tensor], exact: dict[str, Tensor]) -> float:
    """The largest error of any quantity and head."""
    return max(error_of(c.step, n, x, y) for x, (n, y) in zip(found, exact.items(), strict=True))


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# --- what is written --------------------------------------------------------------------------------------------------


def page(about: dict[str, Any], rows: list[Row], states: list[Kept]) -> str:
    timed = any(r.milliseconds is not None for r in rows)
    times = f" Milliseconds: forward and backward, {about['times']}." if timed else ""
    lines = [
        "# Precisions",
        "",
        f"{about['device']}, torch {about['torch']}, Triton {about['triton']}, {about['date']}. Made by "
        "`python -m benchmarks.precision`, which says how.",
        "",
        "Errors: the largest of results (outputs, final states), and of gradients, of any head, relative to the float64 "
        f"oracle's; {about['errors']}.{times}",
        "",
        f"| op | inputs | precision | results | gradients |{' ms |' * timed}",
        f"|---|---|---|--:|--:|{'--:|' * timed}",
    ]
    for r in rows:
        ms = f" {'' if r.milliseconds is None else f'{r.milliseconds:.2f}'} |" * timed
        lines.append(f"| {r.op} | {r.inputs} | {r.precision} | {r.results:.1e} | {r.gradients:.1e} |{ms}")
    lines += [
        "",
        "The state kept in a dtype, inputs in bfloat16: the error of the outputs where it is rounded once, between two calls "
        "of half the steps each (`state_dtype`), and where it is rounded after every step (`op.step`).",
        "",
        "| op | state | two calls | step by step |",
        "|---|---|--:|--:|",
        *(f"| {k.op} | {k.state} | {k.halves:.1e} | {k.steps:.1e} |" for k in states),
    ]
    return "\n".join(lines) + "\n"


def described(case: Case) -> str:
    return f"batch {case.batch}, {case.steps} steps, {case.heads} heads, width {case.width}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=512, help="for the errors (%(default)s)")
    parser.add_argument("--out", type=Path, help="write precision.md and precision.json there")
    parser.add_argument("--untimed", action="store_true", help="errors alone")
    arguments = parser.parse_args()
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    on_gpu = arguments.device == "cuda"
    case = Case(batch=2, steps=arguments.steps, heads=4, width=64, device=arguments.device)
    timed = dataclasses.replace(case, batch=4, steps=4096, heads=16) if on_gpu else case
    rows, states = [], []
    for name in arguments.names:
        for dtype in DTYPES:
            for precision in ("fast", "default", "high"):
                slow = on_gpu and dtype == torch.float64  # in torch
                own = None if slow or arguments.untimed else dataclasses.replace(timed, dtype=dtype)
                try:
                    rows.append(measured(name, dataclasses.replace(case, dtype=dtype), own, precision))
                    print(rows[-1], flush=True)
                except ChunkformError as error:
                    print(f"{name} {dtype} {precision}: {error}")
        for dtype in STATES:
            states.append(kept(name, dataclasses.replace(case, dtype=torch.bfloat16), dtype))
            print(states[-1], flush=True)
    about = {
        "device": torch.cuda.get_device_name() if on_gpu else f"a CPU ({platform.machine()})",
        "torch": torch.__version__, "triton": version, "date": datetime.date.today().isoformat(),
        "errors": described(case), "times": described(timed),
    }  # fmt: skip
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "precision.md").write_text(page(about, rows, states))
        data = {"about": about, "rows": [asdict(r) for r in rows], "states": [asdict(k) for k in states]}
        (arguments.out / "precision.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
