"""The Triton form of a step program: one GPU program for each batch entry and head, with the state in registers.

Two kernels: forwards, with checkpoints of the states in global memory; and backwards, which recomputes the states of a
segment from its checkpoint into a workspace, then goes through the adjoint's steps. Where an axis of the state can be tiled
(`tiling.py`), each tile is a program of its own. Nothing is added atomically: parts are written apart, and summed in torch.
"""

from __future__ import annotations

from typing import Any

from ...ir.expr import Node, dim_of, leaves
from ...ir.step_program import Var
from ...printing.templates import render
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .initial import depends_on_parameters
from .kernel import Axes, Kernel, Loads
from .names import first_input, shape_text, sizes, tensors
from .rows_form import backward_rows, forward_rows, plans
from .tiling import PART, WHOLE, tiling

STEPS, HEADS = "batch, steps, heads", "layout.sequences, heads"
CHECKPOINT = "(slot + checkpoint) * heads + head"


def sequential_triton_source(c: Compiled) -> str:
    """Text that defines `triton_forward` and `triton_backward`; it uses `torch_start` of the torch form beside it."""
    layout = sizes(c.step)
    forward, backward = _forward(c), _backward(c)
    rows = None if forward["tiled"] or backward["tiled"] else plans(c)
    return render(
        "recurrence/stepwise/sequential_triton.py.jinja",
        lead=layout.lead,
        sizes=layout.dims,
        heads_of={v.name: f'given["{v.name}"].shape[{2 if v.per_step else 0}]' for v in tensors(c.step)},
        like=first_input(c),
        forward=forward,
        backward=backward,
        forward_rows=forward_rows(c, rows[0]) if rows else None,
        backward_rows=backward_rows(c, *rows[1:]) if rows else None,
        start_gradients=depends_on_parameters(c),
    )


def _lead(k: Kernel, v: Var) -> tuple[str, ...]:
    """Where a program starts in the axes of a variable that come before its own: batch entry, step and head."""
    head = k.head_of(v.name)
    return ("entry", "begin", head) if v.per_step else (head,)


def _read(*nodes: Node) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*nodes)}


def _result(key: str, lead: str, axes: Axes, kind: str) -> dict[str, Any]:
    """A tensor that the launcher allocates; `part` where it holds one part a tile."""
    return {"key": key, "shape": shape_text(lead, axes), "part": kind == PART}


# --- forwards -------------------------------------------------------------------------------------------------------


def _forward(c: Compiled) -> dict[str, Any]:
    p = c.step
    k = Kernel(c, tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states]))
    nodes = p.updates | {f"out {n}": x for n, x in k.tiling.outputs.items()}
    read = _read(*nodes.values())
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    before: list[str] = []
    loads = Loads()
    for v in tensors(p):
        if (v.kind, v.name) in read:
            x = k.strided(v.name, f'given["{v.name}"]', _lead(k, v), len(v.axes))
            before.append(k.advance(x))
            name = k.names.of(v.kind, v.name)
            if v.per_step:
                loads += k.loads(name, x, v.axes, v.is_decay)
            else:
                before.append(f"{name} = {k.load_strided(x, v.axes, v.is_decay)}")
    checkpoints, last = [], []
    for s in p.states:
        start = k.contiguous(f"{s.name}_start", f'start["{s.name}"]')
        kept = k.contiguous(f"{s.name}_checkpoints", f'saved.get("{s.name}")')
        final = k.contiguous(f"{s.name}_final", f'finals["{s.name}"]')
        name, kind = k.names.of("state", s.name), k.kind(s.axes)
        before.append(f"{name} = {k.load(k.address(start, 'index', s.axes), s.axes)}")
        checkpoints.append(k.store(k.address(kept, CHECKPOINT, s.axes), s.axes, name, kind))
        last.append(k.store(k.address(final, "index", s.axes), s.axes, name, kind))
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    lines, results = k.print(p, nodes, orders, set(p.updates))
    outputs, stores = [], []
    for n, axes in p.output_axes.items():
        kind = k.tiling.kinds[n]
        out = k.contiguous(n, f'{"parts" if kind == PART else "outputs"}["{n}"]')
        stores.append(k.store(k.address(out, k.row_now(kind), axes), axes, results[f"out {n}"], kind))
        outputs.append(_result(n, STEPS, axes, kind))
    return k.launch(lines) | {
        "before": before,
        "kept": kept.name,
        "checkpoints": checkpoints,
        "first": loads.first,
        "step": [*loads.each, *lines, *stores, *k.assign({s.name: results[s.name] for s in p.states})],
        "last": last,
        "outputs": outputs,
        "finals": [_result(s.name, HEADS, s.axes, WHOLE) for s in p.states],
        "saved": [_result(s.name, "layout.slots * heads", s.axes, WHOLE) for s in p.states],
    }


# --- backwards ------------------------------------------------------------------------------------------------------


