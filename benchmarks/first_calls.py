"""Seconds of the first calls of an op, each in a process of its own, of which Triton has compiled nothing before.

    python -m benchmarks.first_calls [--ops A,B] [--shapes S1,S2] [--out FILE]

`forward` is the first call where nobody wants gradients; `forward_backward` the first of both passes, in another process;
`second` is the one after that, which is watched for a replay. What a process has loaded before isn't counted: Python, torch, the
op's module, and CUDA, on which the inputs are drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from . import peers, places, timing
from .calls import forward, forward_backward
from .inputs import draw, parse_shape

OPS = "lightning_attention,gated_linear_attention,gated_delta_rule,kimi_delta_attention,inverse_attention"
RUNS = {"forward": forward, "forward_backward": forward_backward}


def main(
    ops: Annotated[str, typer.Option(help="recurrences of the catalogue, with commas between")] = OPS,
    shapes: Annotated[str, typer.Option(help="as in benchmarks.gpu")] = "S1,S2,D256",
    device: Annotated[str, typer.Option(help="cuda, or cpu to try this program out")] = "cuda",
    out: Annotated[Path | None, typer.Option(parser=places.file, help="write the numbers here")] = None,
    only: Annotated[str, typer.Option(help="measure this pass in this process, and print it as JSON")] = "",
) -> None:
    """Seconds of first calls, one process after the other."""
    if only:
        print(json.dumps(_measured(ops, shapes, device, only)))
        return
    rows: list[dict[str, Any]] = []
    for name in ops.split(","):
        for shape in shapes.split(","):
            row: dict[str, Any] = {"op": name, "shape": shape}
            for run in RUNS:
                row |= _apart(name, shape, device, run)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if out is not None:
        gpu = torch.cuda.get_device_name() if timing.on_gpu(device) else "cpu"
        about = {"device": gpu, "cores": os.cpu_count(), "torch": torch.__version__, "triton": peers.version("triton")}
        out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def _apart(op: str, shape: str, device: str, run: str) -> dict[str, float]:
    """`_measured` in a process of its own, which finds nothing compiled."""
    words = [sys.executable, "-m", __spec__.name, "--ops", op, "--shapes", shape, "--device", device, "--only", run]
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"TRITON_CACHE_DIR": folder}
        done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(op: str, shape: str, device: str, run: str) -> dict[str, float]:
    subject = peers.ours(op)
    dtype = torch.bfloat16 if timing.on_gpu(device) else torch.float32
    given, cotangents = draw(subject.signature, parse_shape(shape), device=device, dtype=dtype, unit=subject.unit)
    call = forward(subject, given) if run == "forward" else forward_backward(subject, given, cotangents)
    found = {run: timing.seconds(call, device)}
    if run == "forward_backward":
        found["second"] = timing.seconds(call, device)
    return {n: round(x, 3) for n, x in found.items()}


if __name__ == "__main__":
    sys.exit(typer.run(main))
