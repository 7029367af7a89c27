"""The fused backward whose warps have roles, beside the one without, on a GPU of compute capability 9.0: errors of each head
against the recurrence in float64, then times beside the memory lower bound. It takes less than two minutes.

    python -m benchmarks.fused_roles            # compare, time, and put what was found into results/gpu/roles.json

Gradients of a few numbers a head are left to tests/gpu/test_fused_roles.py, which judges them over many draws. Exit status 1:
the kernel was not launched, or has larger errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from . import timing
from .accuracy import errors
from .calls import forward_backward
from .inputs import SHAPES, Shape, draw
from .pairs import lower_bound_milliseconds
from .peers import Subject, ours
from .roles import Row, Rows, command, larger_errors, meanwhile

NAMES = ("lightning_attention", "retention", "linear_attention")
KERNEL = "backward_whole_roles"
COMPARED = (Shape("tail", 2, 300, 4, 128), Shape("chunks", 1, 512, 2, 128), Shape("one step", 2, 1, 3, 128))
TIMED = ("S1", "S2", "S4")


def main() -> None:
    command("fused_roles", __doc__, "fused backward", measured, lambda found: (table(found), complaints(found)))


def asked_for(there: bool) -> AbstractContextManager[None]:
    """Calls have the kernel meanwhile, or haven't."""
    return meanwhile(FUSED=there)


def measured() -> tuple[Rows, Rows]:
    rate = timing.copy_rate("cuda", timing.QUICK)
    compared: Rows = []
    timed: Rows = []
    for name in NAMES:
        one = ours(name)
        compared += [row for shape in COMPARED for row in comparison(name, one, shape)]
        timed += [times(name, one, SHAPES[s], rate) for s in (TIMED if name == NAMES[0] else TIMED[:1])]
    return compared, timed


def comparison(name: str, one: Subject, shape: Shape) -> Iterator[Row]:
    """Errors of the worst head, without roles and with them, for decays of three strengths."""
    given, _ = draw(one.signature, shape, device="cuda", dtype=torch.bfloat16, unit=one.unit, decay="usual")
    few = {f"d{n}" for n, x in given.items() if x.ndim == 1}
    for decay in ("usual", "lasting", "fast") if shape is COMPARED[0] else ("usual",):
        row: Row = {"op": name, "shape": shape.spelled, "decay": decay}
        for what, there in (("without", False), ("with roles", True)):
            with asked_for(there):
                found = errors(name, one, shape, "cuda", torch.bfloat16, decay)
            row[what] = {n: x for n, x in found.items() if n not in few}
        yield row


def times(name: str, one: Subject, shape: Shape, rate: float) -> Row:
    """Microseconds of both passes, and of the backward kernel alone, twice in turns."""
    given, cotangents = draw(one.signature, shape, device="cuda", dtype=torch.bfloat16, unit=one.unit, decay="usual")
    run = forward_backward(one, given, cotangents)
    bound = lower_bound_milliseconds(one.signature, shape, rate)
    row: Row = {"op": name, "shape": shape.spelled, "bound": {n: round(1e3 * x, 1) for n, x in bound.items()}}
    for there in (False, True, False, True):
        with asked_for(there):
            found = timing.graph(run, "cuda", timing.QUICK)
            taken = (timing.kernels(run, "cuda") or {}).get("by_name", {})
        kernel = KERNEL if there else KERNEL.removesuffix("_roles")
        each = row.setdefault("with roles" if there else "without", {"both": [], "kernel": []})
        each["both"].append(round(1e3 * found["replay"]["median"], 1) if found and found["replay"] else math.nan)
        each["kernel"].append(taken.get(kernel, (0, math.nan))[1])
    return row


def complaints(found: Row) -> list[str]:
    """What stands against the kernel."""
    said = [*larger_errors(found["errors"], ("op", "shape", "decay"))]
    said += [
        f"{row['op']} {row['shape']}: it was not launched"
        for row in found["times"]
        if not all(map(math.isfinite, row["with roles"]["kernel"]))
    ]
    return said


def table(found: Row) -> str:
    lines = [f"{'op':20} {'shape':16} {'both: bound':>12} {'without':>16} {'with roles':>16}   kernel: without, with"]
    for row in found["times"]:
        both = [", ".join(f"{x:.1f}" for x in row[w]["both"]) for w in ("without", "with roles")]
        kernel = [", ".join(f"{x:.1f}" for x in row[w]["kernel"]) for w in ("without", "with roles")]
        bound = max(row["bound"].values())
        lines.append(
            f"{row['op']:20} {row['shape']:16} {bound:12.1f} {both[0]:>16} {both[1]:>16}   {' | '.join(kernel)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
