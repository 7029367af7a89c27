"""The rooms of the code: how many there are, what each is for, and that imports point one way (docs/architecture.md)."""

import ast
import importlib.util
import re
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def test_no_module_imports_one_that_imports_it():
    assert rooms.circles(rooms.module_graph()) == []


@pytest.mark.parametrize("depth", rooms.depths())
def test_no_room_imports_one_that_imports_it(depth):
    assert rooms.circles(rooms.room_graph(depth)) == []


@pytest.mark.parametrize("above", ["codegen", "codegen/x", "codegen/x/y", "codegen/x/y/z"])
def test_a_circle_is_seen(tmp_path, above):
    """At any depth. Lazy imports and those for types count."""
    for name, line in (("a", "def f():\n    from ..b import m\n"), ("b", "if False:\n    from ..a import m\n")):
        folder = tmp_path / above / name
        folder.mkdir(parents=True)
        (folder / "m.py").write_text(line)
        for x in (folder, *folder.relative_to(tmp_path).parents[:-1]):
            (tmp_path / x / "__init__.py").write_text("")
    within = above.replace("/", ".")
    found = {depth: rooms.circles(rooms.room_graph(depth, tmp_path)) for depth in rooms.depths(tmp_path)}
    deepest = within.count(".") + 2
    assert found == {depth: [[f"{within}.a", f"{within}.b"]] if depth == deepest else [] for depth in found}
    assert deepest in found


def test_a_module_that_is_named_in_a_string_is_seen(tmp_path):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "codegen").mkdir()
    (tmp_path / "chunkform").mkdir()
    for name in ("runtime/__init__.py", "codegen/__init__.py", "codegen/api.py", "chunkform/__init__.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "runtime" / "a.py").write_text(
        'import_module("chunkform.codegen.api")\nimport_module(f"chunkform.codegen.{n}")\n'
    )
    (tmp_path / "runtime" / "b.py").write_text(
        "def f():\n    from chunkform import compile\n    import chunkform.codegen.api\n"
    )
    found = {(a, b) for a, b, _ in rooms.imports(tmp_path)}
    assert found == {
        ("runtime.a", "codegen.api"),
        ("runtime.a", "codegen"),
        ("runtime.b", "chunkform"),
        ("runtime.b", "codegen.api"),
    }


def test_what_all_may_import_imports_nothing_else():
    """The compiler answers through `chunkform/provided.py`, where the package puts it."""
    public = {f"chunkform.{n}" for n in rooms.PUBLIC} | {"chunkform"}
    lowest = {m for m in rooms.modules() if m.startswith("chunkform.")} - public
    assert "chunkform.errors" in lowest
    assert [(a, b) for a, b, _ in rooms.imports() if a in lowest and b not in lowest] == []
    assert [(a, b) for a, b, _ in rooms.imports() if b in public and a not in public] == []


def test_names_with_an_underscore_stay_in_their_module():
    private = [(a, b, n) for a, b, n in rooms.imports() if n.startswith("_") and not n.startswith("__")]
    assert private == []
    assert rooms.looked_at_privately() == []
    assert rooms.known_outside() == [], "make it public where it is an interface, or test through a public function"


def test_a_look_at_a_name_with_an_underscore_is_seen(tmp_path):
    folder = tmp_path / "codegen"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("_on = True\n")
    (folder / "b.py").write_text("from . import a as other\n\nprint(other._on, other.__name__)\n")
    assert rooms.looked_at_privately(tmp_path) == [("codegen.b", "codegen.a", "_on")]


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("from chunkform.codegen.a import _on", ["_on"]),
        ("from .other import _mine", ["_mine"]),
        ("from shared.other import _mine", ["_mine"]),
        ("print(a._on)", ["_on"]),
        ("print(made(3)._kept)", ["_kept"]),
        ('patch.setattr(a, "_on", False)', ["_on"]),
        ('print(getattr(found[0], "_kept"))', ["_kept"]),
        ("from mpmath import _mpf", []),
        ("print(os._exit, x._fields, x._repr_html_)", []),
        ('print("a".replace("b", "_on"))', []),
        ("class A:\n    def f(self):\n        self._on = 1", []),
    ],
)
def test_a_name_with_an_underscore_that_a_test_looks_up_is_seen(tmp_path, line, seen):
    for folder in ("codegen", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "codegen" / "a.py").write_text(
        "_on = True\n\n\nclass A:\n    def f(self):\n        self._kept = 1\n\n    def _repr_html_(self):\n        return ''\n"
    )
    (tmp_path / "tests" / "test_a.py").write_text(line + "\n")
    assert [x.rpartition(" ")[2] for x in rooms.known_outside(tmp_path)] == seen


