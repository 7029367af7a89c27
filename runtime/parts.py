"""What the parts of a sequence on one GPU, together, make of the state that enters the first: the map that other GPUs need.

A map is a row of float32 numbers for each batch entry and head, the linear part and then the local part. Kernels make the row
from what each part makes of the state, and find what enters a GPU's parts from the rows of the GPUs before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .kernels import kept_of
from .launch import cdiv, launch, padded
from .places import Places


@triton.jit(do_not_specialize=["begin", "count", "local_b", "local_p", "local_h", "kept_b", "kept_p", "kept_h"])
def walk_kernel(
    first, local, local_b, local_p, local_h, kept, kept_b, kept_p, kept_h, whole, out, H, begin, count,
    ROWS: tl.constexpr, COLS: tl.constexpr, ALONG: tl.constexpr, STEP: tl.constexpr, STARTS: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """S, then kept * S + local for each of `count` parts; the last one goes to `out`, and all that is kept to `whole`.

    Both have rows of WIDTH for each batch entry and head. Where the sequence STARTS here, nothing of what came before is kept.
    """
    sh = tl.program_id(0).to(tl.int64)
    b, h = sh // H, sh % H
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = ROWS * COLS
    S = tl.zeros([BLOCK], tl.float32)
    keeps = tl.zeros([BLOCK], tl.float32) + (0.0 if STARTS else 1.0)
    x = i * 0 if ALONG <= 1 else i // COLS if ALONG == 2 else i % COLS
    if first is not None:
        S += tl.load(first + sh * size + i, mask=i < size, other=0.0)
    for m in range(count):
        part = tl.cast(begin + m * STEP, tl.int64)
        if ALONG > 0:
            k = tl.load(kept + b * kept_b + part * kept_p + h * kept_h + x, mask=i < size, other=0.0)
            S *= k
            keeps *= k
        S += tl.load(local + b * local_b + part * local_p + h * local_h + i, mask=i < size, other=0.0)
    tl.store(out + sh * WIDTH + i, S, mask=i < size)
    if whole is not None:
        owner = i == 0 if ALONG == 1 else i % COLS == 0 if ALONG == 2 else i < COLS
        tl.store(whole + sh * WIDTH + x, keeps, mask=owner & (i < size))


@triton.jit(do_not_specialize=["begin", "count", "local_b", "local_p", "local_h", "linear_b", "linear_p", "linear_h"])
def walk_matrix_kernel(
    first, local, local_b, local_p, local_h, linear, linear_b, linear_p, linear_h, whole, out, H, begin, count,
    row_stride, column_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, STEP: tl.constexpr, STARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """As `walk_kernel`, where a part takes S to linear @ S + local. Blocks of columns of `whole` come first, then those of S."""
    sh = tl.program_id(0).to(tl.int64)
    b, h = sh // H, sh % H
    linears = tl.cdiv(ROWS, BC) if whole is not None else 0
    block = tl.program_id(1)
    of_whole = block < linears
    r = tl.arange(0, BR)
    c = tl.where(of_whole, block, block - linears) * BC + tl.arange(0, BC)
    ok = (r < ROWS)[:, None] & (c < COLS)[None, :] & (block >= linears)
    place = r[:, None] * row_stride + c[None, :] * column_stride
    S = tl.where((r[:, None] == c[None, :]) & of_whole, 1.0, 0.0)
    if first is not None:
        S += tl.load(first + sh * ROWS * COLS + place, mask=ok, other=0.0)
    for m in range(count):
        part = tl.cast(begin + m * STEP, tl.int64)
        A = tl.load(
            linear + b * linear_b + part * linear_p + h * linear_h + r[:, None] * ROWS + r[None, :],
            mask=(r < ROWS)[:, None] & (r < ROWS)[None, :],
            other=0.0,
        )
        step = tl.load(local + b * local_b + part * local_p + h * local_h + place, mask=ok, other=0.0)
        S = tl.dot(A, S, step, input_precision="tf32x3")
    tl.store(out + sh * WIDTH + place, S, mask=ok)
    if whole is not None:
        here = (r < ROWS)[:, None] & (c < ROWS)[None, :] & of_whole
        kept = tl.zeros_like(S) if STARTS else S
        tl.store(whole + sh * WIDTH + r[:, None] * ROWS + c[None, :], kept, mask=here)


@dataclass(frozen=True)
class PartsMap:
    """The map of all parts of the sequences on this GPU, for one state: what an exchange takes, like a `Segment`.

    `local` [B * parts, H, ...] is what each part makes of a zero state. `linear` is a matrix over the axis `axis` of the state,
    [B * parts, H, row, row], or all decays of each part, [B * parts, H, X]; None where nothing decays. `along`: the state's axis
    that decays differ along.
    """

    state: str
    first: Tensor | None
    local: Tensor
    linear: Tensor | None
    places: Places
    parts: int
    forward: bool
    axis: int
    along: int | None

    @property
    def states(self) -> tuple[str, ...]:
        return (self.state,)

    @property
    def entering(self) -> tuple[Any, ...]:
        """What would enter were this the first part; None is zero."""
        return (self.first,)

    def sent(self, starts: bool) -> tuple[Tensor, ...]:
        """The row of each batch entry and head, all in one tensor. Where the sequence starts here, only what leaves it counts."""
        size, linears, p = prod(self.local.shape[2:]), self._linears, self.places
        width = linears + size
        flat = self.local.new_empty((p.batch * p.heads * width,))
        local, linear = (
            (x, self.parts * p.heads * n, p.heads * n, n) for x, n in ((self.local, size), (self.linear, linears))
        )
        outs = flat if linears else None, flat[linears:]
        self._walk(
            self.first if starts else None, local, linear, outs, width, self.parts, 1 if self.forward else -1, starts
        )
        return (flat,)

    def entered(self, rows: Tensor, direction: int) -> tuple[Tensor, ...]:
        """What enters, from what the GPUs walked before this one sent: [GPUs, all that each sent], in the sequence's order."""
        size, linears, p = prod(self.local.shape[2:]), self._linears, self.places
        out = self.local.new_empty((p.batch, *self.local.shape[1:]))
        steps = (p.heads * (linears + size), rows.stride(0), linears + size)
        local, linear = (rows[:, linears:], *steps), (rows if linears else None, *steps)
        self._walk(None, local, linear, (None, out), size, rows.shape[0], direction, False)
        return (out,)

    @property
    def _linears(self) -> int:
        """Numbers of the linear part in a row."""
        return 0 if self.linear is None else prod(self.linear.shape[2:])

    def _walk(
        self,
        first: Tensor | None,
        local: tuple[Any, ...],
        linear: tuple[Any, ...],
        outs: tuple[Tensor | None, Tensor],
        width: int,
        count: int,
        step: int,
        starts: bool,
    ) -> None:
        """`local` and `linear` come with the strides of batch entries, parts and heads."""
        p = self.places
        begin = 0 if step > 0 else count - 1
        if self.linear is not None and self.linear.ndim == 4:
            rows, columns = self.local.shape[2 + self.axis], self.local.shape[3 - self.axis]
            strides = self.local.stride()[2 + self.axis], self.local.stride()[3 - self.axis]
            blocks = cdiv(columns, 32) + (0 if outs[0] is None else cdiv(rows, 32))
            launch(
                walk_matrix_kernel, (p.batch * p.heads, blocks), first, *local, *linear, *outs, p.heads, begin, count,
                *strides, ROWS=rows, COLS=columns, BR=padded(rows), BC=32, STEP=step, STARTS=starts, WIDTH=width, num_warps=8,
            )  # fmt: skip
            return
        rows, columns = (*self.local.shape[2:], 1, 1)[:2]
        how = 0 if self.linear is None else 1 if self.along is None else 2 + self.along
        block = min(1024, triton.next_power_of_2(rows * columns))
        launch(
            walk_kernel, (p.batch * p.heads, cdiv(rows * columns, block)), first, *local, *linear, *outs, p.heads, begin,
            count, ROWS=rows, COLS=columns, ALONG=how, STEP=step, STARTS=starts, BLOCK=block, WIDTH=width, num_warps=4,
        )  # fmt: skip


def map_of_all(
    state: str,
    first: Tensor | None,
    local: Tensor,
    p: Places,
    parts: int,
    forward: bool,
    decay: tuple[Tensor, Any] | None = None,
    linear: Tensor | None = None,
    axis: int = 0,
    exact: bool = False,
) -> PartsMap:
    """The map of all parts together, from what each makes of zero states, and of the states.

    `linear` is given for matrices over the axis `axis` of the state, and `decay` for decays as `cumulate` has them, along that
    axis where there is one for each channel; with neither, the state is kept.
    """
    along = None if decay is None or decay[0].ndim == 3 else axis
    if decay is not None:
        linear = kept_of(decay, local, p, parts, exact)
    return PartsMap(state, first, local, linear, p, parts, forward, axis, along)
