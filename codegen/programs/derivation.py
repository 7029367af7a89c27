"""What a program computes, and its adjoint, in formulas: the comments of the generated file, and `chunkform explain`."""

from __future__ import annotations

from ..attention.derivation import derivation_lines as attention_lines
from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.notation.derivation import derivation_lines as lines_of
from .attending import Attended
from .compiled import CompiledProgram
from .graph import SolveNode
from .sentences import node_text


def derivation_lines(c: CompiledProgram) -> list[str]:
    """The graph, its adjoint, and the derivation of each operation."""
    out = ["The graph: ops in order"]
    for i, n in enumerate(c.graph.nodes):
        out.append(f"    {i + 1}. {node_text(c.graph, n)}")
    out += ["", "The adjoint graph", *(f"    {x}" for x in adjoint_lines(c))]
    for op in c.graph.operations:
        out += ["", f"Operation {op.name}", *(f"    {x}" if x else "" for x in _lines(op.compiled))]
    return out


def _lines(c: Compiled | Attended) -> list[str]:
    return attention_lines(c.attention) if isinstance(c, Attended) else lines_of(c)


def adjoint_lines(c: CompiledProgram) -> list[str]:
    """One line for each op of the adjoint graph, and each sum."""
    out = []
    sums = c.adjoint.sums
    for i, a in enumerate(c.adjoint.nodes):
        n = a.of
        gives = ", ".join(f"d{q}" for q in dict.fromkeys(a.gives.values()))
        if isinstance(n, SolveNode):
            out.append(f"{i + 1}. {gives} by the adjoint of the solve {n.name}: {n.adjoint_words}")
        else:
            out.append(
                f"{i + 1}. {gives} by the adjoint of {n.op.name}, from {', '.join(f'd{q}' for q in a.takes.values())}"
            )
    for q, parts in sums.items():
        out.append(f"d{q} is the sum of what the adjoints of {', '.join(x.removeprefix('d ') for x in parts)} give")
    return out
