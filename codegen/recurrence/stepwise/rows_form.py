"""The Triton kernels of a step program whose states are taken by rows (`rows.py`): the states stay in memory.

Forwards, the final state's own memory holds the state of the moment. Backwards, the forward state of the moment has memory of
its own, the states of a segment lie in the workspace, and the gradient lies where it ends up.
"""

from __future__ import annotations

from typing import Any

from ...ir.code import Code, Name, call
from ...ir.expr import Node, leaves
from ...ir.kernel_ir import Barrier, KernelFunction, Let, Statement, added, let
from ...ir.step_program import StepProgram
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .kernel import Kernel, Pointer
from .loops import CHECKPOINT, Backward, Forward, Rows, backward_kernel, forward_kernel, room
from .names import Shape, tensors
from .rows import RowPlan, RowStatements, row_copy, row_plan
from .tiling import OWN, Tiling

INDEX = Name("index")


def plans(c: Compiled) -> tuple[RowPlan, RowPlan, RowPlan] | None:
    """Those of the step, of its updates alone, and of its adjoint, where all can be taken by rows."""
    p, a = c.step, c.adjoint.program
    forward = row_plan(p.updates, p.outputs, {s.name: s.axes for s in p.states})
    again = row_plan(p.updates, {}, {s.name: s.axes for s in p.states})
    backward = row_plan(a.updates, a.outputs, {s.name: s.axes for s in a.states})
    return None if forward is None or again is None or backward is None else (forward, again, backward)


def forward_rows(c: Compiled, plan: RowPlan) -> dict[str, Any]:
    """The kernel forwards, and what the template of its launcher prints."""
    p = c.step
    k = rows_kernel(c, dict.fromkeys(p.outputs, OWN), p.outputs)
    read = _read(p)
    before, loads, vectors = _arguments(k, read)
    checkpoint: list[Statement] = []
    last: list[Statement] = []
    place = {}
    kept = None
    for s in p.states:
        start = k.contiguous(f"{s.name}_start", "start", s.name, s.axes)
        kept = k.contiguous(f"{s.name}_checkpoints", "kept", s.name, s.axes)
        final = k.contiguous(f"{s.name}_final", "finals", s.name, s.axes)
        begin, end, keep = k.address(start, INDEX), k.address(final, INDEX), k.address(kept, CHECKPOINT)
        name = k.names.of("state", s.name)
        if len(s.axes) == 2:
            place[s.name] = end
            before += row_copy(plan.row, plan.column, begin, end)
            checkpoint += row_copy(plan.row, plan.column, end, keep)
        else:
            before.append(let(name, k.load(begin, s.axes)))
            checkpoint.append(k.store(keep, s.axes, Name(name)))
            last.append(k.store(end, s.axes, Name(name)))
    assert kept is not None
    outputs = {n: k.contiguous(n, "outputs", n, axes) for n, axes in p.output_axes.items()}
    rows = RowStatements(k, p, plan, k.contiguous("scratch", "scratch", "", ()), vectors, call("tl.program_id", 0))
    step, results = rows_step(k, p, rows, place, place)
    stores = [
        k.store(k.address(outputs[n], k.row_now(OWN)), axes, results[f"out {n}"]) for n, axes in p.output_axes.items()
    ]
    each = (*(x for x, _ in loads), *step, *stores, *_assign(k, p, results), Barrier())
    parts = Forward(tuple(before), kept.name, tuple(checkpoint), each, tuple(last))
    over = over_rows(rows)
    return rows_launch(k, forward_kernel(k, parts, over), over)


