"""The step kernel: one program for each batch entry and head, or for each tile of its state where a dim can be cut.

A dim is cut where nothing sums over it, neither an update nor an output: then the tiles never need each other, and one launch
does all. A state without that dim is read by every tile. Where it is updated in place, the tiles of a head take turns in one
program (`shared`), so that none reads what another has written.
"""

from __future__ import annotations

import re
from typing import Any

from ....ir.expr import Node, dim_of, leaves
from ....ir.step_program import Var
from ...chunkwise.compiled import Compiled
from ..kernel import Kernel, Pointer
from ..names import tensors
from ..rows import RowPrinter, row_plan
from ..rows_form import rows_kernel, rows_launch, rows_step
from ..tiling import OWN, WHOLE, tiling


def step_kernel(c: Compiled) -> dict[str, Any]:
    """What the template prints, and what the launcher needs."""
    p = c.step
    k = Kernel(c, tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states], parts_allowed=False))
    nodes: dict[str, Node] = {**p.updates, **{f"out {n}": x for n, x in k.tiling.outputs.items()}}
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    reads, inputs, states, outputs = _pointers(k, read)
    early: list[str] = []
    loads: list[str] = []
    settled: list[str] = []
    for s in p.states:
        name = k.names.of("state", s.name)
        whole = k.tiling.dim is not None and k.kind(s.axes) == WHOLE
        (early if whole else loads).append(f"{name} = {k.raw(states[s.name][0].name, s.axes)}")
        settled.append(f"{name} = {k.value(name)}")
    for v, x in zip(reads, inputs, strict=True):
        name = k.names.of(v.kind, v.name)
        loads.append(f"{name} = {k.raw_strided(x, v.axes)}")
        settled.append(f"{name} = {k.value(name, v.is_decay)}")
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    lines, results = k.print(p, nodes, orders, set(p.updates))
    for s in p.states:
        text = results[s.name]
        lines.insert(_known(lines, text), k.store(states[s.name][1].name, s.axes, text, k.kind(s.axes)))
    lines += [
        k.store(x.name, axes, results[f"out {n}"], k.tiling.kinds[n])
        for (n, axes), x in zip(p.output_axes.items(), outputs, strict=True)
    ]
    return k.launch(lines) | {
        **_moves(k, inputs, states, outputs),
        "before": early,
        # everything is on its way before the first thing is waited for; states first, as they take longest
        "lines": [*loads, "tl.debug_barrier()", *settled, *lines],
        "reads": [v.name for v in reads],
        "shared": k.tiling.dim is not None and any(k.kind(s.axes) == WHOLE for s in p.states),
        "held": [tuple(dim_of(a) for a in axes) for axes in _matrices(c)],
    }


def step_rows(c: Compiled) -> dict[str, Any] | None:
    """The kernel for states that are too wide to be held whole and can't be cut: over blocks of their rows."""
    p = c.step
    plan = row_plan(p.updates, p.outputs, {s.name: s.axes for s in p.states})
    if plan is None:
        return None
    k = rows_kernel(c, dict.fromkeys(p.outputs, OWN), p.outputs)
    reads, inputs, states, outputs = _pointers(
        k, {x.attrs[:2] for x in leaves(*p.updates.values(), *p.outputs.values())}
    )
    pointers = {v.name: x for v, x in zip(reads, inputs, strict=True)}
    printer = RowPrinter(k, p, plan, k.contiguous("scratch", "scratch"), pointers, place="index")
    loads = [f"{k.names.of(v.kind, v.name)} = {k.load_strided(pointers[v.name], v.axes, v.is_decay)}" for v in reads]
    small = [s for s in p.states if len(s.axes) < 2]
    loads += [f"{k.names.of('state', s.name)} = {k.load(states[s.name][0].name, s.axes)}" for s in small]
    lines, results = rows_step(
        k, p, printer, {n: old.name for n, (old, _) in states.items()}, {n: new.name for n, (_, new) in states.items()}
    )
    stores = [k.store(states[s.name][1].name, s.axes, results[s.name]) for s in small]
    stores += [
        k.store(x.name, axes, results[f"out {n}"]) for (n, axes), x in zip(p.output_axes.items(), outputs, strict=True)
    ]
    return rows_launch(k, printer, lines) | {
        **_moves(k, inputs, states, outputs),
        "lines": ["index = batch * heads + head", *loads, "tl.debug_barrier()", *lines, *stores],
    }


def _pointers(
    k: Kernel, read: set[tuple[str, str]]
) -> tuple[list[Var], list[Pointer], dict[str, tuple[Pointer, Pointer]], list[Pointer]]:
    """The arguments that are read, with their pointers; those of each state and of the next; those of outputs."""
    p = k.c.step
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]

    def pointer(name: str, head: str = "head", batch: bool = True, own: int = 0) -> Pointer:
        return k.strided(name, name, ("batch", head) if batch else (head,), own)

    reads = [v for v in tensors(p) if (v.kind, v.name) in read]
    inputs = [pointer(v.name, k.head_of(v.name), v.per_step, len(v.axes)) for v in reads]
    states = {s.name: (k.strided(s.name, s.name, ("row", "head")), pointer(f"next_{s.name}")) for s in p.states}
    return reads, inputs, states, [pointer(n) for n in p.output_axes]


def _moves(
    k: Kernel, inputs: list[Pointer], states: dict[str, tuple[Pointer, Pointer]], outputs: list[Pointer]
) -> dict[str, Any]:
    """Statements that move pointers to a program's batch entry and head; in place, the next states' are the states'."""
    return {
        "advances": [k.advance(x) for x in (*inputs, *(old for old, _ in states.values()), *outputs)],
        "moved": [(new.name, old.name, k.advance(new)) for old, new in states.values()],
    }


def _known(lines: list[str], text: str) -> int:
    """The place after the last statement that a text needs: a state is on its way while outputs are still worked out."""
    used = set(re.findall(r"\w+", text))
    return max((i + 1 for i, line in enumerate(lines) if line.partition(" = ")[0] in used), default=0)


def _matrices(c: Compiled) -> list[tuple[str, ...]]:
    """The axes of what fills a program's registers: its states, and whatever else has two axes."""
    return [s.axes for s in c.step.states] + [v.axes for v in tensors(c.step) if len(v.axes) > 1]
