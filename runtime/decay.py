"""The decay operations of chunk programs in torch: weights between the steps of a chunk, from natural-log decays.

Every function takes g, the log decays of a chunk with the chunk's steps on axis `dim` (-1 for one decay a step, -2 for one a
channel). Weights are exponentials of differences of cumulative sums; a step whose log decay is below `RESET` (such as -inf)
forgets everything, and is counted instead of summed, so that differences across other steps keep their precision.
Steps are seen in the order of the sweep: `direction` -1 walks the chunk backwards. A read or write is `late` when it comes
after the decay of its own step.
"""

from __future__ import annotations

import torch
from torch import Tensor

RESET = -50.0  # exp(-50) = 2e-22: beyond the precision of what is added


def _cumulative(g: Tensor, dim: int, direction: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(cumulative sums, own values, cumulative counts of resets, own resets), inclusive, in the order of the sweep."""
    reset = ~(g > RESET)
    own = torch.where(reset, torch.zeros_like(g), g).to(torch.float64)
    if direction > 0:
        return own.cumsum(dim), own, reset.to(torch.int32).cumsum(dim), reset.to(torch.int32)
    return own.flip(dim).cumsum(dim).flip(dim), own, reset.to(torch.int32).flip(dim).cumsum(dim).flip(dim), reset.to(torch.int32)


def _at(late: bool, total: Tensor, own: Tensor) -> Tensor:
    return total if late else total - own


def order_mask(size: int, inclusive: bool, direction: int, like: Tensor) -> Tensor:
    """[C, C]: 1 where the read of step i sees the write of step j."""
    ones = torch.ones(size, size, dtype=like.dtype, device=like.device)
    return ones.tril(0 if inclusive else -1) if direction > 0 else ones.triu(0 if inclusive else 1)


def decay_mask(g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int, dim: int = -1) -> Tensor:
    """[..., C, C] (dim -1) or [..., C, C, d] (dim -2): the decays between the write of step j and the read of step i."""
    total, own, count, reset = _cumulative(g, dim, direction)
    read, read_count = _at(late, total, own), _at(late, count, reset)
    write, write_count = _at(write_late, total, own), _at(write_late, count, reset)
    rows, cols = (read.unsqueeze(dim), write.unsqueeze(dim - 1)) if dim == -1 else (read.unsqueeze(-2), write.unsqueeze(-3))
    if dim == -1:
        same = read_count.unsqueeze(-1) == write_count.unsqueeze(-2)
    else:
        same = read_count.unsqueeze(-2) == write_count.unsqueeze(-3)
    size = g.shape[dim]
    seen = order_mask(size, inclusive, direction, g).bool()
    keep = same & (seen if dim == -1 else seen[:, :, None])
    exponent = (rows - cols).to(g.dtype)
    return torch.where(keep, exponent, -torch.inf).exp()


def decay_in(g: Tensor, late: bool, direction: int, dim: int = -1) -> Tensor:
    """The decays from the chunk's start to the read of each step, shaped like g."""
    total, own, count, reset = _cumulative(g, dim, direction)
    exponent = _at(late, total, own).to(g.dtype)
    return torch.where(_at(late, count, reset) == 0, exponent, -torch.inf).exp()


def decay_out(g: Tensor, write_late: bool, direction: int, dim: int = -1) -> Tensor:
    """The decays from the write of each step to the chunk's end, shaped like g."""
    total, own, count, reset = _cumulative(g, dim, direction)
    last = -1 if direction > 0 else 0
    exponent = (total.select(dim, last).unsqueeze(dim) - _at(write_late, total, own)).to(g.dtype)
    same = count.select(dim, last).unsqueeze(dim) == _at(write_late, count, reset)
    return torch.where(same, exponent, -torch.inf).exp()


def decay_all(g: Tensor, dim: int = -1) -> Tensor:
    """All decays of the chunk: g without its axis `dim`."""
    reset = ~(g > RESET)
    total = torch.where(reset, torch.zeros_like(g), g).sum(dim)
    return torch.where(reset.any(dim), -torch.inf, total).exp()


def inverse(t: Tensor, direction: int) -> Tensor:
    """(I - T)^-1 for strictly triangular T, [..., C, C]."""
    identity = torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)
    return torch.linalg.solve_triangular(identity - t, identity.expand_as(t), upper=direction < 0, unitriangular=True)
