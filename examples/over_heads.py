"""A layer's heads on the processes of a group: tensor parallelism for `Mixer`, whose output is a sum over heads.

Each process has some of the heads, with their part of every projection. What all heads share (the scale of their norm, and the
narrow projection of decays) is on all processes, where its gradients are summed after the backward pass: `shared`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from chunkform.runtime.nn import Mixer


class OverHeads(nn.Module):
    """`whole` with the heads of this process. Its parameters are parts of the whole's, which are the same on all processes."""

    def __init__(self, whole: Mixer, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, count = group, group.size()
        if any(n % count for n in whole.arguments.recipe.heads.values()):
            raise SystemExit(f"{count} processes must divide the numbers of heads, {whole.arguments.recipe.heads}")
        own = {n: heads // count for n, heads in whole.arguments.recipe.heads.items()}
        options = {"context_parallel": whole.context_parallel, "convolution": _taps(whole)}
        self.own = Mixer(
            whole.call.op, whole.width, whole.heads // count, dims=whole.sizes, heads_of=own,
            gate=whole.gate is not None, constants=whole.constants, backend=whole.backend, **options,
        )  # fmt: skip
        self.to(whole.out.weight)
        with torch.no_grad():
            for name, x in self.own.named_parameters():
                x.copy_(self.part(whole.get_parameter(name), name))

    def forward(self, x: Tensor) -> Tensor:
        return _Sum.apply(self.own(_Copy.apply(x, self.group)), self.group)

    def part(self, x: Tensor, name: str) -> Tensor:
        """Of the whole's parameter of this name, or of what is shaped like it, what belongs to the heads of this process."""
        own, count = self.own.arguments, self.group.size()
        if name == "norm" or name.startswith("arguments.narrow."):
            return x
        axis, channels = 0, [x.shape[0]]
        if name.startswith(("arguments.project.", "arguments.convolve.")):
            axis = int("convolve" in name)
            channels = [count * own.recipe.channels(a) for a in own.vectors]
        elif name.startswith("arguments.gate."):
            channels = [count * own.recipe.channels(a) for a in own.gates]
        elif name.startswith("out."):
            axis, channels = 1, [x.shape[1]]
        return torch.cat([y.chunk(count, axis)[self.group.rank()] for y in x.split(channels, axis)], axis)

    def shared(self) -> Iterator[nn.Parameter]:
        """What all heads use."""
        yield self.own.norm
        yield from self.own.arguments.narrow.parameters()


def _taps(whole: Mixer) -> int:
    return 0 if whole.arguments.convolve is None else whole.arguments.convolve.taps


class _Copy(torch.autograd.Function):
    """The same on all processes; gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Sum(torch.autograd.Function):
    """Summed over the processes; all have the same gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None
