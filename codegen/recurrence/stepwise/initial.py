"""The states before the first step, and the gradients of parameters through them."""

from __future__ import annotations

from ...ir.code import Code, Group
from ...ir.launch_ir import If, Set, Statement, put, ref
from ...ir.python_code import EMPTY, Fixed, made_by, method, said
from ...ir.step_program import StepProgram, Var
from ...printing.expressions import NodePrinter, Torch
from ..chunkwise.compiled import Compiled
from ..step.adjoint import adjoint, gradient_name
from .names import Names, Shape, printed


def depends_on_parameters(c: Compiled) -> bool:
    """Is any state's initial value made of parameters?"""
    return bool(initial_adjoints(c))


def start_statements(c: Compiled, names: Names) -> list[Statement]:
    """Statements that set each state: to what is given, or the spec's initial value, or zeros."""
    found: list[Statement] = []
    for s in c.step.states:
        name = names.of("state", s.name)
        value: Code = made_by("like.new_zeros", Shape(("batch", "heads"), s.axes).whole)
        made: list[Set] = []
        if s.initial is not None:
            printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
            made, results = printed(printer, {"value": s.initial}, names, {"value": s.axes})
            value = Group(value + results["value"])
        found += [
            Set((name,), made_by("states.get", said(s.name))),
            If(ref(name).missing, (*made, Set((name,), value))),
            Set((name,), method(ref(name), "to", "dtype")),
        ]
    return found


def gradient_statements(c: Compiled, names: Names, cotangents: dict[str, str]) -> tuple[list[Statement], list[str]]:
    """(statements, variables): they set `initial[name]`, [B, H, ...], for each parameter below a state's initial value.

    `cotangents` gives the text of the gradient by each state before the first step.
    """
    found: list[Statement] = [Set(("initial",), EMPTY)]
    touched: list[str] = []
    for state, program in initial_adjoints(c).items():
        local = Names(set(names.taken), dict(names.known))
        local.known["cotangent", f"d{state}"] = cotangents[state]
        printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=local.taken)
        wanted = {
            v: program.outputs[gradient_name(v)] for v in program.variables if gradient_name(v) in program.outputs
        }
        nodes = {v.name: x for v, x in wanted.items()}
        made, results = printed(printer, nodes, local, {v.name: v.axes for v in wanted})
        sums = (put(Fixed("initial")[n], method(ref("initial"), "get", said(n), 0.0) + results[n]) for n in nodes)
        found.append(If(made_by("states.get", said(state)).missing, (*made, *sums)))
        touched += nodes
    return found, list(dict.fromkeys(touched))


def initial_adjoints(c: Compiled) -> dict[str, StepProgram]:
    """For each state, the adjoint of its initial value as a program of its own."""
    out: dict[str, StepProgram] = {}
    for s in c.step.states:
        if s.initial is None:
            continue
        used = {x.attrs[1] for x in _leaves(s.initial)}
        variables = tuple(v for v in c.step.variables if v.name in used and (v.kind == "constant" or v.is_parameter))
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
    return [v for v in c.step.variables if v.is_parameter]
