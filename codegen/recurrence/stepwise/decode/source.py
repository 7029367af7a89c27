"""The text of an op's decoding step: a torch form, a Triton kernel, and the table by which the kernel is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....ir.expr import Node, leaves
from ....ir.launch_ir import Body, Code, Function, Set, put, ref, takes
from ....ir.python_code import Fixed, Named, literal, made_by, method, said, several
from ....ir.words import Definitions, apart, text_of
from ....printing.code_passes import finished_function, finished_kernel
from ....printing.expressions import NodePrinter, Torch
from ....printing.kernel_text import kernel_definition
from ....printing.launch_text import launch_definition
from ...chunkwise.compiled import Compiled
from .. import starts as start_functions
from ..names import computed, names_of, printed, sizes, tensors
from .kernel import step_kernel, step_rows
from .kernel_gate import gate_step, gate_steps
from .several import several_steps

MODULES = {  # the runtime modules whose names the text may use
    "chunkform.runtime.chunk_kernels.prefetch": "prefetch row_to_prefetch",
    "chunkform.runtime.chunk_kernels.small_numbers": "drawn_before store_small",
    "chunkform.runtime.chunk_kernels.split_precision": "rounded_to",
    "chunkform.runtime.op.decode": "RowKernel Step StepKernel",
    "chunkform.runtime.torch_form.recurrent": "computed_in",
    "chunkform.runtime.torch_form.chunks": "dtype_of",
}


@dataclass(frozen=True)
class Decoding:
    """`parts` are what `step`, an expression for the op's `Step`, is made of."""

    parts: Definitions
    step: Code

    @property
    def text(self) -> str:
        return text_of(self.parts)


def decoding(c: Compiled, has_start: bool) -> Decoding:
    """The step's text. `has_start` says that `torch_start` stands in the file already. Raises `GateError` where a kernel doesn't
    make steps."""
    starts = any(s.initial is not None for s in c.step.states)
    k = step_kernel(c)
    rows = None if k["tiled"] else step_rows(c)
    several = several_steps(c)
    kernels = [finished_kernel(x["function"]) for x in (k, rows, several) if x]
    for x, f in zip((x for x in (k, rows) if x), kernels, strict=False):
        gate_step(c, x["kernel"], f, x.get("slots", 0))
    gate_steps(c, several["kernel"], kernels[-1])
    own = [launch_definition(finished_function(torch_step(c))), *map(kernel_definition, kernels)]
    first = start_functions(c, gradients=False) if starts and not has_start else ()
    step = made_by("Step", "SIGNATURE", "torch_step", _table(k, rows), *(["torch_start"] if starts else []))
    return Decoding(apart([*first, *own], "\n"), step)


def _table(k: dict[str, Any], rows: dict[str, Any] | None) -> Code:
    """The `StepKernel` that launches the kernel."""
    wide = []
    if rows:
        slots = rows["slots"]
        wide = [Named("rows", made_by("RowKernel", "step_rows_kernel", said(rows["row"]), said(rows["column"]), slots))]
    fields = {
        "reads": k["reads"],
        "constants": [key for _, key in k["constants"]],
        "dims": k["dims"],
        "tiled": k["tiled"],
        "shared": k["shared"],
        "held": k["held"],
        "smallest": k["smallest"],
        "scaled": k["scaled"],
    }
    given = [*(Named(n, literal(x)) for n, x in fields.items()), *wide]
    return made_by("StepKernel", "step_kernel", "steps_kernel", *given)


def torch_step(c: Compiled) -> Function:
    """The step in torch: what it reads, its statements, and its results, which it puts where it is told."""
    p = c.step
    layout = sizes(p)
    names = names_of(p, {f"size_{d}" for d in layout.dims} | {"following"})
    nodes: dict[str, Node] = {f"next {n}": x for n, x in p.updates.items()}
    nodes |= {f"out {n}": x for n, x in p.outputs.items()}
    orders = {f"next {s.name}": s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
    made, results = printed(printer, nodes, names, orders, p.names)
    asked = frozenset[str]().union(*(x.value.names for x in made), *(x.names for x in results.values()))
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    following = {s.name: names.fresh(f"next_{s.name}") for s in p.states}
    constants = [v for v in p.variables if v.kind == "constant" and ("constant", v.name) in read]
    given = [v for v in tensors(p) if (v.kind, v.name) in read]
    body: Body = (
        Set(("dtype",), made_by("dtype_of", "given")),
        *([Set(("like",), method(layout.lead, "new_zeros", several(), dtype="dtype"))] if "like" in asked else []),
        *(Set((f"size_{d}",), size) for d, size in layout.dims.items() if f"size_{d}" in asked),
        *(Set((names.of("constant", v.name),), Fixed("constants")[v.name]) for v in constants),
        *(Set((names.of(v.kind, v.name),), computed(v)) for v in given),
        *(Set((names.of("state", s.name),), method(Fixed("states")[s.name], "to", "dtype")) for s in p.states),
        *made,
        *(Set((name,), results[f"next {n}"]) for n, name in following.items()),
        *(put(Fixed("outputs")[n][...], results[f"out {n}"]) for n in p.output_axes),
        *(put(Fixed("following")[n][...], ref(name)) for n, name in following.items()),
    )
    told = "One step in torch: from given and states, [B, H, ...], to what it puts into outputs and following."
    return Function(
        "torch_step", takes("given", "states", "constants", "outputs", "following"), told, body, frees=False
    )
