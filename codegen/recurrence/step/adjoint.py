"""Pass 2, adjoint: step program -> the step program of its gradients, which runs backwards in time.

Reverse-mode differentiation of one step: `DERIVATIVES` has one row per operation, and the scalar functions theirs in
`functions.py`. At step t the adjoint is given the step's inputs, the previous states S_{t-1} (kind `trajectory`), the incoming
gradients of the outputs (kind `cotangent`) and its own state dS_t: what later steps say of S_t. It yields dS_{t-1} and the
gradient of each variable; of a decay, the gradient of its natural logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import permutations

from chunkform.errors import FunctionError

from ...ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    dim_of,
    expand,
    factors_of,
    fn,
    leaf,
    maximum,
    mul,
    power,
    rename,
    replace,
    terms_of,
    total,
    walk,
)
from ...ir.functions import RECIPROCAL, TABLE
from ...ir.step_program import StateVar, StepProgram, Var
from .finite_slopes import FiniteSlopes
from .quotient_slopes import divided_in_turn, joined_quotients, over_one_divisor


@dataclass(frozen=True)
class Adjoint:
    """The adjoint program, and the gradient of each node of the forward step (over trajectory leaves)."""

    program: StepProgram
    forward: StepProgram
    gradients: dict[Node, Node]


def gradient_name(v: Var) -> str:
    return f"d{v.argument}"


def adjoint(forward: StepProgram, entrywise: bool = False) -> Adjoint:
    """The adjoint of a step program. `entrywise`: no form of it is looked for but scans, so that quotients of states are put
    together as those of inputs are."""
    seeds: dict[Node, list[Node]] = {}
    for name, node in forward.outputs.items():
        seeds.setdefault(node, []).append(leaf("cotangent", f"d{name}", forward.output_axes[name]))
    for s in forward.states:
        seeds.setdefault(forward.updates[s.name], []).append(leaf("state", f"d{s.name}", s.axes))

    gradients = _reverse(forward, seeds, entrywise)
    to_trajectory = trajectories(forward, *forward.updates.values(), *forward.outputs.values(), *gradients.values())
    gradients = {x: replace(g, to_trajectory) for x, g in gradients.items()}

    def of(kind: str, name: str, axes: tuple[str, ...]) -> Node:
        """The gradient of a variable: the sum over the ways in which the step reads it."""
        parts = [
            rename(g, dict(zip(x.attrs[2], axes, strict=True)))
            for x, g in gradients.items()
            if x.op == "leaf" and x.attrs[:2] == (kind, name)
        ]
        whole = expand(add(*parts), axes)
        if not entrywise:
            return whole
        whole = joined_quotients(whole, of_states=True)
        return divided_in_turn(over_one_divisor(whole) or whole, lambda x: x.attrs[0] in ("state", "cotangent"))

    outputs = {}
    for v in forward.variables:
        if v.kind != "constant":
            g = of(v.kind, v.name, v.axes)
            if v.is_decay:  # term by term, so that lam cancels against the 1 / lam of a state-adjoint product
                g = expand(add(*(mul(v.leaf, part) for part in terms_of(g))), v.axes)
            outputs[gradient_name(v)] = g
    names = {replace(x, to_trajectory): n for x, n in forward.names.items()}
    for x, n in forward.names.items():
        if x in gradients and gradients[x].op not in ("leaf", "const") and gradients[x] not in names:
            names[gradients[x]] = f"d{n}"
    for s in forward.states:
        names[leaf("state", f"d{s.name}", s.axes)] = f"d{s.name}"
    program = StepProgram(
        name=f"{forward.name}_adjoint",
        dims=forward.dims,
        variables=(
            *forward.variables,
            *(Var(s.name, "trajectory", s.axes) for s in forward.states),
            *(Var(f"d{n}", "cotangent", forward.output_axes[n]) for n in forward.outputs),
        ),
        states=tuple(StateVar(f"d{s.name}", s.axes) for s in forward.states),
        updates={f"d{s.name}": of("state", s.name, s.axes) for s in forward.states},
        outputs=outputs,
        direction=-1,
        names=names,
        origins={gradients[x]: w for x, w in forward.origins.items() if x in gradients},
        output_axes={gradient_name(v): v.axes for v in forward.variables if v.kind != "constant"},
    )
    return Adjoint(program, forward, gradients)


def trajectories(forward: StepProgram, *roots: Node) -> dict[Node, Node]:
    """For each leaf below the roots that is a state of the forward program, whatever its axes are called there, the
    trajectory leaf that takes its place in the adjoint."""
    names = {s.name for s in forward.states}
    return {
        x: leaf("trajectory", x.attrs[1], x.attrs[2])
        for x in walk(*roots)
        if x.op == "leaf" and x.attrs[0] == "state" and x.attrs[1] in names
    }


def _reverse(forward: StepProgram, seeds: dict[Node, list[Node]], of_states: bool) -> dict[Node, Node]:
    order = list(walk(*forward.updates.values(), *forward.outputs.values()))
    pending = {x: list(parts) for x, parts in seeds.items()}
    gradients: dict[Node, Node] = {}
    rules = partial(_derivatives, forward=forward)
    copies, finite = _copies(forward, order), FiniteSlopes(forward, order)
    for x in reversed(order):
        g = joined_quotients(_uncancelled(add(*pending.pop(x))), of_states) if x in pending else ZERO
        if x in copies and g is not ZERO:
            update, back = copies[x]
            pending.setdefault(update, []).append(rename(g, back))
            g = ZERO
        gradients[x] = g
        if g is ZERO:
            continue
        parts = finite.gradients(x, g, rules) if x in finite.below else rules(x, g)
        for arg, part in zip(x.args, parts, strict=True):
            part = total(part, *(set(part.axes) - set(arg.axes)))
            pending.setdefault(arg, []).append(part)
    return gradients


def _uncancelled(g: Node) -> Node:
    """g with c sigmoid(-y) in the place of c - c sigmoid(y), where y is made of logarithms: near a decay's lower bound rounding
    would leave nothing of that. What an author writes stays as it is."""
    terms = list(terms_of(g))
    for term in terms_of(g):
        for f in factors_of(term):
            if f.op != "fn" or f.attrs[0] != "sigmoid" or not any(y.attrs[:1] == ("logsigmoid",) for y in walk(f)):
                continue
            whole = mul(-1, *(a for a in factors_of(term) if a is not f))
            if whole in terms and term in terms:
                terms.remove(whole)
                terms[terms.index(term)] = mul(whole, fn("sigmoid", mul(-1, f.args[0])))
    return add(*terms) if len(terms) < len(terms_of(g)) else g


def _copies(forward: StepProgram, order: list[Node]) -> dict[Node, tuple[Node, dict[str, str]]]:
    """Next states that the step reads under other names of their axes: all gradients of one state meet in its update."""
    copies = {}
    for update in forward.updates.values():
        for x in order:
            if x is update or x.op != update.op or len(x.axes) != len(update.axes) or x in copies:
                continue
            for axes in permutations(x.axes):
                same_dims = [dim_of(a) for a in axes] == [dim_of(a) for a in update.axes]
                if same_dims and rename(update, dict(zip(update.axes, axes, strict=True))) is x:
                    copies[x] = update, dict(zip(axes, update.axes, strict=True))
                    break
    return {x: found for x, found in copies.items() if order.index(found[0]) < order.index(x)}


def _derivatives(x: Node, g: Node, forward: StepProgram) -> list[Node]:
    if x.op not in DERIVATIVES:
        where = forward.origins.get(x)
        raise FunctionError(f"the operation {x.op} in {x!r} has no derivative", where)
    return DERIVATIVES[x.op](x, g)


def _mul_rule(x: Node, g: Node) -> list[Node]:
    return [mul(g, *(b for j, b in enumerate(x.args) if j != i)) for i in range(len(x.args))]


def _power_rule(x: Node, g: Node) -> list[Node]:
    (base,), n = x.args, x.attrs[0]
    if base.op == "max" and any(a.op == "const" and a.attrs[0] > 0 for a in base.args):
        return [mul(g, n, power(base, n - 1))]
    if n.denominator != 1 and n > 0:  # at 0 such a root has no slope, or one of 0: the gradient is 0
        return [mul(g, n, x, fn(RECIPROCAL, base))]
    if n.denominator != 1:
        return [mul(g, n, x, power(base, Fraction(-1)))]
    return [mul(g, n, power(base, n - 1))]


def _fn_rule(x: Node, g: Node) -> list[Node]:
    slope = TABLE[x.attrs[0]].derivative
    assert slope is not None  # the front end admits differentiable functions only
    return [mul(g, slope(x.args[0]))]


def _max_rule(x: Node, g: Node) -> list[Node]:
    """The larger of two takes the gradient; at a tie each takes half of it, as of torch.maximum. More are taken in order."""
    largest, *rest = x.args
    shares = [ONE]
    for a in rest:
        larger = fn("sign", add(a, mul(-1, largest)))
        shares = [mul(s, add(Fraction(1, 2), mul(Fraction(-1, 2), larger))) for s in shares]
        shares.append(add(Fraction(1, 2), mul(Fraction(1, 2), larger)))
        largest = maximum(largest, a)
    return [mul(g, s) for s in shares]


DERIVATIVES: dict[str, Callable[[Node, Node], list[Node]]] = {
    "leaf": lambda x, g: [],
    "const": lambda x, g: [],
    "number": lambda x, g: [],
    "size": lambda x, g: [],
    "eye": lambda x, g: [],
    "add": lambda x, g: [g for _ in x.args],
    "mul": _mul_rule,
    "pow": _power_rule,
    "fn": _fn_rule,
    "max": _max_rule,
    "sum": lambda x, g: [mul(g, ONE)],
    "peak": lambda x, g: [ZERO],
    "expand": lambda x, g: [total(expand(g, x.axes), *x.attrs)],
}
