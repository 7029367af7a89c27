"""The graph of a program: which op computes which quantities from which others.

Quantities are named: the program's arguments, its `let`s, what it solves for, its outputs. An operation is a compiled recurrence
(or a map, which is one without states); two nodes that do the same to different quantities share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx

from chunkform.spec.language.methods import Method, cg, neumann
from chunkform.spec.language.program import Program

from ..ir.expr import walk
from ..recurrence.chunkwise.compiled import Compiled
from .attending import AttentionOperation


@dataclass(frozen=True)
class Operation:
    """A compiled op. `vector`, for the product of a solve's matrix with a vector, is that vector's name."""

    name: str
    compiled: Compiled
    vector: str | None = None

    @property
    def is_map(self) -> bool:
        return not self.compiled.step.states

    @property
    def product(self) -> str:
        """What it calls its only output: of a solve's, the product."""
        (name,) = self.compiled.step.outputs
        return name


@dataclass(frozen=True)
class OpNode:
    """An op: `inputs`, `states` and `outputs` map the operation's own names to those of the program.

    `inverted` are states that the op keeps the inverse of. `dims` maps the operation's dims to the program's.
    """

    name: str
    op: Operation | AttentionOperation
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

    @property
    def kind(self) -> str:
        return kind_of(self.op)


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
    def kind(self) -> str:
        return "solve"

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


def kind_of(op: Operation | AttentionOperation) -> str:
    """attention | map | recurrence."""
    return "attention" if isinstance(op, AttentionOperation) else "map" if op.is_map else "recurrence"


def free_vectors(op: Operation | AttentionOperation) -> list[str]:
    """Vectors given at each step that only reads of the states take."""
    form = op.compiled.form
    if form is None or form.write_leaves() or not op.compiled.step.states:
        return []
    fed: set[str] = set()
    for group in form.groups:
        for s in group:
            nodes = [x for w in s.writes for x in (w.left, w.value)] + [c for _, c in s.coupling]
            nodes += [] if s.decay is None else [s.decay]
            fed |= {y.attrs[1] for y in walk(*nodes) if y.op == "leaf"}
    return [v.name for v in op.compiled.step.variables if v.kind == "input" and len(v.axes) == 1 and v.name not in fed]


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
            g.add_node(n.name, kind=n.kind)
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
    def operations(self) -> list[Operation | AttentionOperation]:
        """Each operation once, in the order of its first node."""
        return list({id(n.op): n.op for n in self.nodes}.values())

    @property
    def solves(self) -> Iterator[SolveNode]:
        return (n for n in self.nodes if isinstance(n, SolveNode))

    @cached_property
    def repeated(self) -> dict[str, Operation]:
        """Nodes that do the same as another with all but one of its inputs, a vector that feeds no state: each with the operation
        as a product with that vector. Their states are swept once."""
        groups: dict[tuple[Any, ...], list[OpNode]] = {}
        for n in self.nodes:
            if not isinstance(n, OpNode) or n.inverted or len(n.outputs) != 1 or not isinstance(n.op, Operation):
                continue
            for vector in free_vectors(n.op):
                rest = tuple((a, q) for a, q in n.inputs.items() if a != vector)
                groups.setdefault((id(n.op), vector, rest, tuple(n.states.items())), []).append(n)
        out: dict[str, Operation] = {}
        for key, group in groups.items():
            for n in group if len(group) > 1 else ():
                assert isinstance(n.op, Operation)
                out.setdefault(n.name, Operation(n.op.name, n.op.compiled, key[1]))
        return out

    @cached_property
    def fine(self) -> frozenset[str]:
        """What solves find and ops over chunks read: kernels hand it on in float32, for a product with a state may make more of
        its rounding than is left of the rest."""
        read = {
            n.name: [m for m in self.nodes if n.name in m.given.values()]
            for n in self.solves
            if isinstance(n.method, cg)
        }
        return frozenset(q for q, readers in read.items() if readers and all(map(self._in_kernels, readers)))

    def _in_kernels(self, n: Node) -> bool:
        return (
            isinstance(n, OpNode)
            and not n.op.is_map
            and n.name not in self.repeated
            and n.op.compiled.forward is not None
        )

    @property
    def attends(self) -> list[str]:
        """The attentions in it, by name: what they see of a sequence is no state of a fixed size."""
        return [op.compiled.name for op in self.operations if isinstance(op, AttentionOperation)]

    @cached_property
    def wide(self) -> frozenset[str]:
        """Nodes that make numbers a step which an attention's energies are made of, such as a sum of log gates: in float32 at
        least, for a rounding of a large sum would be one of the difference of two."""
        found: set[str] = set()
        read = {
            n.inputs[a]
            for n in self.nodes
            if isinstance(n.op, AttentionOperation)
            for a in n.op.scalars
            if a in n.inputs
        }
        for n in reversed(self.nodes):
            if isinstance(n, OpNode) and read & set(n.made) and not any(self.dims[q] for q in n.made):
                found.add(n.name)
                read |= {q for q in n.inputs.values() if q not in self.arguments and not self.dims[q]}
        return frozenset(found)

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)
