"""What kernels use that scan states entry by entry, mostly S_t = a_t S_{t-1} + b_t, and what enters each segment then.

Maps of other kinds (`torch_form/scans.py` has them all) compose by `.._then`; `.._then_beside` has, beside the map of all steps,
that of all but the last; `.._at` is what a map makes of a state.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch
from .chunk_layout import ChunkLayout, segments_for

SCAN = 32  # steps that a program scans at once
LONG_SCAN = 256  # of numbers
WIDTH = 32  # channels of a program, which has one warp
AT_ONCE = 64  # segments whose maps are scanned at once
FEW, MANY = 2, 4  # so many such programs take the place of one of other kernels


@triton.jit
def one_after_other(a, b, later_a, later_b):
    """The map of two steps, S -> a S + b, from those of the earlier and of the later one."""
    return a * later_a, b * later_a + later_b


@triton.jit
def less_turns(x):
    """A sum of angles in float64, less whole turns, as float32."""
    return (x - 6.283185307179586 * tl.floor(x * 0.15915494309189535 + 0.5)).to(tl.float32)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def with_those_before(a, b, c, d, later_a, later_b, later_c, later_d):
    """The same, beside the map of all these steps but the last."""
    return a * later_a, b * later_a + later_b, a * later_c, b * later_c + later_d


@triton.jit
def maximum_at(a, b, c, x):
    return tl.maximum(a * x + b, c)


@triton.jit
def maximum_then(a, b, c, p, q, r):
    return a * p, b * p + q, tl.maximum(c * p + q, r)


@triton.jit
def maximum_then_beside(a, b, c, e, f, g, p, q, r, u, v, w):
    return a * p, b * p + q, tl.maximum(c * p + q, r), a * u, b * u + v, tl.maximum(c * u + v, w)


@triton.jit
def minimum_at(a, b, c, x):
    return tl.minimum(a * x + b, c)


@triton.jit
def minimum_then(a, b, c, p, q, r):
    return a * p, b * p + q, tl.minimum(c * p + q, r)


@triton.jit
def minimum_then_beside(a, b, c, e, f, g, p, q, r, u, v, w):
    return a * p, b * p + q, tl.minimum(c * p + q, r), a * u, b * u + v, tl.minimum(c * u + v, w)


@triton.jit
def log_of_sum(x, y):
    """log(exp(x) + exp(y)), also of -inf."""
    high = tl.maximum(x, y)
    apart = tl.where(high == float("-inf"), 0.0, tl.minimum(x, y) - high)
    return high + tl.log(1.0 + tl.exp(apart))


@triton.jit
def logaddexp_at(a, b, c, x):
    return log_of_sum(a * x + b, c)


@triton.jit
def logaddexp_then(a, b, c, p, q, r):
    return a * p, b * p + q, log_of_sum(c * p + q, r)


@triton.jit
def logaddexp_then_beside(a, b, c, e, f, g, p, q, r, u, v, w):
    return a * p, b * p + q, log_of_sum(c * p + q, r), a * u, b * u + v, log_of_sum(c * u + v, w)


@triton.jit
def rational_at(a, b, c, d, x):
    return (a * x + b) / (c * x + d)


@triton.jit
def rational_then(a, b, c, d, p, q, r, s):
    """The map is the same times a number: so its numbers stay near 1."""
    e, f, g, h = p * a + q * c, p * b + q * d, r * a + s * c, r * b + s * d
    size = tl.maximum(tl.maximum(tl.abs(e), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(h)))
    size = tl.where(size > 0, size, 1.0)
    return e / size, f / size, g / size, h / size


@triton.jit
def rational_then_beside(a, b, c, d, i, j, k, m, p, q, r, s, u, v, w, x):
    e, f, g, h = rational_then(a, b, c, d, p, q, r, s)
    u, v, w, x = rational_then(a, b, c, d, u, v, w, x)
    return e, f, g, h, u, v, w, x


def scan_width(size: int) -> int:
    """Channels of a program."""
    return min(WIDTH, 1 << (size - 1).bit_length())


def scan_segments(p: ChunkLayout, tiles: int) -> int:
    """Into how many segments to cut sequences, where a head has so many programs: into none, unless there are few; and then
    so that there are many, as what each segment leaves is another sweep over all of it."""
    programs = p.sequences * p.heads * tiles
    return 1 if segments_for(p, cdiv(programs, FEW)) == 1 else segments_for(p, cdiv(programs, MANY))


def scan_stages(segments: int) -> int:
    """Of a program's loads: one more where a multiprocessor has few programs."""
    return 4 if segments == 1 else 3


