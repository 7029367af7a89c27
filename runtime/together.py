"""What kernels use that make all of a backward pass on one walk: tiles that the copy engine of a GPU moves, and sums over them.

Such a walk takes blocks of BLOCK steps. The state that enters each block was left there by the forward pass, so that the block
has both <S before it, dS after it>, which everything that crosses its borders adds to, and what its own steps add.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .kernels import grouped, place_of, shared_memory, slot, some_heads, steps_of_heads
from .launch import Config, launch, padded
from .packed import BLOCK
from .places import Places
from .rounding import INTERPRETED

WIDEST = 128  # channels of a state's axis
SHARED = 227 * 1024  # bytes of shared memory of a program
ROOM = 34 * 1024  # bytes of it for matrices over a block's steps, and what changes its layout
BY_PRODUCT = tl.constexpr(not INTERPRETED)


@triton.jit
def rows_of(p, X, stride, stop, R: tl.constexpr, B: tl.constexpr):
    """Tiles [R, B] of the rows from p up to `stop`, each of X numbers: zeros beyond both, where nothing is written either."""
    return tl.make_tensor_descriptor(p, [stop, X], [stride, 1], [R, B])


@triton.jit
def over_rows(x, count, DT: tl.constexpr):
    """The sum of x [R, C] over its rows, in each row of [16, C], the least that tensor cores take. In bfloat16 by a product with ones, of entries that are
    rounded: its error is that of one rounding of what is summed, over the root of their number."""
    total = tl.zeros([16, x.shape[1]], tl.float32)
    if tl.bfloat16 == DT and BY_PRODUCT:
        if count > 0:  # in a region of its own, with a layout of its own
            total = tl.dot(tl.full([16, x.shape[0]], 1.0, DT), x.to(DT), total)
    else:
        total += tl.sum(x, axis=0)[None, :]
    return total


@triton.jit
def store_sums(p, x, ok):
    """Store sums of `over_rows` at p [C]."""
    row = tl.arange(0, 16)[:, None]
    tl.store(p[None, :] + 0 * row, x, mask=(row == 0) & ok[None, :])


@triton.jit
def paired_states(S, dS, WARPS: tl.constexpr):
    """<S, dS> in parts, [WARPS], so that no warp waits for another."""
    product = tl.reshape(S.to(tl.float32) * dS, [WARPS, S.shape[0] // WARPS, S.shape[1]])
    return tl.sum(tl.sum(product, axis=2), axis=1)


@triton.jit(do_not_specialize=["T", "chunks"])
def pairing_kernel(
    spans, in_late, in_early, out_late, out_early, own_late, own_early, out, T, H, chunks, begins, stops,
    HEADS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The pairing at each step of a block, [B, T, H]; see `block_pairing`."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    part = tl.arange(0, N)[:, None]
    border = tl.sum(tl.load(spans + ((b * H + h) * chunks + c)[None, :] * N + part), axis=0)
    at, ok = steps_of_heads(b, t0, last, h, there, T, H, C, HEADS)
    late = tl.reshape(slot(out_late, at, 1, ok), [C, HEADS])
    early = tl.reshape(slot(out_early, at, 1, ok), [C, HEADS])
    pairing = border[None, :] - (tl.cumsum(late, axis=0) - late + tl.cumsum(early, axis=0))
    if AT_ONCE:
        pairing += early
    late = tl.reshape(slot(in_late, at, 1, ok) + slot(own_late, at, 1, ok), [C, HEADS])
    early = tl.reshape(slot(in_early, at, 1, ok) + slot(own_early, at, 1, ok), [C, HEADS])
    pairing += tl.cumsum(late, axis=0, reverse=True) + tl.cumsum(early, axis=0, reverse=True)
    if not AT_ONCE:
        pairing -= early
    tl.store(out + tl.reshape(at, [C, HEADS]), pairing, mask=tl.reshape(ok, [C, HEADS]))


def block_pairing(
    spans: torch.Tensor,
    p: Places,
    in_late: torch.Tensor | None = None,
    in_early: torch.Tensor | None = None,
    out_late: torch.Tensor | None = None,
    out_early: torch.Tensor | None = None,
    own_late: torch.Tensor | None = None,
    own_early: torch.Tensor | None = None,
    at_once: bool = False,
) -> torch.Tensor:
    """A decay's pairing [B, T, H], float32, from what a walk over blocks has summed for each step, [B, T, H], or None for nothing:
    `own` are pairs inside a block, `in` reads of the state before it, `out` (negative) reads of the gradient after it. `spans`
    [B, H, blocks, parts] are the decays of each block times <S before it, dS after it>. `at_once`: early terms count for their
    own step as well.
    """
    out = spans.new_empty((p.batch, p.steps, p.heads))
    programs, heads = grouped(p, 4)
    launch(
        pairing_kernel, (programs,), spans, in_late, in_early, out_late, out_early, own_late, own_early, out, *p.at_once,
        HEADS=heads, N=spans.shape[-1], C=p.chunk, AT_ONCE=at_once, num_warps=1,
    )  # fmt: skip
    return out


def together(config: Config, sizes: tuple[int, ...], *tensors: torch.Tensor) -> bool:
    """May one walk over blocks make all of a backward pass: can the copy engine move these tensors [B, T, H, X], and does a
    program hold states of these sizes?"""
    return not config.exact and max(map(padded, sizes)) <= WIDEST and _has_engine() and movable(*tensors)


def _has_engine() -> bool:
    """Has the current GPU a copy engine, and the shared memory that it fills? True where no GPU is in use."""
    if not torch.cuda.is_initialized():
        return True
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.cuda.get_device_capability(device)[0] >= 9 and shared_memory(device) >= SHARED


def warps_of(sizes: tuple[int, ...]) -> int:
    """Warps of a walk that holds a state of these sizes whole."""
    return 8 if max(map(padded, sizes)) > 64 else 4


def stages_of(loaded: int, state: int) -> int:
    """How many blocks are under way at once, of so many bytes for each step, where a state has so many in two bytes."""
    return 2 if 2 * BLOCK * loaded + 2 * state + ROOM <= SHARED else 1


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x [B, T, H, X], as the copy engine takes it."""
    return x if movable(x) else x.contiguous()


def movable(*tensors: torch.Tensor) -> bool:
    """Does the copy engine take tiles of these tensors [.., X]: are rows contiguous, and begin at multiples of 16 bytes?"""
    return all(
        x.stride(-1) == 1
        and not any(s * x.element_size() & 15 for s in (x.shape[-1], *x.stride()[:-1]))
        and not x.data_ptr() & 15
        for x in tensors
    )
