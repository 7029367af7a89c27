"""Outputs as sums over the states before a step, so that they need no state after it.

q_t^T S_t with S_t = alpha_t S_{t-1} + k_t u_t^T is alpha_t q_t^T S_{t-1} + (q_t^T k_t) u_t^T. In the kernel of several steps all
sums over a state then run side by side, and of the last step, whose state nobody asks for, no state is made.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from ....ir.evaluate import Field, evaluate_all
from ....ir.expr import Node, add, dim_of, factors_of, leaves, mul, rebuild, terms_of, total, walk
from ...chunkwise.compiled import Compiled
from ..tiling import Tiling, tiling


def tiled_outputs(c: Compiled) -> Tiling:
    """The tiling for several steps, with outputs that need no state after a step where this takes no more sums of matrices."""
    p = c.step
    updates, axes = list(p.updates.values()), [s.axes for s in p.states]
    usual = tiling(updates, p.outputs, axes, parts_allowed=False)
    first = tiling(updates, {n: of_states_before(x) for n, x in p.outputs.items()}, axes, parts_allowed=False)
    same = (first.dim, first.kinds) == (usual.dim, usual.kinds) and _kept(usual.outputs, first.outputs)
    return first if same and _sums(p.updates, first.outputs) <= _sums(p.updates, usual.outputs) else usual


def of_states_before(x: Node) -> Node:
    """x with each sum of a product with a sum of matrices as the sum of the products' own sums."""
    done: dict[Node, Node] = {}
    for y in walk(x):
        made = rebuild(y, [done[a] for a in y.args]) if y.args else y
        done[y] = _apart(made) if made.op == "sum" else made
    return done[x]


def _apart(x: Node) -> Node:
    """The sum of a product, of which one factor is a sum of matrices, as a sum of sums."""
    factors = factors_of(x.args[0])
    many = next((f for f in factors if f.op == "add" and len(f.axes) > 1), None)
    if many is None:
        return x
    (axis,), others = x.attrs, [f for f in factors if f is not many]
    sums = [total(mul(*others, term), axis) for term in terms_of(many)]
    return add(*(of_states_before(s) for s in sums))


def _kept(was: Mapping[str, Node], now: Mapping[str, Node]) -> bool:
    """Are the values what they were in a field too, where sqrt(x) sqrt(x) isn't x? There kernels are compared with steps."""
    nodes = [was[n] for n in was] + [now[n] for n in was]
    if not any(x.op == "pow" and x.attrs[0].denominator != 1 for x in walk(*nodes)):
        return True
    dims = sorted({dim_of(a) for x in walk(*nodes) for a in x.axes})
    sizes, m, rng = {dim: 2 + n for n, dim in enumerate(dims)}, Field(), random.Random(0)
    env = {x.attrs[:2]: m.random(rng, tuple(sizes[dim_of(a)] for a in x.attrs[2])) for x in leaves(*nodes)}
    values = evaluate_all(nodes, env, m, sizes)
    return all(m.equal(a, b) for a, b in zip(values[: len(was)], values[len(was) :], strict=True))


def _sums(updates: Mapping[str, Node], outputs: Mapping[str, Node]) -> int:
    """How many sums of matrices there are."""
    every: Iterable[Node] = walk(*updates.values(), *outputs.values())
    return sum(x.op == "sum" and len(x.args[0].axes) > 1 for x in every)
