"""Small matrices of all chunks of a stage, in Gluon: what the warps make that prepare them. Tensor cores make them at once, in
tiles [chunks, C, C] of registers; what these become operands of goes through shared memory."""

from __future__ import annotations

from .warp_roles import gl, gluon, mma_v2

__all__ = ["few_rows", "inverses", "on_diagonal", "small_products", "small_tiles"]


@gluon.constexpr_function
def small_products(chunks, warps):  # type: ignore[no-untyped-def]
    """Where tiles [chunks, C, C] lie in the registers of so many warps: each warp has whole rows."""
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[chunks, warps // chunks, 1], instr_shape=[1, 16, 8])


@gluon.constexpr_function
def small_tiles(columns):  # type: ignore[no-untyped-def]
    """Where tiles of rows of so few numbers of two bytes lie in shared memory, so that eight rows at a column, of which tensor
    cores take 16 bytes each, are in banks of their own."""
    across = columns // 8  # times 16 bytes
    return gl.SwizzledSharedLayout(8, max(1, 8 // across), min(8, across), [2, 1, 0])


@gluon.constexpr_function
def few_rows(columns, warps):  # type: ignore[no-untyped-def]
    """Where a tile of few steps by so many columns lies in the registers of so many warps, if no product yields it: tensor cores
    take no fewer than 64 rows at once."""
    across = min(32, columns // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def on_diagonal(x, CHUNKS: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of x [chunks * C, chunks * C], which is of all pairs of steps, the tiles [chunks, C, C] of those of one chunk."""
    C: gl.constexpr = x.shape[0] // CHUNKS
    row = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout)) // C
    column = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, x.type.layout)) // C
    own = gl.where(row[:, None] == column[None, :], x, 0.0)
    rows = gl.sum(gl.reshape(own, [CHUNKS * C, CHUNKS, C]), axis=1)
    return gl.convert_layout(gl.reshape(rows, [CHUNKS, C, C]), layout)


@gluon.jit
def inverses(t, t_place, x_place, LEVELS: gl.constexpr):  # type: ignore[no-untyped-def]
    """(I - t)^-1 of each strictly triangular matrix of t [chunks, C, C], C = 2^LEVELS, as `inverse` makes them. Two steps are in
    different halves of a block of the level that the highest bit in which they differ says."""
    of: gl.constexpr = t.type.layout
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of, k_width=2)
    right: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=of, k_width=2)
    C: gl.constexpr = t.shape[1]
    row = gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(2, of)))[None, :, None]
    column = gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(1, of)))[None, None, :]
    apart = row ^ column
    none = gl.zeros([t.shape[0], C, C], gl.float32, layout=of)
    t_place.store(t.to(t_place.dtype))
    x = gl.where(apart == 0, 1.0, gl.where(apart == 1, t, 0.0))
    for level in gl.static_range(1, LEVELS):
        x_place.store(x.to(x_place.dtype))
        product = mma_v2(x_place.load(left), t_place.load(right), none)
        product = mma_v2(gl.convert_layout(product.to(x_place.dtype), left), x_place.load(right), none)
        x += gl.where(apart >> level == 1, product, 0.0)
    return x
