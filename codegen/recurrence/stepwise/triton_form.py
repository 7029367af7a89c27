"""The Triton form of a step program: one GPU program for each batch entry and head, with the state in registers.

Two kernels: forwards, with checkpoints of the states in global memory; and backwards, which recomputes the states of a
segment from its checkpoint into a workspace, then goes through the adjoint's steps. Where an axis of the state can be tiled
(`tiling.py`), each tile is a program of its own. Nothing is added atomically: parts are written apart, and summed in torch.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.code import Code, Name, times
from ...ir.expr import Node, leaves
from ...ir.kernel_ir import Let, Statement, added, let
from ...ir.python_code import Fixed, Part
from ...ir.step_program import Var
from ...ir.words import Definitions, apart
from ...printing.code_passes import finished_function, finished_kernel
from ...printing.kernel_text import kernel_definition
from ...printing.launch_text import launch_definition
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .coefficients import coefficient_functions
from .kernel import Axes, Kernel
from .kernel_gate import gate_kernel
from .launchers import Made, steps_backward, steps_forward
from .loops import CHECKPOINT, Backward, Forward, backward_kernel, forward_kernel, room
from .names import Shape, tensors
from .rows import row_plan
from .rows_form import backward_rows, forward_rows, plans
from .shared_products import with_shared_products
from .tiling import PART, WHOLE, tiling
from .timeless import timeless

STEPS, HEADS = ("batch", "steps", "heads"), ("layout.sequences", "heads")


def sequential_triton(c: Compiled, begins: str = "triton") -> Definitions:
    """Kernels, and functions whose names begin so, such as `triton_forward` and `triton_backward`; they use `torch_start` of the
    torch form.

    Raises `GateError` where a kernel doesn't make the recurrence's steps, or the adjoint's.
    """
    found = timeless(c)
    c = found.over if found else c
    forward, backward, forward_rows, backward_rows = kernels = sequential_kernels(c, shares=found is not None)
    printed = []
    for x in (x for x in kernels if x):
        function = finished_kernel(x["function"])
        gate_kernel(c, x["kernel"], function, x.get("slots", 0))
        printed.append(kernel_definition(function))
    launchers = (
        *(coefficient_functions(found, begins) if found else ()),
        steps_forward(c, f"{begins}_forward", forward, forward_rows, coefficients=begins if found else ""),
        steps_backward(c, f"{begins}_backward", backward, backward_rows, coefficients=begins if found else ""),
    )
    return apart([*printed, *(launch_definition(finished_function(f)) for f in launchers)], "\n")


def maps_triton(c: Compiled, name: str) -> Definitions:
    """A function that takes the steps of c forwards, and its kernel, beside those of `sequential_triton`."""
    found = timeless(c)
    c = found.over if found else c
    forward = _forward(c)
    plan = None if forward["tiled"] else row_plan(c.step.updates, {}, {s.name: s.axes for s in c.step.states})
    rows = None if plan is None else forward_rows(c, plan)
    printed = []
    for x in (x for x in (forward, rows) if x):
        f = x["function"]
        function = finished_kernel(replace(f, name=f"sequential_maps{f.name.removeprefix('sequential_forward')}"))
        gate_kernel(c, x["kernel"], function, x.get("slots", 0))
        printed.append(kernel_definition(function))
    made = coefficient_functions(found, name)[:1] if found else ()
    coefficients = name if found else ""
    launcher = steps_forward(c, name, forward, rows, "sequential_maps", keeps=False, coefficients=coefficients)
    return apart([*printed, *(launch_definition(finished_function(f)) for f in (*made, launcher))])


def sequential_kernels(c: Compiled, shares: bool = False) -> tuple[Made, Made, Made | None, Made | None]:
    """The kernels forwards and backwards; and over rows, where states may be too wide to be held whole. `shares`: gradients that
    each step adds have factors in common, which are multiplied once."""
    forward, backward = _forward(c), _backward(c, shares)
    rows = None if forward["tiled"] or backward["tiled"] else plans(c)
    if rows is None:
        return forward, backward, None, None
    return forward, backward, forward_rows(c, rows[0]), backward_rows(c, *rows[1:])


def _lead(k: Kernel, v: Var) -> tuple[Code, ...]:
    """Where a program starts in the axes of a variable that come before its own: batch entry, step and head."""
    head = k.head_of(v.name)
    return (Name("entry"), Name("begin"), head) if v.per_step else (head,)


def _read(*nodes: Node) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*nodes)}


def _result(key: str, lead: tuple[Part, ...], axes: Axes, kind: str) -> Made:
    """A tensor that the launcher allocates; `part` where it holds one part a tile."""
    return {"key": key, "shape": Shape(lead, axes), "part": kind == PART}


# --- forwards -------------------------------------------------------------------------------------------------------


def _forward(c: Compiled) -> Made:
    p = c.step
    found = tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states])
    nodes = p.updates | {f"out {n}": x for n, x in found.outputs.items()}
    k = Kernel(c, found)
    read = _read(*nodes.values())
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    before: list[Statement] = []
    loads: list[Statement] = []
    for v in tensors(p):
        if (v.kind, v.name) in read:
            x = k.strided(v.name, "given", v.name, _lead(k, v), v.axes)
            before.append(k.advance(x))
            name = k.names.of(v.kind, v.name)
            if v.per_step:
                loads.append(k.step_load(name, x, v.is_decay))
            else:
                before.append(let(name, k.load_strided(x, v.is_decay)))
    checkpoint, last = [], []
    for s in p.states:
        start = k.contiguous(f"{s.name}_start", "start", s.name, s.axes)
        kept = k.contiguous(f"{s.name}_checkpoints", "kept", s.name, s.axes)
        final = k.contiguous(f"{s.name}_final", "finals", s.name, s.axes)
        name, kind = k.names.of("state", s.name), k.kind(s.axes)
        before.append(let(name, k.load(k.address(start, Name("index")), s.axes)))
        checkpoint.append(k.store(k.address(kept, CHECKPOINT), s.axes, Name(name), kind))
        last.append(k.store(k.address(final, Name("index")), s.axes, Name(name), kind))
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    k.take_together(nodes.values(), (v.axes for v in tensors(p) if v.per_step and (v.kind, v.name) in read))
    made, results = k.values(p, nodes, orders, set(p.updates))
    outputs, stores = [], []
    for n, axes in p.output_axes.items():
        kind = k.tiling.kinds[n]
        out = k.contiguous(n, "partial_sums" if kind == PART else "outputs", n, axes)
        stores.append(k.store(k.address(out, k.row_now(kind)), axes, results[f"out {n}"], kind))
        outputs.append(_result(n, STEPS, axes, kind))
    assign = k.assign({s.name: results[s.name] for s in p.states})
    parts = Forward(
        tuple(before), kept.name, tuple(checkpoint), (*loads, *made, *stores, *assign), tuple(last)
    )  # fmt: skip
    return k.launch(forward_kernel(k, parts)) | {
        "outputs": outputs,
        "finals": [_result(s.name, HEADS, s.axes, WHOLE) for s in p.states],
        "saved": [_result(s.name, (Fixed("layout.slots") * Fixed("heads"),), s.axes, WHOLE) for s in p.states],
    }


# --- backwards ------------------------------------------------------------------------------------------------------


def _backward(c: Compiled, shares: bool) -> Made:
    p, a = c.step, c.adjoint.program
    updates = [*p.updates.values(), *a.updates.values()]
    found = tiling(updates, a.outputs, [s.axes for s in p.states])
    nodes = a.updates | {f"out {n}": x for n, x in found.outputs.items()}
    k = Kernel(c, found)
    forward_read, backward_read = _read(*p.updates.values()), _read(*nodes.values())
    read = forward_read | backward_read
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    before, again, loads = _loads(k, forward_read, backward_read)
    states = _states(k)
    before += states["before"]
    last = states["last"]
    totals = {v.name: k.names.fresh(f"d{v.name}") for v in p.variables if v.is_parameter}
    sums = {f"out {gradient_name(p.variable(n))}" for n in totals}
    orders = {s.name: s.axes for s in p.states} | {s.name: s.axes for s in a.states}
    taken = [v.axes for v in tensors(p) if v.per_step and (v.kind, v.name) in read]
    k.take_together([*p.updates.values(), *nodes.values()], [*taken, *p.output_axes.values()])
    forward_made, forward_results = k.values(p, dict(p.updates), orders, set(p.updates))
    orders |= {f"out {n}": axes for n, axes in a.output_axes.items()}
    made, results = k.values(a, nodes, orders, {*a.updates, *sums})
    stores: list[Statement] = []
    per_step, per_head = [], []
    for v in tensors(p):
        name = gradient_name(v)
        kind = k.tiling.kinds[name]
        out = k.contiguous(f"d{v.name}", "partial_sums" if kind == PART else "gradients", v.name, v.axes)
        if v.per_step:
            stores.append(k.store(k.address(out, k.row_now(kind)), v.axes, results[f"out {name}"], kind))
            per_step.append(_result(v.name, STEPS, v.axes, kind))
            continue
        total = totals[v.name]
        before.append(let(total, k.total(v.axes)))
        stores.append(added(total, results[f"out {name}"]))
        row = Name("index") + Name("tile") * "rows" if kind == PART else Name("index")
        last.append(k.store(k.address(out, row), v.axes, Name(total), kind))
        per_head.append(_result(v.name, HEADS, v.axes, kind))
    each = (*made, *stores)
    if shares:
        each = with_shared_products(each, k.names.fresh)
    forward_assign = k.assign({s.name: forward_results[s.name] for s in p.states})
    assign = k.assign({s.name: results[s.name] for s in a.states})
    parts = Backward(
        tuple(before),
        tuple(states["start"]),
        (*states["keep"], *again, *forward_made, *forward_assign),
        (*loads, *states["back"], *each, *assign),
        tuple(last),
    )
    return k.launch(backward_kernel(k, parts)) | {
        "per_step": per_step,
        "per_head": per_head,
        "cotangents": [_result(n, STEPS, axes, WHOLE) for n, axes in p.output_axes.items()],
        "states": [_result(s.name, HEADS, s.axes, WHOLE) for s in p.states],
        "workspace": [
            _result(
                s.name,
                (times(*map(Fixed, ("layout.rooms", "heads", *(["tiles"] if _copies(k, s.axes) else [])))),),
                s.axes,
                WHOLE,
            )
            for s in p.states
        ],
    }


def _loads(
    k: Kernel, forward: set[tuple[str, str]], backward: set[tuple[str, str]]
) -> tuple[list[Statement], list[Let], list[Let]]:
    """Statements before the loops, for the loop over a segment's states, and for the loop over the adjoint's steps."""
    before: list[Statement] = []
    again: list[Let] = []
    adjoint: list[Let] = []
    for v in tensors(k.c.step):
        key = (v.kind, v.name)
        if key not in forward | backward:
            continue
        x = k.strided(v.name, "given", v.name, _lead(k, v), v.axes)
        before.append(k.advance(x))
        name = k.names.of(*key)
        if not v.per_step:
            before.append(let(name, k.load_strided(x, v.is_decay)))
        if v.per_step and key in forward:
            again.append(k.step_load(name, x, v.is_decay))
        if v.per_step and key in backward:
            adjoint.append(k.step_load(name, x, v.is_decay))
    for n, axes in k.c.step.output_axes.items():
        if ("cotangent", f"d{n}") in backward:
            x = k.strided(f"d{n}", "incoming_steps", n, (Name("entry"), Name("begin"), Name("head")), axes)
            before.append(k.advance(x))
            adjoint.append(k.step_load(k.names.of("cotangent", f"d{n}"), x))
    return before, again, adjoint


def _states(k: Kernel) -> dict[str, list[Statement]]:
    """Statements that move states between registers, checkpoints and the workspace, by where they stand. Those that bring a state
    `back`: a tile of a single one is prefetched by a step, as more would fill registers."""
    out: dict[str, list[Statement]] = {"before": [], "start": [], "keep": [], "back": [], "last": []}
    for s in k.c.step.states:
        kept = k.contiguous(f"{s.name}_checkpoints", "saved", s.name, s.axes)
        space = k.contiguous(f"{s.name}_states", "workspace", s.name, s.axes)
        end = k.contiguous(f"d{s.name}_final", "ends", s.name, s.axes)
        start = k.contiguous(f"d{s.name}_start", "initial_gradients", s.name, s.axes)
        name, gradient = k.names.of("state", s.name), k.names.of("state", f"d{s.name}")
        row = room(Name("offset"))
        here = k.address(space, row * "tiles" + "tile" if _copies(k, s.axes) else row)
        out["before"].append(let(gradient, k.load(k.address(end, Name("index")), s.axes)))
        out["start"].append(let(name, k.load(k.address(kept, CHECKPOINT), s.axes)))
        out["keep"].append(k.store(here, s.axes, Name(name)))
        if len(s.axes) > 1 and (k.tiling.dim is None or sum(len(x.axes) > 1 for x in k.c.step.states) > 1):
            out["back"].append(let(name, k.load(here, s.axes)))
        else:
            out["back"].append(k.prefetch(name, k.raw(here, s.axes)))
        out["last"].append(k.store(k.address(start, Name("index")), s.axes, Name(gradient), k.kind(s.axes)))
    return out


def _copies(k: Kernel, axes: Axes) -> bool:
    """Does each tile's program keep a copy of a state of its own, since the state isn't cut?"""
    return k.tiling.dim is not None and k.kind(axes) == WHOLE
