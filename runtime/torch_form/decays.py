"""The decay operations of chunk programs in torch: weights between the steps of a chunk, from natural-log decays.

Every function takes g, the log decays of a chunk with the chunk's steps on axis `dim` (-1 for one decay a step, -2 for one a
channel). Weights are exponentials of differences of cumulative sums, which are float64; a log decay below `LEAST` (such as -inf)
counts as that, and is summed apart, so that differences across other steps keep their precision.
Steps are seen in the order of the sweep: `direction` -1 sweeps the chunk backwards. A read or write is `late` when it comes
after the decay of its own step.

What a step makes is made of steps before it alone, bit by bit: no choice here looks at the values of decays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

LEAST = -800.0  # exp(-800) is zero in float64
DENSE = 4  # steps between which decays of channels are raised one by one, not in two factors


def _cumulative(g: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """[2, ..]: sums of log decays from the chunk's start, with each step's own, and up to the step before it: those above
    `LEAST`, and the others."""
    least = g <= LEAST
    total = torch.stack((g.masked_fill(least, 0), least * LEAST)).to(torch.float64).cumsum(dim)
    return total, torch.cat((torch.zeros_like(total.narrow(dim, 0, 1)), total.narrow(dim, 0, g.shape[dim] - 1)), dim)


def _between(later: Tensor, earlier: Tensor) -> Tensor:
    """The logarithm of the decays between two steps, of their sums."""
    return (later - earlier).sum(0)


def _edges(g: Tensor, dim: int, late: bool, write_late: bool, direction: int) -> tuple[Tensor, Tensor, Tensor]:
    """(sums up to each read, to each write, of all steps), from the chunk's start, so that what lies between two steps is made of
    steps up to the later one."""
    total, before = _cumulative(g, dim)
    whole = total.narrow(dim, g.shape[dim] - 1, 1)
    if direction > 0:
        return (total if late else before), (total if write_late else before), whole
    return (before if late else total), (before if write_late else total), whole


def order_mask(size: int, inclusive: bool, direction: int, like: Tensor) -> Tensor:
    """[C, C]: 1 where the read of step i sees the write of step j."""
    return apart_mask(size, 0 if inclusive else 1, direction, like)


def apart_mask(size: int, least: int, direction: int, like: Tensor) -> Tensor:
    """[C, C]: 1 where step i comes at least so many steps after step j."""
    ones = torch.ones(size, size, dtype=like.dtype, device=like.device)
    return ones.tril(-least) if direction > 0 else ones.triu(least)


def decay_mask(g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int, dim: int = -1) -> Tensor:
    """[..., C, C] (dim -1) or [..., C, C, d] (dim -2): the decays between the write of step j and the read of step i."""
    read, write, _ = _edges(g, dim, late, write_late, direction)
    seen = order_mask(g.shape[dim], inclusive, direction, g).bool()
    exponent = (direction * _between(read.unsqueeze(dim), write.unsqueeze(dim - 1))).to(g.dtype)
    return torch.where(seen if dim == -1 else seen[:, :, None], exponent, -torch.inf).exp()


def decay_in(g: Tensor, late: bool, direction: int, dim: int = -1) -> Tensor:
    """The decays from the chunk's start to the read of each step, shaped like g."""
    read, _, whole = _edges(g, dim, late, False, direction)
    return (read.sum(0) if direction > 0 else _between(whole, read)).to(g.dtype).exp()


def decay_out(g: Tensor, write_late: bool, direction: int, dim: int = -1) -> Tensor:
    """The decays from the write of each step to the chunk's end, shaped like g."""
    _, write, whole = _edges(g, dim, False, write_late, direction)
    return (_between(whole, write) if direction > 0 else write.sum(0)).to(g.dtype).exp()


def decay_all(g: Tensor, dim: int = -1) -> Tensor:
    """All decays of the chunk: g without its axis `dim`."""
    return g.clamp(min=LEAST).sum(dim).exp()


