"""The host's time of a call, with and without replays, in one run.

    python -m benchmarks.host [--ops A,B] [--shapes 1x256x16x128,S4] [--out FILE]

`bare` is what torch itself takes for a function of as many tensors that does nothing: its two passes without any work. `least` is
the same with memory for what it returns, and launches nothing. torch runs a backward pass in a thread of its own, once for all
that it differentiates, and handing over to it and back is half of `bare`. `in one thread` is without that
(`torch.autograd.set_multithreading_enabled(False)`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from chunkform.runtime.launch import replay

from . import peers, places, timing
from .calls import forward, forward_backward
from .inputs import draw, parse_shape

OPS = "lightning_attention,gated_linear_attention,gated_delta_rule,kimi_delta_attention,inverse_attention"


def main(
    ops: Annotated[str, typer.Option(help="recurrences of the catalogue, with commas between")] = OPS,
    shapes: Annotated[str, typer.Option(help="as in benchmarks.gpu")] = "1x256x16x128",
    device: Annotated[str, typer.Option(help="cuda, or cpu to try this program out")] = "cuda",
    calls: Annotated[int, typer.Option(help="between synchronisations")] = 50,
    out: Annotated[Path | None, typer.Option(parser=places.file, help="write the numbers here")] = None,
) -> None:
    """Microseconds that the host takes to enqueue one call."""
    dtype = torch.bfloat16 if timing.on_gpu(device) else torch.float32
    rows: list[dict[str, Any]] = []
    for name in ops.split(","):
        subject = peers.ours(name)
        for shape in map(parse_shape, shapes.split(",")):
            given, cotangents = draw(subject.signature, shape, device=device, dtype=dtype, unit=subject.unit)
            runs = {
                "forward": forward(subject, given),
                "forward_backward": forward_backward(subject, given, cotangents),
            }
            row: dict[str, Any] = {"op": name, "shape": shape.name}
            for kind, on in (("direct", False), ("replayed", True)):
                replay.ON = on
                for part, run in runs.items():
                    for _ in range(3):
                        run()
                    row[f"{kind} {part}"] = timing.host_microseconds(run, device, calls)
            nothing = {"bare": bare(given, Nothing), "least": bare(given, Taking)}
            for kind, run in nothing.items():
                row[f"{kind} forward_backward"] = timing.host_microseconds(run, device, calls)
            both = {"replayed": runs["forward_backward"], **nothing}
            with torch.autograd.set_multithreading_enabled(False):
                for kind, run in both.items():
                    row[f"{kind} forward_backward in one thread"] = timing.host_microseconds(run, device, calls)
            rows.append(row)
            print(json.dumps({n: x if isinstance(x, str) else round(x, 1) for n, x in row.items()}), flush=True)
    if out is not None:
        gpu = torch.cuda.get_device_name() if timing.on_gpu(device) else "cpu"
        about = {"device": gpu, "torch": torch.__version__, "triton": peers.version("triton")}
        out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


class Nothing(torch.autograd.Function):
    """Returns the first argument, and every argument as its gradient."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return ctx.saved_tensors


class Taking(torch.autograd.Function):
    """Takes memory for an output like the first argument, and for the gradient of each."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def bare(given: dict[str, torch.Tensor], function: type[torch.autograd.Function]) -> timing.Call:
    """Both passes of a function that does nothing."""
    leaves = [x.detach().requires_grad_() for x in given.values()]
    incoming = torch.empty_like(leaves[0])
    return lambda: torch.autograd.grad(function.apply(*leaves), leaves, incoming)


if __name__ == "__main__":
    sys.exit(typer.run(main))
