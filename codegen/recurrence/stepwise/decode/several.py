"""The kernel of several steps in one launch, with the state in registers: drafts, their commit, and packed short sequences.

It reads the state of each sequence from its row of a pool, whose strides may be any. What it does with states is the caller's:
`ends` writes the last one back, `keeps` writes the one after each step to a row of its own. Outputs are written where `yields`.
A state is rounded to the pool's dtype after each step, so that the bits are those of steps one after the other.
"""

from __future__ import annotations

from typing import Any

from ....ir.expr import Node, leaves
from ...chunkwise.compiled import Compiled
from ..kernel import Axes, Kernel, Loads, Pointer, over
from ..names import tensors
from ..tiling import WHOLE, tiling


def several_steps(c: Compiled) -> dict[str, Any]:
    """What the template prints. The arguments are in the order of `step_kernel`'s."""
    p = c.step
    k = Kernel(c, tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states], parts_allowed=False))
    nodes: dict[str, Node] = {**p.updates, **{f"out {n}": x for n, x in k.tiling.outputs.items()}}
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    advances: list[str] = []
    once: list[str] = []
    loads = Loads()
    for v in tensors(p):
        if (v.kind, v.name) not in read:
            continue
        head = k.head_of(v.name)
        x = k.strided(v.name, v.name, ("entry", "begin", head) if v.per_step else (head,), len(v.axes))
        advances.append(k.advance(x))
        name = k.names.of(v.kind, v.name)
        if v.per_step:
            loads += k.loads(name, x, v.axes, v.is_decay)
        else:
            once.append(f"{name} = {k.load_strided(x, v.axes, v.is_decay)}")
    before: list[str] = []
    settled: list[str] = []
    kept: list[str] = []
    rounded: list[str] = []
    last: list[str] = []
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    lines, results = k.print(p, nodes, orders, set(p.updates))
    for s in p.states:
        x = k.strided(s.name, s.name, ("row", "head"), len(s.axes))
        y = k.strided(f"kept_{s.name}", f"kept_{s.name}", ("kept_row", "head"), len(s.axes))
        advances.append(k.advance(x))
        here, there = _offsets(x, s.axes), _offsets(y, s.axes)
        name, after = k.names.of("state", s.name), k.following[s.name]
        whole = k.tiling.dim is not None and k.kind(s.axes) == WHOLE
        if whole:  # each turn begins from what the row held before any
            held = k.names.fresh(f"{s.name}_before")
            before.append(f"{held} = {k.load(x.name, s.axes, here)}")
            once.append(f"{name} = {held}")
        else:
            once.append(f"{name} = {k.raw(x.name, s.axes, here)}")
            settled.append(f"{name} = {k.value(name)}")
        rounded.append(f"{after} = ({results[s.name]}).to({x.name}.dtype.element_ty)")
        kept_at = f"{y.name} + kept_row * {y.strides[0]} + head * {y.strides[1]}"
        kept.append(k.store(kept_at, s.axes, after, k.kind(s.axes), there))
        last.append(k.store(x.name, s.axes, name, k.kind(s.axes), here))
    stores = []
    for n, axes in p.output_axes.items():
        x = k.strided(n, n, ("entry", "begin", "head"))
        advances.append(k.advance(x))
        stores.append(k.store(f"{x.name} + now * {x.strides[1]}", axes, results[f"out {n}"], k.tiling.kinds[n]))
    names = {s.name: k.names.of("state", s.name) for s in p.states}
    step = [
        "now = tl.cast(offset, tl.int64)",
        "then = tl.minimum(now + 1, count - 1)",
        *loads.each,
        *lines,
        "if yields:",
        *(f"    {x}" for x in stores),
        *rounded,
        "if keeps:",
        "    if each_at is not None:",
        "        kept_row = tl.cast(tl.load(each_at + batch * steps + now), tl.int64)",
        "    else:",
        "        kept_row = batch * steps + now",
        "    if kept_row >= 0:",
        *(f"        {x}" for x in kept),
        *(f"{name} = {k.following[n]}.to(tl.float32)" for n, name in names.items()),
    ]
    body = [
        *once,
        "now = tl.cast(0, tl.int64)",
        *loads.first,
        *settled,
        "for offset in range(count):",
        *(f"    {x}" for x in step),
        "if ends:",
        *(f"    {x}" for x in last),
    ]
    return k.launch(lines) | {"advances": advances, "before": before, "lines": body, "several": True}


def _offsets(x: Pointer, axes: Axes) -> str:
    """Of a state's entries, with any strides: engines lay the two axes out in either order."""
    return " + ".join(f"{at} * {s}" for at, s in zip(over(axes, "at_{}"), x.strides[2:], strict=True))
