"""The torch form of a step program: a loop over time, forwards, and backwards through checkpoints."""

from __future__ import annotations

from typing import Any

from ...ir.expr import Node, leaves
from ...ir.step_program import StepProgram, Var
from ...printing.expressions import NodePrinter, Torch
from ...printing.templates import render
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .initial import gradient_lines, parameters, start_lines
from .names import Names, first_input, names_of, shape_text, sizes, tensors


def sequential_torch_source(c: Compiled) -> str:
    """Text that defines `torch_forward` and `torch_backward`."""
    return _source(c, steps=True)


def start_source(c: Compiled, gradients: bool = True) -> str:
    """Text that defines `torch_start`, and where parameters set the first states `torch_start_gradients`."""
    return _source(c, steps=False, gradients=gradients)


def _source(c: Compiled, steps: bool, gradients: bool = True) -> str:
    program = c.step
    layout = sizes(program)
    names = names_of(program, {f"size_{d}" for d in layout.dims})
    return render(
        "recurrence/stepwise/sequential_torch.py.jinja",
        steps=steps,
        lead=layout.lead,
        sizes=layout.dims,
        given=[_given(v, names) for v in tensors(program)],
        constants=[(names.of("constant", v.name), v.name) for v in program.variables if v.kind == "constant"],
        states=[_state(s.name, s.axes, names) for s in program.states],
        values=f"({', '.join(names.of('state', s.name) for s in program.states)},)",
        start=start_lines(c, names),
        outputs=_outputs(c, names),
        forward=_forward(c, names),
        recompute=_recompute(c, names),
        backward=_backward(c, names) if gradients else {"initial": []},
    )


def _given(v: Var, names: Names) -> dict[str, Any]:
    return {
        "key": v.name,
        "name": names.of(v.kind, v.name),
        "per_step": v.per_step,
        "decay": v.is_decay,
    }


def _state(name: str, axes: tuple[str, ...], names: Names) -> dict[str, Any]:
    return {
        "key": name,
        "name": names.of("state", name),
        "gradient": names.of("state", f"d{name}"),
        "shape": shape_text("batch, heads", axes),
    }


def _outputs(c: Compiled, names: Names) -> list[dict[str, Any]]:
    like = first_input(c)
    return [
        {
            "key": n,
            "like": like,
            "shape": shape_text("batch, steps, heads", axes),
            "cotangent": names.of("cotangent", f"d{n}"),
        }
        for n, axes in c.step.output_axes.items()
    ]


def _print(
    program: StepProgram, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]], names: Names
) -> tuple[list[str], dict[str, str]]:
    printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
    return printer.statements(nodes, names.leaf, names=program.names, orders=orders)


def _read(nodes: dict[str, Node]) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*nodes.values())}


def _forward(c: Compiled, names: Names) -> dict[str, Any]:
    return _step(c.step, {s.name: s.axes for s in c.step.states}, c.step.output_axes, names)


def _recompute(c: Compiled, names: Names) -> dict[str, Any]:
    return _step(c.step, {s.name: s.axes for s in c.step.states}, {}, names)


def _step(
    program: StepProgram, states: dict[str, tuple[str, ...]], outputs: dict[str, tuple[str, ...]], names: Names
) -> dict[str, Any]:
    """One step: what it reads, its statements, its outputs, and the assignment of the new states."""
    nodes = {f"next {n}": program.updates[n] for n in states} | {f"out {n}": program.outputs[n] for n in outputs}
    orders = {f"next {n}": axes for n, axes in states.items()} | {f"out {n}": axes for n, axes in outputs.items()}
    lines, results = _print(program, nodes, orders, names)
    read = _read(nodes)
    updates = [
        _whole(results[f"next {n}"], program.updates[n], shape_text("batch, heads", axes)) for n, axes in states.items()
    ]
    left = ", ".join(names.of("state", n) for n in states)
    return {
        "reads": [
            (names.of(v.kind, v.name), v.name)
            for v in program.variables
            if (v.kind, v.name) in read and v.kind in ("input", "decay")
        ],
        "lines": lines,
        "outputs": [(n, results[f"out {n}"]) for n in outputs],
        "assignment": f"{left} = {', '.join(updates)}",
    }


def _backward(c: Compiled, names: Names) -> dict[str, Any]:
    program = c.adjoint.program
    states = {s.name: s.axes for s in program.states}
    step = _step(program, states, program.output_axes, names)
    results = dict(step["outputs"])
    own = [v for v in c.step.variables if v.per_step]
    initial, touched = gradient_lines(c, names, {s.name: names.of("state", f"d{s.name}") for s in c.step.states})
    read = _read(program.updates | program.outputs)
    return {
        "lines": step["lines"],
        "assignment": step["assignment"],
        "cotangents": [(names.of("cotangent", f"d{n}"), n) for n in c.step.outputs if ("cotangent", f"d{n}") in read],
        "reads": step["reads"],
        "per_step": [
            {
                "key": v.name,
                "value": results[gradient_name(v)],
                "shape": shape_text("batch, steps, heads", v.axes),
            }
            for v in own
        ],
        "parameters": [
            {
                "key": v.name,
                "value": results[gradient_name(v)],
                "shape": shape_text("batch, heads", v.axes),
                "initial": v.name in touched,
            }
            for v in parameters(c)
        ],
        "initial": initial if touched else [],
    }


def _whole(text: str, node: Node, shape: str) -> str:
    """A new state's text with all of its axes, where the value itself may lack some."""
    full = any(x.attrs[0] in ("input", "decay", "cotangent", "trajectory", "state") for x in leaves(node))
    return text if full and node.op != "expand" else f"like.new_zeros({shape}) + ({text})"
