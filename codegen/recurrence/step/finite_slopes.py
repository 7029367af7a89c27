"""Slopes of what is flat far out, which are finite: the gradient there is zero times one, and zero.

The slope of `exp(-exp(x))` is `-exp(x) exp(-exp(x))`, where the first factor may be infinite and the last one zero; that of
`exp(-exp(x) softplus(x))` has a product of two finite ones that is infinite. So exponentials of inputs are bounded there, and so
are products of several slopes that grow. A state or a parameter as large has left all numbers behind anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from ...ir.expr import Node, add, factors_of, fn, leaf, leaf_names, mul, rebuild, replace, terms_of, walk
from ...ir.functions import FINITE, FINITE_EXP, RECIPROCAL
from ...ir.ranges import Ranges
from ...ir.step_program import StepProgram
from .decays import known_range

SATURATING = frozenset("exp expm1 sigmoid logsigmoid softplus tanh erf".split())  # functions that are, towards an end
SLOWER = frozenset("log log1p asinh sign step".split())  # functions that grow more slowly than any power, or not at all
OVERFLOWS = 2  # the power of an input that has no float where the input has one

Derivatives = Callable[[Node, Node], list[Node]]


class FiniteSlopes:
    """What reverse-mode differentiation of a step asks for the slopes of what lies in arguments of flat functions."""

    def __init__(self, forward: StepProgram, order: Iterable[Node]) -> None:
        self.made = {("input", v.name) for v in forward.variables if v.handed}
        saturating = [x for x in order if _may_saturate(x)]
        self.below = {a for x in saturating for a in walk(x.args[0])}
        gates = [x for x in saturating if self._of_inputs(x)]
        self.of_gates = {a for x in gates for a in walk(x.args[0])}
        self.of_functions = {a for x in gates if x.op == "fn" for a in walk(x.args[0])}
        self.ranges = Ranges(lambda x: known_range(forward, x))
        exponentials = [x for x in self.below if x.op == "fn" and x.attrs[0] == "exp" and self._of_inputs(x)]
        self.capped = {x: fn(FINITE_EXP, x.args[0]) for x in exponentials if self.ranges(x.args[0]).high == inf}
        self.slopes: dict[Node, frozenset[Node]] = {}  # the factors that slopes have brought to the gradient of a node
        self.powers: dict[Node, float] = {}

    def gradients(self, x: Node, g: Node, derivatives: Derivatives) -> list[Node]:
        """The gradients of the arguments of x. The gradient that slopes are multiplied by stays as it is: it may be a state's."""
        gradient = leaf("gradient", "of what x is", g.axes)
        before = self.slopes.get(x, frozenset())
        products = x in self.of_gates
        out = []
        for arg, whole, own in zip(x.args, derivatives(x, g), derivatives(x, gradient), strict=True):
            slope = _with(own, self.capped)
            brought = before.union(*map(factors_of, terms_of(slope))) - {gradient}
            self.slopes[arg] = self.slopes.get(arg, frozenset()) | brought
            part = whole if own == slope else replace(slope, {gradient: g})
            bounded = (
                [self._bounded(term, brought, x in self.of_functions) for term in terms_of(part)]
                if products
                else [part]
            )
            out.append(add(*bounded))
        return out

    def _bounded(self, term: Node, slopes: frozenset[Node], any_power: bool) -> Node:
        """A term of a gradient, in which the product of slopes that grow is finite. One of different axes stays as it is."""
        factors = factors_of(term)
        growing = [f for f in factors if (f in slopes or _is_bounded(f)) and self.power(f) > 0]
        product = mul(*(f.args[0] if _is_bounded(f) else f for f in growing))
        of_one = any(f.axes == product.axes for f in growing)
        exponential = any(y.op == "fn" and y.attrs[0] == FINITE_EXP for y in walk(product))
        if sum(map(self.power, growing)) < OVERFLOWS or not of_one or not (any_power or exponential):
            return term
        return mul(*(f for f in factors if f not in growing), fn(FINITE, product))

    def power(self, x: Node) -> float:
        """How fast x grows with its inputs: at most as this power of them, and of one over them. 0 for what is bounded, and
        for what isn't made of inputs."""
        if x not in self.powers:
            self.powers[x] = self._power(x) if self._of_inputs(x) and not self.ranges(x).bounded else 0
        return self.powers[x]

    def _power(self, x: Node) -> float:
        match x.op:
            case "leaf":
                return 1
            case "add" | "max" | "sum" | "expand" | "peak":
                return max(map(self.power, x.args))
            case "mul":
                return sum(map(self.power, x.args))
            case "pow":
                return float(abs(x.attrs[0])) * self.power(x.args[0])
            case "fn" if x.attrs[0] in (FINITE_EXP, RECIPROCAL):
                return 1
            case "fn" if x.attrs[0] == "exp":
                return OVERFLOWS
            case "fn" if x.attrs[0] not in SLOWER:
                return self.power(x.args[0])
        return 0

    def _of_inputs(self, x: Node) -> bool:
        """Is it made of inputs, and of no state, nor of what another part of the step makes of one?"""
        kinds = {kind for kind, _ in leaf_names(x)}
        return "input" in kinds and "state" not in kinds and not leaf_names(x) & self.made


def _with(g: Node, table: dict[Node, Node]) -> Node:
    """g with these in terms and factors; what a function is applied to stays as it is."""
    if not table:
        return g
    if g in table:
        return table[g]
    return rebuild(g, [_with(a, table) for a in g.args]) if g.op in ("add", "mul", "sum", "expand") else g


def _may_saturate(x: Node) -> bool:
    return x.attrs[0] in SATURATING if x.op == "fn" else x.op == "pow" and x.attrs[0] < 0


def _is_bounded(x: Node) -> bool:
    return x.op == "fn" and x.attrs[0] == FINITE
