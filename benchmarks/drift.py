"""How outputs drift where a state is kept in few bits: 32,768 decoding steps against float64, for the catalogue, both shelves.

    python -m benchmarks.drift [--steps 32768] [--only NAME] [--out results/cpu/drift.json]
    python -m benchmarks.drift --float32 --out results/cpu/drift_float32.json

Everything is computed in float64, but the state is rounded after each step, as a pool of its dtype does. Vectors have length 1,
strengths are in (0, 1), and of two heads one forgets within 20 steps (decays near 0.95), the other within 3,000 (near 0.9997).
What is measured: the root mean square of the error of all outputs in a window of steps, over that of the outputs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunkform.runtime.op.small_states import small
from chunkform.spec.language import Recurrence, catalogue
from chunkform.spec.language.load import published

from . import places

WIDTH, WINDOW = 16, 512
DTYPES = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn, "int8": torch.int8}
FORMATS = [f"{n}{how}" for n in DTYPES for how in ("", ", random")]
FLOAT32 = ["float32"]  # rounded to the nearest alone
HEADS = ("short memory", "long memory")


def round_all(x: Tensor, formats: list[str]) -> None:
    """Each of the states [1 + formats, H, ..] but for the first, to what a pool of its format holds of it."""
    if x.dim() == 2 or formats == FLOAT32:  # a number for each head stays in float32
        x[1:] = x[1:].float()
        return
    mask = torch.tensor([False, True]).view(2, *[1] * (x.dim() - 1))
    for i, dtype in enumerate(DTYPES.values()):
        own = x[1 + 2 * i : 3 + 2 * i]
        numbers, scales = small(own.float(), dtype, mask)
        own.copy_(numbers if scales is None else numbers.float() * scales)


def inputs(signature: Any, steps: int) -> dict[str, Tensor]:
    """By declared names: [T, 1, H, ..], or [H, ..] of parameters."""
    torch.manual_seed(0)
    given = {}
    for a in signature.tensors:
        lead = (steps, 1, 2) if a.per_step else (2,)
        x = torch.randn(*lead, *(WIDTH for _ in a.dims), dtype=torch.float64)
        if a.kind.startswith("decay"):
            shift = torch.tensor([3.0, 8.0], dtype=torch.float64).view(2, *[1] * len(a.dims))
            given[a.name] = torch.nn.functional.logsigmoid(x + shift)
        else:
            given[a.name] = torch.nn.functional.normalize(x, dim=-1) if a.dims else x.sigmoid()
    return given


def measure(name: str, steps: int, formats: list[str] = FORMATS) -> dict[str, dict[str, list[float]]]:
    """{memory: {format: [error after the first steps, error after all of them]}}."""
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    step, signature = op.step, op.signature
    count = 1 + len(formats)  # the first is exact
    whole = inputs(signature, steps)
    constants = {a.name: 0.5 if a.default is None else a.default for a in signature.constants}
    timed = {a.name for a in signature.tensors if a.per_step}
    now = {n: x[0].expand(count, *x.shape[2:]) if n in timed else x for n, x in whole.items()}
    states = dict(
        zip([n for n, _ in signature.states], step.first_states([None] * len(signature.states), now | constants, None))
    )
    states = {n: x.double() for n, x in states.items()}
    shown = {n: torch.zeros(count, 2, *(WIDTH for _ in dims), dtype=torch.float64) for n, dims in signature.outputs}
    marks = {min(1024, steps // 2): 0, steps: 1}
    sums = torch.zeros(2, 2, count, 2, dtype=torch.float64)  # mark, error or output, format, head
    for t in range(steps):
        now = {n: x[t].expand(count, *x.shape[2:]) if n in timed else x for n, x in whole.items()}
        step.torch_step(now, states, constants, shown, states)
        for x in states.values():
            round_all(x, formats)
        for mark, m in marks.items():
            if mark - WINDOW <= t < mark:
                for o in shown.values():
                    sums[m, 0] += (o - o[:1]).square().flatten(2).sum(-1)
                    sums[m, 1] += o[:1].square().flatten(2).sum(-1)
    errors = (sums[:, 0] / sums[:, 1]).sqrt()
    return {
        memory: {kind: errors[:, 1 + i, h].tolist() for i, kind in enumerate(formats)} for h, memory in enumerate(HEADS)
    }


def recurrences() -> list[str]:
    """Those of the catalogue, the published ones last."""
    return [r.name for r in (*catalogue(), *published()) if isinstance(r, Recurrence)]


def told(error: float) -> str:
    return "explodes" if math.isnan(error) else f"{error:.0e}"


def page(steps: int, found: dict[str, Any], formats: list[str]) -> str:
    """The table of drift.md."""
    lines = [
        "# Drift of outputs by how a state is kept",
        "",
        f"The relative error of outputs around step {min(1024, steps // 2):,} and step {steps:,}, against float64, where "
        "the state is rounded after each step: to the nearest, or at random. int8 and float8 (e4m3) have a scale for each row.",
        "Of two heads one forgets within 20 steps, the other within 3,000; where a recurrence has no decay both are the same.",
        "Where every column explodes, the recurrence does so in float64 as well, with such inputs.",
        "Made by `python -m benchmarks.drift`, which says how.",
        "",
        f"| recurrence | memory | {' | '.join(formats)} |",
        f"|---|---|{'---|' * len(formats)}",
    ]
    for name, by_memory in found.items():
        for memory, errors in by_memory.items():
            cells = " | ".join(" / ".join(map(told, errors[kind])) for kind in formats)
            lines.append(f"| {name} | {memory.removesuffix(' memory')} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=32768)
    parser.add_argument("--only", action="append")
    parser.add_argument("--float32", action="store_true", help="only float32, the default of a state")
    parser.add_argument("--out", type=places.file, default=Path("results/cpu/drift.json"))
    given = parser.parse_args()
    names = given.only or recurrences()
    formats, found = FLOAT32 if given.float32 else FORMATS, {}
    for name in names:
        found[name] = measure(name, given.steps, formats)
        print(name, json.dumps(found[name]), flush=True)
        given.out.write_text(json.dumps({"steps": given.steps, "errors": found}, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(page(given.steps, found, formats))


if __name__ == "__main__":
    main()
