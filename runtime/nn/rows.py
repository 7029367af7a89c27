"""What a layer does to a step's values before and after its op: one kernel of rows on a GPU (`chunkform.generated.rows`), torch
elsewhere, and where a compiler of torch's fuses it with what is beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..op.arguments import no_autocast

UNIT_EPS = 1e-6
WIDEST = 512  # a wider row would leave a program one of a few, and each leaves a sum for the weight's gradient
WIDEST_GATED = (
    4096  # of groups that a gate precedes: torch makes many passes over these, which cost more than such sums
)
GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}
MAPS = {"silu": "gated_rms_norm", "sigmoid": "sigmoid_gated_rms_norm"}


def in_kernels(x: Tensor, widest: int = WIDEST) -> bool:
    """Does a kernel make the rows of x, up to so wide?"""
    if not x.is_cuda or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and x.shape[-1] <= widest and x.numel() > 0


def unit(x: Tensor, scale: float = 1.0) -> Tensor:
    """scale x / sqrt(x.x + 1e-6), x [B, T, H, d], in float32 at least."""
    if in_kernels(x):
        return row_map("unit")(x, scale=float(scale))[0]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * ((wide.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt() * scale)).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str = "silu") -> Tensor:
    """weight x / sqrt(mean(x^2) + eps) f(gate) of rows [.., e], in float32 at least; f is the SiLU or the sigmoid."""
    if in_kernels(x):
        x_rows, gate_rows = (y.reshape(1, -1, 1, y.shape[-1]) for y in (x, gate.to(x.dtype)))
        y = row_map(MAPS[activation])(x_rows, gate_rows, weight.unsqueeze(0), eps=eps)[0]
        return y.reshape(x.shape)  # type: ignore[no-any-return]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (weight.to(wide.dtype) * normal * GATES[activation](gate.to(wide.dtype))).to(x.dtype)


def gate_first_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    """weight u / sqrt(mean(u^2) + eps) with u = x SiLU(gate), rows [.., e] normalised in `groups` parts, in float32 at least."""
    x_rows, gate_rows, weights = (y.unflatten(-1, (groups, -1)) for y in (x, gate, weight))
    if in_kernels(x_rows, WIDEST_GATED):
        x_rows, gate_rows = (y.reshape(1, -1, groups, y.shape[-1]) for y in (x_rows, gate_rows.to(x.dtype)))
        return row_map("gate_first_rms_norm")(x_rows, gate_rows, weights, eps=eps)[0].reshape(x.shape)
    wide = x_rows.to(torch.promote_types(x.dtype, torch.float32)) * F.silu(
        gate_rows.to(torch.promote_types(x.dtype, torch.float32))
    )
    normal = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (weights.to(wide.dtype) * normal).flatten(-2).to(x.dtype)


def bounded_decay(g: Tensor, A: Tensor, bias: Tensor, bound: float) -> Tensor:
    """bound sigmoid(exp(A) (g + bias)), arguments as of `softplus_decay`: log decays between bound and 0."""
    A, bias = (x.to(torch.promote_types(g.dtype, torch.float32)) for x in (A, bias))
    if in_kernels(g):
        return row_map("bounded_decay")(g, A, bias, bound=float(bound))[0]
    return bound * torch.sigmoid(A.exp().unsqueeze(-1) * (g.to(A.dtype) + bias))


def softplus_decay(g: Tensor, A: Tensor, bias: Tensor) -> Tensor:
    """-exp(A) softplus(g + bias), g [B, T, H, d], A [H], bias [H, d]: log decays, in float32 at least."""
    A, bias = (x.to(torch.promote_types(g.dtype, torch.float32)) for x in (A, bias))
    if in_kernels(g):
        return row_map("softplus_decay")(g, A, bias)[0]
    return -A.exp().unsqueeze(-1) * F.softplus(g.to(A.dtype) + bias)


def row_map(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """A row map in the dtypes that it is given, whatever autocast says: log decays keep their digits.

    Generated files import the runtime, and are loaded when one is first needed.
    """
    found: Callable[..., tuple[Tensor, ...]] = getattr(importlib.import_module("chunkform.generated.rows"), name)

    def called(x: Tensor, *others: Tensor, **constants: float) -> tuple[Tensor, ...]:
        with no_autocast(x.device):
            return found(x, *others, **constants)

    return called
