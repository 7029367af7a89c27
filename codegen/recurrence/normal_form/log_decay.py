"""The natural logarithm of a decay, as a node: what kernels are given, instead of the decay itself."""

from __future__ import annotations

from ...ir.expr import ONE, ZERO, Node, add, const, expand, fn, leaf, mul, number
from ...ir.functions import MAGNITUDE
from ...ir.step_program import DECAYS, LOGARITHM_OF
from .abstract_interpreter import at_least_zero, below_one

FORGET = const(-1000000)  # stands for the logarithm of zero: a reset, far below every threshold


def log_of(x: Node) -> Node:
    """log x, with products, powers and exponentials taken apart; over the axes of x, also where it is the same number along
    them, as of a quotient of alike exponentials. `positive` (interpret.py) says which x have one."""
    return expand(_log(x), x.axes)


def _log(x: Node) -> Node:
    if x is ZERO:
        return FORGET
    if x is ONE:
        return ZERO
    match x.op:
        case "leaf" if x.attrs[0] in DECAYS:
            return leaf(LOGARITHM_OF[x.attrs[0]], x.attrs[1], x.attrs[2])
        case "const":
            return number(f"log({x.attrs[0]})")
        case "mul":
            return add(*(_log(a) for a in x.args))
        case "pow":
            (base,) = x.args
            return mul(x.attrs[0], _log(base if at_least_zero(base) else fn(MAGNITUDE, base)))
        case "fn" if x.attrs[0] == "exp":
            return x.args[0]
        case "fn" if x.attrs[0] == "sigmoid":
            return mul(-1, fn("softplus", mul(-1, x.args[0])))
    if (y := below_one(x)) is not None:
        return mul(-1, fn("softplus", y))
    return fn("log", x)
