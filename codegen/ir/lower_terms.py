"""Scalars of SymPy as nodes: where its algebra ends."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

from chunkform.errors import FunctionError, NameError_

from .expr import ZERO, Node, add, const, fn, maximum, minimum, mul, number, power
from .functions import APART, HELD, MAGNITUDE, OVER_EXP, TABLE, UNIT_OF

_BY_CLASS = {
    sympy.exp: "exp",
    sympy.log: "log",
    sympy.tanh: "tanh",
    sympy.sin: "sin",
    sympy.cos: "cos",
    sympy.erf: "erf",
    sympy.Abs: "abs",
}

OWN = (
    "expm1",
    "log1p",
    "logsigmoid",
    OVER_EXP,
    MAGNITUDE,
    UNIT_OF,
    HELD,
    APART,
)  # functions that only the compiler writes

_REAL = (
    ": a spec is of real numbers. A complex state is two that turn into each other, as in cos(th) * re.prev - sin(th) * im.prev "
    "and sin(th) * re.prev + cos(th) * im.prev"
)


def scalar_node(
    x: Any, env: dict[Any, Node], atom: Callable[[Any], Node | None], where: Any, differentiable: bool = True
) -> Node:
    """A SymPy scalar as a node. `env` and `atom` give the nodes of its symbols."""

    def go(y: object) -> Node:
        return scalar_node(y, env, atom, where, differentiable)

    if x in env:
        return env[x]
    if (known := atom(x)) is not None:
        return known
    if x.is_Symbol:
        raise NameError_(f"unknown symbol {x}", where)
    if x.is_Rational:
        return const(Fraction(int(x.p), int(x.q)))
    if x.is_Float:
        return const(Fraction(str(x)))
    if x.is_number and not x.free_symbols:
        if not x.is_finite or x.is_real is False:
            turned = "" if x.is_real is not False or not x.is_finite else _REAL
            raise FunctionError(f"{x} is not a finite real number{turned}", where)
        return number(str(x))
    if x.is_Add:
        return add(*(go(a) for a in x.args))
    if x.is_Mul:
        return mul(*(go(a) for a in x.args))
    if x.is_Pow:
        base, exponent = x.args
        if exponent.is_Rational or exponent.is_Float:
            return power(go(base), go(exponent).attrs[0])
        return fn("exp", mul(go(exponent), go(sympy.log(base))))
    if isinstance(x, sympy.Max | sympy.Min):
        return _extreme(x, [go(a) for a in x.args])
    return _function(x, go, env, where, differentiable)


def _extreme(x: Any, terms: list[Node]) -> Node:
    if len(terms) == 2 and ZERO in terms:  # relu, of whose derivative at 0 nothing is left, as of torch.relu
        sign = 1 if isinstance(x, sympy.Max) else -1
        return mul(sign, fn("relu", mul(sign, *(a for a in terms if a is not ZERO))))
    return maximum(*terms) if isinstance(x, sympy.Max) else minimum(*terms)


def _function(x: Any, go: Callable[[object], Node], env: dict[Any, Node], where: Any, differentiable: bool) -> Node:
    name = _BY_CLASS.get(x.func, x.func.__name__.rstrip("_"))
    if isinstance(x, sympy.Heaviside | sympy.sign) and not differentiable:
        return fn("step" if isinstance(x, sympy.Heaviside) else "sign", go(x.args[0]))
    if x.is_Function and name in TABLE and len(x.args) == 1 and TABLE[name].derivative is not None:
        return fn(name, go(x.args[0]))
    if isinstance(x, sympy.sinh | sympy.cosh):
        return go(x.rewrite(sympy.exp))
    if isinstance(x, sympy.tan):
        return mul(fn("sin", go(x.args[0])), power(fn("cos", go(x.args[0])), -1))
    names = ", ".join(sorted(n for n, row in TABLE.items() if row.derivative is not None and n not in OWN))
    shown = x.subs({k: sympy.Symbol(str(v)) for k, v in env.items()}) if env else x
    raise FunctionError(
        f"the function {x.func.__name__} in the term {shown} has no derivative here; "
        f"write it with +, -, *, /, powers, Max, Min and {names}",
        where,
    )
