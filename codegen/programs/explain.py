"""`chunkform explain` for programs: the graph, its adjoint, and the derivation of each op."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..attention.explain import derivation as attention_derivation
from ..ir.latex_page import Page, unescaped
from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.explain import reason_text, section_text
from ..recurrence.notation.derivation import derivation as derivation_of
from ..recurrence.notation.formulas import Section, fixed
from .attending import AttentionOperation
from .compiled import CompiledProgram
from .derivation import adjoint_lines
from .draw import can_draw, drawing
from .draw import svg as joined
from .graph import Operation, SolveNode
from .latex import adjoint_sentences, node_equations
from .op_sources import kernel_ways
from .sentences import node_text


def explanation(c: CompiledProgram, width: int = 64, chunk: int = 64) -> dict[str, Any]:
    """Everything as plain data; `operations` have the fields of a recurrence's explanation."""
    from ..attention.explain import explanation as of_attention
    from ..recurrence.explain import explanation as of_recurrence

    g = c.graph
    reasons = kernel_ways(g).reasons
    return {
        "name": c.name,
        "doc": next(iter((c.spec.doc or "").strip().splitlines()), ""),
        "source": c.spec.source,
        "family": c.family,
        "arguments": [
            {"name": v.name, "kind": v.kind, "dims": [d.name for d in v.dims], "default": v.default}
            for v in c.spec.step.variables
            if v.kind != "solved"
        ],
        "outputs": [{"name": n, "dims": list(g.dims[q])} for n, q in g.outputs.items()],
        "states": [{"name": s, "dims": list(g.dims[s])} for s in g.finals],
        "nodes": [
            {
                "name": n.name,
                "kind": n.kind,
                "operation": n.op.name,
                "inputs": dict(n.given),
                "states": dict(n.states),
                "makes": list(n.made),
                "meaning": node_text(g, n),
                "method": n.method.words if isinstance(n, SolveNode) else None,
            }
            for n in g.nodes
        ],
        "adjoint": [
            {"of": a.of.name, "takes": list(a.takes.values()), "gives": list(dict.fromkeys(a.gives.values()))}
            for a in c.adjoint.nodes
        ],
        "sums": c.adjoint.sums,
        "adjoint_in_words": adjoint_lines(c),
        "gates": [{"name": x.name, "what": x.what, "points": x.points, "error_bound": x.error_bound} for x in c.gates],
        "kernels": {op.name: reasons.get(op.name) for op in g.operations},
        "operations": {
            op.name: of_attention(op.attention)
            if isinstance(op, AttentionOperation)
            else of_recurrence(op.compiled, width, chunk)
            for op in g.operations
            if not op.is_map
        },
        "svg": svg(c) if can_draw() else None,
    }


def derivation(c: CompiledProgram) -> tuple[Section, ...]:
    """The graph, its adjoint, and what was derived of each operation; formulas as text and as LaTeX."""
    page = Page()
    graph = []
    for n in c.graph.nodes:
        method = rf"\text{{, by {n.method.words}}}" if isinstance(n, SolveNode) else ""
        typeset = r",\quad ".join(node_equations(c, n, page)) + method
        graph.append(fixed(node_text(c.graph, n), page.spelled(typeset)))
    sentences = (unescaped(page.spelled(x)) for x in adjoint_sentences(c, page))
    adjoint = [fixed(x, y, text=True) for x, y in zip(adjoint_lines(c), sentences, strict=True)]
    found = [Section("The graph", tuple(graph)), Section("The adjoint graph", tuple(adjoint))]
    for op in c.graph.operations:
        if not op.is_map:
            found += [Section(f"{op.name}: {s.title}", s.formulas) for s in _sections(op)]
    return tuple(found)


def show(c: CompiledProgram, console: Console, width: int = 64, chunk: int = 64) -> None:
    """Print an explanation."""
    console.print(Text.assemble((c.name, "bold"), "  ", (c.family, "green")))
    if c.spec.doc:
        console.print(Text(c.spec.doc.strip().splitlines()[0], style="italic"))
    console.print()
    console.print(Text("The graph", style="bold"))
    table = _table("op", "makes", "from", "states", "operation")
    for n in c.graph.nodes:
        table.add_row(
            n.kind, node_text(c.graph, n), ", ".join(n.given.values()), ", ".join(n.states.values()), n.op.name
        )
    console.print(table)
    console.print()
    console.print(Text("The adjoint graph", style="bold"))
    for line in adjoint_lines(c):
        console.print(Text(f"    {line}", style="cyan"))
    for op in c.graph.operations:
        console.print()
        console.print(Text.assemble(("Operation ", "bold"), (op.name, "bold"), "  ", op.compiled.family))
        if isinstance(op.compiled, Compiled) and op.compiled.reason:
            console.print(reason_text(op.compiled))
        for section in _sections(op):
            console.print(section_text(section, console.width))
    reasons = kernel_ways(c.graph).reasons
    if reasons:
        console.print()
        for name, why in reasons.items():
            console.print(Text(f"{name}: {why}", style="dim"))
    gates = _table("after", "what was found equal", "points", "chance of an error")
    for x in c.gates:
        gates.add_row(x.name, x.what, str(x.points), f"{x.error_bound:.0e}")
    console.print()
    console.print(Text("Gates that it passed, beside those of each operation", style="bold"))
    console.print(gates)


def _sections(op: Operation | AttentionOperation) -> tuple[Section, ...]:
    return attention_derivation(op.attention) if isinstance(op, AttentionOperation) else derivation_of(op.compiled)


def svg(c: CompiledProgram) -> str:
    """The graph and its adjoint graph, one above the other."""
    labels = {n.name: node_text(c.graph, n) for n in c.graph.nodes}
    labels |= {a.name: f"adjoint of {a.of.name}" for a in c.adjoint.nodes}
    return joined(
        [
            drawing(c.graph.digraph, labels, f"{c.name}: the graph of ops"),
            drawing(c.adjoint.digraph, labels, f"{c.name}: its adjoint graph"),
        ]
    )


def _table(*columns: str) -> Table:
    table = Table(header_style="dim", box=None, padding=(0, 3, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
