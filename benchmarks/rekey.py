"""Tables of configurations after kernels were printed anew: choices go on holding for those that say what they said.

    python -m benchmarks.rekey REVISION [FUNCTION ..]      # REVISION of the sources that the tables were made with

Compares each op's kernels, and the functions of the runtime that they call, without comments and docstrings, with those at
that revision: where nothing but names has changed, what was chosen for the old hash goes on under the new one; the rest is
dropped. The text of a FUNCTION of the runtime doesn't count: name one that takes nothing that a configuration chooses, since
what it takes is then the same under each.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from chunkform.codegen.commands.tune import mentions
from chunkform.runtime.launch import tuned_configs as tuned
from chunkform.runtime.launch.fingerprint import Fingerprint, Module, Place, Runtime, fingerprint, is_jit, said, uses

ROOT = Path(__file__).parent.parent
ASKS = re.compile(r'choose\([^"\n]*"([0-9a-f]{16})"')


def main(revision: str, *apart: str) -> None:
    moved = moves(revision, apart)
    for path in sorted(tuned.SHIPPED.glob("*.json")):
        table = rekeyed(tuned.read(path), moved)
        tuned.save(path, table)
        print(f"{path.relative_to(ROOT)}: {len(table['choices'])} kernels")


def rekeyed(table: dict[str, Any], moved: dict[str, tuple[str, Fingerprint]]) -> dict[str, Any]:
    """A table by the hashes of today; `moved` has them by the old ones."""
    choices, functions = {}, {}
    for old, classes in table["choices"].items():
        if old in moved:
            new, found = moved[old]
            choices[new], functions[new] = classes, tuned.functions_of(found.calls)
    about = {n: x for n, x in table["about"].items() if n in ("gpu", "torch", "triton")}
    return {"about": about, "choices": choices, "functions": functions}


def moves(revision: str, apart: tuple[str, ...] = ()) -> dict[str, tuple[str, Fingerprint]]:
    """The new hash of kernels that have not changed, and what they call, by the old hash."""
    runtime = Runtime(lambda path: at(revision, f"runtime/{path}"), paths(revision))
    here = Runtime(lambda path: (ROOT / "runtime" / path).read_text(), paths())
    found = {}
    for path in sorted((ROOT / "generated").glob("*.py")):
        before, now = at(revision, f"generated/{path.name}"), path.read_text()
        for old, new in zip(asked(before or ""), asked(now), strict=False):
            if unnamed(before or "", old, runtime, apart) == unnamed(now, new, here, apart):
                found[old] = new, fingerprint(now, functools.partial(mentions, kernels=new))
    return found


def unnamed(source: str, kernels: str, runtime: Runtime, apart: tuple[str, ...] = ()) -> str:
    """The hash of the kernels that ask for a configuration by a hash, and of what they call, whatever all these are called;
    of functions of the runtime that stand `apart`, only that they are called."""
    own = Module.of("", source)
    numbers: dict[Place, int] = {}  # of what kernels are made of, in the order in which it is come upon
    seen: set[tuple[Place, bool]] = set()
    texts: list[str] = []

    def visit(place: Place, inside: bool) -> None:
        module = runtime.module(place[0]) if place[0] else own
        node = module.defined[place[1]]
        inside = inside or is_jit(node)
        if (place, inside) in seen:
            return
        seen.add((place, inside))
        if place[0] and place[1] in apart:
            return
        if inside:
            numbers[place] = len(numbers)
        found = list(uses(module, place[1], runtime))
        for _, target in found:
            visit(target, inside)
        if inside:
            known = {ast.unparse(x): f"@{numbers.get(target, target[1])}" for x, target in found}
            texts.append(said(_Unnamed(known).visit(copy.deepcopy(node))))

    for name, x in own.defined.items():
        if isinstance(x, ast.FunctionDef) and mentions(x, kernels):
            visit(("", name), False)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


class _Unnamed(ast.NodeTransformer):
    """A definition with numbers in the place of its names: of what it uses, which are `known`, and of its own, in their order.
    What is neither is a name of Triton or Python, and stays."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known, self.own = known, {}

    def visit(self, node: ast.AST) -> ast.AST:
        if not self.own:
            bound = [x.arg for x in ast.walk(node) if isinstance(x, ast.arg)]
            bound += [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
            self.own = {n: f"${i}" for i, n in enumerate(dict.fromkeys([getattr(node, "name", ""), *bound]))}
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.own.get(node.name, node.name)
        for decorator in node.decorator_list:  # names of arguments, as text
            for x in ast.walk(decorator):
                if isinstance(x, ast.Constant) and x.value in self.own:
                    x.value = self.own[x.value]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.own[node.arg]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.own.get(node.id) or self.known.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self.known.get(ast.unparse(node))
        return self.generic_visit(node) if name is None else ast.Name(name, node.ctx)


def asked(source: str) -> list[str]:
    """The hashes in a generated file, in the order of the functions that ask for a configuration by them."""
    return list(dict.fromkeys(ASKS.findall(source)))


def at(revision: str, path: str) -> str | None:
    done = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def paths(revision: str = "") -> list[str]:
    """The files of the runtime, at a revision or now."""
    if not revision:
        return [p.relative_to(ROOT / "runtime").as_posix() for p in sorted((ROOT / "runtime").rglob("*.py"))]
    command = ["git", "ls-tree", "-r", "--name-only", revision, "runtime/"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [p.removeprefix("runtime/") for p in done.stdout.split() if p.endswith(".py")]


if __name__ == "__main__":
    main(*sys.argv[1:])
