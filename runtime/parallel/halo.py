"""The last steps of the segment before, put before a segment: what a layer that looks a few steps back needs of its
neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from chunkform.errors import ArgumentError

from .agreement import agreed
from .graphs import outside_of_graphs
from .group import Group, group_of
from .shards import host_boundaries, pieces_of


@outside_of_graphs
def halo(x: Tensor, width: int, group: object, name: str = "halo") -> Tensor:
    """[B, T, ...] -> [B, width + T, ...]: the `width` steps before this rank's segment, and then the segment.

    Zeros on the first rank, and where the sequence is shorter than that. Segments may differ in length, and be shorter than
    `width`. Differentiable: gradients of the steps before go back to the ranks that hold them. One collective each way.

    Args:
        x: [B, T, ...], this rank's segment of the sequence; T may differ between ranks.
        width: how many steps to look back, at least 0.
        group: a ProcessGroup or a one-dimensional DeviceMesh.

    Raises:
        ArgumentError: width isn't a number of steps, or ranks disagree on shapes or dtypes.
    """
    found, lengths = _agreed(x, width, group, name)
    return _Halo.apply(x, width, found, lengths) if width else x


@outside_of_graphs
def tails(
    x: Tensor, width: int, group: object, cu_seqlens: Tensor | None = None, name: str = "tails"
) -> tuple[Tensor, Tensor | None]:
    """What a layer that looks `width` steps back begins this segment with: (tails [N, width, ...], boundaries in this segment).

    Without `cu_seqlens` N is B, and there are no boundaries. With it, which has the boundaries in the whole sequence, N counts
    the pieces of sequences in this segment: only the first may go on from the segment before, the tails of others are zeros.
    """
    found, lengths = _agreed(x, width, group, name, always=cu_seqlens is not None)
    before = (_Halo.apply(x, width, found, lengths) if width else x)[:, :width]
    if cu_seqlens is None:
        return before, None
    boundaries, low = host_boundaries(name, cu_seqlens, x.shape[0]), sum(lengths[: found.rank])
    pieces = pieces_of(boundaries, lengths, found.rank)
    starts = [*(p.start for p in pieces), x.shape[1]] if pieces else [0, 0]
    local = torch.tensor(starts, device=x.device)
    since = 0 if not pieces or pieces[0].begins else min(width, low - boundaries[pieces[0].sequence])
    seen = torch.cat((torch.zeros_like(before[:, : width - since]), before[:, width - since :]), 1)
    others = x.new_zeros((len(starts) - 2, *seen.shape[1:]))
    return torch.cat((seen, others)), local


def _agreed(x: Tensor, width: int, group: object, name: str, always: bool = False) -> tuple[Group, list[int]]:
    """(the group, the lengths of all segments)."""
    found = group_of(name, group)
    error = None
    if not isinstance(width, int) or isinstance(width, bool) or width < 0:
        error = ArgumentError(f"{name}: width must be a number of steps, at least 0, got {width!r}")
    elif not isinstance(x, Tensor) or x.dim() < 2:
        error = ArgumentError(f"{name}: x must be a tensor [B, T, ...], got {getattr(x, 'shape', type(x).__name__)}")
    same: dict[str, Any] = {"the op": name, "the size of the group": found.size}
    if error is None:
        same |= {
            "width": width,
            "the shape of x": f"[{', '.join(['T' if n == 1 else str(k) for n, k in enumerate(x.shape)])}]",
            "the dtype of x": str(x.dtype).removeprefix("torch."),
            "whether x needs a gradient": x.requires_grad and torch.is_grad_enabled(),
        }
    own = {"T": x.shape[1]} if error is None else {}
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    key = None if always or error is not None else (name, width, x.shape, x.dtype, same["whether x needs a gradient"])
    return found, [said["T"] for said in agreed(found, lambda: (same, own), device, error, key)]


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, width: int, group: Group, lengths: list[int]) -> Tensor:
        ctx.width, ctx.group, ctx.lengths = width, group, lengths
        tails = group.gather(_tail(x, width)).wait()
        before = x.new_zeros((x.shape[0], width, *x.shape[2:]))
        for rank, start, count, at in _sources(lengths, group.rank, width):
            before[:, at : at + count] = tails[rank][:, start : start + count]
        return torch.cat((before, x), 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Any:
        width, group, lengths = ctx.width, ctx.group, ctx.lengths
        everything = group.gather(gradient[:, :width]).wait()
        own = gradient[:, width:].clone()
        first = max(0, lengths[group.rank] - width)  # the steps of this segment that others may have seen
        for other in range(group.rank + 1, group.size):
            for rank, start, count, at in _sources(lengths, other, width):
                if rank == group.rank:
                    begin = first + start - max(0, width - lengths[rank])
                    own[:, begin : begin + count] += everything[other][:, at : at + count]
        return own, None, None, None


def _tail(x: Tensor, width: int) -> Tensor:
    """The last `width` steps, after zeros where there are fewer."""
    last = x[:, max(0, x.shape[1] - width) :]
    missing = width - last.shape[1]
    return torch.cat((x.new_zeros((x.shape[0], missing, *x.shape[2:])), last), 1) if missing else last


def _sources(lengths: list[int], rank: int, width: int) -> list[tuple[int, int, int, int]]:
    """Where the steps before a rank's segment lie: (rank, first step in its tail, how many, first place in the halo)."""
    out = []
    open_ = width
    for other in range(rank - 1, -1, -1):
        count = min(lengths[other], open_)
        if count:
            out.append((other, width - count, count, open_ - count))
        open_ -= count
    return out
