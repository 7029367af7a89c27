"""A program's derivation as LaTeX: its equations, the adjoint graph, and what was derived of each operation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from chunkform.spec.language import latex
from chunkform.spec.language.methods import neumann
from chunkform.spec.language.program import Program

from ..attention.derivation import sections as attention_sections
from ..ir.latex_page import Page, escaped, formulas
from ..ir.symbols import GREEK, Symbols
from ..recurrence.explain import latex_sections
from .attending import AttentionOperation
from .graph import Graph, Operation, OpNode, SolveNode
from .pipeline import CompiledProgram


def latex_document(c: CompiledProgram) -> str:
    """Macros, then the graph and its adjoint, then each operation as a recurrence of its own."""
    page = Page()
    body = [rf"\section*{{{escaped(c.name)}}}", r"\subsection*{The graph: ops in order}", *graph_lines(c, page)]
    body += [r"\subsection*{The adjoint graph}", *adjoint_lines(c, page)]
    for op in c.graph.operations:
        body += [rf"\section*{{Operation {escaped(op.name)}}}", *_sections(op, page)]
    return "\n".join([page.preamble(), *body]) + "\n"


def _sections(op: Operation | AttentionOperation, page: Page) -> list[str]:
    if not isinstance(op, AttentionOperation):
        return latex_sections(op.compiled, page)
    body = []
    for title, lines in attention_sections(op.attention, page):
        body += [
            rf"\subsection*{{{title}}}",
            *formulas(x for x in lines if "=" in x),
            *(x for x in lines if "=" not in x),
        ]
    return body


def graph_lines(c: CompiledProgram, page: Page) -> list[str]:
    """What each op makes, in order, and how what is solved for is found."""
    equations = [f"{_name(c.spec, x.name, page)} = {_term(x.term, page)}" for x in c.spec.step.updates]
    equations += [x for n in c.graph.nodes for x in node_equations(c, n, page)]
    methods = [
        f"{_name(c.spec, s.name, page, math=True)} is found by {escaped(s.method.words)}." for s in c.spec.solves
    ]
    return [*formulas(equations), *methods]


def node_equations(c: CompiledProgram, n: OpNode | SolveNode, page: Page) -> list[str]:
    """What a node of the graph makes."""
    if isinstance(n, SolveNode):
        return [_solved(c.spec, next(s for s in c.spec.solves if s.name == n.name), page)]
    return [_equation(c.graph, n, own, page) for own in n.outputs]


def adjoint_lines(c: CompiledProgram, page: Page) -> list[str]:
    """The ops of the adjoint graph as a list, and the sums."""
    return [r"\begin{itemize}", *(rf"\item {x}" for x in adjoint_sentences(c, page)), r"\end{itemize}"]


def adjoint_sentences(c: CompiledProgram, page: Page) -> list[str]:
    """A sentence for each op of the adjoint graph, and each sum."""
    items = []
    for a in c.adjoint.nodes:
        gives = _names(c.spec, dict.fromkeys(a.gives.values()), page)
        if isinstance(a.of, SolveNode):
            own = _name(c.spec, a.of.name, page, math=True)
            items.append(f"{gives} by the adjoint of the solve for {own}: {_adjoint_of_solve(c.spec, a.of, page)}")
        else:
            op, takes = escaped(a.of.op.name), _names(c.spec, a.takes.values(), page)
            items.append(f"{gives} by the adjoint of {op}, from {takes}.")
    for q, parts in c.adjoint.sums.items():
        whole = _name(c.spec, q, page, d=True, math=True)
        items.append(
            f"{whole} is the sum of what the adjoints of {escaped(', '.join(x.removeprefix('d ') for x in parts))} give."
        )
    return items


def _solved(p: Program, s: Any, page: Page) -> str:
    return f"{_name(p, s.name, page)} = ({_term(s.matrix, page)})^{{-1}} {_term(s.right, page)}"


def _equation(g: Graph, n: OpNode, own: str, page: Page) -> str:
    """What an op makes: an equation of the spec, a solve, a part of one, or another recurrence's output."""
    p, q = g.program, n.outputs[own]
    left = _name(p, q, page)
    terms = {x.name: x.term for x in (*p.step.lets, *p.step.outputs)}
    for s in p.solves:
        if s.name == q:
            return _solved(p, s, page)
        terms.setdefault(f"{s.name}_right", s.right)
        terms.setdefault(f"{s.name}_step", getattr(s, "step", None))
    if terms.get(q) is not None:
        return f"{left} = {_term(terms[q], page)}"
    given = ", ".join(_name(p, b, page) for b in n.inputs.values())
    return rf"{left} = \mathrm{{{escaped(n.op.compiled.name)}}}({given})"


def _adjoint_of_solve(p: Program, n: SolveNode, page: Page) -> str:
    """The words of `SolveNode.adjoint_words`, with mathematics."""
    x, dx, db = (_name(p, n.name, page), _name(p, n.name, page, d=True), _name(p, n.right, page, d=True))
    if not isinstance(n.method, neumann) or n.method.backward == "implicit":
        return f"$w = H^{{-1}} {dx}$, ${db} = w$, and that of $H x$ at $x = {x}$ with the cotangent $-w$."
    start = (
        rf"the iteration backwards, $d \leftarrow d - s H d$; ${db}$ is the sum of all $s d$, and that of $H x$ for "
    )
    if n.method.backward == "simplified":
        return start + f"$x = {x}$ with the cotangent $-{db}$: the last iterate in the place of every earlier one."
    return start + "each iterate $x$ with the cotangent $-s d$."


def _names(p: Program, names: Iterable[str], page: Page) -> str:
    return ", ".join(_name(p, n, page, d=True, math=True) for n in names)


def _name(p: Program, name: str, page: Page, d: bool = False, math: bool = False) -> str:
    """A quantity of the program, or its gradient; `math`: between dollar signs."""
    scalars = {v.name for v in p.step.variables if not v.dims} | {
        x.name for x in (*p.step.lets, *p.step.outputs) if not getattr(x.term, "dims", True)
    }
    timeless = {v.name for v in p.step.variables if v.kind in ("parameter", "constant", "decay parameter")}
    kind = "parameter" if name in timeless else "input"
    shown = Symbols(page, True, {}).symbol(name, kind, 0 if name in scalars else 1)
    shown = rf"\cfd {shown}" if d else shown
    return f"${shown}$" if math else shown


def _term(term: object, page: Page) -> str:
    """A term of the spec in LaTeX, with this page's letters."""
    shown = re.sub(r"\\mathbf\{([A-Za-z]\w*)\}", lambda m: page.letter(m[1], m[0], True), latex(term))
    return re.sub(rf"\\({'|'.join(sorted(GREEK))})(?![A-Za-z])", lambda m: page.letter(m[1], m[0], False), shown)
