"""The text of an op's decoding step: a torch form, a Triton kernel, and the table by which the kernel is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....ir.expr import Node, leaves
from ....ir.launch_ir import Body, Do, Expr, Function, Set, joined, py, ref
from ....ir.words import Definitions, apart, text_of
from ....printing.code_passes import finished_function, finished_kernel
from ....printing.expressions import NodePrinter, Torch
from ....printing.kernel_text import kernel_definition
from ....printing.launch_text import launch_definition
from ...chunkwise.compiled import Compiled
from .. import starts as start_functions
from ..names import names_of, printed, sizes, tensors
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
    step: Expr

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
    step = "Step(SIGNATURE, torch_step, {}, torch_start)" if starts else "Step(SIGNATURE, torch_step, {})"
    return Decoding(apart([*first, *own], "\n"), py(step, _table(k, rows)))


def _table(k: dict[str, Any], rows: dict[str, Any] | None) -> Expr:
    """The `StepKernel` that launches the kernel."""
    wide = []
    if rows:
        slots = _literal(rows["slots"])
        wide = [py('rows=RowKernel(step_rows_kernel, "{}", "{}", {})', rows["row"], rows["column"], slots)]
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
    given = joined([*(py("{}={}", n, _literal(x)) for n, x in fields.items()), *wide])
    return py("StepKernel(step_kernel, steps_kernel, {})", given)


def _literal(x: object) -> str:
    if isinstance(x, list | tuple):
        return f"({''.join(f'{_literal(y)}, ' for y in x)})"
    return f'"{x}"' if isinstance(x, str) else repr(x)


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
        Set(("dtype",), Expr("dtype_of(given)")),
        *([Set(("like",), Expr(f"{layout.lead}.new_zeros((), dtype=dtype)"))] if "like" in asked else []),
        *(Set((f"size_{d}",), Expr(text)) for d, text in layout.dims.items() if f"size_{d}" in asked),
        *(Set((names.of("constant", v.name),), Expr(f'constants["{v.name}"]')) for v in constants),
        *(
            Set((names.of(v.kind, v.name),), Expr(f'given["{v.name}"].to(dtype){".exp()" if v.is_decay else ""}'))
            for v in given
        ),
        *(Set((names.of("state", s.name),), Expr(f'states["{s.name}"].to(dtype)')) for s in p.states),
        *made,
        *(Set((name,), results[f"next {n}"]) for n, name in following.items()),
        *(Do(py('outputs["{}"][...] = {}', n, results[f"out {n}"])) for n in p.output_axes),
        *(Do(py('following["{}"][...] = {}', n, ref(name))) for n, name in following.items()),
    )
    told = "One step in torch: from given and states, [B, H, ...], to what it puts into outputs and following."
    return Function("torch_step", "(given, states, constants, outputs, following)", told, body, frees=False)
