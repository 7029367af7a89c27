"""Sums that a fused backward leaves whose warps have roles, in Gluon: each warp adds up what it has of a tile, and waits for no
other where sums are left in partial sums. `fused_backward.py` says what they are of; the gate of schedules runs them as they
stand."""

from __future__ import annotations

from .warp_roles import gl, gluon

__all__ = ["store_pair_sums", "store_row_sums", "store_state_products"]


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
