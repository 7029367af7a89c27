"""A program with all names in letters of their own, for those who print code (see `codegen/ir/letters.py`)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from ..ir.letters import Alphabet, step_names
from ..recurrence.pipeline import in_letters
from .adjoint_graph import adjoint_graph
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
        found += [op.name, *step_names(op.compiled.step), *([] if op.vector is None else [op.vector])]
    for n in g.nodes:
        found += [n.name, *n.inputs.values(), *n.states.values(), *n.made, *n.dims, *n.dims.values()]
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
    operations = {
        id(op): Operation(
            write[op.name], in_letters(op.compiled, alphabet), None if op.vector is None else write[op.vector]
        )
        for op in g.operations
    }

    def node(n: Node) -> Node:
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
