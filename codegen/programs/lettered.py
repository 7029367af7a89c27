"""A program with all names in letters of their own, for those who print code (see `codegen/ir/letters.py`)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from ..ir.letters import Alphabet, step_names
from ..recurrence.pipeline import in_letters
from .adjoint_graph import adjoint_graph
from .attending import AttentionOperation
from .compiled import CompiledProgram
from .graph import Graph, Node, Operation, OpNode
from .sentences import node_text


def program_in_letters(c: CompiledProgram) -> tuple[CompiledProgram, Alphabet, dict[str, str]]:
    """The program, the alphabet, and what each node computes, in the spec's own names."""
    alphabet = Alphabet.of(_names(c.graph))
    graph = _lettered(c.graph, alphabet)
    words = {alphabet.letters[n.name]: node_text(c.graph, n) for n in c.graph.nodes}
    return dataclasses.replace(c, spec=graph.program, graph=graph, adjoint=adjoint_graph(graph)), alphabet, words


def _names(g: Graph) -> list[str]:
    found = [g.program.name, *(d for dims in g.dims.values() for d in dims), *g.dims, *g.outputs, *g.outputs.values()]
    found += [*g.finals, *g.finals.values(), *(v.name for v in g.program.step.variables)]
    for op in g.operations:
        own = [] if isinstance(op, AttentionOperation) else step_names(op.compiled.step)
        found += [op.name, *own, *([] if op.vector is None else [op.vector])]
    for n in g.nodes:
        axes = () if isinstance(n.op, AttentionOperation) else n.dims
        found += [n.name, *n.inputs.values(), *n.states.values(), *n.made, *axes, *n.dims.values()]
        if not isinstance(n, OpNode):
            found += [n.right, *([n.step] if isinstance(n.step, str) else [])]
    return found


def _lettered(g: Graph, alphabet: Alphabet) -> Graph:
    write = alphabet.letters

    def pairs(names: dict[str, str]) -> dict[str, str]:
        return {write[a]: write[b] for a, b in names.items()}

    program = copy.copy(g.program)
    program.name = write[program.name]
    program.step = copy.copy(program.step)
    program.step.variables = [dataclasses.replace(v, name=write[v.name]) for v in program.step.variables]

    def operation(op: Operation | AttentionOperation) -> Operation | AttentionOperation:
        if isinstance(op, AttentionOperation):  # whose own names stand in a text of its own
            return dataclasses.replace(op, name=write[op.name])
        vector = None if op.vector is None else write[op.vector]
        return Operation(write[op.name], in_letters(op.compiled, alphabet), vector)

    operations = {id(op): operation(op) for op in g.operations}

    def node(n: Node) -> Node:
        if isinstance(n, OpNode) and isinstance(n.op, AttentionOperation):
            inputs, outputs, dims = ({a: write[b] for a, b in x.items()} for x in (n.inputs, n.outputs, n.dims))
            return OpNode(write[n.name], operations[id(n.op)], inputs, {}, outputs, dims)
        same: dict[str, Any] = {
            "name": write[n.name],
            "op": operations[id(n.op)],
            "inputs": pairs(n.inputs),
            "states": pairs(n.states),
            "dims": pairs(n.dims),
        }
        if isinstance(n, OpNode):
            inverted = frozenset(write[x] for x in n.inverted)
            return dataclasses.replace(n, **same, outputs=pairs(n.outputs), inverted=inverted)
        step = write[n.step] if isinstance(n.step, str) else n.step
        return dataclasses.replace(n, **same, right=write[n.right], step=step)

    return Graph(
        program,
        tuple(map(node, g.nodes)),
        pairs(g.outputs),
        pairs(g.finals),
        {write[q]: tuple(write[d] for d in dims) for q, dims in g.dims.items()},
    )
