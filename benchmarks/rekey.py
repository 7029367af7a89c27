"""Tables of configurations after kernels were printed anew: choices go on holding for those that say what they said.

    python -m benchmarks.rekey REVISION      # of the sources that the tables were made with

Compares each op's kernels, and the functions of the runtime that they call, without comments, docstrings and the names of their
variables, with those at that revision: where nothing has changed, what was chosen for the old hash goes on under the new one; the
rest is dropped.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from chunkform.codegen.commands.tune import mentions
from chunkform.runtime.launch import tuned_configs as tuned
from chunkform.runtime.launch.fingerprint import RUNTIME, Fingerprint, Runtime, fingerprint, is_jit

ROOT = Path(__file__).parent.parent
ASKS = re.compile(r'choose\([^"\n]*"([0-9a-f]{16})"')


def main(revision: str) -> None:
    moved = moves(revision)
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


def moves(revision: str) -> dict[str, tuple[str, Fingerprint]]:
    """The new hash of kernels that have not changed, and what they call, by the old hash."""
    runtimes = (
        Runtime(lambda path: unnamed(at(revision, f"runtime/{path}")), paths(revision)),
        Runtime(
            lambda path: unnamed((RUNTIME / path).read_text()),
            [p.relative_to(RUNTIME).as_posix() for p in RUNTIME.rglob("*.py")],
        ),
    )
    found = {}
    for path in sorted((ROOT / "generated").glob("*.py")):
        before, now = at(revision, f"generated/{path.name}"), path.read_text()
        for old, new in zip(asked(before or ""), asked(now), strict=False):
            was, own = (
                fingerprint(unnamed(text) or "", functools.partial(mentions, kernels=key), runtime)
                for text, key, runtime in zip((before, now), (old, new), runtimes, strict=True)
            )
            if was == own:
                found[old] = new, own
    return found


def unnamed(source: str | None) -> str | None:
    """A file whose jit functions call their parameters and variables by numbers, in the order in which they come."""
    if source is None:
        return None
    tree = ast.parse(source)
    for f in filter(is_jit, ast.walk(tree)):
        own = [x for x in ast.walk(f) if isinstance(x, ast.arg)]
        names = {x.arg for x in own} | {
            x.id for x in ast.walk(f) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        }
        numbers: dict[str, str] = {}
        for x in [*own, *(x for x in ast.walk(f) if isinstance(x, ast.Name) and x.id in names)]:
            field = "arg" if isinstance(x, ast.arg) else "id"
            setattr(x, field, numbers.setdefault(getattr(x, field), f"v{len(numbers)}"))
    return ast.unparse(tree)


def asked(source: str) -> list[str]:
    """The hashes in a generated file, in the order of the functions that ask for a configuration by them."""
    return list(dict.fromkeys(ASKS.findall(source)))


def at(revision: str, path: str) -> str | None:
    done = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def paths(revision: str) -> list[str]:
    command = ["git", "ls-tree", "-r", "--name-only", revision, "runtime/"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [p.removeprefix("runtime/") for p in done.stdout.split() if p.endswith(".py")]


if __name__ == "__main__":
    main(*sys.argv[1:])