def _backward(c: Compiled) -> dict[str, Any]:
    p, a = c.step, c.adjoint.program
    updates = [*p.updates.values(), *a.updates.values()]
    k = Kernel(c, tiling(updates, a.outputs, [s.axes for s in p.states]))
    nodes = a.updates | {f"out {n}": x for n, x in k.tiling.outputs.items()}
    forward_read, backward_read = _read(*p.updates.values()), _read(*nodes.values())
    read = forward_read | backward_read
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    before, forward_loads, loads = _loads(k, forward_read, backward_read)
    states, back = _states(k)
    loads = loads + back
    before += states["before"]
    totals = {v.name: k.names.fresh(f"d{v.name}") for v in p.variables if v.kind.endswith("parameter")}
    sums = {f"out {gradient_name(p.variable(n))}" for n in totals}
    orders = {s.name: s.axes for s in p.states} | {s.name: s.axes for s in a.states}
    forward_lines, forward_results = k.print(p, dict(p.updates), orders, set(p.updates))
    orders |= {f"out {n}": axes for n, axes in a.output_axes.items()}
    lines, results = k.print(a, nodes, orders, {*a.updates, *sums})
    stores, per_step, per_head = [], [], []
    for v in tensors(p):
        name = gradient_name(v)
        kind = k.tiling.kinds[name]
        out = k.contiguous(f"d{v.name}", f'{"parts" if kind == PART else "gradients"}["{v.name}"]')
        if v.per_step:
            stores.append(k.store(k.address(out, k.row_now(kind), v.axes), v.axes, results[f"out {name}"], kind))
            per_step.append(_result(v.name, STEPS, v.axes, kind))
            continue
        total = totals[v.name]
        blocks = ", ".join(f"block_{dim_of(x)}" for x in v.axes)
        before.append(f"{total} = " + (f"tl.zeros([{blocks}], tl.float32)" if v.axes else "tl.cast(0.0, tl.float32)"))
        stores.append(f"{total} += {results[f'out {name}']}")
        row = "index + tile * rows" if kind == PART else "index"
        states["last"].append(k.store(k.address(out, row, v.axes), v.axes, total, kind))
        per_head.append(_result(v.name, HEADS, v.axes, kind))
    forward_assign = k.assign({s.name: forward_results[s.name] for s in p.states})
    assign = k.assign({s.name: results[s.name] for s in a.states})
    return k.launch([*forward_lines, *lines]) | {
        "before": before,
        "restart": states["restart"],
        "forward_first": forward_loads.first,
        "forward_step": [*states["keep"], *forward_loads.each, *forward_lines, *forward_assign],
        "first": loads.first,
        "step": [*loads.each, *lines, *stores, *assign],
        "last": states["last"],
        "per_step": per_step,
        "per_head": per_head,
        "cotangents": [_result(n, STEPS, axes, WHOLE) for n, axes in p.output_axes.items()],
        "states": [_result(s.name, HEADS, s.axes, WHOLE) for s in p.states],
        "workspace": [
            _result(s.name, f"layout.rooms * heads{' * tiles' if _copies(k, s.axes) else ''}", s.axes, WHOLE)
            for s in p.states
        ],
    }


def _loads(k: Kernel, forward: set[Any], backward: set[Any]) -> tuple[list[str], Loads, Loads]:
    """Statements before the loops, for the loop over a segment's states, and for the loop over the adjoint's steps."""
    before: list[str] = []
    recompute, adjoint = Loads(), Loads()
    for v in tensors(k.c.step):
        key = (v.kind, v.name)
        if key not in forward | backward:
            continue
        x = k.strided(v.name, f'given["{v.name}"]', _lead(k, v), len(v.axes))
        before.append(k.advance(x))
        name = k.names.of(*key)
        if not v.per_step:
            before.append(f"{name} = {k.load_strided(x, v.axes, v.is_decay)}")
        if v.per_step and key in forward:
            recompute += k.loads(name, x, v.axes, v.is_decay)
        if v.per_step and key in backward:
            adjoint += k.loads(name, x, v.axes, v.is_decay)
    for n, axes in k.c.step.output_axes.items():
        if ("cotangent", f"d{n}") in backward:
            x = k.strided(f"d{n}", f'incoming_steps["{n}"]', ("entry", "begin", "head"), len(axes))
            before.append(k.advance(x))
            adjoint += k.loads(k.names.of("cotangent", f"d{n}"), x, axes)
    return before, recompute, adjoint


def _states(k: Kernel) -> tuple[dict[str, list[str]], Loads]:
    """Statements that move states between registers, checkpoints and the workspace, by where they stand; and those that bring
    them back: a tile of a single one is prefetched by a step, as more would fill registers."""
    out: dict[str, list[str]] = {"before": [], "restart": [], "keep": [], "last": []}
    back = Loads()
    for s in k.c.step.states:
        kept = k.contiguous(f"{s.name}_checkpoints", f'saved["{s.name}"]')
        space = k.contiguous(f"{s.name}_states", f'workspace["{s.name}"]')
        end = k.contiguous(f"d{s.name}_final", f'ends["{s.name}"]')
        start = k.contiguous(f"d{s.name}_start", f'initial_gradients["{s.name}"]')
        name, gradient = k.names.of("state", s.name), k.names.of("state", f"d{s.name}")
        rows = [f"(room + {place}) * heads + head" for place in ("offset", "(length - 1)", "there")]
        rows = [f"({row}) * tiles + tile" if _copies(k, s.axes) else row for row in rows]
        here, latest, there = (k.address(space, row, s.axes) for row in rows)
        out["before"].append(f"{gradient} = {k.load(k.address(end, 'index', s.axes), s.axes)}")
        out["restart"].append(f"{name} = {k.load(k.address(kept, CHECKPOINT, s.axes), s.axes)}")
        out["keep"].append(k.store(here, s.axes, name))
        if len(s.axes) > 1 and (k.tiling.dim is None or sum(len(x.axes) > 1 for x in k.c.step.states) > 1):
            back += Loads([], [f"{name} = {k.load(here, s.axes)}"])
        else:
            back += k.prefetched(name, [k.raw(latest, s.axes), k.raw(there, s.axes)])
        out["last"].append(k.store(k.address(start, "index", s.axes), s.axes, gradient, k.kind(s.axes)))
    return out, back


def _copies(k: Kernel, axes: Axes) -> bool:
    """Does each tile's program keep a copy of a state of its own, since the state isn't cut?"""
    return k.tiling.dim is not None and k.kind(axes) == WHOLE
