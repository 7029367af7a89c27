"""How large functions, files and classes are, how complex, and how often a signature says `Any`.

    python tests/shared/sizes.py            what is above a limit, and how much
    python tests/shared/sizes.py --write    record it in tests/sizes.json: numbers only ever get smaller there
    python tests/shared/sizes.py --lines    lines of Python in each folder (of another commit: --at COMMIT)
    python tests/shared/sizes.py --any      `Any` in signatures, by folder (of another commit: --at COMMIT)
    python tests/shared/sizes.py --generated  lines of generated/*.py, by what they are for (of another commit: --at COMMIT)
    python tests/shared/sizes.py --page     both at once, of commit 4641400 and of --at COMMIT (HEAD): docs/notes/sizes.md

tests/test_sizes.py holds what is recorded. Generated files aren't counted.
In commit 4641400, before the code had rooms, `Any` stood in signatures 1,408 times.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "sizes.json"
PAGE = ROOT / "docs" / "notes" / "sizes.md"
BEFORE = "4641400"  # before the code had rooms
FOLDERS = ("benchmarks", "chunkform", "codegen", "docs", "examples", "integrations", "runtime", "spec", "tests")
SIGNATURES = ("chunkform", "codegen", "integrations", "runtime", "spec")  # whose `Any` are counted
LIMITS = {"complexity": 15, "function lines": 80, "file lines": 600, "mutable fields": 12}
MOST_ANY = "Any in signatures"
STEPS = {
    "file lines": 50,
    "function lines": 5,
    MOST_ANY: 20,
}  # sizes count as the next multiple, so that a line more is no matter

Files = Mapping[str, str]  # text by path


@functools.cache
def here() -> Files:
    """The Python files of this checkout."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def at(commit: str) -> Files:
    """The Python files of a commit."""
    packed = subprocess.run(["git", "archive", commit, *_folders(commit)], cwd=ROOT, check=True, capture_output=True)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                found[member.name] = file.read().decode()
    return found


