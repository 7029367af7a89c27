"""Scans of states whose entries are each multiplied and added to by what a step gives: S_t = a_t S_{t-1} + b_t, by entries."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .kernels import part_of
from .launch import cdiv, launch, strides
from .places import Places, parts_for

CHUNK = 32  # steps that a program scans at once
TILE = 32  # channels of a program
WARPS = 1
CROWD = 2  # so many programs take the place of one of other kernels
STAGES = 3  # of loads that are under way


@triton.jit
def one_after_other(a, b, later_a, later_b):
    """The map of two steps, from those of the earlier and of the later one."""
    return a * later_a, b * later_a + later_b


@triton.jit(do_not_specialize=["T", "chunks", "parts", "length"])
def scan_kernel(
    factor, f_b, f_t, f_h, f_g, added, w_b, w_t, w_h, w_g, first, last, linear, before, after, T, H, chunks, starts, parts,
    length,
    D: tl.constexpr, TILE: tl.constexpr, C: tl.constexpr, FORWARD: tl.constexpr, LOG: tl.constexpr, WIDE: tl.constexpr,
    EARLY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A part of a sequence, for a tile of channels of one head. `linear`: the product of a part's factors."""
    tile = tl.program_id(0) % tl.cdiv(D, TILE)
    sh = (tl.program_id(0) // tl.cdiv(D, TILE)).to(tl.int64)
    h = sh % H
    b, _, begin, stop, _ = part_of(sh // H, T, starts, parts, length, C)
    count = tl.cdiv(tl.maximum(stop - begin, 0), C).to(tl.int32)
    i = tl.arange(0, C) if FORWARD else C - 1 - tl.arange(0, C)  # steps in the order in which they are walked over
    d = tile * TILE + tl.arange(0, TILE)
    d_ok = d < D
    S = tl.zeros([TILE], tl.float32)
    if first is not None:
        S += tl.load(first + sh * D + d, mask=d_ok, other=0.0)
    whole = tl.full([TILE], 1.0, tl.float32)
    out = (b * T * H + h) * D + d
    if before is not None:
        t = begin if FORWARD else stop - 1
        tl.store(before + out + t * (H * D), S, mask=d_ok & (stop > begin))
    for n in tl.range(0, count, num_stages=STAGES):
        t0 = begin + tl.cast(n if FORWARD else count - 1 - n, tl.int64) * C
        end = tl.minimum(stop - t0, C).to(tl.int32) - 1
        ok = (i <= end)[:, None] & d_ok[None, :]
        step = t0 + i
        f = tl.full([C, TILE], 1.0, tl.float32)
        if factor is not None:
            at = factor + b * f_b + h // f_g * f_h + step[:, None] * f_t
            at += d[None, :] if WIDE else tl.zeros_like(d)[None, :]
            if LOG:
                f = tl.exp2(tl.load(at, mask=ok, other=0.0).to(tl.float32) * 1.4426950408889634)
            else:
                f = tl.load(at, mask=ok, other=1.0).to(tl.float32)
        w = tl.zeros([C, TILE], tl.float32)
        if added is not None:
            at = added + b * w_b + h // w_g * w_h + step[:, None] * w_t + d[None, :]
            w += tl.load(at, mask=ok, other=0.0).to(tl.float32)
            if EARLY:
                w *= f
        f, w = tl.associative_scan((f, w), 0, one_after_other)
        states = w + f * S[None, :]
        where = out[None, :] + step[:, None] * (H * D)
        if after is not None:
            tl.store(after + where, states, mask=ok)
        if before is not None:
            if FORWARD:
                tl.store(before + where + H * D, states, mask=ok & (step + 1 < stop)[:, None])
            else:
                tl.store(before + where - H * D, states, mask=ok & (step > begin)[:, None])
        edge = (i == (C - 1 if FORWARD else 0))[:, None]  # steps beyond the end keep states as they are
        S = tl.sum(tl.where(edge, states, 0.0), axis=0)
        if linear is not None:
            whole *= tl.sum(tl.where(edge, f, 0.0), axis=0)
    if last is not None:
        tl.store(last + sh * D + d, S, mask=d_ok)
    if linear is not None:
        tl.store(linear + sh * D + d, whole, mask=d_ok)


@triton.jit(do_not_specialize=["parts"])
def chain_kernel(
    first, ends, linear, starts, last, H, parts, D: tl.constexpr, TILE: tl.constexpr, FORWARD: tl.constexpr
):
    """What enters each part, from the maps of the parts before it."""
    tile = tl.program_id(0) % tl.cdiv(D, TILE)
    bh = (tl.program_id(0) // tl.cdiv(D, TILE)).to(tl.int64)
    b, h = bh // H, bh % H
    d = tile * TILE + tl.arange(0, TILE)
    d_ok = d < D
    S = tl.zeros([TILE], tl.float32)
    if first is not None:
        S += tl.load(first + bh * D + d, mask=d_ok, other=0.0)
    for n in range(0, parts):
        part = n if FORWARD else parts - 1 - n
        at = ((b * parts + part) * H + h) * D + d
        tl.store(starts + at, S, mask=d_ok)
        S = S * tl.load(linear + at, mask=d_ok, other=0.0) + tl.load(ends + at, mask=d_ok, other=0.0)
    if last is not None:
        tl.store(last + bh * D + d, S, mask=d_ok)


def scan(
    like: torch.Tensor,
    factor: torch.Tensor | None,
    added: torch.Tensor | None,
    first: torch.Tensor | None,
    p: Places,
    dims: tuple[int, ...] = (),
    *,
    forward: bool = True,
    log: bool = False,
    early: bool = False,
    before: torch.dtype | None = None,
    after: torch.dtype | None = None,
    last: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The states before and after each step, [B, T, H, *dims] in these dtypes, and the last, [sequences, H, *dims] in float32;
    None for what isn't wanted.

    S_t = factor_t S_{t-1} + added_t, or, from the last step to the first, S_t = factor_t S_{t+1} + added_t; where `early`,
    factor_t (S_{t-1} + added_t). `factor` and `added` are [B, T, H or fewer, *dims], factors without dims where all entries have
    the same, and logarithms if `log`; None is one, and zero. `first` is float32 as `last` is. What is made lies where `like` does.
    """
    width, heads = (dims[0] if dims else 1), p.heads
    tile = min(TILE, 1 << (width - 1).bit_length())
    tiles = cdiv(width, tile)
    parts = parts_for(p, cdiv(p.sequences * heads * tiles, CROWD))

    def state(count: int) -> torch.Tensor:
        return like.new_empty((count, heads, *dims), dtype=torch.float32)

    def steps(dtype: torch.dtype | None) -> torch.Tensor | None:
        return None if dtype is None else like.new_empty((p.batch, p.steps, heads, *dims), dtype=dtype)

    def walk(first: torch.Tensor | None, *made: torch.Tensor | None) -> None:
        given = [(None, 0, 0, 0, 1) if x is None else (x, *strides(x, heads)) for x in (factor, added)]
        wide = factor is not None and factor.dim() > 3
        launch(
            scan_kernel, (p.sequences * parts * heads * tiles,), *given[0], *given[1], first, *made, *p.walked, parts,
            p.length(parts), D=width, TILE=tile, C=CHUNK, FORWARD=forward, LOG=log, WIDE=wide, EARLY=early, STAGES=STAGES,
            num_warps=WARPS,
        )  # fmt: skip

    found = steps(before), steps(after)
    end = state(p.sequences) if last else None
    if parts == 1:
        walk(first, end, None, *found)
        return *found, end
    ends, linear, starts = (state(p.batch * parts) for _ in range(3))
    walk(None, ends, linear, None, None)
    launch(
        chain_kernel, (p.batch * heads * tiles,), first, ends, linear, starts, end, heads, parts, D=width, TILE=tile,
        FORWARD=forward, num_warps=1,
    )  # fmt: skip
    walk(starts, None, None, *found)
    return *found, end
