"""Pass 2 of a program, adjoint graph: each op's proved adjoint, in reverse order, and sums where a quantity has several readers.

an op        dx = (adjoint of the op)(dy)
a solve      w = H^-1 dx, which is what the right side gets; the matrix gets -w x^T, by the adjoint of its product with a
             vector: that of y = H p for the vector p = x and the cotangent dy = -w
iterated     of x_i = x_{i-1} + s (b - H x_{i-1}):  db += s dx_i,  ds += <dx_i, b - H x_{i-1}>,  the matrix gets
             -s dx_i x_{i-1}^T, and dx_{i-1} = dx_i - s H dx_i
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from .graph import Graph, Node, OpNode, SolveNode


@dataclass(frozen=True)
class AdjointNode:
    """The adjoint of a node: `takes` maps its outputs to the quantities whose gradients come in, `gives` its inputs to those
    whose gradients it yields. `sign` is that of the cotangent that the matrix of a solve gets."""

    of: Node
    takes: dict[str, str]
    gives: dict[str, str]
    sign: int = -1

    @property
    def name(self) -> str:
        return f"d {self.of.name}"


@dataclass(frozen=True)
class AdjointGraph:
    """The nodes in an order in which each finds the whole gradient of what its op made."""

    forward: Graph
    nodes: tuple[AdjointNode, ...]

    @cached_property
    def sums(self) -> dict[str, list[str]]:
        """For each quantity whose gradient has several parts, where they come from."""
        parts: dict[str, list[str]] = {}
        for output, q in self.forward.outputs.items():
            parts.setdefault(q, []).append(f"d{output}")
        for n in self.nodes:
            for q in n.gives.values():
                parts.setdefault(q, []).append(n.name)
        return {q: x for q, x in parts.items() if len(x) > 1}

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The adjoint nodes, the incoming gradients and the program's own, joined by the quantities whose gradients they are."""
        g = nx.DiGraph()
        source: dict[str, list[str]] = {}
        for output, q in self.forward.outputs.items():
            g.add_node(f"d{output}", kind="argument")
            source.setdefault(q, []).append(f"d{output}")
        for n in self.nodes:
            g.add_node(n.name, kind=n.of.kind)
            for q in n.takes.values():
                for x in self._joined(g, q, source.get(q, [])):
                    g.add_edge(x, n.name, quantity=f"d{q}")
            for q in dict.fromkeys(n.gives.values()):
                source.setdefault(q, []).append(n.name)
        for v in self.forward.program.step.variables:
            if v.kind in ("solved", "constant") or v.name not in source:
                continue
            name = f"gradient d{v.argument}"
            g.add_node(name, kind="output")
            for x in self._joined(g, v.name, source[v.name]):
                g.add_edge(x, name, quantity=f"d{v.name}")
        return g

    @staticmethod
    def _joined(g: nx.DiGraph, q: str, parts: list[str]) -> list[str]:
        """Where the gradient of a quantity comes from: a sum's node, where there are several parts."""
        if len(parts) < 2:
            return parts
        name = f"sum d{q}"
        g.add_node(name, kind="sum")
        g.add_edges_from((x, name, {"quantity": f"d{q}"}) for x in parts)
        return [name]


def adjoint_graph(g: Graph) -> AdjointGraph:
    """The adjoint of a graph."""
    nodes = []
    for n in reversed(g.nodes):
        takes = dict(n.outputs) if isinstance(n, OpNode) else {"x": n.name}
        constants = {v.name for v in n.op.compiled.step.variables if v.kind == "constant"}
        gives = {own: q for own, q in n.given.items() if own not in constants}
        if isinstance(n, SolveNode) and "step" in gives and not n.unrolled:
            del gives["step"]  # the exact solution doesn't depend on how it was found
        nodes.append(AdjointNode(n, takes, gives))
    return AdjointGraph(g, tuple(nodes))
