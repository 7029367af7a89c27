"""Reverse mode over nodes without time, by the compiler's one table of derivatives."""

from __future__ import annotations

from ..ir.expr import ONE, ZERO, Node, add, expand, factors_of, leaf, mul, power, rebuild, rename, total, walk
from ..recurrence.step.adjoint import DERIVATIVES
from .operations import rebuilt


def cotangents_of(roots: dict[Node, list[Node]]) -> dict[Node, Node]:
    """The gradient of each node below the roots, given the roots' own."""
    order = list(walk(*roots))
    pending = {x: list(parts) for x, parts in roots.items()}
    gradients: dict[Node, Node] = {}
    for x in reversed(order):
        g = add(*pending.pop(x, []))
        gradients[x] = g
        if g is ZERO:
            continue
        for arg, part in zip(x.args, DERIVATIVES[x.op](x, g), strict=True):
            part = total(part, *(set(part.axes) - set(arg.axes)))
            pending.setdefault(arg, []).append(part)
    return gradients


def merged(x: Node) -> Node:
    """x with b^n b^-m, as the derivative of b^n has it, as b^(n - m) where n > m: the former is 0 / 0 where b is 0."""
    done: dict[Node, Node] = {}
    for y in walk(x):
        made = rebuild(y, (done[a] for a in y.args)) if y.args else y
        factors = list(factors_of(made))
        for f in [f for f in factors if f.op == "pow" and f.attrs[0].denominator != 1]:
            base, n = f.args[0], f.attrs[0]
            below = next((g for g in factors if g.op == "pow" and g.args[0] is base and -n < g.attrs[0] < 0), None)
            if below is not None and f in factors:
                factors = [g for g in factors if g is not f and g is not below]
                factors.append(power(base, n + below.attrs[0]))
        done[y] = mul(*factors) if made.op == "mul" else made
    return done[x]


def gradient_by(gradients: dict[Node, Node], kind: str, name: str, axes: tuple[str, ...]) -> Node:
    """The gradient of a variable over `axes`: the sum over the ways in which the roots read it."""
    parts = [
        rename(g, dict(zip(x.attrs[2], axes, strict=True)))
        for x, g in gradients.items()
        if x.op == "leaf" and x.attrs[:2] == (kind, name)
    ]
    return expand(add(*parts), axes)


def pairwise_gradient(energy: Node, key: tuple[str, str], axes: tuple[str, ...], pair: tuple[str, str]) -> Node:
    """The derivative of the energy of one pair by a quantity of its query, over both positions.

    Each pair gets a copy of its own of the quantity, so that nothing is summed over pairs.
    """
    own = {
        x: leaf("pairwise", x.attrs[1], (*pair, *x.attrs[2][1:]))
        for x in walk(energy)
        if x.op == "leaf" and x.attrs[:2] == key
    }
    if not own:
        return ZERO
    copied = _spread(energy, own)
    gradients = cotangents_of({copied: [ONE]})
    found = gradient_by(gradients, "pairwise", key[1], (*pair, *axes[1:]))
    return _spread(found, {v: leaf(*key, (pair[0], *v.attrs[2][2:])) for v in own.values()})


def elementwise_gradients(tile: Node, incoming: Node, pair: tuple[str, str]) -> dict[Node, Node]:
    """For each leaf of a function of pairs, the derivative of one pair's value by it times `incoming`, over both positions.

    What is summed over positions afterwards (for a row, a column, a number a head) is the caller's affair.
    """
    leaves = [x for x in walk(tile) if x.op == "leaf" and x.attrs[0] not in ("position", "constant")]
    copies = {x: leaf(f"copy {x.attrs[0]}", x.attrs[1], pair) for x in leaves}
    gradients = cotangents_of({_spread(tile, copies): [incoming]})
    back = {copy: x for x, copy in copies.items()}
    return {x: _spread(gradients.get(copy, ZERO), back) for x, copy in copies.items()}


def _spread(x: Node, mapping: dict[Node, Node]) -> Node:
    """x with leaves replaced by others over more, or fewer, axes."""
    done: dict[Node, Node] = {}

    def visit(y: Node) -> Node:
        if y in mapping:
            return mapping[y]
        if y not in done:
            args = tuple(visit(a) for a in y.args)
            done[y] = rebuilt(y, args) if args else y
        return done[y]

    return visit(x)
