"""What text is emitted for every spec of the repository, as hashes: a refactoring of the compiler changes none of them.

    python tests/shared/emitted.py            compile all specs; tell whose text has changed, and whether in comments alone
    python tests/shared/emitted.py --write    the same, and write tests/codegen/recurrence/emitted_text.json anew
    python tests/shared/emitted.py FILE ..    the same of these files alone

Specs are found by looking through tests, benchmarks and examples: whatever a file declares at its top (`r = Recurrence(..)`),
functions that return a declaration and want no more than bools (`def gla() -> Recurrence`), and tables of such functions
(`MORE: list[Callable[[], Attention]]`).

By hand no gate runs: gates are for the tests, and what they let pass is printed all the same.

`text` is the hash of the emitted text, before it is formatted and without the version that it is for; `code` the same
without comments, docstrings and layout, and whichever modules names are imported from. The catalogue's files are in
generated/, as `chunkform build` has written them.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from shared.passed import none

    none()

from chunkform.codegen.commands.build import GENERATED
from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.recurrence.emit import version_lines
from chunkform.errors import ChunkformError
from chunkform.runtime.launch.fingerprint import said
from chunkform.spec.language import Declaration, catalogue, load
from chunkform.spec.language.load import published

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/codegen/recurrence/emitted_text.json"
FOLDERS = ("tests", "benchmarks", "examples")
KINDS = ("Recurrence", "Attention", "Program")
REFUSED = "# refused: "
BY_ARGUMENTS = {  # files whose functions make declarations of what they are given, and why none of these stands for all
    "benchmarks/compile_time.py": "as many states as are to be timed",
    "tests/shared/gate_values.py": "with as many gates, of all spellings, as a test has time for",
    "tests/shared/published_claims.py": "what derivations are about: claims are made of them, and no ops",
    "tests/shared/rational_gates.py": "with as many gates, of all spellings, as a test has time for",
}
Hashes = dict[str, str]  # text, code


# --- where specs are --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a file has: does it declare at its top; functions, each with the calls of it; tables of functions."""

    at_top: bool
    functions: dict[str, tuple[dict[str, bool], ...]]
    tables: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.at_top or bool(self.functions or self.tables)

    def made(self) -> list[str]:
        """Names of what its functions make."""
        return [called(name, words) for name, calls in self.functions.items() for words in calls]


