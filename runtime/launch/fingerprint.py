"""What kernels say, as hashes: of jit functions without comments, docstrings and layout, and of the functions that they call.

Whatever was measured or tried on a GPU was so for a text of kernels. One mechanism says which: tables of configurations
(`tuned_configs.py`) and the record of what was verified on a GPU (`results/gpu/verified.json`) both hold for these hashes.
It reads files, and imports nothing of them, so that it needs no GPU and no Triton.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

RUNTIME = Path(__file__).parent.parent
PACKAGE = "chunkform.runtime"
COMPILED = ("jit", "constexpr_function")  # what decorates functions of Triton and of Gluon
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Place = tuple[str, str]  # a module and a name in it


@dataclass(frozen=True)
class Fingerprint:
    """Of a generated file, or of some of its functions: the hash of its own kernels, the jit functions of the runtime that are
    launched or called, transitively, and the hash of these."""

    kernels: str
    calls: tuple[str, ...]
    functions: str

    @property
    def key(self) -> str:
        return _hash([self.kernels, self.functions])


def fingerprint(
    source: str, launching: Callable[[ast.FunctionDef], bool] | None = None, runtime: Runtime | None = None
) -> Fingerprint:
    """The fingerprint of a generated file: of all that its functions reach, or of what those reach that are `launching`."""
    runtime = runtime or this_runtime()
    own = Module.of("", source)
    functions = {n: x for n, x in own.defined.items() if isinstance(x, ast.FunctionDef)}
    roots = own.defined if launching is None else [n for n, x in functions.items() if launching(x)]
    found = _reach(own, [("", n) for n in roots], runtime)
    calls = sorted({n for m, n in found if m and runtime.is_jit(m, n)})
    kernels = [_said_of(own, n) for m, n in sorted(found) if not m and is_jit(own.defined[n])]
    kernels += [_said_of(own, n) for m, n in sorted(_constants(own, found, runtime)) if not m]
    return Fingerprint(_hash(kernels), tuple(calls), functions_key(calls, runtime))


def kernels_key(texts: Iterable[str]) -> str:
    """The hash of kernels, each the text of a function."""
    return _hash(said(x) for text in texts for x in ast.parse(text).body)


def functions_key(names: Iterable[str], runtime: Runtime | None = None) -> str:
    """The hash of the runtime's jit functions of these names, of those that they call, and of the numbers that they use."""
    runtime = runtime or this_runtime()
    roots = [(m, n) for n in names for m in runtime.modules() if runtime.is_jit(m, n)]
    found = _reach(None, roots, runtime)
    missing = sorted(set(names) - {n for _, n in found})  # renamed, or gone: other than they were
    return _hash([*(_said_of(runtime.module(m), n) for m, n in sorted(found, key=lambda x: x[::-1])), *missing])


# --- what a function says -----------------------------------------------------------------------------------------------


def said(node: ast.AST) -> str:
    """A tree as text, without docstrings and places; the same in every version of Python."""
    kind = type(node)
    if kind is ast.Name:  # half of all nodes
        return f"Name(id={node.id!r})"  # type: ignore[attr-defined]
    if kind is ast.Constant:
        return f"{type(node.value).__name__} {node.value!r}"  # type: ignore[attr-defined]
    fields = []
    for name in _said_fields(kind._fields):
        x = getattr(node, name, None)
        if x is None:
            continue
        if isinstance(x, ast.AST):
            fields.append(f"{name}={said(x)}")
        elif isinstance(x, list):
            if name == "body" and kind in WITH_DOCSTRINGS:
                x = _without_docstring(x)
            fields.append(f"{name}=[{', '.join([said(y) if isinstance(y, ast.AST) else repr(y) for y in x])}]")
        else:
            fields.append(f"{name}={x!r}")
    return f"{kind.__name__}({', '.join(fields)})"


@functools.cache
def _said_fields(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in fields if name not in UNSAID)


UNSAID = ("ctx", "kind", "type_comment", "type_params", "type_ignores")
WITH_DOCSTRINGS = (ast.FunctionDef, ast.ClassDef, ast.Module)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def is_jit(node: ast.AST) -> bool:
    """Is it a function that Triton compiles, or runs while it compiles others?"""
    if not isinstance(node, ast.FunctionDef):
        return False
    called = [x.func if isinstance(x, ast.Call) else x for x in node.decorator_list]
    return any(isinstance(x, ast.Attribute) and x.attr in COMPILED for x in called)


def _has_jit(text: str) -> bool:
    """May a file have such functions?"""
    return any(f".{x}" in text for x in COMPILED)


def _said_of(module: Module, name: str) -> str:
    return f"{name}: {said(module.defined[name])}"


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n\n".join(texts).encode()).hexdigest()[:16]


