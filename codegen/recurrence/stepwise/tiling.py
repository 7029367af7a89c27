"""Which axis of the state may be cut into tiles, one for each GPU program.

A dim may be tiled where no update sums over it: then the tiles never need each other. An output may still sum over it, when
the sum is the last thing that happens to it: each tile then writes a part, and the parts are added afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.expr import Node, add, dim_of, expand, leaf, mul, total, walk

FIRST = leaf("tile", "first")  # 1 in the first tile, 0 in the others

OWN, WHOLE, PART = "own", "whole", "part"


@dataclass(frozen=True)
class Tiling:
    """`dim` is None where the state stays whole. Each output is

    own     cut like the state
    whole   the same in each tile: the first one writes it
    part    the sum of what the tiles write
    """

    dim: str | None
    kinds: dict[str, str]
    outputs: dict[str, Node]


def tiling(
    updates: list[Node], outputs: dict[str, Node], axes: list[tuple[str, ...]], parts_allowed: bool = True
) -> Tiling:
    """The best dim to tile, for programs with these updates and outputs and states over `axes`.

    Without `parts_allowed` no output may be a sum of what tiles write: nothing runs afterwards to add them.
    """
    candidates = []
    for dim in dict.fromkeys(dim_of(a) for own in axes for a in own):
        if all(dim in map(dim_of, own) for own in axes if len(own) > 1) and (t := _tiled(dim, updates, outputs)):
            parts = sum(kind == PART for kind in t.kinds.values())
            if parts_allowed or not parts:
                candidates.append((parts, dim, t))
    if not candidates:
        return Tiling(None, dict.fromkeys(outputs, OWN), outputs)
    return min(candidates, key=lambda c: c[:2])[2]


def _tiled(dim: str, updates: list[Node], outputs: dict[str, Node]) -> Tiling | None:
    for x in walk(*updates, *outputs.values()):
        if sum(dim_of(a) == dim for a in x.axes) > 1 or (x.op == "eye" and dim_of(x.attrs[0]) == dim):
            return None
    if any(_sums(x, dim) for x in updates):
        return None
    kinds: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    for name, x in outputs.items():
        own = any(dim_of(a) == dim for a in x.axes)
        if not _sums(x, dim):
            kinds[name], nodes[name] = (OWN if own else WHOLE), x
            continue
        part = None if own else _part(x, dim)
        if part is None:
            return None
        kinds[name], nodes[name] = PART, part
    return Tiling(dim, kinds, nodes)


def _sums(x: Node, dim: str) -> bool:
    return any(y.op in ("sum", "peak") and dim_of(y.attrs[0]) == dim for y in walk(x))


def _part(x: Node, dim: str) -> Node | None:
    """x as one tile computes it, so that the sum over tiles is x; None where x isn't linear in its sums over `dim`."""
    if not _sums(x, dim):
        return mul(FIRST, x)
    match x.op:
        case "sum":
            (bound,) = x.attrs
            if dim_of(bound) == dim:
                return None if _sums(x.args[0], dim) else x
            inner = _part(x.args[0], dim)
            return None if inner is None else total(inner, bound)
        case "add":
            parts = [_part(a, dim) for a in x.args]
            return None if any(p is None for p in parts) else add(*parts)
        case "mul":
            summed = [a for a in x.args if _sums(a, dim)]
            inner = _part(summed[0], dim) if len(summed) == 1 else None
            return None if inner is None else mul(inner, *(a for a in x.args if a is not summed[0]))
        case "expand":
            inner = _part(x.args[0], dim)
            return None if inner is None else expand(inner, x.axes)
    return None
