"""<S, dS> within a step, from what the step reads and writes: what the gradient of a decay is made of.

In read-write form a step makes S_t = D (S_{t-1} + B) + A, and its adjoint dS_{t-1} = D (dS_t + B') + A'. The state-adjoint
product is P = D <S_{t-1} + B, dS_t + B'>, over the decay's axis; where rows and columns both decay, there is one over each. So

    P = <S_t, dS_t> + <S_t, B'> - <A, dS_t + B'>                  from what the steps after it leave
    <S_{t-1}, dS_{t-1}> = P - D <B, dS_t + B'> + <S_{t-1}, A'>    for the step before it

where a write l w^T takes l^T M w of the other side M: a read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...ir.expr import ONE, Node, add, depends, factors_of, leaf, mul, power, total
from .abstract_interpreter import Interpreter
from .abstract_values import MatrixValue, RawWrite, make_key, scaled_write, split_scalars
from .form import NotAffine


def product_leaf(m: MatrixValue, wanted: tuple[str, ...]) -> Node:
    """Of a state, which is m after a step, the state-adjoint product that one over the axes `wanted` is made of: over rows or
    over columns, where both decay."""
    assert m.decay is not None
    if len(m.decay.axes) < 2:
        return leaf("state-adjoint product", m.state, m.decay.axes)
    (axis,) = wanted or m.decay.axes[:1]
    return leaf("state-adjoint product", f"{m.state}|{'rows' if axis == m.row else 'columns'}", (axis,))


def state_adjoint_terms(
    i: Interpreter, axes: tuple[str, ...], update: MatrixValue, forward: MatrixValue, backward: MatrixValue
) -> tuple[Node, Node]:
    """What is added to P's sum at its step (late) and after it (early), over raw reads. `update` is S_t as the step has
    it; `forward` and `backward` have the writes of both states in their final phases."""
    decay = forward.decay
    assert decay is not None
    before = MatrixValue(forward.state, forward.row, forward.col)
    middle = MatrixValue(backward.state, backward.row, backward.col, None, backward.before)
    late = add(_taken(i, axes, backward.before, update), mul(-1, _taken(i, axes, forward.after, middle)))
    if axes == decay.axes:
        taken = mul(-1, decay, _taken(i, axes, forward.before, middle))
    else:
        scaled = (scaled_write(w, decay, forward.row, forward.col) for w in forward.before)
        taken = mul(-1, _taken(i, axes, scaled, middle))
    return late, add(taken, _taken(i, axes, backward.after, before))


def state_adjoint_value(
    i: Interpreter,
    product: Node,
    raw: Node,
    first: MatrixValue,
    second: MatrixValue,
    forward: MatrixValue,
    backward: MatrixValue,
    divides: bool = True,
) -> Node:
    """<first, second> over the axes of `raw`, two stages of a step, from P and raw reads; from P / D where it `divides` not."""
    decay = forward.decay if divides else ONE
    assert decay is not None
    axes, scale = raw.axes, mul(first.decay or ONE, second.decay or ONE)
    more, less = ([f for f in factors_of(x) if f not in factors_of(y)] for x, y in ((scale, decay), (decay, scale)))
    known = mul(product, *(power(f, -1) for f in less), *more)
    if not set(known.axes) <= set(product.axes) or (first.row, first.col) != (forward.row, forward.col):
        raise NotAffine("the state is scaled at several places of the step", scale)
    parts = [total(known, *(set(product.axes) - set(axes)))]
    middle = MatrixValue(forward.state, forward.row, forward.col, first.decay, forward.before)
    parts.append(_taken(i, axes, _difference(first, forward), second))
    parts.append(_taken(i, axes, _difference(second, backward), middle))
    return add(*parts)


def cancelled(x: Node) -> Node:
    """x with products spread over sums that hold a state-adjoint product, where a decay cancels against its inverse, even a decay
    of 0; also inside of a sum over an axis, and from outside of one."""
    for f in factors_of(x):
        if f.op not in ("add", "sum") or not depends(f, _is_state_adjoint):
            continue
        rest = mul(*(g for g in factors_of(x) if g is not f))
        if f.op == "add":
            return add(*(cancelled(mul(rest, term)) for term in f.args))
        made = total(cancelled(f.args[0]), *f.attrs)
        if made is not f:
            return cancelled(mul(rest, made))
    return x


def _is_state_adjoint(x: Node) -> bool:
    return x.op == "leaf" and x.attrs[0] == "state-adjoint product"


def _is_read(i: Interpreter, m: MatrixValue, side: str, vector: Node) -> bool:
    """Does the step read m so anyway?"""
    key = make_key(m, side, split_scalars(vector)[1])
    return any(raw.attrs[1] == key for raw in i.raw_reads)


def _difference(m: MatrixValue, final: MatrixValue) -> list[RawWrite]:
    """m - d (S + B), for m = d (S + b) + a."""

    def scaled(w: RawWrite, sign: int) -> RawWrite:
        w = w if m.decay is None else scaled_write(w, m.decay, m.row, m.col)
        return replace(w, scalar=mul(sign, w.scalar))

    more = [scaled(w, 1) for w in m.before if w not in set(final.before)]
    less = [scaled(w, -1) for w in final.before if w not in set(m.before)]
    return [*m.after, *more, *less]


def _taken(i: Interpreter, axes: tuple[str, ...], writes: Iterable[RawWrite], m: MatrixValue) -> Node:
    """The sum of <l w^T, m> over writes, summed over all but `axes`."""
    parts = []
    for w in writes:
        free = m.row not in axes and m.col not in axes
        by_rows = _is_read(i, m, "row", w.left) and not _is_read(i, m, "col", w.right) if free else m.col in axes
        if by_rows:
            value = mul(w.scalar, w.right, i.read(m, "row", w.left))
        else:
            value = mul(w.scalar, w.left, i.read(m, "col", w.right))
        parts.append(total(value, *(set(value.axes) - set(axes))))
    return add(*parts)
