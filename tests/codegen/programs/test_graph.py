"""What becomes an op of its own, what is shared, and what the gates refuse."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import sys
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import networkx as nx
import pytest
from shared.outside import names_from_outside
from shared.program_specs import (
    PROGRAMS,
    built,
    layers,
    mesa,
    shared_reads,
    two_solves_of_one_state,
    unrolled_in_the_spec,
)

from chunkform.codegen.programs import adjoint_graph as adjoints
from chunkform.codegen.programs.draw import drawing
from chunkform.codegen.programs.draw import svg as draw_svg
from chunkform.codegen.programs.emit import emit
from chunkform.codegen.programs.explain import explanation, svg
from chunkform.codegen.programs.gates import gate_adjoint_graph, gate_graph
from chunkform.codegen.programs.graph import OpNode, SolveNode
from chunkform.codegen.programs.partition import partition
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.errors import BuildError, GateError
from chunkform.spec.language import cg, neumann


def test_every_gate_holds(program):
    c, _ = program
    assert {g.name for g in c.gates} >= {"adjoint graph"}
    assert all(g.error_bound < 1e-12 for g in c.gates)


def test_reads_of_one_state_share_its_sweep():
    g = partition(shared_reads())
    assert [n.made for n in g.nodes] == [("a", "b"), ("o",)]
    (sweep,) = g.nodes[0].op.compiled.forward.sweeps
    assert len(sweep.reads) == 2


def test_equal_steps_are_one_operation():
    g = partition(unrolled_in_the_spec(6))
    assert len(g.nodes) == 5
    assert len({id(n.op) for n in g.nodes[1:]}) == 1


def test_solves_of_one_matrix_share_its_product():
    g = partition(two_solves_of_one_state())
    first, second = g.solves
    assert first.op is second.op
    assert nx.has_path(g.digraph, "x", "y")


def undefined(module):
    """The names that a generated file uses and doesn't define."""
    text = Path(module.__file__).read_text()
    return {n for n in names_from_outside(text) if not hasattr(module, n) and not hasattr(builtins, n)}


def test_every_name_in_a_generated_file_is_defined(program):
    """Also those of functions that only a GPU runs."""
    _, op = program
    assert not undefined(sys.modules[op.__module__])


@pytest.mark.parametrize("name", ["mesa", "mesa_net", "mesa_neumann", "gradient_descent_squared", "kattention"])
def test_every_name_in_a_file_of_the_catalogue_is_defined(name):
    assert not undefined(importlib.import_module(f"chunkform.generated.{name}"))


def calls(text, function, backend="torch"):
    """How often a program's forward and backward call a function."""
    start = text.index(f"def {backend}_forward(")
    middle = text.index(f"def {backend}_backward(", start)
    end = text.index("\n\n\n", middle)
    return text[start:middle].count(f" {function}("), text[middle:end].count(f" {function}(")


def test_the_states_of_equal_steps_are_swept_once():
    text = emit(compile_program(unrolled_in_the_spec(6)), tidy=False)
    assert calls(text, "torch_o3_matrix") == (1, 0) and calls(text, "through") == (4, 0)


def test_the_states_of_one_matrix_are_swept_once_in_each_pass():
    text = emit(compile_program(two_solves_of_one_state()), tidy=False)
    assert calls(text, "torch_x_system_matrix") == (1, 1)
    assert calls(text, "triton_x_system_matrix", "triton") == (1, 1)
    assert calls(text, "triton_x_system_solve", "triton") == (2, 2)


def test_maps_and_applied_recurrences_are_nodes():
    g = partition(layers())
    kinds = nx.get_node_attributes(g.digraph, "kind")
    assert sorted(k for n, k in kinds.items() if n in {x.name for x in g.nodes}) == [
        "map",
        "map",
        "recurrence",
        "recurrence",
    ]
    assert list(g.finals) == ["S_1", "S_2"]


def test_gradients_of_a_quantity_with_several_readers_are_summed():
    c, _ = built("shared reads")
    assert set(c.adjoint.sums) >= {"k", "v", "lam", "b"}
    assert nx.is_directed_acyclic_graph(c.adjoint.digraph)


def without_an_edge(node):
    gives = dict(node.gives)
    gives.popitem()
    return dataclasses.replace(node, gives=gives)


def swapped(node):
    (a, x), (b, y), *rest = node.gives.items()
    return dataclasses.replace(node, gives={a: y, b: x, **dict(rest)})


@pytest.mark.parametrize("name", ["cg", "two solves", "neumann unrolled", "layers"])
@pytest.mark.parametrize("corrupt", [without_an_edge, swapped])
def test_a_wrong_adjoint_graph_is_refused(name, corrupt):
    c, _ = built(name)
    for i, node in enumerate(c.adjoint.nodes):
        if len(node.gives) < 2:
            continue
        nodes = list(c.adjoint.nodes)
        nodes[i] = corrupt(node)
        with pytest.raises((GateError, ValueError)):
            gate_adjoint_graph(dataclasses.replace(c.adjoint, nodes=tuple(nodes)))


