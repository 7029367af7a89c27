"""The short convolution with its activation as a function: kernels on a GPU, plain torch elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..launch.launch import cdiv, launch
from .convolution_kernels import MOST, backward_kernel, forward_kernel, step_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS, BLOCK = 32, 128  # of a program forwards
STEPS, CHANNELS = 64, 128  # of a program backwards, which has one warp


@dataclass(frozen=True)
class Packed:
    """Where sequences lie: `place` int32 [1 or B, T] counts the steps of its own sequence before each step, and `which` int32 [T]
    says which of several sequences in one row that is; None where no tail is given."""

    place: Tensor
    which: Tensor | None = None


def packed_by(starts: Tensor, steps: int) -> Packed:
    """Of `cu_seqlens` [N + 1]; nothing waits for the device."""
    time = torch.arange(steps, device=starts.device, dtype=starts.dtype)
    which = torch.searchsorted(starts[1:].contiguous(), time, right=True)
    return Packed((time - starts[which]).int().unsqueeze(0), which.int())


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    silu: bool = False,
    tail: Tensor | None = None,
    packed: Packed | None = None,
    backend: str | None = None,
) -> Tensor:
    """y_t = f(bias + sum_j weight_j x_{t-j}) for each channel, f the SiLU or nothing; x and y [B, T, channels], in x's dtype.

    Args:
        weight: [taps, channels], that of the step itself first.
        tail: [sequences, taps - 1, channels], the inputs before the first step; zeros where None.
        packed: where sequences lie that don't see each other.
        backend: "torch", "triton", or None for the best one.
    """
    if backend == "torch" or (backend is None and not on_kernels(x, weight.shape[0])):
        return in_torch(x, weight, bias, silu, tail, packed)
    if torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in (x, weight, bias, tail)):
        return _Convolve.apply(x, weight, bias, tail, silu, packed)  # type: ignore[no-any-return]
    return convolved(x, weight, bias, tail, silu, packed)


def on_kernels(x: Tensor, taps: int) -> bool:
    """Do kernels take it? A compiler of torch's fuses the torch form itself."""
    if not x.is_cuda or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return x.dtype in DTYPES and taps <= MOST and x.numel() > 0


def in_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, tail: Tensor | None, packed: Packed | None
) -> Tensor:
    """The same in plain torch."""
    steps, before = x.shape[1], weight.shape[0] - 1
    weight = weight.to(x.dtype)
    y = weight[0] * x
    if packed is None:
        tail = x.new_zeros(x.shape[0], before, x.shape[2]) if tail is None else tail.to(x.dtype)
        whole = torch.cat([tail, x], 1)
        for j in range(1, before + 1):
            y = y + weight[j] * whole[:, before - j : before - j + steps]
    else:
        place = packed.place.unsqueeze(-1)
        for j in range(1, before + 1):
            earlier = F.pad(x, (0, 0, j, 0))[:, :steps]
            y = y + weight[j] * torch.where(place >= j, earlier, _rows(x, tail, packed, before, j))
    y = y if bias is None else y + bias.to(y.dtype)
    return F.silu(y) if silu else y


def _rows(x: Tensor, tail: Tensor | None, packed: Packed, before: int, j: int) -> Tensor:
    """Row t: x_{t-j} where that is in the tail of the sequence of step t."""
    if tail is None:
        return x.new_zeros(())
    assert packed.which is not None
    row = packed.which.long() * before + (before + packed.place[0].long() - j).clamp(max=before - 1)
    return tail.to(x.dtype).flatten(0, 1)[row]


# --- on kernels -------------------------------------------------------------------------------------------------------


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor | None, silu: bool, packed: Packed | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, tail)
        ctx.silu, ctx.packed = silu, packed
        return convolved(x, weight, bias, tail, silu, packed)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, tail = ctx.saved_tensors
        found = convolution_gradients(x, weight, bias, tail, ctx.silu, ctx.packed, dy)
        return *found, None, None


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor | None, silu: bool, packed: Packed | None
) -> Tensor:
    batch, steps, channels = x.shape
    y = torch.empty(batch, steps, channels, dtype=x.dtype, device=x.device)
    launch(
        forward_kernel,
        (cdiv(steps, ROWS), cdiv(channels, BLOCK), batch),
        *(x, *x.stride(), weight, *weight.stride(), _flat(bias), _flat(tail), *_places(packed), y, steps, channels),
        TAPS=weight.shape[0],
        SILU=silu,
        ROWS=ROWS,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return y


def convolution_gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tail: Tensor | None,
    silu: bool,
    packed: Packed | None,
    dy: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients of x, weight, bias and tail."""
    batch, steps, channels = x.shape
    taps, parts = weight.shape[0], cdiv(steps, STEPS)
    dx = torch.empty(batch, steps, channels, dtype=x.dtype, device=x.device)
    dw = torch.empty(batch * parts, taps, channels, dtype=torch.float32, device=x.device)
    dbias = None if bias is None else dw.new_empty(batch * parts, channels)
    dtail = None if tail is None else torch.zeros_like(tail, memory_format=torch.contiguous_format)
    x, dy = (_channels_last(t) for t in (x, dy))
    launch(
        backward_kernel,
        (parts, cdiv(channels, CHANNELS), batch),
        *(x, *x.stride(), weight, *weight.stride(), _flat(bias), _flat(tail), *_places(packed)),
        *(dy, *dy.stride(), dx, dw, dbias, dtail, steps, channels),
        TAPS=taps,
        SILU=silu,
        ROWS=STEPS,
        BLOCK=CHANNELS,
        num_warps=1,
    )
    total = None if bias is None or dbias is None else dbias.sum(0).to(bias.dtype)
    return dx, dw.sum(0).to(weight.dtype), total, dtail


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _channels_last(x: Tensor) -> Tensor:
    """With neighbouring channels side by side, as a program that takes a step of some channels loads them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _places(packed: Packed | None) -> tuple[Tensor | None, int, Tensor | None]:
    if packed is None:
        return None, 0, None
    place = packed.place.contiguous()
    return place, place.stride(0) if place.shape[0] > 1 else 0, _flat(packed.which)


def convolve_step(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, kept: Tensor) -> Tensor:
    """One step of generation on kernels: x and y [B, channels]; kept [B, channels, n] has the last n >= taps - 1 inputs, drops
    the first and appends x."""
    batch, channels = x.shape
    y = torch.empty(batch, channels, dtype=x.dtype, device=x.device)
    launch(
        step_kernel,
        (cdiv(channels, BLOCK), batch),
        *(x, *x.stride(), weight, *weight.stride(), _flat(bias), kept, *kept.stride(), y, channels),
        KEPT=kept.shape[2],
        TAPS=weight.shape[0],
        SILU=silu,
        BLOCK=BLOCK,
        num_warps=1,
    )
    return y
