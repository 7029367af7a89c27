"""A program's ops in formulas."""

from __future__ import annotations

import re
from typing import Any

from chunkform.spec.language import text
from chunkform.spec.language.program import Program

from .graph import Graph, Node, OpNode, SolveNode


def node_text(g: Graph, n: Node) -> str:
    """What a node computes, in one line."""
    if isinstance(n, SolveNode):
        s = next(s for s in g.program.solves if s.name == n.name)
        return f"{n.name}_t = ({stepped(g.program, s.matrix)})^-1 {stepped(g.program, s.right)}, by {n.method.words}"
    parts = [f"{q}_t = {definition(g, n, own)}" for own, q in n.outputs.items()]
    return ", ".join(parts)


def definition(g: Graph, n: OpNode, own: str) -> str:
    """The right side of what an op makes."""
    p = g.program
    q = n.outputs[own]
    for s in p.solves:
        if s.name == q:
            return f"({stepped(p, s.matrix)})^-1 {stepped(p, s.right)}, by {s.method.words}"
        if f"{s.name}_right" == q and q not in _equations(p):
            return stepped(p, s.right)
        if f"{s.name}_step" == q and q not in _equations(p):
            return stepped(p, s.step)
    if q in _equations(p):
        return stepped(p, _equations(p)[q])
    inputs = ", ".join(f"{a} = {b}_t" for a, b in n.inputs.items())
    return f"{n.op.compiled.name}({inputs}).{own}"


def _equations(p: Program) -> dict[str, Any]:
    return {x.name: x.term for x in (*p.step.lets, *p.step.outputs)}


def stepped(p: Program, term: object) -> str:
    """A term of the spec with its steps written out: S.prev is S_{t-1}, an input q is q_t."""
    shown = text(term)
    shown = re.sub(r"\b(\w+)\.prev\b", r"\1_{t-1}", shown)
    shown = re.sub(r"\b(\w+)\.next\b", r"\1_t", shown)
    stepwise = {v.name for v in p.step.variables if v.kind in ("input", "decay", "solved")} | {
        x.name for x in p.step.lets
    }
    for name in sorted(stepwise, key=len, reverse=True):
        shown = re.sub(rf"(?<![\w.])({re.escape(name)})(?![\w(])", r"\1_t", shown)
    return shown.replace(".T", "^T").replace(" * ", " ")
