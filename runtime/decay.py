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

RESET = -708.0  # exp(-708) is the smallest normal number of float64
RANGE = 120.0  # sums of log decays over a chunk up to here are split in two factors, neither of which overflows


def _cumulative(g: Tensor, dim: int, direction: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(cumulative sums, own values, cumulative counts of resets, own resets), inclusive, in the order of the sweep."""
    reset = ~(g > RESET)
    own = torch.where(reset, torch.zeros_like(g), g).to(torch.float64)
    if direction > 0:
        return own.cumsum(dim), own, reset.to(torch.int32).cumsum(dim), reset.to(torch.int32)
    return (
        own.flip(dim).cumsum(dim).flip(dim),
        own,
        reset.to(torch.int32).flip(dim).cumsum(dim).flip(dim),
        reset.to(torch.int32),
    )


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
    rows, cols = (
        (read.unsqueeze(dim), write.unsqueeze(dim - 1)) if dim == -1 else (read.unsqueeze(-2), write.unsqueeze(-3))
    )
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


def triangular_inverse(t: Tensor, direction: int, channels: bool = False) -> Tensor:
    """(I - T)^-1 for strictly triangular T, [..., C, C]; with `channels`, [..., C, C, e]: one system for each channel."""
    if channels:
        return triangular_inverse(t.movedim(-1, -3), direction).movedim(-3, -1)
    identity = torch.eye(t.shape[-1], dtype=t.dtype, device=t.device)
    return torch.linalg.solve_triangular(identity - t, identity.expand_as(t), upper=direction < 0, unitriangular=True)


# --- decays of each channel -----------------------------------------------------------------------------------------


def chunk_for(g: Tensor, lead: tuple[int, int, int], sizes: tuple[int, ...] = (64, 32, 16)) -> int:
    """The largest chunk over which the log decays g, [B, H, T, d], can be split in two factors; else the smallest."""
    g = g.expand(g.shape[0], g.shape[1], lead[2], *g.shape[3:])
    for size in sizes:
        pad = -lead[2] % size
        padded = torch.nn.functional.pad(g, (0, 0, 0, pad)) if pad else g
        sums = padded.abs().unflatten(2, (-1, size)).sum(3) if padded.numel() else padded
        if not sums.numel() or float(sums.max()) <= RANGE:
            return size
    return sizes[-1]


def _factors(g: Tensor, late: bool, write_late: bool, direction: int) -> tuple[Tensor, Tensor] | None:
    """exp(a_read - m) and exp(m - a_write) with m the middle of the chunk's range, where neither can overflow."""
    if not g.numel() or not float(g.abs().sum(-2).max()) <= RANGE:
        return None
    own = g.to(torch.float64)
    total = own.cumsum(-2) if direction > 0 else own.flip(-2).cumsum(-2).flip(-2)
    last = total.select(-2, -1 if direction > 0 else 0).unsqueeze(-2)
    middle = 0.5 * last
    read, write = _at(late, total, own) - middle, middle - _at(write_late, total, own)
    return read.to(g.dtype).exp(), write.to(g.dtype).exp()


def _like(g: Tensor, x: Tensor | float) -> Tensor:
    """A number as a tensor of g's shape."""
    return x if isinstance(x, Tensor) else torch.full_like(g, x)


def channel_product(
    x: Tensor | float, y: Tensor | float, g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int
) -> Tensor:
    """[..., C, C]: the sum over channels of x_i y_j and the decays between them; x, y, g are [..., C, d], or x or y a number."""
    x, y = _like(g, x), _like(g, y)
    split = _factors(g, late, write_late, direction)
    if split is None:
        mask = decay_mask(g, late, write_late, inclusive, direction, dim=-2)
        return torch.einsum("...ijd,...jd->...ij", x.unsqueeze(-2) * mask, y)
    seen = order_mask(g.shape[-2], inclusive, direction, g).bool()
    product = (x * split[0]) @ (y * split[1]).mT
    return torch.where(seen, product, torch.zeros_like(product))


def channel_apply(
    weights: Tensor | float, y: Tensor | float, g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int
) -> Tensor:
    """[..., C, d]: the sum over j of weights_ij y_j and the decays between them; weights is [..., C, C], y [..., C, d], either
    may be a number."""
    y = _like(g, y)
    split = _factors(g, late, write_late, direction)
    if split is None:
        mask = decay_mask(g, late, write_late, inclusive, direction, dim=-2)
        each = weights.unsqueeze(-1) if isinstance(weights, Tensor) else weights
        return torch.einsum("...ijd,...jd->...id", each * mask, y)
    seen = order_mask(g.shape[-2], inclusive, direction, g)
    return split[0] * ((weights * seen) @ (y * split[1]))
