"""What a layer does to a step's values before and after its op: one kernel of rows on a GPU (`chunkform.generated.rows`), torch
elsewhere, and where a compiler of torch's fuses it with what is beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.passes import no_autocast

UNIT_EPS = 1e-6
WIDEST = 512  # a wider row would leave a program one of a few, and each leaves a sum for the weight's gradient
GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}
MAPS = {"silu": "gated_rms_norm", "sigmoid": "sigmoid_gated_rms_norm"}


def in_kernels(x: Tensor) -> bool:
    """Does a kernel make the rows of x?"""
    if not x.is_cuda or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and x.shape[-1] <= WIDEST and x.numel() > 0


def unit(x: Tensor, scale: float = 1.0) -> Tensor:
    """scale x / sqrt(x.x + 1e-6), x [B, T, H, d], in float32 at least."""
    if in_kernels(x):
        return _map("unit")(x, scale=float(scale))[0]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * ((wide.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt() * scale)).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str = "silu") -> Tensor:
    """weight x / sqrt(mean(x^2) + eps) f(gate) of rows [.., e], in float32 at least; f is the SiLU or the sigmoid."""
    if in_kernels(x):
        x_rows, gate_rows = (y.reshape(1, -1, 1, y.shape[-1]) for y in (x, gate.to(x.dtype)))
        y = _map(MAPS[activation])(x_rows, gate_rows, weight.unsqueeze(0), eps=eps)[0]
        return y.reshape(x.shape)  # type: ignore[no-any-return]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (weight.to(wide.dtype) * normal * GATES[activation](gate.to(wide.dtype))).to(x.dtype)


def softplus_decay(g: Tensor, A: Tensor, bias: Tensor) -> Tensor:
    """-exp(A) softplus(g + bias), g [B, T, H, d], A [H], bias [H, d]: log decays, in float32 at least."""
    A, bias = (x.to(torch.promote_types(g.dtype, torch.float32)) for x in (A, bias))
    if in_kernels(g):
        return _map("softplus_decay")(g, A, bias)[0]
    return -A.exp().unsqueeze(-1) * F.softplus(g.to(A.dtype) + bias)


def _map(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """A row map in the dtypes that it is given, whatever autocast says: log decays keep their digits.

    Generated files import the runtime, and are loaded when one is first needed.
    """
    found: Callable[..., tuple[Tensor, ...]] = getattr(importlib.import_module("chunkform.generated.rows"), name)

    def called(x: Tensor, *others: Tensor, **constants: float) -> tuple[Tensor, ...]:
        with no_autocast(x.device):
            return found(x, *others, **constants)

    return called