def left_out(
    g: Tensor,
    read: Tensor | float,
    write: Tensor | float,
    weights: Tensor | float,
    start: Tensor | float,
    end: Tensor | float,
    both: Tensor | float,
    read_late: bool,
    write_late: bool,
) -> Tensor:
    """[..., C, d]: at each step the products <S, dS> of a state before the step and its gradient after it, channel by channel,
    without the step's own decay.

    `both` [..., d] is that of the state before the chunk and its gradient after it, `start` [..., C, d] what the reads take
    of the state before the chunk, `end` what the writes take of the gradient after it, and `weights` [..., C, C] what a read
    takes of a write but for `read` and `write` [..., C, d]. Each step adds what it writes to what later reads will have seen
    of it by then, so that nothing is divided by a decay, which may be zero.
    """
    size = g.shape[-2]
    total, before = _cumulative(g, -2)
    edges, whole = before if read_late else total, total[..., -1, :]
    decays, read, write = g.exp(), _like(g, read), _like(g, write)
    seen = _like(g, start)  # what each read has of the state before the step
    rest = both + torch.zeros_like(g[..., 0, :])  # and the gradient after the chunk
    weights = torch.as_tensor(weights, dtype=g.dtype, device=g.device).expand(*g.shape[:-2], size, size)
    ends, found = _like(g, end), []
    for t in range(size):
        written = write[..., t, :].unsqueeze(-2) * weights[..., t, None]
        more = write[..., t, :] * ends[..., t, :]
        if not write_late:
            seen, rest = seen + written, rest + more
        first = t + 1 if read_late else t
        after = _between(edges[..., first:, :], total[..., t, None, :]).to(g.dtype).exp()
        own = (after * read[..., first:, :] * seen[..., first:, :]).sum(-2)
        found.append(own + _between(whole, total[..., t, :]).to(g.dtype).exp() * rest)
        seen, rest = seen * decays[..., t, None, :], rest * decays[..., t, :]
        if write_late:
            seen, rest = seen + written, rest + more
    return torch.stack(found, -2)


def triangular_inverse(t: Tensor, direction: int, channels: bool = False) -> Tensor:
    """(I - T)^-1 for strictly triangular T, [..., C, C]; with `channels`, [..., C, C, e]: one system for each channel.

    It is solved in float64 and rounded once: writes are differences of what is read and what is given, and those of a chunk
    add their errors up.
    """
    if channels:
        return triangular_inverse(t.movedim(-1, -3), direction).movedim(-3, -1)
    identity = torch.eye(t.shape[-1], dtype=torch.float64, device=t.device)
    system = identity - t
    solved = torch.linalg.solve_triangular(system, identity.expand_as(t), upper=direction < 0, unitriangular=True)
    return solved.to(t.dtype)


# --- decays of each channel -----------------------------------------------------------------------------------------


def _like(g: Tensor, x: Tensor | float) -> Tensor:
    """What may be a number, or the same for all steps or channels, with g's last two axes."""
    if not isinstance(x, Tensor):
        return torch.full_like(g, x)
    return x.expand(*x.shape[:-2], *g.shape[-2:])