@pytest.mark.parametrize("name", ["cg", "neumann unrolled"])
def test_a_wrong_sign_of_a_solve_is_refused(name):
    c, _ = built(name)
    nodes = tuple(dataclasses.replace(n, sign=1) for n in c.adjoint.nodes)
    with pytest.raises(GateError, match="gradient"):
        gate_adjoint_graph(dataclasses.replace(c.adjoint, nodes=nodes))


def test_a_wrong_order_of_the_adjoint_graph_is_refused():
    c, _ = built("two solves")
    with pytest.raises(GateError):
        gate_adjoint_graph(dataclasses.replace(c.adjoint, nodes=c.adjoint.nodes[::-1]))


def test_a_wrong_graph_is_refused():
    g = partition(two_solves_of_one_state())
    nodes = tuple(
        dataclasses.replace(n, inputs={**n.inputs, "k": "q"}) if isinstance(n, OpNode) and "v" in n.inputs else n
        for n in g.nodes
    )
    with pytest.raises(GateError, match="output o"):
        gate_graph(dataclasses.replace(g, nodes=nodes))
    nodes = tuple(dataclasses.replace(n, right="k") if isinstance(n, SolveNode) else n for n in g.nodes)
    with pytest.raises(GateError):
        gate_graph(dataclasses.replace(g, nodes=nodes))


def test_the_gates_run(monkeypatch):
    monkeypatch.setattr(adjoints.AdjointNode, "sign", 1, raising=False)
    seen = []
    monkeypatch.setattr("chunkform.codegen.programs.pipeline.gate_graph", lambda g: seen.append("graph"))
    monkeypatch.setattr("chunkform.codegen.programs.pipeline.gate_adjoint_graph", lambda a: seen.append("adjoint"))
    compile_program(mesa(cg(3)))
    assert seen == ["graph", "adjoint"]


def test_compiling_twice_gives_the_same_text():
    assert emit(built("two solves")[0]) == emit(compile_program(PROGRAMS["two solves"]()))


def boxes(drawn: str) -> list[tuple[str, tuple[float, float, float, float]]]:
    """What is written where, about: (words, (left, top, right, bottom))."""
    found = []
    for x in ET.fromstring(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink">{drawn}</svg>').iter("text"):
        width = 0.5 * float(x.attrib["font-size"]) * len(x.text or "")
        left = float(x.attrib["x"]) - {"middle": width / 2, "end": width}.get(x.attrib.get("text-anchor", ""), 0)
        bottom = float(x.attrib["y"])
        found.append((x.text or "", (left, bottom - 0.7 * float(x.attrib["font-size"]), left + width, bottom)))
    return found


def test_the_drawing_has_every_node_and_no_label_covers_another(program):
    c, _ = program
    root = ET.fromstring(svg(c))
    text = "".join(root.itertext())
    for n in c.graph.nodes:
        assert any(q in text for q in n.made)
    for graph in (c.graph.digraph, c.adjoint.digraph):
        drawn = drawing(graph, title="a graph")
        labels = boxes(drawn.text)
        assert len(labels) >= len(graph)
        for (a, one), (b, two) in combinations(labels, 2):
            apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert apart, f"{a!r} and {b!r}"


def test_a_drawing_of_awkward_names():
    """Letters that XML and Graphviz have other uses for."""
    g = nx.DiGraph()
    g.add_node("a", kind="argument")
    g.add_node("b", kind="map")
    g.add_edge("a", "b", quantity="<x> & y")
    words = 'a\\n b & c < d > e "f" ' * 6
    root = ET.fromstring(draw_svg([drawing(g, {"b": words}, "λ & <title>")]))
    text = " ".join("".join(root.itertext()).split())
    assert "<x> & y" in text and "λ & <title>" in text and "\\n b & c < d" in text
    assert "max-width:100%" in root.attrib["style"]


def test_without_graphviz_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("chunkform.codegen.programs.draw.can_draw", lambda: False)
    with pytest.raises(BuildError, match="pip install pygraphviz"):
        drawing(nx.DiGraph())


def test_explanation_says_what_each_op_does():
    data = explanation(compile_program(mesa(neumann(3, backward="simplified"))))
    (node,) = data["nodes"]
    assert node["kind"] == "solve" and "3 steps of the Neumann iteration" in node["meaning"]
    assert "every earlier one" in data["adjoint_in_words"][0]
    assert data["operations"]["x_system"]["family"] == "chunk-parallel"
