"""Sums that kernels leave whose warps have roles, and matrices, in Gluon: each warp adds up what it has of a tile, and waits for
no other where sums are left in partial sums. `fused_backward.py` says what those of a fused backward are of; the gate of
schedules runs all of them as they stand."""

from __future__ import annotations

from .warp_roles import gl, gluon

__all__ = [
    "store_matrices",
    "store_pair_sums",
    "store_row_sums",
    "store_state_products",
    "store_sums_of_columns",
    "store_sums_of_rows",
    "store_tile_sums",
]


@gluon.jit
def store_row_sums(p, x, y, there):  # type: ignore[no-untyped-def]
    """The sums of the rows of x y [C, X], at p, of those `there`."""
    total = gl.sum(x * y.to(gl.float32), axis=1)
    i = gl.arange(0, x.shape[0], layout=total.type.layout)
    gl.store(p + i, total, mask=i < there)


@gluon.jit
def store_pair_sums(  # type: ignore[no-untyped-def]
    p, x, bh, t0, T, there, ROWS: gl.constexpr, COLUMNS: gl.constexpr, WARPS: gl.constexpr
):
    """The sums of the rows of x [C, C], and of its columns, which are subtracted, in p [B, H, partial sums, T], as
    `store_partial_sums` has them; one of them may be left out."""
    C: gl.constexpr = x.shape[0]
    R: gl.constexpr = WARPS // 4 if ROWS else 0
    N: gl.constexpr = 4 if COLUMNS else 0
    if R > 0:
        rows = gl.sum(gl.reshape(x, [C, R, C // R]), axis=2)
        m = gl.arange(0, R, layout=gl.SliceLayout(0, rows.type.layout))
        i = gl.arange(0, C, layout=gl.SliceLayout(1, rows.type.layout))
        gl.store(p + (bh * (R + N) + m)[None, :] * T + (t0 + i)[:, None], rows, mask=(i < there)[:, None])
    if N > 0:
        columns = gl.sum(gl.reshape(x, [N, C // N, C]), axis=1)
        m = gl.arange(0, N, layout=gl.SliceLayout(1, columns.type.layout))
        i = gl.arange(0, C, layout=gl.SliceLayout(0, columns.type.layout))
        gl.store(p + (bh * (R + N) + R + m)[:, None] * T + (t0 + i)[None, :], -columns, mask=(i < there)[None, :])


@gluon.jit
def store_state_products(p, kept, S, dS, PARTIAL_SUMS: gl.constexpr):  # type: ignore[no-untyped-def]
    """A number, in shared memory, times <S, dS>, at p in partial sums, one for each warp."""
    product = gl.reshape(S.to(gl.float32) * dS, [PARTIAL_SUMS, S.shape[0] // PARTIAL_SUMS, S.shape[1]])
    sums = gl.sum(gl.sum(product, axis=2), axis=1)
    number = kept.load(sums.type.layout)
    gl.store(p + gl.arange(0, PARTIAL_SUMS, layout=sums.type.layout), number * sums)


@gluon.jit
def store_tile_sums(p, x, T, there, COUNT: gl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of x [X, C] over its rows, in so many parts of these, at p [COUNT, T], of those steps that are `there`."""
    sums = gl.sum(gl.reshape(x, [COUNT, x.shape[0] // COUNT, x.shape[1]]), axis=1)
    m = gl.arange(0, COUNT, layout=gl.SliceLayout(1, sums.type.layout))
    i = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, sums.type.layout))
    gl.store(p + m[:, None] * T + i[None, :], sums, mask=(i < there)[None, :])


@gluon.jit
def store_matrices(p, x, there):  # type: ignore[no-untyped-def]
    """Matrices x [chunks, C, C], one after the other at p, of those chunks that begin at steps which are `there`."""
    C: gl.constexpr = x.shape[1]
    n = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, x.type.layout)))
    i = gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(2, x.type.layout)))
    j = gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(1, x.type.layout)))
    place = (n * C)[:, None] + i[None, :]
    place = (place * C)[:, :, None] + j[None, None, :]
    gl.store(p + place, x.to(p.dtype.element_ty), mask=(n * C < there)[:, None][:, :, None])


@gluon.jit
def store_sums_of_rows(p, x, there):  # type: ignore[no-untyped-def]
    """The sums of the rows of x [chunks, C, C], at p, of those steps that are `there`."""
    sums = gl.sum(x, axis=2)
    n = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, sums.type.layout))
    i = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, sums.type.layout))
    step = (n * x.shape[1])[:, None] + i[None, :]
    gl.store(p + step, sums, mask=step < there)


@gluon.jit
def store_sums_of_columns(p, x, T, there, COUNT: gl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of the columns of x [chunks, C, C], which are subtracted, in so many parts of these, at p [COUNT, T]."""
    C: gl.constexpr = x.shape[1]
    sums = gl.sum(gl.reshape(x, [x.shape[0], COUNT, C // COUNT, C]), axis=2)
    n = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, sums.type.layout)))
    m = gl.arange(0, COUNT, layout=gl.SliceLayout(0, gl.SliceLayout(2, sums.type.layout)))
    j = gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(1, sums.type.layout)))
    place = (n * C)[:, None] + (m * T)[None, :]
    step = (n * C)[:, None][:, :, None] + j[None, None, :]
    gl.store(p + place[:, :, None] + j[None, None, :], -sums, mask=step < there)
