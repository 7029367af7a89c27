"""The compiler of programs, pass by pass: program -> graph of compiled ops -> adjoint graph. A gate follows each."""

from __future__ import annotations

from chunkform.spec.language.program import Program

from ..recurrence.compiler_fault import blaming
from .adjoint_graph import adjoint_graph
from .compiled import CompiledProgram
from .gates import gate_adjoint_graph, gate_graph
from .partition import partition


@blaming
def compile_program(p: Program) -> CompiledProgram:
    """Compile a program up to the graphs from which text is printed."""
    graph = partition(p)
    gates = [] if p.applied else [gate_graph(graph)]
    backwards = adjoint_graph(graph)
    gates.append(gate_adjoint_graph(backwards))
    return CompiledProgram(p, graph, backwards, tuple(gates))
