"""The graph of a program: which op computes which quantities from which others.

Quantities are named: the program's arguments, its `let`s, what it solves for, its outputs. An operation is a compiled recurrence
(or a map, which is one without states); two nodes that do the same to different quantities share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

from chunkform.spec.language.methods import Method, neumann
from chunkform.spec.language.program import Program

from ..pipeline import Compiled


@dataclass(frozen=True)
class Operation:
    """A compiled op. `vector`, for the product of a solve's matrix with a vector, is that vector's name."""

    name: str
    compiled: Compiled
    vector: str | None = None

    @property
    def is_map(self) -> bool:
        return not self.compiled.step.states


@dataclass(frozen=True)
class OpNode:
    """An op: `inputs`, `states` and `outputs` map the operation's own names to those of the program.

    `inverted` are states that the op keeps the inverse of. `dims` maps the operation's dims to the program's.
    """

    name: str
    op: Operation
    inputs: dict[str, str]
    states: dict[str, str]
    outputs: dict[str, str]
    dims: dict[str, str]
    inverted: frozenset[str] = frozenset()

    @property
    def given(self) -> dict[str, str]:
        """Every quantity that the node takes, by the operation's names."""
        return self.inputs

    @property
    def made(self) -> tuple[str, ...]:
        return tuple(self.outputs.values())


@dataclass(frozen=True)
class SolveNode:
    """x = matrix^-1 right. `op` multiplies the matrix with a vector; `step` is the quantity or number that scales a step."""

    name: str
    op: Operation
    inputs: dict[str, str]
    states: dict[str, str]
    right: str
    method: Method
    dims: dict[str, str]
    step: str | float | None = None

    @property
    def given(self) -> dict[str, str]:
        extra = {"right side": self.right}
        if isinstance(self.step, str):
            extra["step"] = self.step
        return self.inputs | extra

    @property
    def made(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def unrolled(self) -> bool:
        """Is the gradient that of the iteration, not of the exact solution?"""
        return isinstance(self.method, neumann) and self.method.backward == "unrolled"

    @property
    def adjoint_words(self) -> str:
        """Its adjoint, in a line."""
        if not isinstance(self.method, neumann) or self.method.backward == "implicit":
            return (
                f"w = H^-1 d{self.name}, d{self.right} = w, and that of H x for x = {self.name} with the cotangent -w"
            )
        if self.method.backward == "simplified":
            return (
                f"the iteration backwards, d <- d - s H d; d{self.right} = the sum of all s d, and that of H x for x = "
                f"{self.name} with the cotangent -d{self.right}: the last iterate in the place of every earlier one"
            )
        return (
            f"the iteration backwards, d <- d - s H d; d{self.right} = the sum of all s d, and that of H x for each iterate x "
            "with the cotangent -s d"
        )


Node = OpNode | SolveNode


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each finds what it needs. `outputs` maps the program's outputs to quantities, `finals` each
    state to the node that yields its last value."""

    program: Program
    nodes: tuple[Node, ...]
    outputs: dict[str, str]
    finals: dict[str, str]
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each quantity, and of each state

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """Nodes and the arguments and outputs of the program, joined by quantities."""
        g = nx.DiGraph()
        maker = {q: n.name for n in self.nodes for q in n.made}
        for v in self.arguments:
            g.add_node(v, kind="argument")
        for n in self.nodes:
            g.add_node(n.name, kind="solve" if isinstance(n, SolveNode) else "map" if n.op.is_map else "recurrence")
        for n in self.nodes:
            for q in n.given.values():
                g.add_edge(maker.get(q, q), n.name, quantity=q)
        for name, q in self.outputs.items():
            g.add_node(f"output {name}", kind="output")
            g.add_edge(maker.get(q, q), f"output {name}", quantity=q)
        return g

    @property
    def arguments(self) -> list[str]:
        return [v.name for v in self.program.step.variables if v.kind != "solved"]

    @property
    def operations(self) -> list[Operation]:
        """Each operation once, in the order of its first node."""
        return list({id(n.op): n.op for n in self.nodes}.values())

    @property
    def solves(self) -> Iterator[SolveNode]:
        return (n for n in self.nodes if isinstance(n, SolveNode))

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)