def backward_rows(c: Compiled, forward: RowPlan, backward: RowPlan) -> dict[str, Any]:
    """The kernel backwards, and what the template of its launcher prints."""
    p, a = c.step, c.adjoint.program
    k = rows_kernel(c, dict.fromkeys(a.outputs, OWN), a.outputs)
    forward_read, backward_read = _read(p, p.updates), _read(a)
    before, given, vectors = _arguments(k, forward_read | backward_read)
    again = [x for x, key in given if key in forward_read]
    loads = [x for x, _ in given]
    for n, axes in p.output_axes.items():
        if ("cotangent", f"d{n}") in backward_read:
            x = k.strided(f"d{n}", "incoming_steps", n, (Name("entry"), Name("begin"), Name("head")), axes)
            before.append(k.advance(x))
            loads.append(let(k.names.of("cotangent", f"d{n}"), k.load_strided(x)))
            vectors[f"d{n}"] = x
    parts: dict[str, list[Statement]] = {"start": [], "keep": [], "back": [], "last": []}
    now, rooms, gradients = {}, {}, {}
    for s in p.states:
        kept = k.contiguous(f"{s.name}_checkpoints", "saved", s.name, s.axes)
        space = k.contiguous(f"{s.name}_states", "workspace", s.name, s.axes)
        end = k.contiguous(f"d{s.name}_final", "ends", s.name, s.axes)
        start = k.contiguous(f"d{s.name}_start", "initial_gradients", s.name, s.axes)
        name, gradient = k.names.of("state", s.name), k.names.of("state", f"d{s.name}")
        here, checkpoint = k.address(space, room(Name("offset"))), k.address(kept, CHECKPOINT)
        own, ended = k.address(start, INDEX), k.address(end, INDEX)
        if len(s.axes) == 2:
            moment = k.contiguous(f"{s.name}_now", "moment", s.name, s.axes)
            now[s.name], rooms[s.name], gradients[f"d{s.name}"] = k.address(moment, INDEX), here, own
            before += row_copy(forward.row, forward.column, ended, own)
            parts["start"] += row_copy(forward.row, forward.column, checkpoint, now[s.name])
            parts["keep"] += row_copy(forward.row, forward.column, now[s.name], here)
        else:
            before.append(let(gradient, k.load(ended, s.axes)))
            parts["start"].append(let(name, k.load(checkpoint, s.axes)))
            parts["keep"].append(k.store(here, s.axes, Name(name)))
            parts["back"].append(let(name, k.load(here, s.axes)))
            parts["last"].append(k.store(own, s.axes, Name(gradient)))
    scratch, place = k.contiguous("scratch", "scratch", "", ()), call("tl.program_id", 0)
    forwards = RowStatements(k, p, forward, scratch, vectors, place)
    forward_step, forward_results = rows_step(k, p, forwards, now, now, outputs=False)
    behind = RowStatements(k, a, backward, scratch, vectors, place)
    step, results = rows_step(k, a, behind, rooms | gradients, gradients)
    stores: list[Statement] = []
    for v in tensors(p):
        value = results[f"out {gradient_name(v)}"]
        out = k.contiguous(f"d{v.name}", "gradients", v.name, v.axes)
        if v.per_step:
            stores.append(k.store(k.address(out, k.row_now(OWN)), v.axes, value))
            continue
        name = k.names.fresh(f"d{v.name}")
        before.append(let(name, k.total(v.axes[:1])))
        stores.append(added(name, value))
        parts["last"].append(k.store(k.address(out, INDEX), v.axes, Name(name)))
    over = over_rows(behind, len(forwards.slots))
    made = Backward(
        tuple(before),
        tuple(parts["start"]),
        (*parts["keep"], *again, *forward_step, *_assign(k, p, forward_results), Barrier()),
        (*parts["back"], *loads, *step, *stores, *_assign(k, a, results), Barrier()),
        tuple(parts["last"]),
    )
    return rows_launch(k, backward_kernel(k, made, over), over) | {
        "moment": [
            {"key": s.name, "shape": Shape(("layout.sequences", "heads"), s.axes)} for s in p.states if s.name in now
        ],
    }


def rows_kernel(c: Compiled, kinds: dict[str, str], outputs: dict[str, Node]) -> Kernel:
    """A kernel whose states are taken by rows."""
    k = Kernel(c, Tiling(None, kinds, outputs))
    k.names.taken |= {"block", "block_row", "at_row", "wide_row", "in_row", "slots", "scratch"}
    k.names.taken |= {f"{n}_row_{d}" for n in ("at", "in") for d in k.dims}
    return k


def _arguments(
    k: Kernel, read: set[tuple[str, str]]
) -> tuple[list[Statement], list[tuple[Statement, tuple[str, str]]], dict[str, Pointer]]:
    """Statements before the loops and in each step that load arguments, the latter with what they load, and their pointers."""
    before: list[Statement] = []
    loads: list[tuple[Statement, tuple[str, str]]] = []
    vectors: dict[str, Pointer] = {}
    k.constants = [v for v in k.c.step.variables if v.kind == "constant" and (v.kind, v.name) in read]
    for v in tensors(k.c.step):
        if (v.kind, v.name) not in read:
            continue
        head = k.head_of(v.name)
        lead = (Name("entry"), Name("begin"), head) if v.per_step else (head,)
        x = vectors[v.name] = k.strided(v.name, "given", v.name, lead, v.axes)
        before.append(k.advance(x))
        made = let(k.names.of(v.kind, v.name), k.load_strided(x, v.is_decay))
        if v.per_step:
            loads.append((made, (v.kind, v.name)))
        else:
            before.append(made)
    return before, loads, vectors


def rows_step(
    k: Kernel,
    p: StepProgram,
    rows: RowStatements,
    read: dict[str, Code],
    write: dict[str, Code],
    outputs: bool = True,
) -> tuple[list[Statement], dict[str, Code]]:
    """The statements of a step, and new vector states and outputs."""
    found, rest = rows.statements(read, write)
    vectors = {s.name: s.axes for s in p.states if len(s.axes) < 2}
    nodes = {n: rest[n] for n in vectors} | ({f"out {n}": rest[n] for n in p.outputs} if outputs else {})
    orders = vectors | {f"out {n}": axes for n, axes in p.output_axes.items()}
    more, results = k.values(p, nodes, {n: orders[n] for n in nodes}, set(vectors) | _summed(p))
    return [*found, *more], results


def _summed(p: StepProgram) -> set[str]:
    """Gradients of parameters, which are added up in whole tiles."""
    return {f"out {gradient_name(v)}" for v in p.variables if v.is_parameter}


def _assign(k: Kernel, p: StepProgram, results: dict[str, Code]) -> list[Let]:
    vectors = {s.name: results[s.name] for s in p.states if len(s.axes) < 2}
    return k.assign(vectors) if vectors else []


def _read(p: StepProgram, nodes: dict[str, Node] | None = None) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*(nodes or p.updates | p.outputs).values())}


def over_rows(rows: RowStatements, slots: int = 1) -> Rows:
    """How a kernel goes over rows, with memory for so many vectors at least."""
    return Rows(rows.plan.row, rows.plan.column, max(slots, len(rows.slots)))


def rows_launch(k: Kernel, f: KernelFunction, rows: Rows) -> dict[str, Any]:
    """What the launcher needs beside what it needs of any kernel: the dims, and how many vectors are kept in memory."""
    return k.launch(f) | {"row": rows.row, "column": rows.column, "slots": rows.slots}
