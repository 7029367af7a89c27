"""Errors and times of an op's precisions: `python -m benchmarks.precision [--device cuda] [NAME..]` prints a table.

Error: the largest ||out - ref|| / ||ref|| of results (outputs and final states), and of gradients, on fresh random inputs, which
the reference, the float64 oracle, gets as they are in the op's dtype. Time: both passes, the median of five runs.
"""

from __future__ import annotations

import argparse
import importlib
import time

import torch

from chunkform.codegen.check import Case, relative_error, sample
from chunkform.codegen.oracle import oracle
from chunkform.codegen.pipeline import compile_spec
from chunkform.errors import ChunkformError
from chunkform.spec.language import catalogue

NAMES = ("lightning_attention", "gated_linear_attention", "gated_delta_rule", "kimi_delta_attention")


def errors(name: str, case: Case, precision: str) -> tuple[float, float, float]:
    """(largest error of results, of gradients, milliseconds of both passes)."""
    c = compile_spec(next(r for r in catalogue() if r.name == name))
    s = sample(c, case)
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    outputs, finals, gradients, _ = oracle(c, s.given, s.states, s.constants, s.cotangents, s.final_cotangents)
    keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
    given = {n: x.clone().requires_grad_() for n, x in s.given.items()}
    initial = tuple(s.states.values())

    def both() -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
        *found, last = op(
            **{keys[n]: x for n, x in given.items()}, **s.constants,
            initial_state=initial, output_final_state=True, precision=precision,
        )  # fmt: skip
        results = [*found, *(last if isinstance(last, tuple) else (last,))]
        incoming = [*s.cotangents.values(), *s.final_cotangents.values()]
        return results, torch.autograd.grad(results, list(given.values()), incoming)

    results, found = both()
    times = []
    for _ in range(5):
        start = _now(case.device)
        both()
        times.append(_now(case.device) - start)
    return (
        max(relative_error(x, y) for x, y in zip(results, (*outputs.values(), *finals.values()), strict=True)),
        max(relative_error(x, y) for x, y in zip(found, gradients.values(), strict=True)),
        1e3 * sorted(times)[2],
    )


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=512)
    arguments = parser.parse_args()
    print("| op | inputs | precision | results | gradients | ms |\n|---|---|---|---|---|---|")
    for name in arguments.names:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for precision in ("fast", "default", "high"):
                case = Case(batch=2, steps=arguments.steps, heads=4, width=64, dtype=dtype, device=arguments.device)
                try:
                    a, b, ms = errors(name, case, precision)
                except ChunkformError as error:
                    print(f"| {name} | {str(dtype)[6:]} | {precision} | {error} | | |")
                    continue
                print(f"| {name} | {str(dtype)[6:]} | {precision} | {a:.1e} | {b:.1e} | {ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