def looked_through(text: str) -> Found:
    """What declares in the text of a file."""
    body = ast.parse(text).body
    makers = {x.name for x in body if isinstance(x, ast.FunctionDef) and x.returns and _name_of(x.returns) in KINDS}
    values = [x.value for x in body if isinstance(x, ast.Assign)]
    set_to = [y for x in values for y in (x.elts if isinstance(x, ast.Tuple) else [x])]
    at_top = {_name_of(x.func) for x in set_to if isinstance(x, ast.Call)} & makers
    own = [x for x in body if isinstance(x, ast.FunctionDef) and x.name not in at_top]
    functions = {x.name: calls for x in own if (calls := _calls_of(x))}
    typed = [x for x in body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
    table = re.compile(rf"(dict\[str, |list\[)Callable\[\[\], ({'|'.join(KINDS)})\]\]")
    tables = [ast.unparse(x.target) for x in typed if table.fullmatch(ast.unparse(x.annotation))]
    return Found(bool(at_top) or any(map(_declares, body)), functions, tuple(tables))


def makes_declarations(text: str) -> bool:
    """Does a declaration begin anywhere in it?"""
    return any(isinstance(x, ast.Call) and _name_of(x.func) in KINDS for x in ast.walk(ast.parse(text)))


def _declares(x: ast.stmt) -> bool:
    defines = isinstance(x, ast.FunctionDef | ast.ClassDef)
    return not defines and any(isinstance(y, ast.Call) and _name_of(y.func) in KINDS for y in ast.walk(x))


def _calls_of(x: ast.FunctionDef) -> tuple[dict[str, bool], ...]:
    """All that it may be called with to make a declaration; nothing where it makes none, or wants more than bools."""
    a = x.args
    given = [*a.posonlyargs, *a.args][: len(a.posonlyargs) + len(a.args) - len(a.defaults)]
    given += [y for y, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
    is_bool = all(y.annotation is not None and ast.unparse(y.annotation) == "bool" for y in given)
    of_pytest = any("fixture" in ast.unparse(d) for d in x.decorator_list)
    if x.returns is None or _name_of(x.returns) not in KINDS or not is_bool or of_pytest:
        return ()
    choices = product((False, True), repeat=len(given))
    return tuple(dict(zip([y.arg for y in given], c, strict=True)) for c in choices)


def _name_of(x: ast.expr) -> str:
    return x.attr if isinstance(x, ast.Attribute) else x.id if isinstance(x, ast.Name) else ""


def called(name: str, words: dict[str, bool]) -> str:
    return f"{name}({', '.join(f'{k}={v}' for k, v in words.items())})"


def files(root: Path = ROOT) -> list[str]:
    """The files with specs outside of the catalogue, from the repository's root."""
    return [path for path, text in _texts(root) if looked_through(text)]


def makers(root: Path = ROOT) -> list[str]:
    """The files, but for those of tests, that make declarations only of what they are given."""
    found = [path for path, text in _texts(root) if makes_declarations(text) and not looked_through(text)]
    return [path for path in found if not Path(path).name.startswith("test_")]


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    kind = re.compile(rf"\b({'|'.join(KINDS)})\b")
    for path in sorted(x for folder in FOLDERS for x in (root / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if kind.search(text):
            yield path.relative_to(root).as_posix(), text


def specs_of(file: str) -> dict[str, Declaration]:
    """The specs of a file, by name."""
    found = looked_through((ROOT / file).read_text(encoding="utf-8"))
    specs = {r.name: r for r in load(ROOT / file)} if found.at_top else {}
    if not found.functions and not found.tables:
        return specs
    module = imported(ROOT / file)
    functions = {name: getattr(module, name) for name in found.functions}
    specs |= {called(n, words): functions[n](**words) for n, calls in found.functions.items() for words in calls}
    for name in found.tables:
        table = getattr(module, name)
        rows = table.items() if isinstance(table, dict) else ((f.__name__, f) for f in table)
        specs |= {f"{name}[{n}]": f() for n, f in rows if f not in functions.values()}
    return specs


def imported(file: Path) -> ModuleType:
    """The module of a file, as pytest imports it: of a package where its folder is one, else by its place alone."""
    tests = str(ROOT / "tests")
    sys.path[:] = [*([] if tests in sys.path else [tests]), *sys.path]
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:
        sys.path[:] = [*([] if str(folder) in sys.path else [str(folder)]), *sys.path]
        return importlib.import_module(".".join(names))
    name = "_".join(file.relative_to(ROOT).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what is emitted for them -----------------------------------------------------------------------------------------


def texts_of(file: str, *names: str) -> dict[str, str]:
    """What is emitted for the specs of a file, or for those of these names, by file and name; of one that is refused, why."""
    chosen = {n: r for n, r in specs_of(file).items() if not names or n in names}
    return {f"{file}:{name}": text_of(r) for name, r in chosen.items()}


def text_of(r: Declaration) -> str:
    kind = kind_of(r)
    try:
        return unversioned(kind.emit(kind.compile_spec(r), tidy=False))
    except ChunkformError as error:
        return f"{REFUSED}{str(error).splitlines()[0].partition(': ')[2]}"


def catalogue_texts() -> dict[str, str]:
    """The catalogue's texts as they are committed."""
    shelves = {"": catalogue(Declaration), "published/": published(Declaration)}
    files = [f"{folder}{r.name}.py" for folder, specs in shelves.items() for r in specs]
    return {f"generated/{file}": unversioned((GENERATED / file).read_text()) for file in files}


def unversioned(text: str) -> str:
    """The text without what refuses another version: a new version alone changes no record."""
    lines = "\n".join(version_lines()[1:]) + "\n"
    assert text.count(lines) == 1
    return text.replace(lines, "")


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_hash(text: str) -> str:
    tree = ast.parse(text)
    imports = [x for x in tree.body if isinstance(x, ast.ImportFrom)]
    names = sorted(y.asname or y.name for x in imports for y in x.names)
    tree.body = [x for x in tree.body if x not in imports]
    return text_hash("\n".join([*names, said(tree)]))


def hashes(text: str) -> Hashes:
    return {"text": text_hash(text), "code": code_hash(text)}


def recorded() -> dict[str, Hashes]:
    found: dict[str, Hashes] = json.loads(FILE.read_text())
    return found


def changes(texts: dict[str, str], known: dict[str, Hashes]) -> list[str]:
    """One sentence for each spec whose text isn't what is recorded."""
    found = []
    for key, text in texts.items():
        if key not in known:
            found.append(f"{key}: not recorded")
        elif text_hash(text) != known[key]["text"]:
            same = code_hash(text) == known[key]["code"]
            found.append(f"{key}: {'no more than comments, layout or imports' if same else 'the code'} changed")
    return found


def written(found: dict[str, Hashes]) -> str:
    """One line for each spec, so that two changes meet in one line only where they change the same spec."""
    lines = [f" {json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def everything(jobs: int, chosen: list[str]) -> Iterable[dict[str, str]]:
    if not chosen:
        yield catalogue_texts()
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(texts_of, chosen or files())


def main() -> None:
    parser = argparse.ArgumentParser(description="hashes of the emitted text of every spec")
    parser.add_argument("files", nargs="*", help="files of specs, from the repository's root; all where none is named")
    parser.add_argument("--write", action="store_true", help="write emitted_text.json anew")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    known = recorded() if FILE.exists() else {}
    found: dict[str, Hashes] = {}
    told: list[str] = []
    refused: list[str] = []
    for texts in everything(options.jobs, options.files):
        more = changes(texts, known)
        changed = {x.rpartition(": ")[0] for x in more}
        found |= {key: hashes(text) if key in changed else known[key] for key, text in texts.items()}
        told += more
        refused += [f"{key}: {text.removeprefix('# ')}" for key, text in texts.items() if text.startswith(REFUSED)]
        print("\n".join(more), end="\n" if more else "", flush=True)
    others = {k: x for k, x in known.items() if options.files and k.partition(":")[0] not in options.files}
    gone = [f"{key}: recorded, and no spec" for key in known if key not in found | others]
    print(*refused, *gone, f"{len(found)} specs, {len(told)} changed", sep="\n")
    if options.write:
        FILE.write_text(written(found | others))
    elif told or gone or refused:
        sys.exit(1)


if __name__ == "__main__":
    main()
