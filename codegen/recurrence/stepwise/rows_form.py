"""The Triton kernels of a step program whose states are taken by rows (`rows.py`): the states stay in memory.

Forwards, the final state's own memory holds the state of the moment. Backwards, the forward state of the moment has memory of
its own, the states of a segment lie in the workspace, and the gradient lies where it ends up.
"""

from __future__ import annotations

from typing import Any

from ...ir.expr import Node, leaves
from ...ir.step_program import StepProgram
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .kernel import Kernel, Pointer
from .names import shape_text, tensors
from .rows import RowPlan, RowPrinter, row_copy, row_plan
from .tiling import OWN, Tiling

CHECKPOINT = "(slot + checkpoint) * heads + head"
ROOM = "(room + offset) * heads + head"


def plans(c: Compiled) -> tuple[RowPlan, RowPlan, RowPlan] | None:
    """Those of the step, of its updates alone, and of its adjoint, where all can be taken by rows."""
    p, a = c.step, c.adjoint.program
    forward = row_plan(p.updates, p.outputs, {s.name: s.axes for s in p.states})
    again = row_plan(p.updates, {}, {s.name: s.axes for s in p.states})
    backward = row_plan(a.updates, a.outputs, {s.name: s.axes for s in a.states})
    return None if forward is None or again is None or backward is None else (forward, again, backward)


def forward_rows(c: Compiled, plan: RowPlan) -> dict[str, Any]:
    """What the template of the sequential kernels prints forwards."""
    p = c.step
    k = rows_kernel(c, dict.fromkeys(p.outputs, OWN), p.outputs)
    read = _read(p)
    before, loads, vectors = _arguments(k, read)
    checkpoints: list[str] = []
    last: list[str] = []
    place = {}
    kept = None
    for s in p.states:
        start = k.contiguous(f"{s.name}_start", f'start["{s.name}"]')
        kept = k.contiguous(f"{s.name}_checkpoints", f'saved.get("{s.name}")')
        final = k.contiguous(f"{s.name}_final", f'finals["{s.name}"]')
        checkpoint = k.address(kept, CHECKPOINT, s.axes)
        name = k.names.of("state", s.name)
        if len(s.axes) == 2:
            place[s.name] = k.address(final, "index", s.axes)
            before += row_copy(plan.row, plan.column, k.address(start, "index", s.axes), place[s.name])
            checkpoints += row_copy(plan.row, plan.column, place[s.name], checkpoint)
        else:
            before.append(f"{name} = {k.load(k.address(start, 'index', s.axes), s.axes)}")
            checkpoints.append(k.store(checkpoint, s.axes, name))
            last.append(k.store(k.address(final, "index", s.axes), s.axes, name))
    assert kept is not None
    outputs = {n: k.contiguous(n, f'outputs["{n}"]') for n in p.output_axes}
    printer = RowPrinter(k, p, plan, k.contiguous("scratch", "scratch"), vectors)
    step, results = rows_step(k, p, printer, place, place)
    stores = [
        k.store(k.address(outputs[n], k.row_now(OWN), axes), axes, results[f"out {n}"])
        for n, axes in p.output_axes.items()
    ]
    return rows_launch(k, printer, step) | {
        "before": before,
        "kept": kept.name,
        "checkpoints": checkpoints,
        "first": [],
        "step": [*loads, *step, *stores, *_assign(k, p, results), "tl.debug_barrier()"],
        "last": last,
    }