# --- modules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """A file: what it defines at its top, and what it imports of the runtime, (module, name) by the name here, or (module, "")
    for a module as a whole."""

    name: str
    defined: dict[str, Definition]
    imported: dict[str, Place]

    @classmethod
    def of(cls, name: str, source: str) -> Module:
        defined: dict[str, Definition] = {}
        tree = ast.parse(source)
        for x in _flat(tree.body):
            if isinstance(x, ast.FunctionDef | ast.ClassDef):
                defined[x.name] = x
            elif isinstance(x, ast.Assign | ast.AnnAssign):
                targets = x.targets if isinstance(x, ast.Assign) else [x.target]
                defined |= {y.id: x for t in targets for y in ast.walk(t) if isinstance(y, ast.Name)}
        return cls(name, defined, imports_of(name, _flat(tree.body)))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, with those inside of conditions."""
    for x in body:
        yield x
        if isinstance(x, ast.If | ast.Try):
            yield from _flat([*x.body, *x.orelse])


def imports_of(module: str, nodes: Iterable[ast.AST]) -> dict[str, Place]:
    """What these statements of a module import of the runtime; modules are named by their path in it."""
    found: dict[str, Place] = {}
    folder = module.split("/")[:-1]
    for x in nodes:
        if not isinstance(x, ast.ImportFrom):
            continue
        if x.level:
            base = folder[: len(folder) - x.level + 1]
        elif x.module and (x.module + ".").startswith(PACKAGE + "."):
            base = []
        else:
            continue
        path = (x.module or "").removeprefix(PACKAGE).strip(".").split(".") if x.module else []
        source = "/".join([*base, *(p for p in path if p)])
        found |= {y.asname or y.name: (source, y.name) for y in x.names}
    return found


class Runtime:
    """The runtime's files, read when they are first asked for. `read` gives the text of a path in it, or None."""

    def __init__(self, read: Callable[[str], str | None], paths: Iterable[str]) -> None:
        self.read = read
        self.paths = {p.removesuffix(".py").removesuffix("/__init__"): p for p in paths}
        self.known: dict[str, Module] = {}
        self.used: dict[Place, tuple[Place, ...]] = {}
        self.with_kernels: list[str] | None = None

    def module(self, name: str) -> Module:
        if name not in self.known:
            text = self.read(self.paths[name]) if name in self.paths else None
            self.known[name] = Module.of(f"{name}/" if self._is_folder(name) else name, text or "")
        return self.known[name]

    def _is_folder(self, name: str) -> bool:
        return self.paths.get(name, "").endswith("/__init__.py")

    def modules(self) -> list[str]:
        """Those with functions that Triton compiles, in Gluon too."""
        if self.with_kernels is None:
            self.with_kernels = sorted(n for n, p in self.paths.items() if _has_jit(self.read(p) or ""))
        return self.with_kernels

    def is_jit(self, module: str, name: str) -> bool:
        found = self.module(module).defined.get(name)
        return found is not None and is_jit(found)

    def resolve(self, place: Place) -> Place | None:
        """Where what a module calls by a name is defined."""
        name, own = place
        while own in (known := self.module(name)).imported and own not in known.defined:
            name, own = known.imported[own]
        return (name, own) if own in self.module(name).defined else None


@functools.cache
def this_runtime() -> Runtime:
    """The runtime that is running."""
    paths = [p.relative_to(RUNTIME).as_posix() for p in sorted(RUNTIME.rglob("*.py"))]
    return Runtime(lambda path: (RUNTIME / path).read_text(), paths)


# --- what a function reaches --------------------------------------------------------------------------------------------


def _reach(own: Module | None, roots: Iterable[Place], runtime: Runtime) -> set[Place]:
    """All definitions that roots use, and those in turn. The module "" is `own`."""
    found: set[Place] = set()
    waiting = list(roots)
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        found.add(place)
        if own is not None and not place[0]:
            waiting += _used(own, place[1], runtime)
            continue
        if place not in runtime.used:
            runtime.used[place] = tuple(_used(runtime.module(place[0]), place[1], runtime))
        waiting += runtime.used[place]
    return found


def _used(module: Module, name: str, runtime: Runtime) -> Iterator[Place]:
    return (target for _, target in uses(module, name, runtime))


def uses(module: Module, name: str, runtime: Runtime) -> Iterator[tuple[ast.expr, Place]]:
    """What a definition uses of its module and, through what this imports, of others: what says so in it, and where that is."""
    nodes = [
        x for x in ast.walk(module.defined[name]) if isinstance(x, ast.Name | ast.Attribute | ast.arg | ast.ImportFrom)
    ]
    bound = {x.id for x in nodes if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
    bound |= {x.arg for x in nodes if isinstance(x, ast.arg)}
    imported = module.imported | imports_of(module.name, nodes)
    for x in nodes:
        if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id in imported:  # of a module
            source, own = imported[x.value.id]
            target = runtime.resolve(("/".join(p for p in (source, own) if p), x.attr))
        elif isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load) and x.id not in bound - imported.keys():
            if x.id in module.defined:
                target = (module.name.rstrip("/"), x.id)
            else:
                target = runtime.resolve(imported[x.id]) if x.id in imported else None
        else:
            continue
        if target is not None:
            yield x, target


def _constants(own: Module, found: set[Place], runtime: Runtime) -> set[Place]:
    """The numbers that jit functions of a file use."""
    jit = [(m, n) for m, n in found if not m and is_jit(own.defined[n])]
    return {
        (m, n) for place in jit for m, n in _used(own, place[1], runtime) if isinstance(own.defined.get(n), ast.Assign)
    }
