"""The rooms of the code, measured from its imports: `python docs/rooms.py` draws docs/rooms.svg.

A room is a folder of codegen/, runtime/ or integrations/, and spec/language. An arrow says that a room imports another. Lazy
imports and those for types count like any other. tests/test_rooms.py asks here whether arrows point one way.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from html import escape
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("spec", "codegen", "runtime", "integrations")


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found[".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imports(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """(module, module that it imports from, name) of each import between modules of the packages."""
    return _all_imports(root)


@functools.cache
def _all_imports(root: Path) -> list[tuple[str, str, str]]:
    return list(_imports(root))


def _imports(root: Path) -> Iterator[tuple[str, str, str]]:
    known = modules(root)
    for module, path in known.items():
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *(node.module or "").split(".")] if node.module else base
            source = ".".join(parts[1:] if not node.level and parts[:1] == ["chunkform"] else parts)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                target = inner if inner in known else source
                if target in known and target != module:
                    yield module, target, alias.name


def room_of(module: str, path: Path) -> str:
    """The folder that holds a module; a catalogue's spec lies in `spec`."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def module_graph(root: Path = ROOT) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(modules(root))
    graph.add_edges_from((a, b) for a, b, _ in imports(root))
    return graph


def room_graph(depth: int, root: Path = ROOT) -> nx.DiGraph:
    """Which rooms import which, with the number of imports; rooms below `depth` folders count as the one that holds them."""
    known, graph = modules(root), nx.DiGraph()
    names = {m: ".".join(room_of(m, p).split(".")[:depth]) for m, p in known.items()}
    graph.add_nodes_from(set(names.values()))
    for a, b, _ in imports(root):
        first, second = names[a], names[b]
        if first != second:
            graph.add_edge(first, second, count=graph.get_edge_data(first, second, {"count": 0})["count"] + 1)
    return graph


def purpose(room: str, root: Path = ROOT) -> str:
    """The first sentence of a room's docstring."""
    path = root.joinpath(*room.split(".")) / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(": ")[0].rstrip(".")


# --- the picture ------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, ROOM, FLOOR = 1160, 58, 196, 108


def draw(root: Path = ROOT) -> str:
    """The rooms as SVG, floor above floor: every arrow points down."""
    graph = room_graph(2, root)
    graph.remove_nodes_from([r for r in graph if r in ("spec", "spec.claims", "codegen", "runtime", "runtime.cached")])
    floors: dict[str, int] = {}
    for room in reversed(list(nx.topological_sort(graph))):
        floors[room] = max((floors[x] + 1 for x in graph.successors(room)), default=0)
    top = max(floors.values())
    rows = [[r for r in sorted(graph) if floors[r] == n] for n in range(top, -1, -1)]
    place = {}
    for n, row in enumerate(rows):
        step = WIDTH / len(row)
        for i, room in enumerate(row):
            place[room] = (step * (i + 0.5), 30 + n * FLOOR)
    lines = []
    for a, b in sorted(nx.transitive_reduction(graph).edges):
        (x1, y1), (x2, y2) = place[a], place[b]
        bend = (y1 + y2) / 2 + HEIGHT / 2
        lines.append(
            f'<path d="M{x1:.0f} {y1 + HEIGHT:.0f} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {y2:.0f}"/>'
        )
    boxes = []
    for room, (x, y) in sorted(place.items()):
        kind = room.split(".")[0]
        words = _wrapped(purpose(room, root), 34)[:2]
        boxes.append(f'<rect class="{kind}" x="{x - ROOM / 2:.0f}" y="{y}" width="{ROOM}" height="{HEIGHT}" rx="6"/>')
        boxes.append(f'<text class="name" x="{x:.0f}" y="{y + 18}">{escape(room.replace(".", "/"))}</text>')
        boxes += [f'<text x="{x:.0f}" y="{y + 34 + 13 * i}">{escape(w)}</text>' for i, w in enumerate(words)]
    height = 30 + len(rows) * FLOOR
    style = (
        "text{font:10px sans-serif;text-anchor:middle;fill:#333}.name{font:bold 12px monospace;fill:#000}"
        "rect{stroke:#666}.spec{fill:#fdf3d8}.codegen{fill:#e4eefc}.runtime{fill:#e6f5e6}.integrations{fill:#f6e6f3}"
        "path{fill:none;stroke:#888;marker-end:url(#tip)}"
    )
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<polygon points="0,0 8,4 0,8" fill="#888"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{style}</style><defs>{tip}</defs>'
    return "\n".join([head, *lines, *boxes, "</svg>"]) + "\n"


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


if __name__ == "__main__":
    (ROOT / "docs" / "rooms.svg").write_text(draw())