def backward_rows(c: Compiled, forward: RowPlan, backward: RowPlan) -> dict[str, Any]:
    """What the template of the sequential kernels prints backwards."""
    p, a = c.step, c.adjoint.program
    k = rows_kernel(c, dict.fromkeys(a.outputs, OWN), a.outputs)
    forward_read, backward_read = _read(p, p.updates), _read(a)
    before, loads, vectors = _arguments(k, forward_read | backward_read)
    forward_loads = [x for x in loads if x.partition(" = ")[0] in {k.names.of(*key) for key in forward_read}]
    for n, axes in p.output_axes.items():
        if ("cotangent", f"d{n}") in backward_read:
            x = k.strided(f"d{n}", f'incoming_steps["{n}"]', ("entry", "begin", "head"), len(axes))
            before.append(k.advance(x))
            loads.append(f"{k.names.of('cotangent', f'd{n}')} = {k.load_strided(x, axes)}")
            vectors[f"d{n}"] = x
    parts: dict[str, list[str]] = {"restart": [], "keep": [], "back": [], "last": []}
    now, rooms, gradients = {}, {}, {}
    for s in p.states:
        kept = k.contiguous(f"{s.name}_checkpoints", f'saved["{s.name}"]')
        space = k.contiguous(f"{s.name}_states", f'workspace["{s.name}"]')
        end = k.contiguous(f"d{s.name}_final", f'ends["{s.name}"]')
        start = k.contiguous(f"d{s.name}_start", f'initial_gradients["{s.name}"]')
        name, gradient = k.names.of("state", s.name), k.names.of("state", f"d{s.name}")
        room = k.address(space, ROOM, s.axes)
        own, ended = k.address(start, "index", s.axes), k.address(end, "index", s.axes)
        if len(s.axes) == 2:
            moment = k.contiguous(f"{s.name}_now", f'moment["{s.name}"]')
            now[s.name], rooms[s.name], gradients[f"d{s.name}"] = k.address(moment, "index", s.axes), room, own
            before += row_copy(forward.row, forward.column, ended, own)
            parts["restart"] += row_copy(forward.row, forward.column, k.address(kept, CHECKPOINT, s.axes), now[s.name])
            parts["keep"] += row_copy(forward.row, forward.column, now[s.name], room)
        else:
            before.append(f"{gradient} = {k.load(ended, s.axes)}")
            parts["restart"].append(f"{name} = {k.load(k.address(kept, CHECKPOINT, s.axes), s.axes)}")
            parts["keep"].append(k.store(room, s.axes, name))
            parts["back"].append(f"{name} = {k.load(room, s.axes)}")
            parts["last"].append(k.store(own, s.axes, gradient))
    scratch = k.contiguous("scratch", "scratch")
    forwards = RowPrinter(k, p, forward, scratch, vectors)
    forward_step, forward_results = rows_step(k, p, forwards, now, now, outputs=False)
    behind = RowPrinter(k, a, backward, scratch, vectors)
    step, results = rows_step(k, a, behind, rooms | gradients, gradients)
    stores = []
    for v in tensors(p):
        text = results[f"out {gradient_name(v)}"]
        out = k.contiguous(f"d{v.name}", f'gradients["{v.name}"]')
        if v.per_step:
            stores.append(k.store(k.address(out, k.row_now(OWN), v.axes), v.axes, text))
            continue
        name = k.names.fresh(f"d{v.name}")
        block = f"tl.zeros([block_{v.axes[0]}], tl.float32)" if v.axes else "tl.cast(0.0, tl.float32)"
        before.append(f"{name} = {block}")
        stores.append(f"{name} += {text}")
        parts["last"].append(k.store(k.address(out, "index", v.axes), v.axes, name))
    return rows_launch(k, behind, [*forward_step, *step], len(forwards.slots)) | {
        "before": before,
        "restart": parts["restart"],
        "forward_first": [],
        "first": [],
        "forward_step": [
            *parts["keep"],
            *forward_loads,
            *forward_step,
            *_assign(k, p, forward_results),
            "tl.debug_barrier()",
        ],
        "step": [*parts["back"], *loads, *step, *stores, *_assign(k, a, results), "tl.debug_barrier()"],
        "last": parts["last"],
        "moment": [
            {"key": s.name, "shape": shape_text("layout.sequences, heads", s.axes)} for s in p.states if s.name in now
        ],
    }


def rows_kernel(c: Compiled, kinds: dict[str, str], outputs: dict[str, Node]) -> Kernel:
    """A kernel whose states are taken by rows."""
    k = Kernel(c, Tiling(None, kinds, outputs))
    k.names.taken |= {"block", "block_row", "at_row", "wide_row", "in_row", "slots", "scratch"}
    k.names.taken |= {f"{n}_row_{d}" for n in ("at", "in") for d in k.dims}
    return k


def _arguments(k: Kernel, read: set[tuple[str, str]]) -> tuple[list[str], list[str], dict[str, Pointer]]:
    """Statements before the loops and in each step that load arguments, and their pointers."""
    before: list[str] = []
    loads: list[str] = []
    vectors: dict[str, Pointer] = {}
    k.constants = [v for v in k.c.step.variables if v.kind == "constant" and (v.kind, v.name) in read]
    for v in tensors(k.c.step):
        if (v.kind, v.name) not in read:
            continue
        head = k.head_of(v.name)
        lead = ("entry", "begin", head) if v.per_step else (head,)
        x = vectors[v.name] = k.strided(v.name, f'given["{v.name}"]', lead, len(v.axes))
        before.append(k.advance(x))
        line = f"{k.names.of(v.kind, v.name)} = {k.load_strided(x, v.axes, v.is_decay)}"
        (loads if v.per_step else before).append(line)
    return before, loads, vectors


def rows_step(
    k: Kernel, p: StepProgram, printer: RowPrinter, read: dict[str, str], write: dict[str, str], outputs: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The statements of a step, and the texts of new vector states and of outputs."""
    lines, rest = printer.lines(read, write)
    vectors = {s.name: s.axes for s in p.states if len(s.axes) < 2}
    nodes = {n: rest[n] for n in vectors} | ({f"out {n}": rest[n] for n in p.outputs} if outputs else {})
    orders = vectors | {f"out {n}": axes for n, axes in p.output_axes.items()}
    more, results = k.print(p, nodes, {n: orders[n] for n in nodes}, set(vectors) | _summed(p))
    return [*lines, *more], results


def _summed(p: StepProgram) -> set[str]:
    """Gradients of parameters, which are added up in whole tiles."""
    return {f"out {gradient_name(v)}" for v in p.variables if v.kind in ("parameter", "decay parameter")}


def _assign(k: Kernel, p: StepProgram, results: dict[str, str]) -> list[str]:
    vectors = {s.name: results[s.name] for s in p.states if len(s.axes) < 2}
    return k.assign(vectors) if vectors else []


def _read(p: StepProgram, nodes: dict[str, Node] | None = None) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*(nodes or p.updates | p.outputs).values())}


def rows_launch(k: Kernel, printer: RowPrinter, lines: list[str], slots: int = 1) -> dict[str, Any]:
    """What the launcher needs beside what it needs of any kernel: the dims, and how many vectors are kept in memory."""
    slots = max(slots, len(printer.slots))
    return k.launch(lines) | {"row": printer.plan.row, "column": printer.plan.column, "slots": slots}
