"""<S, dS> somewhere within a step, where the step scales its state at several places and writes between them.

With S_t = D S_{t-1} + A, the pairing P of the step (see `normal_form.Pairing`) is <S_t, dS> + late, dS being what later
steps say. So

    <S_{t-1}, dS> = (P - late - <A, dS>) / D

and <d1 S_{t-1} + W1, d2 dS + W2> follows with reads: a write l w^T takes l^T M w of the other side M.
"""

from __future__ import annotations

from .ir import Node, add, leaf, mul, power, total
from .normal_form import Interpreter, MatrixValue, NotAffine, RawWrite, late_only


def partial_pairing(
    i: Interpreter, axes: tuple[str, ...], first: MatrixValue, second: MatrixValue, update: MatrixValue, late: Node
) -> Node:
    """<first, second> over `axes`, and over raw reads, which are registered with `i`. `update` is that of the state."""
    decay, update = update.decay, late_only(update)
    first, second = late_only(first), late_only(second)
    assert decay is not None and first.decay is not None and second.decay is not None
    scale = mul(first.decay, second.decay)
    if not set(scale.axes) <= set(decay.axes) or (first.row, first.col) != (update.row, update.col):
        raise NotAffine("the state is scaled at several places of the step", scale)
    carried = MatrixValue(second.state, second.row, second.col)
    before = MatrixValue(first.state, first.row, first.col, first.decay)
    own = [mul(-1, _taken(i, decay.axes, w, carried)) for w in update.after]
    inside = mul(add(leaf("pairing", first.state, decay.axes), mul(-1, late), *own), power(decay, -1), scale)
    parts = [total(inside, *(set(decay.axes) - set(axes)))]
    parts += [_taken(i, axes, w, second) for w in first.after]
    parts += [_taken(i, axes, w, before) for w in second.after]
    return add(*parts)


def _taken(i: Interpreter, axes: tuple[str, ...], w: RawWrite, m: MatrixValue) -> Node:
    """<l w^T, m>, summed over all but `axes`."""
    if m.row is not None and m.row in axes:
        value = mul(w.scalar, w.left, i.read(m, "col", w.right))
    else:
        value = mul(w.scalar, w.right, i.read(m, "row", w.left))
    return total(value, *(set(value.axes) - set(axes)))
