"""The chunked torch form on a CPU: against the step-by-step loop, and its time as sequences grow.

    python benchmarks/torch_form.py [--json PATH] [NAME ..]

The loop is the recurrence as one would write it in PyTorch, one step after the other, with autograd; it is printed from the
same step program. Times are the fastest of a few runs, in milliseconds, forward and backward alone.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir.expr import Node, dim_of
from chunkform.codegen.ir.launch_ir import Statement
from chunkform.codegen.printing.launch_text import lines_of
from chunkform.codegen.printing.torch_expressions import TorchText, stored
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from chunkform.spec.language import catalogue, find

LENGTHS = (1024, 4096, 16384, 65536)


def step_loop(c: Compiled) -> Callable[..., list[torch.Tensor]]:
    """The recurrence as a plain loop over steps: (given, states) -> outputs."""
    p = c.step
    made: list[Statement] = []

    def text(x: Node) -> str:
        kind, name, _ = x.attrs
        return f"{name}_state" if kind == "state" else f"{name}_t"

    printer = TorchText(text, made, {})
    roots = [*p.updates.values(), *p.outputs.values()]
    printer.count(roots)
    updates = {n: stored(printer.value(x), p.state(n).axes).text for n, x in p.updates.items()}
    outputs = {n: stored(printer.value(x), p.output_axes[n]).text for n, x in p.outputs.items()}
    head = [f"{v.name}_t = given['{v.name}']" + ("[:, t]" if v.per_step else "") for v in p.variables]
    head += [f"{v.name}_t = {v.name}_t.exp()" for v in p.variables if v.is_decay]
    body = [*head, *lines_of(tuple(made)), f"results.append(({', '.join(outputs.values())},))"]
    body.append(f"{', '.join(f'{n}_state' for n in updates)} = {', '.join(updates.values())}")
    source = "def loop(given, states, steps):\n    results = []\n"
    source += "".join(f"    {n}_state = states['{n}']\n" for n in updates)
    source += "    for t in range(steps):\n" + "".join(f"        {x}\n" for x in body)
    source += "    return [torch.stack(x, 1) for x in zip(*results)]\n"
    space: dict[str, Any] = {"torch": torch}
    exec(source, space)
    return space["loop"]


def timed(run: Callable[[], list[torch.Tensor]], cotangents: list[Any], repeats: int) -> tuple[float, float]:
    """(forward, backward) in milliseconds, the fastest of the repeats."""
    best = [float("inf"), float("inf")]
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = run()
        middle = time.perf_counter()
        torch.autograd.backward(outputs, cotangents)
        end = time.perf_counter()
        best = [min(best[0], 1e3 * (middle - start)), min(best[1], 1e3 * (end - middle))]
    return best[0], best[1]


def arguments(c: Compiled, s: Sample) -> dict[str, torch.Tensor]:
    return {n: x.clone().requires_grad_() for n, x in s.given.items()}


def measure(c: Compiled, op: Callable[..., Any], steps: int, repeats: int, against_loop: bool) -> dict[str, float]:
    """Times of one recurrence at B = 1, H = 4, D = 64."""
    case = Case(batch=1, steps=steps, heads=4, width=64, initial=False)
    s = sample(c, case)
    keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
    given = arguments(c, s)
    cotangents = list(s.cotangents.values())

    def chunked() -> list[torch.Tensor]:
        return list(op(**{keys[n]: x for n, x in given.items()})[:-1])

    row: dict[str, float] = {}
    row["forward"], row["backward"] = timed(chunked, cotangents, repeats)
    if against_loop:
        loop = step_loop(c)
        sizes = {d: 64 + 8 * i for i, d in enumerate(c.step.dims)}
        states = {x.name: torch.zeros(1, 4, *(sizes[dim_of(a)] for a in x.axes)) for x in c.step.states}
        row["loop_forward"], row["loop_backward"] = timed(lambda: loop(given, states, steps), cotangents, 2)
    return row


def main(
    names: Annotated[list[str] | None, typer.Argument(help="recurrences; the whole catalogue by default")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the numbers here")] = None,
) -> None:
    console = Console()
    specs = [r for n in names for r in find(n)] if names else catalogue()
    table = Table("recurrence", "fwd ms", "loop / fwd", "bwd ms", "loop / bwd", *(f"T={n} us/step" for n in LENGTHS))
    results = []
    for r in specs:
        c = compile_spec(r)
        if c.family != "chunk-parallel" or "unstable" in c.name:
            continue
        op = compile_op(r)
        at = measure(c, op, 2048, 5, against_loop=True)
        growth = {n: measure(c, op, n, 2, against_loop=False) for n in LENGTHS}
        per_step = [1e3 * (x["forward"] + x["backward"]) / n for n, x in growth.items()]
        results.append({"name": c.name, "at_2048": at, "growth": growth})
        table.add_row(
            c.name,
            f"{at['forward']:.1f}",
            f"{at['loop_forward'] / at['forward']:.1f}",
            f"{at['backward']:.1f}",
            f"{at['loop_backward'] / at['backward']:.1f}",
            *(f"{x:.1f}" for x in per_step),
        )
    console.print(table)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.machine()}
        json_path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
