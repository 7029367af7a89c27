"""Pass 3 of a program, emit: the text of its generated file."""

from __future__ import annotations

import hashlib

from ..ir.launch_ir import NONE, Call, Function, Given, If, Return, Set, Statement, ref
from ..ir.python_code import FALSE, Fixed, Named, dictionary, made_by, said
from ..ir.words import Definition, Definitions, apart, joined, path, text_of
from ..printing.code_passes import finished_function, told
from ..printing.formatting import formatted
from ..printing.launch_text import launch_definition, statement
from ..printing.parameters import OPTIONS, Parameter, constant, last_states, options, result, tensor
from ..printing.spelling import spelled
from ..printing.stub import Results, Stub
from ..printing.templates import render
from ..recurrence.backends import Section
from ..recurrence.compiler_fault import blaming
from ..recurrence.emit import (
    check_name,
    dims_text,
    escaped,
    import_lines,
    imported_as,
    imported_names,
    other_names,
    wrapped,
)
from ..recurrence.triton import PLAN_PASSES
from .call_sequence import pass_definitions, residual_name
from .compiled import CompiledProgram
from .derivation import derivation_lines
from .lettered import program_in_letters
from .op_sources import torch_texts, triton_texts
from .pipeline import PASSES
from .sentences import node_text

_MODULES = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.solves.programs": (
        "Again Sums checked_solves inverted kept part results through_inverse wanted wide whole_sequence zeros_where_none"
    ),
    "chunkform.runtime.solves.solves": "conjugate_gradients neumann simplified_backward through unrolled_backward",
}


@blaming
def emit(c: CompiledProgram, tidy: bool = True) -> str:
    """The generated file of a program, formatted where `tidy`."""
    with told(c.name, len(PASSES), PLAN_PASSES):
        return _emitted(c, tidy)


def _emitted(c: CompiledProgram, tidy: bool) -> str:
    lettered, alphabet, words = program_in_letters(c)
    torch, triton = torch_texts(lettered.graph), triton_texts(lettered.graph)
    body: list[Definitions] = []
    for texts in (torch, triton):
        body += [apart(texts.parts), pass_definitions(lettered, texts.backend, texts, words)]
    modules: dict[str, str] = {}
    for found in (torch.modules, triton.modules, _MODULES):
        for module, names in found.items():
            modules[module] = f"{modules.get(module, '')} {names}"
    public = public_definitions(c)
    own = (*joined(body), *public)
    imported = imported_names((Section("program", own, modules),))
    others = other_names(c.name, imported)
    made = [x.renamed(others) for x in spelled(joined(body), alphabet)]
    check_name(
        c.graph.program, (*imported_as(imported, others), "ARGUMENTS", *(["WHY"] if c.graph.solves else [])), made
    )
    out = render(
        "programs/program.py.jinja",
        title=escaped(_title(c)),
        command=f"chunkform build {c.name}",
        hash=spec_hash(c),
        derivation=wrapped(derivation_lines(c)),
        imports=import_lines(imported, others),
        arguments="(" + "".join(f'"{n}", ' for n in c.graph.arguments) + ")",
        body=text_of(made),
        signature=signature_text(c),
        public=text_of(public),
    )
    return formatted(out) if tidy else out


def spec_hash(c: CompiledProgram) -> str:
    """A hash of what the program says, not of how its file is laid out."""
    g = c.graph
    said = [g.program.name, repr(g.outputs), repr(g.finals)]
    said += [repr((v.name, v.kind, tuple(map(str, v.dims)), v.default)) for v in g.program.step.variables]
    for op in g.operations:
        p = op.compiled.step
        said += [repr(p.dims), *(f"{n} {x.key}" for n, x in (*p.updates.items(), *p.outputs.items()))]
        said += [repr((s.name, s.axes, s.initial.key if s.initial is not None else "")) for s in p.states]
    for n in g.nodes:
        said.append(
            repr((n.name, n.op.name, n.given, n.states, n.made, getattr(n, "method", ""), getattr(n, "step", "")))
        )
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def signature_text(c: CompiledProgram) -> str:
    g = c.graph
    arguments = []
    for v in g.program.step.variables:
        if v.kind != "solved":
            default = "" if v.default is None else f", default={float(v.default)!r}"
            arguments.append(f'Argument("{v.name}", "{v.kind}", {dims_text(tuple(d.name for d in v.dims))}{default}),')
    states = "".join(f'("{s}", {dims_text(g.dims[s])}),' for s in g.finals)
    outputs = "".join(f'("{n}", {dims_text(g.dims[q])}),' for n, q in g.outputs.items())
    outputs += "".join(f'("{residual_name(n)}", ()),' for n in g.solves)
    hidden = "".join(f'"{residual_name(n)}",' for n in g.solves)
    parts = f"arguments=({''.join(arguments)}), states=({states}), outputs=({outputs})"
    return f'Signature(name="{c.name}", {parts}{f", hidden=({hidden})" if hidden else ""})'


def _title(c: CompiledProgram) -> str:
    doc = (c.spec.doc or "").strip().splitlines()
    return f"{c.name}: {doc[0]}" if doc else f"{c.name}, from its spec."