class _Halves:
    """The decays between steps of a chunk, [..., C, d], in two factors for each pair of steps, of which none is above 1: those to
    and from the middle of the smallest block of 2, 4, 8, ... steps that has both. `later` says whether the decay of the later
    step of a pair lies between the two, `earlier` whether that of the earlier one does.
    """

    def __init__(self, g: Tensor, later: bool, earlier: bool) -> None:
        self.total, before = _cumulative(g, -2)
        self.end, self.start = (self.total if later else before), (before if earlier else self.total)
        self.dtype, size = g.dtype, g.shape[-2]
        self.least = DENSE if size % DENSE == 0 and (size // DENSE).bit_count() == 1 else size
        self.size = size

    def dense(self, inclusive: bool) -> Tensor:
        """[..., C / n, n, n, d] of blocks of n steps: from the earlier step, on the second of these axes, to the later one."""
        end, start = (x.unflatten(-2, (-1, self.least)) for x in (self.end, self.start))
        ones = torch.ones(self.least, self.least, dtype=torch.bool, device=end.device).tril(0 if inclusive else -1)
        exponent = _between(end.unsqueeze(-2), start.unsqueeze(-3)).to(self.dtype)
        return torch.where(ones[:, :, None], exponent, -torch.inf).exp()

    def levels(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(n, to, since): the factors of steps past the middle of blocks of 2n steps, and of those before it,
        [..., C / 2n, n, d]."""
        n = self.least
        while n < self.size:
            total, end, start = (x.unflatten(-2, (-1, 2, n)) for x in (self.total, self.end, self.start))
            middle = total[..., 0, -1:, :]
            yield (
                n,
                _between(end[..., 1, :, :], middle).to(self.dtype).exp(),
                _between(middle, start[..., 0, :, :]).to(self.dtype).exp(),
            )
            n *= 2


def _blocks(x: Tensor, n: int, rows: int, columns: int) -> Tensor:
    """Of each block of 2n steps of a matrix over a chunk's steps: the quarter in these halves, [..., C / 2n, n, n]."""
    count = x.shape[-1] // (2 * n)
    whole = x.unflatten(-1, (count, 2, n))[..., columns, :].unflatten(-3, (count, 2, n))[..., rows, :, :, :]
    return whole.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def channel_product(
    x: Tensor | float, y: Tensor | float, g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int
) -> Tensor:
    """[..., C, C]: the sum over channels of x_i y_j and the decays between them; x, y, g are [..., C, d], or x or y a number."""
    x, y = _like(g, x), _like(g, y)
    if direction < 0:  # the write is the later one in time
        return channel_product(y, x, g, not write_late, not late, inclusive, 1).mT
    halves = _Halves(g, late, not write_late)
    first = halves.least
    wrote = halves.dense(inclusive) * y.unflatten(-2, (-1, 1, first))
    out = (wrote @ x.unflatten(-2, (-1, first)).unsqueeze(-1)).squeeze(-1)
    for n, to, since in halves.levels():
        across = (x.unflatten(-2, (-1, 2, n))[..., 1, :, :] * to) @ (
            y.unflatten(-2, (-1, 2, n))[..., 0, :, :] * since
        ).mT
        own = out.unflatten(-3, (-1, 2))
        before = torch.cat((own[..., 0, :, :], torch.zeros_like(across)), -1)
        out = torch.cat((before, torch.cat((across, own[..., 1, :, :]), -1)), -2)
    return out.squeeze(-3)


def channel_apply(
    weights: Tensor | float, y: Tensor | float, g: Tensor, late: bool, write_late: bool, inclusive: bool, direction: int
) -> Tensor:
    """[..., C, d]: the sum over j of weights_ij y_j and the decays between them; weights is [..., C, C], y [..., C, d], either
    may be a number."""
    y, size = _like(g, y), g.shape[-2]
    if not isinstance(weights, Tensor):
        weights = torch.full((size, size), weights, dtype=g.dtype, device=g.device)
    weights = weights.expand(*weights.shape[:-2], size, size)  # those of one number are the same for all steps
    forward = direction > 0
    halves = _Halves(g, late, not write_late) if forward else _Halves(g, not write_late, late)
    first = halves.least
    count = size // first
    own = weights.unflatten(-1, (count, first)).unflatten(-3, (count, first)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    some = y.unflatten(-2, (-1, first))
    if forward:
        out = (own.unsqueeze(-1) * halves.dense(inclusive) * some.unsqueeze(-3)).sum(-2).flatten(-3, -2)
    else:
        out = (own.mT.unsqueeze(-1) * halves.dense(inclusive) * some.unsqueeze(-2)).sum(-3).flatten(-3, -2)
    for n, to, since in halves.levels():
        read, wrote, reads, writes = (1, 0, to, since) if forward else (0, 1, since, to)
        part = _blocks(weights, n, read, wrote)
        found = reads * (part @ (y.unflatten(-2, (-1, 2, n))[..., wrote, :, :] * writes))
        none = torch.zeros_like(found)
        out = out + torch.cat((none, found) if forward else (found, none), -2).flatten(-3, -2)
    return out
