"""What a module says, with all that it imports: a gate judges by that, and by what the modules say whose objects it is given."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("codegen", "runtime", "spec/language")
OTHERS = ("chunkform/errors.py", "chunkform/types.py", "chunkform/version.py")  # that import nothing of these
FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ ].*)?\n)+", re.MULTILINE)
IMPORT = re.compile(r"^[ ]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^\n]*))", re.MULTILINE)
NAMED = re.compile(r"""["'](chunkform\.[\w.]+)""")  # in a text
UNSAID = re.compile(rb"^[ ]*(?:#.*)?\n", re.MULTILINE)


def judged_by(module: str) -> str:
    """A hash of what a module of the compiler says, with all that it imports; of another file of the repository, of its bytes; of
    a library, its name."""
    known = _known().get(module)
    if known is not None:
        return known
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "/")
    if not file.is_relative_to(ROOT) or "site-packages" in file.parts:
        return module
    return _hash(file.read_bytes())


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The modules of the compiler, by the names under which they are imported."""
    paths = [x for package in PACKAGES for x in sorted((root / package).rglob("*.py"))]
    found = {}
    for path in [*paths, *(root / x for x in OTHERS)]:
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found["chunkform." + name.removeprefix("chunkform.")] = path
    return found


def hashes(texts: Mapping[str, bytes], packages: set[str]) -> dict[str, str]:
    """Of each module, the hash of what it says, but for lines of comments, and of what those say that are imported with it."""
    graph = nx.DiGraph()
    graph.add_nodes_from(texts)
    for name, text in texts.items():
        above = name if name in packages else name.rpartition(".")[0]
        graph.add_edges_from((name, other) for other in imported(text.decode(), above, texts))
        if name.rpartition(".")[0] in texts:  # a package is imported before what is in it
            graph.add_edge(name, name.rpartition(".")[0])
    own = {n: _hash(UNSAID.sub(b"", text)) for n, text in texts.items()}
    groups = nx.condensation(graph)
    said: dict[int, set[str]] = {}
    for n in reversed(list(nx.topological_sort(groups))):
        said[n] = groups.nodes[n]["members"].union(*(said[m] for m in groups.successors(n)))
    return {n: _hash(" ".join(own[m] for m in sorted(said[groups.graph["mapping"][n]])).encode()) for n in texts}


def imported(text: str, package: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that a file imports anywhere, or names in a text: of a text that begins names, all that begin so. Those that
    only types need are none."""
    text = FOR_TYPES.sub("", text)
    for source, names, plain in IMPORT.findall(text):
        if plain:
            yield from (n for n in re.findall(r"[\w.]+", plain) if n in known)
            continue
        dots = len(source) - len(source.lstrip("."))
        above = package.split(".")[: len(package.split(".")) - dots + 1] if dots else []
        base = ".".join([*above, *filter(None, [source[dots:]])])
        inner = [f"{base}.{n}" for n in re.findall(r"\w+", names)]
        yield from [n for n in (*inner, base) if n in known]
    for name in NAMED.findall(text):
        yield from [n for n in known if n == name or (name[-1] == "." and n.startswith(name))]


@functools.cache
def _known() -> dict[str, str]:
    """The hashes of this tree's modules: one process of the tests makes them, the others read them."""
    files = modules()
    texts = {n: path.read_bytes() for n, path in files.items()}
    key = _hash(b"\0".join([Path(__file__).read_bytes(), *texts.values()]))
    path = Path(os.environ["CHUNKFORM_CACHE"]) / "gates" / f"{key}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(hashes(texts, {n for n, x in files.items() if x.name == "__init__.py"})))
        own.rename(path)
    found: dict[str, str] = json.loads(path.read_text())
    return found


def _hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()
