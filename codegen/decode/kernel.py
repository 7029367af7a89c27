"""The step kernel: one program for each batch entry and head, or for each tile of its state where a dim can be cut.

A dim is cut where nothing sums over it, neither an update nor an output: then the tiles never need each other, and one launch
does all. A state without that dim is read by every tile. Where it is updated in place, the tiles of a head take turns in one
program (`shared`), so that none reads what another has written.
"""

from __future__ import annotations

from typing import Any

from ..ir import Node, dim_of, leaves
from ..pipeline import Compiled
from ..sequential.kernel import Kernel, Pointer
from ..sequential.names import tensors
from ..sequential.tiling import OWN, WHOLE, tiling


def step_kernel(c: Compiled) -> dict[str, Any]:
    """What the template prints, and what the launcher needs."""
    p = c.step
    k = Kernel(c, tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states], parts_allowed=False))
    k.names.taken |= {"turn", "turns", "part", "parts"}
    nodes: dict[str, Node] = {**p.updates, **{f"out {n}": x for n, x in k.tiling.outputs.items()}}
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    advances: list[str] = []
    loads: dict[str, list[str]] = {WHOLE: [], OWN: []}

    def pointer(name: str, head: str = "head", batch: bool = True, own: int = 0) -> Pointer:
        x = k.strided(name, name, ("batch", head) if batch else (head,), own)
        advances.append(k.advance(x))
        return x

    reads = [v for v in tensors(p) if (v.kind, v.name) in read]
    inputs = [pointer(v.name, k.head_of(v.name), v.per_step, len(v.axes)) for v in reads]
    states = [(pointer(s.name), pointer(f"next_{s.name}")) for s in p.states]
    outputs = [pointer(n) for n in p.output_axes]
    for s, (old, _) in zip(p.states, states, strict=True):
        loads[k.kind(s.axes)].append(f"{k.names.of('state', s.name)} = {k.load(old.name, s.axes)}")
    for v, x in zip(reads, inputs, strict=True):
        loads[k.kind(v.axes)].append(f"{k.names.of(v.kind, v.name)} = {k.load_strided(x, v.axes, v.is_decay)}")
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    lines, results = k.print(p, nodes, orders, set(p.updates))
    stores = [
        k.store(new.name, s.axes, results[s.name], k.kind(s.axes)) for s, (_, new) in zip(p.states, states, strict=True)
    ]
    stores += [
        k.store(x.name, axes, results[f"out {n}"], k.tiling.kinds[n])
        for (n, axes), x in zip(p.output_axes.items(), outputs, strict=True)
    ]
    if k.tiling.dim is None:
        loads = {WHOLE: loads[OWN] + loads[WHOLE], OWN: []}
    return k.launch(lines) | {
        "advances": advances,
        "before": loads[WHOLE],
        "loads": loads[OWN],
        "lines": lines,
        "stores": stores,
        "reads": [v.name for v in reads],
        "shared": k.tiling.dim is not None and any(k.kind(s.axes) == WHOLE for s in p.states),
        "held": [tuple(dim_of(a) for a in axes) for axes in _matrices(c)],
    }


def _matrices(c: Compiled) -> list[tuple[str, ...]]:
    """The axes of what fills a program's registers: its states, and whatever else has two axes."""
    return [x.axes for x in (*c.step.states, *(v for v in tensors(c.step) if len(v.axes) > 1))]
