"""The states before the first step, and the gradients of parameters through them."""

from __future__ import annotations

from ...ir.step_program import StepProgram, Var
from ...printing.expressions import NodePrinter, Torch
from ..chunkwise.compiled import Compiled
from ..step.adjoint import adjoint, gradient_name
from .names import Names, shape_text


def depends_on_parameters(c: Compiled) -> bool:
    """Is any state's initial value made of parameters?"""
    return bool(initial_adjoints(c))


def start_lines(c: Compiled, names: Names) -> list[str]:
    """Statements that set each state: to what is given, or the spec's initial value, or zeros."""
    lines: list[str] = []
    for s in c.step.states:
        shape = shape_text("batch, heads", s.axes)
        name = names.of("state", s.name)
        lines.append(f'{name} = states.get("{s.name}")')
        lines.append(f"if {name} is None:")
        value = f"like.new_zeros({shape})"
        if s.initial is not None:
            printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
            inner, results = printer.statements({"value": s.initial}, names.leaf, orders={"value": s.axes})
            lines += [f"    {x}" for x in inner]
            value = f"(like.new_zeros({shape}) + {results['value']})"
        lines += [f"    {name} = {value}", f"{name} = {name}.to(dtype)"]
    return lines


def gradient_lines(c: Compiled, names: Names, cotangents: dict[str, str]) -> tuple[list[str], list[str]]:
    """(statements, variables): they set `initial[name]`, [B, H, ...], for each parameter below a state's initial value.

    `cotangents` gives the text of the gradient by each state before the first step.
    """
    lines: list[str] = ["initial = {}"]
    touched: list[str] = []
    for state, program in initial_adjoints(c).items():
        local = Names(set(names.taken), dict(names.known))
        local.known["cotangent", f"d{state}"] = cotangents[state]
        printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=local.taken)
        wanted = {
            v: program.outputs[gradient_name(v)] for v in program.variables if gradient_name(v) in program.outputs
        }
        inner, results = printer.statements(
            {v.name: x for v, x in wanted.items()}, local.leaf, orders={v.name: v.axes for v in wanted}
        )
        lines.append(f'if states.get("{state}") is None:')
        lines += [f"    {x}" for x in inner]
        for v in wanted:
            lines.append(f'    initial["{v.name}"] = initial.get("{v.name}", 0.0) + {results[v.name]}')
            touched.append(v.name)
    return lines, list(dict.fromkeys(touched))


def initial_adjoints(c: Compiled) -> dict[str, StepProgram]:
    """For each state, the adjoint of its initial value as a program of its own."""
    out: dict[str, StepProgram] = {}
    for s in c.step.states:
        if s.initial is None:
            continue
        used = {x.attrs[1] for x in _leaves(s.initial)}
        variables = tuple(
            v for v in c.step.variables if v.name in used and (v.kind == "constant" or v.kind.endswith("parameter"))
        )
        if all(v.kind == "constant" for v in variables):
            continue
        alone = StepProgram(
            f"{s.name}_initial",
            c.step.dims,
            variables,
            (),
            {},
            {s.name: s.initial},
            output_axes={s.name: s.axes},
        )
        out[s.name] = adjoint(alone).program
    return out


def _leaves(node: object) -> list:
    from ...ir.expr import leaves

    return leaves(node)  # type: ignore[arg-type]


def parameters(c: Compiled) -> list[Var]:
    """Variables that are the same at each step, with gradients summed over time."""
    return [v for v in c.step.variables if v.kind in ("parameter", "decay parameter")]
