"""Sums of squares inside of functions, such as a distance |x_i - x_j|: they are never below 0, and must stay so in kernels.

The split multiplies them out, to |x_i|^2 + |x_j|^2 - 2 <x_i, x_j>, which rounding may take below 0 where positions coincide. So
they are marked before that, by `clamped`: a root or a logarithm has a value there, and its derivative is 0.
"""

from __future__ import annotations

from ..ir.expr import Node, rebuild
from .lower import KEY, Lowered
from .operations import clamped

AT_LEAST_ZERO = ("exp", "sigmoid", "softplus", "abs", "relu", "step")  # functions of this kind


def with_squares(p: Lowered, x: Node) -> Node:
    """x with sums of squares over a dim, of what belongs to both sides, marked wherever they are inside of functions."""
    done: dict[tuple[Node, bool], Node] = {}

    def visit(y: Node, inside: bool) -> Node:
        if (y, inside) not in done:
            inner = inside or y.op in ("fn", "pow")
            if inside and is_sum_of_squares(p, y):
                done[y, inside] = clamped(y)
            else:
                done[y, inside] = rebuild(y, [visit(a, inner) for a in y.args]) if y.args else y
        return done[y, inside]

    return visit(x, False)


def is_sum_of_squares(p: Lowered, x: Node) -> bool:
    """Is it a number of each pair, and a sum of terms that are all at least 0, which is to be multiplied out?"""
    return x.op == "sum" and set(x.axes) == {p.query, KEY} and at_least_zero(p, x)


def at_least_zero(p: Lowered, x: Node) -> bool:
    match x.op:
        case "const":
            return x.attrs[0] >= 0
        case "size":
            return True
        case "leaf":
            return any(v.name == x.attrs[1] and v.kind == "temperature" for v in p.spec.variables)
        case "fn":
            return x.attrs[0] in AT_LEAST_ZERO
        case "pow":
            n = x.attrs[0]
            return n.denominator != 1 or n.numerator % 2 == 0 or at_least_zero(p, x.args[0])
        case "max":
            return any(at_least_zero(p, a) for a in x.args)
        case "add" | "mul" | "sum" | "expand":
            return all(at_least_zero(p, a) for a in x.args)
    return False
