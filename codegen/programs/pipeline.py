"""The compiler of programs, pass by pass: program -> graph of compiled ops -> adjoint graph. A gate follows each."""

from __future__ import annotations

from chunkform.spec.language.attention import Attention
from chunkform.spec.language.program import Program

from ..printing.passes import Pass, run_passes
from ..recurrence.compiler_fault import blaming
from .adjoint_graph import AdjointGraph, adjoint_graph
from .compiled import CompiledProgram
from .gates import gate_adjoint_graph, gate_graph
from .graph import Graph
from .partition import partition


def _only_attends(p: Program) -> bool:
    """Is all that it applies an attention? (Recurrences have gates of their own.)"""
    return all(isinstance(a.op, Attention) for a in p.applied)


class Known:
    """What is known of a program: each pass adds what it makes."""

    graph: Graph
    adjoint: AdjointGraph

    def __init__(self, spec: Program) -> None:
        self.spec = spec


def _partition(k: Known) -> None:
    k.graph = partition(k.spec)


def _adjoint(k: Known) -> None:
    k.adjoint = adjoint_graph(k.graph)


PASSES: tuple[Pass[Known], ...] = (
    Pass(
        "partition",
        "the program's equations as a graph of ops, each compiled",
        "graph",
        _partition,
        lambda k: (gate_graph(k.graph),) if _only_attends(k.spec) else (),
    ),
    Pass(
        "adjoint_graph",
        "the adjoint of each op, in reverse order",
        "adjoint",
        _adjoint,
        lambda k: (gate_adjoint_graph(k.adjoint),),
    ),
)


@blaming
def compile_program(p: Program) -> CompiledProgram:
    """Compile a program up to the graphs from which text is printed."""
    k = Known(p)
    done = run_passes(PASSES, k, p.name)
    return CompiledProgram(p, k.graph, k.adjoint, done.gates)
