"""The rooms of the code, measured from its imports: `python docs/rooms.py` draws docs/rooms.svg.

A room is a folder of codegen/, runtime/ or integrations/, and spec/language. Of chunkform/, what users import is one room, and
each file that all may import is one. An arrow says that a room imports another. Lazy imports, those for types and modules that
are named in a string count like any other. tests/test_rooms.py asks here whether arrows point one way.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("chunkform", "spec", "codegen", "runtime", "integrations")
PUBLIC = ("__init__", "__main__", "misspelt", "renamed")  # of chunkform/: what users import, with what finds it


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found[".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """(module, module that it imports from, name) of each import between modules of the packages."""
    return _all_imports(root)


@functools.cache
def _all_imports(root: Path) -> list[tuple[str, str, str]]:
    return list(_imports(root))


def _imports(root: Path) -> Iterator[tuple[str, str, str]]:
    known = modules(root)
    for module, path in known.items():
        for target, alias in _imports_of(module, path, _tree(path), known):
            yield module, target, alias.name


def _imports_of(module: str, path: Path, tree: ast.Module, known: dict[str, Path]) -> Iterator[tuple[str, ast.alias]]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(_known(x.name, known), x) for x in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found = [(_known(f"{source}.{x.name}", known) or _known(source, known), x) for x in node.names]
        else:
            found = [(_known(name, known), ast.alias(name)) for name in _named(node)]
        for target, alias in found:
            if target and target != module:
                yield target, alias


def _known(name: str, known: dict[str, Path]) -> str:
    """The module of a dotted name, which may begin with `chunkform`; empty where there is none."""
    short = name.removeprefix("chunkform.")
    return short if short in known else name if name in known else ""


def _named(node: ast.AST) -> Iterator[str]:
    """The module that a call of `import_module` names, as far as the name is written there."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    if getattr(node.func, "attr", getattr(node.func, "id", "")) not in ("import_module", "__import__"):
        return
    first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value != "chunkform.":
        yield first.value.rstrip(".")


