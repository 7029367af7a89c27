"""What surrounds an op in a layer, forwards and backwards: its kernels beside those of fla and plain torch.

    python -m benchmarks.around [--length 32768] [--heads 8] [--json PATH]

Tensors [1, T, heads, 128] in bfloat16, as after a projection: the convolution is that of q, k and v together. What fla lacks, or
calls otherwise in the version that is installed, is left out.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from chunkform.runtime.nn import convolve, rows

from . import places
from .timing import USUAL, Effort, medians

WIDTH, TAPS, EPS = 128, 4, 1e-6
Call = Callable[..., Tensor]


def main(
    length: Annotated[int, typer.Option(help="steps")] = 32768,
    heads: Annotated[int, typer.Option(help="of 128 channels")] = 8,
    device: Annotated[str, typer.Option(help="of the measurement")] = "cuda",
    only: Annotated[str, typer.Option(help="cases whose names have one of these words")] = "",
    out: Annotated[Path | None, typer.Option("--json", parser=places.file, help="where to write the rows")] = None,
) -> None:
    found = []
    effort = USUAL if device == "cuda" else Effort(0, 1, 1)
    print(f"{'what':16} {'by':10} {'forward':>10} {'both':>10}   milliseconds")
    for what, (given, calls) in cases(length, heads, device).items():
        if only and not any(word in what for word in only.split(",")):
            continue
        for by, call in calls.items():
            if call is None:
                continue
            row = {"what": what, "by": by, **times(call, given, device, effort)}
            found.append(row)
            print(f"{what:16} {by:10} {row['forward']:10.3f} {row['both']:10.3f}", flush=True)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


def times(call: Call, given: list[Tensor], device: str, effort: Effort) -> dict[str, float]:
    """Medians of a forward without gradients, and of both passes."""
    grad = torch.randn_like(call(*given).detach())

    def forward() -> None:
        with torch.no_grad():
            call(*given)

    def both() -> None:
        torch.autograd.grad(call(*given), given, grad)

    return {n: medians(f, device, effort)["median"] for n, f in (("forward", forward), ("both", both))}


def cases(length: int, heads: int, device: str) -> dict[str, tuple[list[Tensor], dict[str, Call | None]]]:
    """By what is computed: what it is given, and who computes it."""

    def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype).requires_grad_()

    x, z = made(1, length, heads, WIDTH), made(1, length, heads, WIDTH)
    channels = 3 * heads * WIDTH
    float32 = {"dtype": torch.float32}
    found: dict[str, tuple[list[Tensor], dict[str, Call | None]]] = {
        "convolution": (
            [made(1, length, channels), made(channels, TAPS)],
            {
                "chunkform": lambda x, w: convolve.convolve(x, w.flip(1).mT, None, True),
                "fla": fla("modules.causal_conv1d", "causal_conv1d", lambda f, x, w: f(x, w, activation="silu")[0]),
                "torch": lambda x, w: F.silu(
                    F.conv1d(x.mT, w.unsqueeze(1), padding=TAPS - 1, groups=channels)[..., :length]
                ).mT.contiguous(),
            },
        ),
        "unit": (
            [x],
            {
                "chunkform": rows.unit,
                "fla": fla("modules.norm.l2norm", "l2norm", lambda f, x: f(x)),
                "torch": lambda x: (x.float() * (x.float().square().sum(-1, keepdim=True) + EPS).rsqrt()).to(x.dtype),
            },
        ),
        "softplus decay": (
            [made(1, length, heads, WIDTH), made(heads, **float32), made(heads, WIDTH, **float32)],
            {
                "chunkform": rows.softplus_decay,
                "fla": fla("ops.kda.gate", "fused_kda_gate", lambda f, g, a, b: f(g, a, b.flatten())),
                "torch": lambda g, a, b: -a.exp().unsqueeze(-1) * F.softplus(g.float() + b),
            },
        ),
    }
    found["bounded decay"] = (
        [made(1, length, heads, WIDTH), made(heads, **float32), made(heads, WIDTH, **float32)],
        {
            "chunkform": lambda g, a, b: rows.bounded_decay(g, a, b, -5.0),
            "fla": fla("ops.kda.gate", "fused_kda_gate", lambda f, g, a, b: f(g, a, b.flatten(), lower_bound=-5.0)),
            "torch": lambda g, a, b: -5.0 * torch.sigmoid(a.exp().unsqueeze(-1) * (g.float() + b)),
        },
    )
    wide = heads * WIDTH
    found["gate, norm"] = (
        [made(1, length, wide), made(1, length, wide), made(wide)],
        {
            "chunkform": lambda x, z, w: rows.gate_first_rms_norm(x, z, w, EPS),
            "fla": fla(
                "modules.norm.layernorm_gated",
                "rmsnorm_fn",
                lambda f, x, z, w: f(x, w, None, z=z, eps=EPS, norm_before_gate=False),
            ),
            "torch": lambda x, z, w: (w * F.rms_norm(x.float() * F.silu(z.float()), (wide,), eps=EPS)).to(x.dtype),
        },
    )
    for activation, theirs in (("silu", "swish"), ("sigmoid", "sigmoid")):
        found[f"norm, {activation}"] = (
            [x, z, made(WIDTH)],
            {
                "chunkform": lambda x, z, w, a=activation: rows.gated_rms_norm(x, z, w, EPS, a),
                "fla": fla(
                    "modules.norm.fused_norm_gate",
                    "rms_norm_gated",
                    lambda f, x, z, w, a=theirs: f(x, z, w, None, activation=a, eps=EPS),
                ),
                "torch": lambda x, z, w, a=activation: (
                    w * F.rms_norm(x.float(), (WIDTH,), eps=EPS) * rows.GATES[a](z.float())
                ).to(x.dtype),
            },
        )
    return found


def fla(module: str, name: str, call: Callable[..., Tensor]) -> Call | None:
    try:
        function = getattr(importlib.import_module(f"fla.{module}"), name)
    except (ImportError, AttributeError):
        return None
    return lambda *given: call(function, *given)


if __name__ == "__main__":
    typer.run(main)
