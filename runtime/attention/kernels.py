"""What every generated attention kernel shares: blocks in and out, and the online softmax.

A number of each row, or of each key, that is added to products goes along as channels beside them, in three parts of two bytes:
loaded as the threads hold a tile of products, it would take them a load each for every two columns.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-2e38)  # LOG2E times which is a number yet


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
def products_and(a, b, total):
    """total + <a_r, b_c>, which the sum of products starts from."""
    return tl.dot(a, tl.trans(b), total, input_precision="tf32x3")


@triton.jit
def three_ones(first: tl.constexpr, ROWS: tl.constexpr, dtype: tl.constexpr):
    """For every row, ones in three of the channels beside: products with it put a number's three parts together."""
    channel = tl.arange(0, 16)
    ones = tl.where((channel >= first) & (channel < first + 3), 1.0, 0.0)
    return (ones[None, :] + tl.zeros([ROWS, 16], tl.float32)).to(dtype)


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


@triton.jit
def three_parts(x):
    """Numbers of two bytes, in float32, that add up to x."""
    high = x.to(tl.bfloat16).to(tl.float32)
    rest = tl.where(high == x, 0.0, x - high)
    middle = rest.to(tl.bfloat16).to(tl.float32)
    return high, middle, (rest - middle).to(tl.bfloat16).to(tl.float32)


@triton.jit
def parts_beside(x, y):
    """[count, 16]: the parts of x in channels 0 to 2, those of y in channels 3 to 5."""
    x1, x2, x3 = three_parts(x)
    y1, y2, y3 = three_parts(y)
    channel = tl.arange(0, 16)[None, :]
    out = tl.where(channel == 0, x1[:, None], tl.where(channel == 1, x2[:, None], x3[:, None]))
    more = tl.where(channel == 3, y1[:, None], tl.where(channel == 4, y2[:, None], y3[:, None]))
    return tl.where(channel < 3, out, tl.where(channel < 6, more, 0.0))


@triton.jit(do_not_specialize=["S"])
def columns_kernel(column, scale, out, S, H, GROUP: tl.constexpr, BS: tl.constexpr):
    """out[b, h, s] = the parts of column / scale, channels beside a head's keys; scale is None for 1."""
    blocks = tl.cdiv(S, BS)
    index = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BS + tl.arange(0, BS)
    x = tl.load(column + index // GROUP * S + at, mask=at < S, other=0.0)
    if scale is not None:
        x = x / tl.load(scale + index % H)
    where = out + (index * S + at)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(where, parts_beside(x, tl.zeros([BS], tl.float32)).to(out.dtype.element_ty), mask=(at < S)[:, None])


@triton.jit(do_not_specialize=["T", "ROWS"])
def rows_beside_kernel(lse, D, scale, shift, out, T, ROWS, H, BT: tl.constexpr):
    """shift = lse in base 2; and out[b, h, t] = the parts of -lse / scale and of -D, for rows up to ROWS: those beyond T, and
    those that saw nothing, have weights of 0. All energies of the latter are -inf, and the shift is not."""
    blocks = tl.cdiv(ROWS, BT)
    index = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BT + tl.arange(0, BT)
    x = tl.load(lse + index * T + at, mask=at < T, other=float("-inf"))
    d = tl.load(D + index * T + at, mask=at < T, other=0.0)
    tl.store(shift + index * T + at, tl.maximum(x, LOWEST) * LOG2E, mask=at < T)
    blind = x == float("-inf")
    if scale is not None:
        x = x / tl.load(scale + index % H)
    x = tl.where(blind, 3e38, x)
    where = out + (index * ROWS + at)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(where, parts_beside(-x, -d).to(out.dtype.element_ty), mask=(at < ROWS)[:, None])


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


@triton.jit
def load_matrix(w, w_a, w_x, A: tl.constexpr, BA: tl.constexpr, X: tl.constexpr, BX: tl.constexpr):
    """[A, X], padded with zeros."""
    a = tl.arange(0, BA)
    e = tl.arange(0, BX)
    return tl.load(w + a[:, None] * w_a + e[None, :] * w_x, mask=(a < A)[:, None] & (e < X)[None, :], other=0.0)


@triton.jit
def load_vector(b, b_x, X: tl.constexpr, BX: tl.constexpr):
    """[X], padded with zeros, in float32."""
    e = tl.arange(0, BX)
    return tl.load(b + e * b_x, mask=e < X, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def products_kernel(
    x1, x1_b, x1_t, x1_h, w1, w1_h, w1_a, w1_x, x2, x2_b, x2_t, x2_h, w2, w2_h, w2_a, w2_x, y, y_b, y_t, y_h,
    out, out_b, out_t, out_h, T, H,
    A1: tl.constexpr, BA1: tl.constexpr, A2: tl.constexpr, BA2: tl.constexpr, X: tl.constexpr, BX: tl.constexpr,
    BT: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """out = x1 by each head's w1, and x2 by w2, and y, [B, H, T, X]; x2 and y may be None."""
    blocks = tl.cdiv(T, BT * EACH)
    index = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * (BT * EACH)
    batch, h = (index // H).to(tl.int64), index % H
    x1 += batch * x1_b + h * x1_h
    m1 = load_matrix(w1 + h * w1_h, w1_a, w1_x, A1, BA1, X, BX).to(x1.dtype.element_ty)
    if x2 is not None:
        x2 += batch * x2_b + h * x2_h
        m2 = load_matrix(w2 + h * w2_h, w2_a, w2_x, A2, BA2, X, BX).to(x2.dtype.element_ty)
    if y is not None:
        y += batch * y_b + h * y_h
    for n in range(0, EACH):
        start = first + n * BT
        total = tl.dot(load_block(x1, start, x1_t, T, A1, BA1, BT, True), m1, input_precision="tf32x3")
        if x2 is not None:
            total = tl.dot(load_block(x2, start, x2_t, T, A2, BA2, BT, True), m2, total, input_precision="tf32x3")
        if y is not None:
            total += load_block(y, start, y_t, T, X, BX, BT, True).to(tl.float32)
        store_block(out + batch * out_b + h * out_h, start, out_t, T, X, BX, BT, total)
