"""The rooms of the code: how many there are, what each is for, and that imports point one way (docs/architecture.md)."""

import ast
import importlib.util
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def test_no_module_imports_one_that_imports_it():
    assert [sorted(c) for c in nx.strongly_connected_components(rooms.module_graph()) if len(c) > 1] == []


@pytest.mark.parametrize("depth", [2, 3])
def test_no_room_imports_one_that_imports_it(depth):
    assert [sorted(c) for c in nx.strongly_connected_components(rooms.room_graph(depth)) if len(c) > 1] == []


def test_a_circle_is_seen(tmp_path):
    """Lazy imports and those for types count."""
    for name, line in (("a", "def f():\n    from ..b import m\n"), ("b", "if False:\n    from ..a import m\n")):
        folder = tmp_path / "codegen" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "m.py").write_text(line)
    (tmp_path / "codegen" / "__init__.py").write_text("")
    circles = [c for c in nx.strongly_connected_components(rooms.room_graph(2, tmp_path)) if len(c) > 1]
    assert circles == [{"codegen.a", "codegen.b"}]


def test_names_with_an_underscore_stay_in_their_module():
    private = [(a, b, n) for a, b, n in rooms.imports() if n.startswith("_") and not n.startswith("__")]
    assert private == []
    assert rooms.looked_at_privately() == []


def test_a_look_at_a_name_with_an_underscore_is_seen(tmp_path):
    folder = tmp_path / "codegen"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("_on = True\n")
    (folder / "b.py").write_text("from . import a as other\n\nprint(other._on, other.__name__)\n")
    assert rooms.looked_at_privately(tmp_path) == [("codegen.b", "codegen.a", "_on")]


@pytest.mark.parametrize(("package", "most"), [("codegen", 12), ("runtime", 10)])
def test_few_entries_at_the_top(package, most):
    entries = [p.name for p in (ROOT / package).iterdir() if p.name not in ("__init__.py", "__pycache__", "py.typed")]
    assert len(entries) <= most, sorted(entries)


def test_each_room_says_what_it_is_for():
    bare = []
    for module, path in rooms.modules().items():
        if path.name == "__init__.py" and len(module.split(".")) > 1:
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            if len(text) < 40:
                bare.append(module)
    assert bare == []


def test_what_runs_ops_knows_no_compiler():
    """A training job needs neither SymPy nor Jinja."""
    assert [(a, b) for a, b, _ in rooms.imports() if a.startswith("runtime") and not b.startswith("runtime")] == []


def test_the_picture_is_fresh():
    graph = rooms.picture()
    shown = rooms.drawn((ROOT / "docs" / "rooms.svg").read_text())
    assert shown == ({room: rooms.purpose(room) for room in graph}, set(graph.edges)), "run: python docs/rooms.py"


def test_tests_lie_in_folders_like_the_rooms():
    """What tests share is in tests/shared; others go across rooms."""
    tests = ROOT / "tests"
    across = {"shared", "gpu", "docs", "generated", "random_specs", "latex", "install"}
    data = {"specs", "documents", "five"}
    strange = []
    for folder in tests.rglob("*/"):
        parts = folder.relative_to(tests).parts
        if parts[0] in across or "__pycache__" in parts or data & set(parts) or not list(folder.glob("*.py")):
            continue
        if not ROOT.joinpath(*parts).is_dir():
            strange.append("/".join(parts))
    assert strange == []