def public_definitions(c: CompiledProgram) -> Definitions:
    """The function that users call, and what its solves are told where they don't converge."""
    given = [v for v in c.spec.step.variables if v.kind != "solved"]
    passed = dictionary((v.name, ref(v.argument)) for v in given)
    call = made_by("OP", passed, *(Named(n, ref(n)) for n in OPTIONS))
    body: list[Statement] = []
    if c.graph.attends:
        names = (said(c.name), said(c.graph.attends[0]))
        body.append(Call((), "whole_sequence", (*names, ref("initial_state"), ref("output_final_state"))))
    solves, count = list(c.graph.solves), len(c.graph.outputs)
    if solves:
        found, check = ref("found"), ref("check")
        residuals = dictionary((n.name, found[count + i]) for i, n in enumerate(solves))
        checked = Call((), "checked_solves", (said(c.name), residuals, check, Fixed("WHY")))
        body += [Set(("found",), call), If(check.given, (checked,))]
        body.append(Return(made_by("results", found, count, ref("output_residual"))))
    else:
        body.append(Return(call))
    taken = tuple(Given(x.name, x.default, x.type, x.named) for x in parameters(c))
    f = Function(c.name, taken, escaped(docstring(c)), tuple(body), frees=False, returns=returned(c))
    made = finished_function(f)
    public = Definition(("@", *path("OP.named"), "\n", *launch_definition(made).alone().words))
    if not solves:
        return (public,)
    why = dictionary((n.name, said(n.method.advice)) for n in solves)
    return apart((statement(Set(("WHY",), why)), public))


def parameters(c: CompiledProgram) -> list[Parameter]:
    """What the op takes, in order."""
    given = [v for v in c.spec.step.variables if v.kind != "solved"]
    numbers = [constant(v.name, v.default) for v in given if v.kind == "constant"]
    solving = [Parameter("output_residual", "bool", FALSE), Parameter("check", "float | None", NONE)]
    return [
        *(tensor(v.argument) for v in given if v.kind != "constant"),
        *options(len(c.graph.finals)),
        *(solving if list(c.graph.solves) else ()),
        *sorted(numbers, key=lambda p: p.default is not None),
    ]


def returned(c: CompiledProgram) -> str:
    """The type of what the op returns, without residuals or with them."""
    count, solves = len(c.graph.outputs), len(list(c.graph.solves))
    last = f"{last_states(len(c.graph.finals))} | None"
    plain = result(count, last)
    return f"{plain} | {result(count + solves, last)}" if solves else plain


def stub(c: CompiledProgram) -> Stub:
    """The op for the stub of the catalogue."""
    outputs, residuals = tuple(c.graph.outputs), tuple(residual_name(n) for n in c.graph.solves)
    results: dict[bool, Results | None] = {False: Results(f"_{c.name}_result", outputs, "final_state")}
    if residuals:
        results[True] = Results(f"_{c.name}_residual_result", (*outputs, *residuals), "final_state")
    asks, last = "output_residual" if residuals else None, last_states(len(c.graph.finals))
    return Stub(c.name, escaped(_title(c)), parameters(c), results, asks, last)


def docstring(c: CompiledProgram) -> str:
    """Shapes, units and results of the op."""
    g = c.graph
    lines = [f"{(c.spec.doc or c.name.replace('_', ' ')).strip().rstrip('.')}.", ""]
    lines += [f"    {node_text(g, n)}" for n in g.nodes]
    lines += ["", "Args:"]
    signs = {1: "at least 0", 2: "positive"}
    for v in g.program.step.variables:
        if v.kind == "solved":
            continue
        if v.kind == "constant":
            lines.append(f"    {v.name}: a number.")
            continue
        stepwise = v.kind in ("input", "decay")
        shape = ", ".join((["B", "T", "H"] if stepwise else ["H"]) + [d.name for d in v.dims])
        note = ""
        if v.is_decay:
            note = f" The natural logarithm of {v.name}, at most 0."
        elif not stepwise:
            note = " Constant in time."
        if v.name in g.program.signs:
            note += f" Each entry must be {signs[g.program.signs[v.name]]}."
        lines.append(f"    {v.argument}: [{shape}].{note}")
    states = ", ".join(f"{s} [{', '.join(['B', 'H', *g.dims[s]])}]" for s in g.finals)
    many = "a tuple of " if len(g.finals) > 1 else ""
    lines += [
        f"    initial_state: {many}{states}; the spec's own (zeros, where it gives none) where None.",
        "    output_final_state: also return the states after the last step.",
        "    cu_seqlens: int tensor [N + 1], for N sequences packed in [1, T, ...] (backend='torch').",
        "    backend: 'torch', 'triton', or None for the best one on the tensors' device.",
    ]
    solves = [n.name for n in g.solves]
    if solves:
        lines += [
            f"    output_residual: also return |b - H x| / |b| of each solve ({', '.join(solves)}), [B, T, H] float32.",
            "    check: a number; raise where a residual is above it. This waits for the device.",
        ]
    outs = ", ".join(f"{n} [{', '.join(['B', 'T', 'H', *g.dims[q]])}]" for n, q in g.outputs.items())
    lines += ["", "Returns:", f"    {outs} in the inputs' dtype, and the final state (float32) or None."]
    lines += [
        "",
        "Raises:",
        "    chunkform.errors.ArgumentError: an argument has a wrong shape, dtype, device or value.",
    ]
    if solves:
        lines.append("    chunkform.errors.ConditionError: a solve didn't converge, and `check` was given.")
    if c.spec.source:
        lines += ["", f"Source: {c.spec.source}"]
    return "\n    ".join(lines).replace("\n    \n", "\n\n") + "\n    "
