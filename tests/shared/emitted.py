"""What text is emitted for every spec of the repository, as hashes: a refactoring of the compiler changes none of them.

    python tests/shared/emitted.py            compile all specs; tell whose text has changed, and whether in comments alone
    python tests/shared/emitted.py --write    the same, and write tests/codegen/recurrence/emitted_text.json anew

`text` is the hash of the emitted text, before it is formatted and without the version that it is for; `code` the same
without comments, docstrings and layout, and whichever modules names are imported from. The catalogue's files are in
generated/, as `chunkform build` has written them.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from chunkform.codegen.commands.build import GENERATED
from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.recurrence.emit import version_lines
from chunkform.runtime.launch.fingerprint import said
from chunkform.spec.language import Declaration, catalogue, load
from chunkform.spec.language.load import published

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/codegen/recurrence/emitted_text.json"
FOLDERS = (
    "tests/codegen/specs",
    "tests/codegen/recurrence/triton/specs",
    "benchmarks/recurrent_form",
)
Hashes = dict[str, str]  # text, code


def files() -> list[str]:
    """The spec files outside of the catalogue, from the repository's root."""
    return [p.relative_to(ROOT).as_posix() for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.py"))]


def texts_of(file: str) -> dict[str, str]:
    """What is emitted for the specs of a file, by file and name."""
    found = {}
    for r in load(ROOT / file):
        kind = kind_of(r)
        found[f"{file}:{r.name}"] = unversioned(kind.emit(kind.compile_spec(r), tidy=False))
    return found


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


def everything(jobs: int) -> Iterable[dict[str, str]]:
    yield catalogue_texts()
    if jobs == 1:
        yield from map(texts_of, files())
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(texts_of, files())


def main() -> None:
    parser = argparse.ArgumentParser(description="hashes of the emitted text of every spec")
    parser.add_argument("--write", action="store_true", help="write emitted_text.json anew")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    known = recorded() if FILE.exists() else {}
    found: dict[str, Hashes] = {}
    told: list[str] = []
    for texts in everything(options.jobs):
        more = changes(texts, known)
        changed = {x.rpartition(": ")[0] for x in more}
        found |= {key: hashes(text) if key in changed else known[key] for key, text in texts.items()}
        told += more
        print("\n".join(more), end="\n" if more else "", flush=True)
    gone = [f"{key}: recorded, and no spec" for key in known if key not in found]
    print(*gone, f"{len(found)} specs, {len(told)} changed", sep="\n")
    if options.write:
        FILE.write_text(written(found))
    elif told or gone:
        sys.exit(1)


if __name__ == "__main__":
    main()