def _folders(commit: str) -> list[str]:
    names = subprocess.run(
        ["git", "ls-tree", "--name-only", commit], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [n for n in names.stdout.split() if n in FOLDERS]


# --- what is above a limit --------------------------------------------------------------------------------------------


def above(files: Files) -> dict[str, dict[str, int]]:
    """For each limit, what is above it in this checkout: a function or class as `path:name`."""
    found: dict[str, dict[str, int]] = {kind: {} for kind in LIMITS} | {"complexity": complexities(files)}
    for path, text in files.items():
        tree = tree_of(text)
        sizes = [("file lines", path, text.count("\n"))]
        for name, node in definitions(tree):
            if isinstance(node, ast.ClassDef):
                sizes.append(("mutable fields", f"{path}:{name}", mutable_fields(node)))
            else:
                sizes.append(("function lines", f"{path}:{name}", function_lines(node)))
        for kind, where, size in sizes:
            if size > LIMITS[kind]:
                found[kind][where] = rounded(kind, size)
    return found


Function = ast.FunctionDef | ast.AsyncFunctionDef
tree_of = functools.cache(ast.parse)


def definitions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield outer + node.name, node
            yield from definitions(node, f"{outer}{node.name}.")
        elif not isinstance(node, ast.expr):
            yield from definitions(node, outer)


def function_lines(node: Function) -> int:
    """From `def` to its end, without the docstring."""
    first = node.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or 0) - first.lineno + 1 if is_text else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def complexities(files: Files) -> dict[str, int]:
    """The functions of this checkout that ruff finds too complex (C901)."""
    limit = f"lint.mccabe.max-complexity={LIMITS['complexity']}"
    command = ["ruff", "check", "--isolated", "--select", "C901", "--output-format", "json", "--config", limit]
    run = subprocess.run([sys.executable, "-m", *command, *FOLDERS], cwd=ROOT, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        raise RuntimeError(run.stderr)
    found = {}
    for x in json.loads(run.stdout):
        path = Path(x["filename"]).relative_to(ROOT).as_posix()
        row = x["location"]["row"]
        name = next(n for n, node in definitions(ast.parse(files[path])) if node.lineno == row)
        found[f"{path}:{name}"] = int(re.findall(r"\((\d+) > ", x["message"])[0])
    return found


def mutable_fields(node: ast.ClassDef) -> int:
    """The attributes that a class's methods set, and those that a dataclass declares unless it is frozen."""
    fields: set[str] = set()
    marks = [ast.unparse(d) for d in node.decorator_list]
    if any(m.startswith("dataclass") for m in marks) and not any("frozen=True" in m for m in marks):
        fields |= {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            fields.add(inner.attr)
    return len(fields)


# --- Any, and lines ---------------------------------------------------------------------------------------------------


def any_in_signatures(files: Files, depth: int = 2) -> Counter[str]:
    """How often annotations of arguments and of results say `Any`, by folder."""
    found: Counter[str] = Counter()
    for path, text in files.items():
        if path.split("/")[0] not in SIGNATURES or "Any" not in text:
            continue
        for _, node in definitions(tree_of(text)):
            if isinstance(node, Function):
                a = node.args
                given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
                said = [x.annotation for x in given] + [node.returns]
                found[_room(path, depth)] += sum(_anys(x) for x in said if x is not None)
    return +found


def _anys(annotation: ast.expr) -> int:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    return sum(
        (isinstance(x, ast.Name) and x.id == "Any") or (isinstance(x, ast.Attribute) and x.attr == "Any")
        for x in ast.walk(annotation)
    )


def lines(files: Files, depth: int = 2) -> Counter[str]:
    """Lines that hold code, by folder: neither blank ones nor comments nor docstrings."""
    found: Counter[str] = Counter()
    for path, text in files.items():
        code = set()
        skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
        before = tokenize.INDENT
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_docstring = token.type == tokenize.STRING and before in (
                tokenize.INDENT,
                tokenize.NEWLINE,
                tokenize.DEDENT,
            )
            if token.type not in skip and not is_docstring:
                code.update(range(token.start[0], token.end[0] + 1))
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
        found[_room(path, depth)] += len(code)
    return found


def _room(path: str, depth: int = 2) -> str:
    return "/".join(path.split("/")[:-1][:depth])


def page(commit: str) -> str:
    """Lines, files and `Any` by folder, of a commit and of the one before the code had rooms."""
    before, after = at(BEFORE), at(commit)
    tables: list[Counter[str]] = []
    for x in (before, after):
        files = Counter(_room(path, 3) for path in x if not path.endswith("/__init__.py"))
        tables += [files, lines(x, 3), any_in_signatures(x, 3)]
    folders = sorted({f for x in tables for f in +x})
    rows = [[f"`{f}/`", *(f"{x[f]:,}" if x[f] else "" for x in tables)] for f in folders]
    rows.append(["in all", *(f"{x.total():,}" for x in tables)])
    heads = [f"{what}, {when}" for when in ("before", "after") for what in ("files", "lines", "`Any`")]
    dates = [_git("log", "-1", "--format=%cs", x).strip() for x in (BEFORE, commit)]
    return "\n".join(
        [
            "# Sizes by folder",
            "",
            f"Before: commit {BEFORE} of {dates[0]}, when the code had no rooms. After: commit {commit} of {dates[1]}. Files are "
            "those of Python but `__init__.py`. Lines are those that hold code, without comments and docstrings; generated files "
            "aren't counted. `Any` is counted in annotations of arguments and of results. "
            "`python tests/shared/sizes.py --page` writes this page; "
            "`--lines` and `--any` print the numbers of any commit.",
            "",
            *(f"| {' | '.join(x)} |" for x in (["folder", *heads], ["---", *["---:"] * len(heads)], *rows)),
            "",
        ]
    )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


# --- generated files --------------------------------------------------------------------------------------------------

MOST_GENERATED = 45_000  # lines of what there was at BEFORE, when they were 56,440
SINCE = ("roles", "joined passes", "steps of drafts")  # what no generated file had at BEFORE


def generated(commit: str | None = None) -> dict[str, str]:
    """The text of the catalogue's files, by name."""
    if commit is None:
        return {p.name: p.read_text(encoding="utf-8") for p in sorted((ROOT / "generated").glob("*.py"))}
    names = _git("ls-tree", "--name-only", commit, "generated/").split()
    return {Path(n).name: _git("show", f"{commit}:{n}") for n in names if n.endswith(".py")}


def generated_lines(files: Mapping[str, str]) -> Counter[str]:
    """Lines of generated files, each with the white space behind it: of kernels whose warps have roles, of functions that launch
    these alone, of kernels that take several steps of drafts; and of all that files had at BEFORE as well."""
    found: Counter[str] = Counter()
    for text in files.values():
        body = ast.parse(text).body
        begins = [min(x.lineno, *(d.lineno for d in getattr(x, "decorator_list", ())), x.lineno) for x in body]
        ends = [*begins[1:], text.count("\n") + 1]
        begins[0] = 1
        for x, begin, end in zip(body, begins, ends, strict=True):
            found[_made_for(x)] += end - begin
    return found


def _made_for(x: ast.stmt) -> str:
    if isinstance(x, ast.FunctionDef):
        if any("gluon.jit" in ast.unparse(d) for d in x.decorator_list):
            return "roles"
        if x.name.startswith("triton_") and x.name.endswith("_joined"):
            return "joined passes"
        if x.name == "steps_kernel":
            return "steps of drafts"
    return "as before"


# --- the record -------------------------------------------------------------------------------------------------------


def measured(files: Files) -> dict[str, dict[str, int] | int]:
    return {**above(files), MOST_ANY: rounded(MOST_ANY, any_in_signatures(files).total())}


def rounded(kind: str, size: int) -> int:
    step = STEPS.get(kind, 1)
    return -(-size // step) * step


def complaints(now: Mapping[str, dict[str, int] | int], record: Mapping[str, dict[str, int] | int]) -> list[str]:
    """What is larger than its limit or than what is recorded of it, and what is recorded larger than it is."""
    found = []
    for kind, limit in LIMITS.items():
        sizes, known = now[kind], record[kind]
        assert isinstance(sizes, dict) and isinstance(known, dict)
        for where in sorted({*sizes, *known}):
            size, most = sizes.get(where), known.get(where)
            if most is None:
                found.append(f"{where}: {kind} {size}, at most {limit}: make it smaller")
            elif size is None:
                found.append(f"{where}: {kind} no more than {limit}, or gone: leave it out of the record")
            elif size > most:
                found.append(f"{where}: {kind} {size}, at most {most} as recorded: make it smaller")
            elif size < most:
                found.append(f"{where}: {kind} {size}, recorded with {most}: record {size}")
    count, most = now[MOST_ANY], record[MOST_ANY]
    assert isinstance(count, int) and isinstance(most, int)
    if count > most:
        found.append(f"{MOST_ANY}: {count}, at most {most} as recorded: say which type it is")
    elif count < most:
        found.append(f"{MOST_ANY}: {count}, recorded with {most}: record {count}")
    return found


def smaller(now: Mapping[str, dict[str, int] | int], record: Mapping[str, dict[str, int] | int]) -> dict[str, object]:
    """The record with what has become smaller since."""
    found: dict[str, object] = {}
    for kind in LIMITS:
        sizes, known = now[kind], record[kind]
        assert isinstance(sizes, dict) and isinstance(known, dict)
        found[kind] = {where: min(sizes[where], most) for where, most in sorted(known.items()) if where in sizes}
    count, most = now[MOST_ANY], record[MOST_ANY]
    assert isinstance(count, int) and isinstance(most, int)
    return {**found, MOST_ANY: min(count, most)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--any", action="store_true")
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--at", metavar="COMMIT")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page(_git("rev-parse", "--short=8", args.at or "HEAD").strip()))
        return 0
    if args.generated:
        made = generated_lines(generated(args.at))
        for kind in ("as before", *SINCE):
            print(f"{made[kind]:7,}  {kind}")
        print(f"{made.total():7,}  in all")
        return 0
    files = at(args.at) if args.at else here()
    if args.lines or args.any:
        counts = lines(files) if args.lines else any_in_signatures(files)
        for folder, n in sorted(counts.items()):
            print(f"{n:7,}  {folder}")
        print(f"{counts.total():7,}  in all")
        return 0
    record = json.loads(RECORD.read_text())
    if args.write:
        RECORD.write_text(json.dumps(smaller(measured(files), record), indent=1) + "\n")
    found = complaints(measured(files), json.loads(RECORD.read_text()))
    print("\n".join(found) or "all within their limits, or as recorded")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
