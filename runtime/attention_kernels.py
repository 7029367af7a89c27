"""What every generated attention kernel shares: blocks in and out, and the online softmax."""

import triton
import triton.language as tl


@triton.jit
def load_block(
    base, start, stride, count, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Rows [start, start + ROWS) of [count, D], padded with zeros to BD columns; and to ROWS rows, where MASKED."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    at = base + tl.cast(start, tl.int64) * stride + (r[:, None] * stride + d[None, :])
    if MASKED:
        if D == BD:
            return tl.load(at, mask=(start + r < count)[:, None], other=0.0)
        else:
            return tl.load(at, mask=(start + r < count)[:, None] & (d < D)[None, :], other=0.0)
    elif D == BD:
        return tl.load(at)
    else:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)


@triton.jit
def store_block(base, start, stride, count, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, block):
    """Write rows [start, start + ROWS) of [count, D]."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    at = base + tl.cast(start, tl.int64) * stride + (r[:, None] * stride + d[None, :])
    tl.store(at, block.to(base.dtype.element_ty), mask=(start + r < count)[:, None] & (d < D)[None, :])


@triton.jit
def products(a, b):
    """<a_r, b_c> for every row of a and every row of b."""
    return tl.dot(a, tl.trans(b), input_precision="tf32x3")


@triton.jit
def weighted(weight, rows, total):
    """total + the sum of rows by weight, which is rounded to the dtype of the rows."""
    return tl.dot(weight.to(rows.dtype), rows, total, input_precision="tf32x3")


@triton.jit
def held(block):
    """The block as a sum of products has it, in registers, from where the products that follow take their first operand."""
    zero = tl.zeros([block.shape[0], 16], block.dtype)
    return tl.dot(zero, tl.zeros([16, block.shape[1]], block.dtype), block.to(tl.float32)).to(block.dtype)


@triton.jit
def averaged(total, mass):
    """total / mass; 0 for a row that has seen nothing."""
    return total / tl.where(mass > 0.0, mass, 1.0)[:, None]


@triton.jit
def log_sum_exp(top, mass):
    """The natural logarithm of the sum of exp(energy), from the largest energy in base 2 and the sum of weights beside it."""
    some = mass > 0.0
    return tl.where(some, (top + tl.log2(tl.where(some, mass, 1.0))) * 0.6931471805599453, float("-inf"))


@triton.jit
def shift_of(top):
    """What is subtracted from energies: 0 for a row that has seen none above -inf, so that no inf - inf arises."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def finite(x):
    """0 for -inf: what is masked has weight 0, and 0 times it must be 0."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def online(energy, top, mass):
    """(weights of a tile, what to multiply earlier sums with, largest energy so far, sum of weights so far), base 2."""
    highest = tl.maximum(top, tl.max(energy, 1))
    shift = shift_of(highest)
    weight = tl.exp2(energy - shift[:, None])
    rescale = tl.exp2(top - shift)
    return weight, rescale, highest, mass * rescale + tl.sum(weight, 1)


@triton.jit
def scaled_online(x, scale, top, mass):
    """The same for energies `scale` times x, where scale > 0: `top` is the largest x, and an exponent one product and sum."""
    highest = tl.maximum(top, tl.max(x, 1))
    shift = shift_of(highest)
    weight = tl.exp2(x * scale - (shift * scale)[:, None])
    rescale = tl.exp2((top - shift) * scale)
    return weight, rescale, highest, mass * rescale + tl.sum(weight, 1)


@triton.jit(do_not_specialize=["T"])
def inner_kernel(
    a, a_b, a_t, a_h, b, b_b, b_t, b_h, out, T, H,
    X: tl.constexpr, BX: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """out[b, h, t] = sum over x of a times b, for [B, H, T, X]."""
    blocks = tl.cdiv(T, BT)
    index = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BT
    batch, h = (index // H).to(tl.int64), index % H
    left = load_block(a + batch * a_b + h * a_h, first, a_t, T, X, BX, BT, True).to(tl.float32)
    right = load_block(b + batch * b_b + h * b_h, first, b_t, T, X, BX, BT, True).to(tl.float32)
    t = first + tl.arange(0, BT)
    tl.store(out + (batch * H + h) * T + t, tl.sum(left * right, 1), mask=t < T)


@triton.jit
def term_of(total, x, x_b, x_t, x_h, c, batch, h, H, first, T, X: tl.constexpr, BX: tl.constexpr, BT: tl.constexpr):
    """total + c x, for x [B, H, T, X] and c [B, H, T]; c is None for 1, and x for a term that there is not."""
    if x is not None:
        block = load_block(x + batch * x_b + h * x_h, first, x_t, T, X, BX, BT, True).to(tl.float32)
        if c is not None:
            t = first + tl.arange(0, BT)
            block = block * tl.load(c + (batch * H + h) * T + t, mask=t < T, other=0.0)[:, None]
        total += block
    return total


@triton.jit(do_not_specialize=["T"])
def sum_kernel(
    x1, x1_b, x1_t, x1_h, c1, x2, x2_b, x2_t, x2_h, c2, x3, x3_b, x3_t, x3_h, c3, x4, x4_b, x4_t, x4_h, c4,
    out, out_b, out_t, out_h, T, H,
    X: tl.constexpr, BX: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """out = the sum of up to four terms [B, H, T, X], each with a factor of each position."""
    blocks = tl.cdiv(T, BT)
    index = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BT
    batch, h = (index // H).to(tl.int64), index % H
    total = tl.zeros([BT, BX], tl.float32)
    total = term_of(total, x1, x1_b, x1_t, x1_h, c1, batch, h, H, first, T, X, BX, BT)
    total = term_of(total, x2, x2_b, x2_t, x2_h, c2, batch, h, H, first, T, X, BX, BT)
    total = term_of(total, x3, x3_b, x3_t, x3_h, c3, batch, h, H, first, T, X, BX, BT)
    total = term_of(total, x4, x4_b, x4_t, x4_h, c4, batch, h, H, first, T, X, BX, BT)
    store_block(out + batch * out_b + h * out_h, first, out_t, T, X, BX, BT, total)
