"""Gradients of parameters that are matrices: sums, over sequences and steps, of products of two vectors of each step."""

from __future__ import annotations

from ...ir.expr import Node, dim_of, factors_of, mul, rename, walk

PER_STEP = frozenset(
    "input|decay|log decay|cotangent|read|write|stored|prologue|multiplied|state-adjoint product|sums".split("|")
)


def outer_product(x: Node, order: tuple[str, ...]) -> tuple[Node, Node] | None:
    """(vector, vector) of each step, over a dim each, whose product over these two axes a term is; None where it isn't one."""
    sides = [[f for f in factors_of(x) if set(f.axes) <= {a}] for a in order]
    left, right = mul(*sides[0]), mul(*(f for f in sides[1] if f.axes))
    if {*left.axes, *right.axes} != set(order) or any(len(f.axes) > 1 for f in factors_of(x)):
        return None
    if not (differs(left) and differs(right)):
        return None
    left, right = (rename(v, {a: dim_of(a)}) for v, a in zip((left, right), order, strict=True))
    return left, right


def differs(x: Node) -> bool:
    """Has each step a value of its own?"""
    return any(y.op == "leaf" and y.attrs[0] in PER_STEP for y in walk(x))
