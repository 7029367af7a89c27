"""Pass 3: the maps around the kernel, and their adjoints: from what the op is given to features, and from averages to outputs.

A map is nodes by name, with the axes of each. Its adjoint has a node for the gradient of each variable, over the cotangents of
the map's results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import ZERO, Node, leaf, leaves, mul, rename, replace, walk
from ..ir.step_program import Var
from .gradients import cotangents_of, elementwise_gradients, gradient_by, merged
from .lower import KEY, QUERY, Lowered
from .split import Split

AVERAGED = "averaged"


@dataclass(frozen=True)
class Map:
    """name -> node, with the axes in which each result is stored; and the gradient of each variable it reads. `low`: the results
    that products on tensor cores take."""

    results: dict[str, Node]
    axes: dict[str, tuple[str, ...]]
    gradients: dict[str, Node]
    variables: tuple[Var, ...]
    low: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Derivative:
    """The derivative of the tile's function by a leaf of a `kind`, times dE: `factor`, a number a head, times `inner`."""

    kind: str
    factor: Node
    inner: Node


def feature_map(s: Split) -> Map:
    """Everything that the tile and the averages are made of, from what the op is given."""
    results: dict[str, Node] = {}
    axes: dict[str, tuple[str, ...]] = {}
    i = s.lowered.query
    for name, score in s.numbered.items():
        for m, part in enumerate(s.scores[name], 1):
            results[f"{score.query}_{m}"], axes[f"{score.query}_{m}"] = part.query, (i, *part.axes)
            results[f"{score.key}_{m}"], axes[f"{score.key}_{m}"] = part.key, (KEY, *part.axes)
    for name, (node, own) in s.values.items():
        results[name], axes[name] = node, (KEY, *own)
    low = frozenset(results)
    for table, own in ((s.columns, (KEY,)), (s.rows, (i,)), (s.scalars, ())):
        for name, node in table.items():
            results[name], axes[name] = node, own
    if s.row is not ZERO:
        from ..ir.expr import expand

        results["row"], axes["row"] = expand(s.row, (i,)), (i,)
    return _map(s.lowered, results, axes, s.lowered.variables, low)


def output_map(s: Split) -> Map:
    """The outputs, from averages and from what belongs to the query."""
    p = s.lowered
    results = {}
    for name, node in p.outputs.items():
        table = {}
        for x in walk(node):
            if x.op == "leaf" and x.attrs[0] == "average":
                own = p.average_axes[x.attrs[1]]
                made = s.averages[x.attrs[1]]
                table[x] = rename(made, dict(zip((p.query, *own), x.attrs[2], strict=True)))
        results[name] = replace(node, table)
    averaged = tuple(Var(n, AVERAGED, (p.query, *own)) for n, (_, own) in s.values.items())
    return _map(p, results, p.output_axes, (*p.variables, *averaged, Var("mass", "mass", (p.query,))))


def tile_derivatives(s: Split) -> dict[Node, Derivative]:
    """For each leaf of the tile's function, what is to be summed for its gradient. dE is the leaf `dE` over the pair."""
    found = elementwise_gradients(s.tile, incoming(s), s.pair)
    return {x: _apart(x.attrs[0], merged(g)) for x, g in found.items() if g is not ZERO and not is_number(s, x)}


def is_number(s: Split, x: Node) -> bool:
    """Is it made of sizes and constants, which have no gradient?"""
    return x.attrs[0] == "scalar" and all(y.attrs[0] == "constant" for y in leaves(s.scalars[x.attrs[1]]))


def incoming(s: Split) -> Node:
    return leaf("gradient", "dE", s.pair)


def _apart(kind: str, g: Node) -> Derivative:
    outer = [f for f in (g.args if g.op == "mul" else (g,)) if not f.axes]
    inner = [f for f in (g.args if g.op == "mul" else (g,)) if f.axes]
    return Derivative(kind, mul(*outer), mul(*inner))


def _map(
    p: Lowered,
    results: dict[str, Node],
    axes: dict[str, tuple[str, ...]],
    variables: tuple[Var, ...],
    low: frozenset[str] = frozenset(),
) -> Map:
    roots: dict[Node, list[Node]] = {}
    for name, node in results.items():
        roots.setdefault(node, []).append(leaf("cotangent", f"d{name}", axes[name]))
    found = cotangents_of(roots)
    read = {x.attrs[:2] for x in walk(*results.values()) if x.op == "leaf"}
    own = tuple(v for v in variables if (v.kind, v.name) in read)
    gradients = {v.name: merged(gradient_by(found, v.kind, v.name, v.axes)) for v in own if v.kind != "constant"}
    return Map(results, dict(axes), gradients, own, low)


__all__ = ["AVERAGED", "KEY", "QUERY", "Derivative", "Map", "feature_map", "incoming", "output_map", "tile_derivatives"]