@pytest.mark.parametrize(("package", "most"), [("codegen", 12), ("runtime", 10)])
def test_few_entries_at_the_top(package, most):
    entries = [p.name for p in (ROOT / package).iterdir() if p.name not in ("__init__.py", "__pycache__", "py.typed")]
    assert len(entries) <= most, sorted(entries)


def test_each_room_says_what_it_is_for():
    """In two lines: what is in it, and where its neighbours have the rest."""
    bare = []
    for module, path in rooms.modules().items():
        if path.name == "__init__.py" and module != "chunkform":
            lines = [x for x in (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines() if x.strip()]
            if len(lines) < 2 or len(lines[0]) < 40:
                bare.append(module)
    assert bare == []


def test_what_runs_ops_knows_no_compiler():
    """A training job needs neither SymPy nor Jinja."""
    above = ("codegen", "spec", "integrations")
    assert [(a, b) for a, b, _ in rooms.imports() if a.startswith("runtime") and b.split(".")[0] in above] == []


def test_costs_lie_below_the_passes_that_may_choose_by_them():
    """They count on a plan, whatever makes kernels or torch text of it; predictions lie above all passes."""
    graph, cost = rooms.module_graph(), "codegen.recurrence.chunkwise.cost"
    printers = tuple(f"codegen.recurrence.{x}" for x in ("triton", "torch_form", "stepwise")) + ("codegen.printing",)
    assert [m for m in nx.descendants(graph, cost) if m.startswith(printers)] == []
    passes = [m for m in graph if m.startswith("codegen.recurrence.triton.plan_passes.")]
    assert passes and not nx.descendants(graph, cost) & {*passes}
    above = ("codegen.recurrence.predict", "codegen.recurrence.compiled_cost", "codegen.performance")
    asked = {m for x in passes for m in nx.descendants(graph, x)}
    assert [m for m in asked if m.startswith(above)] == []


def test_the_picture_is_fresh():
    graph = rooms.picture()
    shown = rooms.drawn((ROOT / "docs" / "rooms.svg").read_text())
    assert shown == ({room: rooms.purpose(room) for room in graph}, set(graph.edges)), "run: python docs/rooms.py"


def test_where_to_change_things_names_what_is_there():
    """Each file of the page is there, and each name that it says is in one."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Where do I change ..")[2]
    paths = set(re.findall(r"`(\w+/[\w/]+\.\w+)`", page))
    assert len(paths) > 50 and sorted(x for x in paths if not (ROOT / x).is_file()) == []
    said = re.findall(r"((?:`\w+`(?:, | and )?)+) in `(\w+/[\w/]+\.py)`", page)
    lost = []
    for words, path in said:
        text = (ROOT / path).read_text(encoding="utf-8")
        defined = {x.name for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef | ast.ClassDef)}
        defined |= {x.id for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        lost += [(name, path) for name in re.findall(r"`(\w+)`", words) if name not in defined]
    assert len(said) > 10 and lost == []


TESTED_THROUGH = {  # rooms with no folder of tests: where their tests are
    "chunkform": "test_renamed.py",
    "spec": "generated/test_catalogue.py",
    "spec/claims": "codegen/claims/test_own_claims.py",
    "spec/published": "generated/test_published.py",
    "spec/rows": "generated/test_rows.py",
}
ACROSS = {
    "shared",
    "gpu",
    "docs",
    "generated",
    "random_specs",
    "latex",
    "install",
}  # what tests share, and tests across rooms
DATA = {"specs", "documents", "five"}


def folders_of_rooms() -> set[str]:
    """Those that hold modules, and not only rooms."""
    return {path.parent.relative_to(ROOT).as_posix() for path in rooms.modules().values() if path.name != "__init__.py"}


def test_each_room_has_tests_in_the_folder_of_its_name():
    tests = ROOT / "tests"
    own = {room for room in folders_of_rooms() if list((tests / room).glob("test_*.py"))}
    assert sorted(folders_of_rooms() - own) == sorted(TESTED_THROUGH)
    assert [x for x in TESTED_THROUGH.values() if not (tests / x).is_file()] == []


def test_tests_lie_in_folders_like_the_rooms():
    tests, strange = ROOT / "tests", []
    for folder in tests.rglob("*/"):
        parts = folder.relative_to(tests).parts
        if parts[0] in ACROSS or "__pycache__" in parts or DATA & set(parts) or not list(folder.glob("*.py")):
            continue
        if not ROOT.joinpath(*parts).is_dir():
            strange.append("/".join(parts))
    assert strange == []
