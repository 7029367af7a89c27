"""Rounding to operands of two bytes, in pairs.

Left to itself, the compiler rounds entries that are used in float32 as well one by one, at a quarter of the speed; and it rounds
the left operand of a product between the product's instructions, which then wait for one another. Where a function here says
that it stands where it is written, the compiler moves no product's instruction across it.
"""

import os

import torch
import triton
import triton.language as tl

from ..launch.launch import PREPARING

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PAIRS = tl.constexpr(not INTERPRETED)  # are entries rounded in pairs, by instructions of their own?
UNPAIRED = (10, 11)  # where they aren't: for GPUs of these capabilities Triton moves loads across no such instruction


def in_pairs_on(capability: tuple[int, int]) -> None:
    """Kernels that are compiled from now on round as they can on a GPU of this compute capability."""
    global PAIRS
    PAIRS = tl.constexpr(not INTERPRETED and capability[0] not in UNPAIRED)


def _prepare(device: int) -> None:
    if torch.cuda.is_initialized():
        in_pairs_on(torch.cuda.get_device_capability(device))


PREPARING.append(_prepare)


@triton.jit
def narrowed(x, DT: tl.constexpr):
    """x in DT."""
    if PAIRS and tl.bfloat16 == DT:
        y = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif PAIRS and tl.float16 == DT:
        y = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        y = x.to(DT)
    return y


@triton.jit
def widened(x):
    """x in float32, anew at each use: what `narrowed` rounded isn't kept twice. Stands where it is written."""
    if PAIRS and tl.bfloat16 == x.dtype:
        y = tl.inline_asm_elementwise(
            "{ shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000; }",
            "=&r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2,
        )  # fmt: skip
    elif PAIRS and tl.float16 == x.dtype:
        y = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2,
        )  # fmt: skip
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def rounded_and_rest(x, DT: tl.constexpr):
    """(x in DT, what that leaves of it in DT): an operand of two products. Stands where it is written."""
    x = x.to(tl.float32)
    if PAIRS and tl.bfloat16 == DT:
        first, rest = tl.inline_asm_elementwise(
            "{ .reg .b32 a, b; cvt.rn.bf16x2.f32 $0, $3, $2; shl.b32 a, $0, 16; and.b32 b, $0, 0xffff0000;"
            "  sub.f32 a, $2, a; sub.f32 b, $3, b; cvt.rn.bf16x2.f32 $1, b, a; }",
            "=&r,=r,r,r", [x], dtype=(tl.bfloat16, tl.bfloat16), is_pure=False, pack=2,
        )  # fmt: skip
    elif PAIRS and tl.float16 == DT:
        first, rest = tl.inline_asm_elementwise(
            "{ .reg .b16 c, d; .reg .f32 a, b; cvt.rn.f16x2.f32 $0, $3, $2; mov.b32 {c, d}, $0; cvt.f32.f16 a, c;"
            "  cvt.f32.f16 b, d; sub.f32 a, $2, a; sub.f32 b, $3, b; cvt.rn.f16x2.f32 $1, b, a; }",
            "=&r,=r,r,r", [x], dtype=(tl.float16, tl.float16), is_pure=False, pack=2,
        )  # fmt: skip
    else:
        first = x.to(DT)
        rest = (x - first.to(tl.float32)).to(DT)
    return first, rest


@triton.jit
def rounded_to(x, DT: tl.constexpr):
    """x rounded to DT, in float32."""
    return widened(narrowed(x, DT))