def looked_at_privately(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """(module, module that it imports, name) of each look at another module's name with an underscore, as in `m._name`."""
    known, found = modules(root), []
    for module, path in known.items():
        tree = _tree(path)
        inner = {a.asname or a.name: t for t, a in _imports_of(module, path, tree, known) if t.endswith(f".{a.name}")}
        looks = [x for x in ast.walk(tree) if isinstance(x, ast.Attribute) and PRIVATE.match(x.attr)]
        found += [
            (module, inner[x.value.id], x.attr) for x in looks if isinstance(x.value, ast.Name) and x.value.id in inner
        ]
    return found


PRIVATE = re.compile(r"_(?!_)\w*(?<!_)$")  # names such as `_repr_html_` are known to others
OUTSIDE = ("benchmarks", "docs", "examples", "tests")


def private_names(root: Path = ROOT) -> set[str]:
    """The names with an underscore that modules of the packages define, and classes in them."""
    found = set()
    for path in modules(root).values():
        for x in ast.walk(_tree(path)):
            if isinstance(x, ast.FunctionDef | ast.ClassDef):
                found.add(x.name)
            elif isinstance(x, ast.Name | ast.Attribute) and isinstance(x.ctx, ast.Store):
                found.add(x.id if isinstance(x, ast.Name) else x.attr)
    return {n for n in found if PRIVATE.match(n)}


def known_outside(root: Path = ROOT) -> list[str]:
    """Where tests, benchmarks, documentation and examples use a name with an underscore of another file: what they import with
    one, and what they look up of the packages' names, by `x._name` or by a call that names it, as in `setattr(x, "_name", y)`."""
    names, found = private_names(root), []
    for path in sorted(x for folder in OUTSIDE for x in (root / folder).rglob("*.py")):
        for x in ast.walk(_tree(path)):
            own = {n for n in _looked_up(x) if PRIVATE.match(n) and (n in names or isinstance(x, ast.ImportFrom))}
            found += [f"{path.relative_to(root).as_posix()}:{x.lineno}: {n}" for n in sorted(own)]
    return found


def _looked_up(x: ast.AST) -> list[str]:
    if isinstance(x, ast.ImportFrom):
        own = x.level or (x.module or "").split(".")[0] in ("chunkform", "shared", *OUTSIDE)
        return [a.name for a in x.names] if own else []
    if isinstance(x, ast.Attribute) and PRIVATE.match(x.attr):
        mine = ast.unparse(x.value) in ("self", "cls", "super()")
        return [] if mine else [x.attr]
    if isinstance(x, ast.Call) and len(x.args) > 1 and not isinstance(x.args[0], ast.Constant):
        name = x.args[1]
        return [name.value] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []
    return []


def room_of(module: str, path: Path) -> str:
    """The folder that holds a module; a catalogue's spec lies in `spec`. A file of chunkform/ that all may import is a room."""
    if path.parent.name == "chunkform" and path.stem not in PUBLIC:
        return module
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def module_graph(root: Path = ROOT) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(modules(root))
    graph.add_edges_from((a, b) for a, b, _ in imports(root))
    return graph


def depths(root: Path = ROOT) -> range:
    """From packages to the folders that hold no other."""
    return range(1, 1 + max(room_of(m, p).count(".") + 1 for m, p in modules(root).items()))


def room_graph(depth: int, root: Path = ROOT) -> nx.DiGraph:
    """Which rooms import which, with the number of imports; rooms below `depth` folders count as the one that holds them, but for
    the files of chunkform/ that all may import."""
    known, graph = modules(root), nx.DiGraph()
    rooms = {m: room_of(m, p) for m, p in known.items()}
    names = {m: r if r == m and known[m].parent.name == "chunkform" else _above(r, depth) for m, r in rooms.items()}
    graph.add_nodes_from(set(names.values()))
    for a, b, _ in imports(root):
        first, second = names[a], names[b]
        if first != second:
            graph.add_edge(first, second, count=graph.get_edge_data(first, second, {"count": 0})["count"] + 1)
    return graph


def _above(room: str, depth: int) -> str:
    return ".".join(room.split(".")[:depth])


def circles(graph: nx.DiGraph) -> list[list[str]]:
    """Those that import each other."""
    return [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]


def purpose(room: str, root: Path = ROOT) -> str:
    """The first sentence of a room's docstring."""
    folder = root.joinpath(*room.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(": ")[0].rstrip(".")


# --- the picture ------------------------------------------------------------------------------------------------------

FILLS = {
    "chunkform": "#ffffff",
    "spec": "#fdf3d8",
    "codegen": "#e4eefc",
    "generated": "#eeeeee",
    "runtime": "#e6f5e6",
    "integrations": "#f6e6f3",
}
GENERATED = re.compile(
    r"""^\s*(from|import) chunkform\.generated|import_module\(f?["']chunkform\.generated\b""", re.MULTILINE
)
HIDDEN = (
    "spec",
    "spec.claims",
    "codegen",
    "runtime",
    "runtime.cached",
    "integrations",
)  # data, and what only holds rooms


def picture(root: Path = ROOT) -> nx.DiGraph:
    """The rooms and the arrows of the picture, without those that others imply; `generated` is one room."""
    graph = room_graph(2, root)
    graph.remove_nodes_from([r for r in graph if r in HIDDEN])
    for path in (root / "generated").glob("*.py"):
        found = re.findall(r"^from chunkform\.(\w+\.\w+)", path.read_text(), re.MULTILINE)
        graph.add_edges_from(("generated", room) for room in found if room in graph)
    for module, path in modules(root).items():
        room = ".".join(room_of(module, path).split(".")[:2])
        if room in graph and GENERATED.search(path.read_text()):
            graph.add_edge(room, "generated")
    reduced = nx.transitive_reduction(graph)
    assert isinstance(reduced, nx.DiGraph)
    return reduced


def draw(root: Path = ROOT) -> str:
    """The picture as SVG, laid out by Graphviz: every arrow points down."""
    import pygraphviz

    g = pygraphviz.AGraph(directed=True, rankdir="TB", nodesep="0.12", ranksep="0.55", bgcolor="white", newrank="true")
    g.node_attr.update(fontname="Helvetica", fontsize="10", shape="box", style="rounded,filled", color="#666666")
    g.edge_attr.update(color="#777777", arrowsize="0.6")
    graph = picture(root)
    for room in sorted(graph):
        words = "<br/>".join(map(escape, textwrap.wrap(purpose(room, root), 30)))
        label = f'<<font face="Courier" point-size="12"><b>{room.replace(".", "/")}</b></font><br/>{words}>'
        g.add_node(room, label=label, fillcolor=FILLS[room.split(".")[0]])
    for a, b in sorted(graph.edges):
        g.add_edge(a, b)
    g.layout(prog="dot")
    return re.sub(r"<!--.*?-->\n?", "", g.draw(format="svg").decode(), flags=re.DOTALL)


def drawn(svg: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The rooms of a picture, each with its caption, and the arrows."""
    found = re.findall(r'class="(node|edge)">\s*<title>(.*?)</title>(.*?)</g>', svg, re.DOTALL)
    texts = {
        unescape(title): re.findall(r"<text[^>]*>(.*?)</text>", rest) for kind, title, rest in found if kind == "node"
    }
    arrows = {tuple(unescape(title).split("->")) for kind, title, _ in found if kind == "edge"}
    return {room: unescape(" ".join(caption)) for room, (_, *caption) in texts.items()}, {(a, b) for a, b in arrows}


if __name__ == "__main__":
    (ROOT / "docs" / "rooms.svg").write_text(draw())
