"""What a kernel of state-adjoint products takes of the axis that it sums over, where that decays too: a prologue kernel makes it.

Where rows and columns both decay, the pairs of a write and a read have a matrix over the steps of a block, with the decays of the
one axis, beside those of the other, which the kernel keeps. That would be made once for each tile of the other, of operands as
wide as the axis: too many for a program's registers. So are these operands times their decays.
"""

from __future__ import annotations

from dataclasses import replace

from ....ir.expr import COL, ROW, Node, factors_of, leaf, make, mul, rebuild, rename, walk
from ...chunkwise.plan import Unroll
from .hoist import Opened


def hoisted(stage: Unroll, channels: str | None, streams: dict[Node, Node]) -> tuple[Unroll, Opened]:
    """The stage over what is made ahead, and that. `channels` is the axis that it keeps, if there is one; `streams` are those of
    the stage, of which some are made in the prologue."""
    axes = stage.forward[0].axes
    full = tuple(a for a in axes if a != channels)
    ahead = Opened(full, tuple(a for a in axes if a == channels), 1, {}, streams=streams)
    nodes = walk(*stage.outputs.values(), *stage.definitions.values())
    if channels is None or not any(y.op == "decay_mask" and set(full) & set(y.axes) for y in nodes):
        return stage, ahead
    done: dict[Node, Node] = {}

    def made(x: Node) -> Node:
        if x not in done:
            done[x] = _made(x)
        return done[x]

    def _made(x: Node) -> Node:
        if x.op == "sum" and x.attrs[0] in full:
            factors = factors_of(x.args[0])
            if any(f.op == "decay_mask" and x.attrs[0] in f.axes for f in factors):
                return _matrix(x, ahead)
            inside = [f for f in factors if set(f.axes) == {ROW, x.attrs[0]}]
            if any(f.op in ("decay_in", "decay_out") for f in inside):
                node = mul(*inside)
                scaled = leaf("scaled", node.key[:12], (ROW, x.attrs[0]))
                ahead.prologue.scaled[scaled] = node
                rest = (made(f) for f in factors if f not in inside)
                return make("sum", (mul(scaled, *rest),), x.attrs, x.axes)
        return rebuild(x, map(made, x.args)) if x.args else x

    outputs, definitions = ({x: made(n) for x, n in y.items()} for y in (stage.outputs, stage.definitions))
    made_of = walk(*ahead.prologue.products.values(), *ahead.prologue.scaled.values())
    names = {y.args[0].attrs[1] for y in made_of if y.op in ("decay_mask", "decay_in", "decay_out")}
    ahead.decays.update({x: node for x, node in stage.streams.items() if x.attrs[1] in names})
    return replace(stage, outputs=outputs, definitions=definitions), ahead


def _matrix(x: Node, ahead: Opened) -> Node:
    """The leaf of a matrix over the steps of a block; of one that a sweep backwards sees, the transposed one."""
    backwards = any(f.op == "decay_mask" and f.attrs[-1] < 0 for f in factors_of(x.args[0]))
    node = _turned(x) if backwards else x
    product, matrix = (leaf(kind, node.key[:12], (ROW, COL)) for kind in ("product", "matrix"))
    ahead.prologue.products[product], ahead.prologue.matrices[matrix] = node, product
    return leaf("matrix", node.key[:12], (COL, ROW) if backwards else (ROW, COL))


def _turned(x: Node) -> Node:
    """A sum of products over pairs of steps, transposed."""
    factors = []
    for f in factors_of(x.args[0]):
        if f.op == "decay_mask":
            late, write_late, inclusive, direction = f.attrs
            factors.append(make(f.op, f.args, (not write_late, not late, inclusive, -direction), f.axes))
        else:
            factors.append(rename(f, {ROW: COL, COL: ROW}))
    return make("sum", (mul(*factors),), x.attrs, x.axes)