@triton.jit
def affine_at(a, b, x):
    return a * x + b


@triton.jit
def map_at(m0, m1, m2, m3, x, KIND: tl.constexpr):
    """What a map of a kind makes of a state."""
    if KIND == "affine":
        found = affine_at(m0, m1, x)
    elif KIND == "maximum":
        found = maximum_at(m0, m1, m2, x)
    elif KIND == "minimum":
        found = minimum_at(m0, m1, m2, x)
    elif KIND == "logaddexp":
        found = logaddexp_at(m0, m1, m2, x)
    else:
        found = rational_at(m0, m1, m2, m3, x)
    return found


@triton.jit
def maps_so_far(m0, m1, m2, m3, KIND: tl.constexpr):
    """The maps of all segments up to each, from those of each, [segments, X]."""
    if KIND == "affine":
        m0, m1 = tl.associative_scan((m0, m1), 0, one_after_other)
    elif KIND == "maximum":
        m0, m1, m2 = tl.associative_scan((m0, m1, m2), 0, maximum_then)
    elif KIND == "minimum":
        m0, m1, m2 = tl.associative_scan((m0, m1, m2), 0, minimum_then)
    elif KIND == "logaddexp":
        m0, m1, m2 = tl.associative_scan((m0, m1, m2), 0, logaddexp_then)
    else:
        m0, m1, m2, m3 = tl.associative_scan((m0, m1, m2, m3), 0, rational_then)
    return m0, m1, m2, m3


@triton.jit(do_not_specialize=["segments"])
def scanned_kernel(
    first, map0, map1, map2, map3, starts, H, segments, D: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
    FORWARD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """What enters each segment, from the maps of the segments before it, of which a program scans some at once."""
    tile = tl.program_id(0) % tl.cdiv(D, TILE)
    bh = (tl.program_id(0) // tl.cdiv(D, TILE)).to(tl.int64)
    b, h = bh // H, bh % H
    d = tile * TILE + tl.arange(0, TILE)
    d_ok = d < D
    i = tl.arange(0, AT_ONCE)
    S = tl.zeros([TILE], starts.dtype.element_ty)
    if first is not None:
        S += tl.load(first + bh * D + d, mask=d_ok, other=0.0)
    tl.store(starts + ((b * segments + (0 if FORWARD else segments - 1)) * H + h) * D + d, S, mask=d_ok)
    for start in range(0, segments - 1, AT_ONCE):
        n = start + i
        ok = (n < segments - 1)[:, None] & d_ok[None, :]
        at = ((b * segments + (n if FORWARD else segments - 1 - n)) * H + h)[:, None] * D + d[None, :]
        m0 = tl.load(map0 + at, mask=ok, other=0.0)
        m1 = tl.load(map1 + at, mask=ok, other=0.0)
        m2, m3 = m1, m1
        if map2 is not None:
            m2 = tl.load(map2 + at, mask=ok, other=0.0)
        if map3 is not None:
            m3 = tl.load(map3 + at, mask=ok, other=0.0)
        m0, m1, m2, m3 = maps_so_far(m0, m1, m2, m3, KIND)
        left = map_at(m0, m1, m2, m3, S[None, :], KIND)
        next_at = ((b * segments + (n + 1 if FORWARD else segments - 2 - n)) * H + h)[:, None] * D + d[None, :]
        tl.store(starts + next_at, left, mask=ok)
        S = tl.sum(tl.where((i == AT_ONCE - 1)[:, None], left, 0.0), axis=0)


def scanned(
    kind: str,
    first: torch.Tensor | None,
    maps: tuple[torch.Tensor, ...],
    p: ChunkLayout,
    segments: int,
    forward: bool,
) -> torch.Tensor:
    """The states that enter each segment, [B * segments, H, ..], from what enters all of them and their maps, of a kind of the
    table in `torch_form/scans.py`: the numbers of each map in a tensor of its own."""
    width = maps[0][0, 0].numel()
    tile, starts = scan_width(width), torch.empty_like(maps[0])
    given = (*maps, None, None)[:4]
    launch(
        scanned_kernel, (p.batch * p.heads * cdiv(width, tile),), first, *given, starts, p.heads, segments, D=width,
        TILE=tile, AT_ONCE=AT_ONCE, FORWARD=forward, KIND=kind, num_warps=1 if tile == 1 else 4,
    )  # fmt: skip
    return starts
