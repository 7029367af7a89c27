"""What was verified on a GPU, and at which text of the kernels: results/gpu/verified.json, which `make test-gpu` writes.

    python -m benchmarks.verified               # which ops' kernels aren't those that were verified, and why
    python -m benchmarks.verified --check       # the same, and exit status 1 where there are any
    python -m benchmarks.verified --readme      # also put the sentence about it into README.md

An op is verified where every test that `needed` names has passed, none has failed, and its kernels, with the functions that they
call, say what they said then (`runtime/launch/fingerprint.py`). It needs no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from chunkform.runtime.launch.fingerprint import fingerprint

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "generated"
RECORD = ROOT / "results" / "gpu" / "verified.json"
MEMCHECK = RECORD.with_name("memcheck.json")  # by benchmarks/memcheck.py
README = ROOT / "README.md"
BEGIN, END = "<!-- verified: make verified ARGS=--readme -->", "<!-- /verified -->"
OTHERS = "specs of the tests"  # what tests concern that no op of the catalogue is in: held for the compiler as it is
SAME = ("torch", "triton", "cuda", "python")  # versions for which a record holds; pieces of it may be of several cards


@dataclass(frozen=True)
class Outcome:
    """What became of a test that concerns an op: its id without the file."""

    op: str
    file: str
    test: str
    passed: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where any op isn't verified")
    parser.add_argument("--readme", action="store_true", help="put the sentence about it into README.md")
    a = parser.parse_args()
    record = read()
    missing = stale(record)
    for name, why in missing.items():
        print(f"{name}: {why}")
    print(sentence(record))
    checked = json.loads(MEMCHECK.read_text()) if MEMCHECK.exists() else {}
    left = [n for n in names() if checked.get(n, {}).get("kernels") != key_of(n)]
    print(f"Under the memory checker as they are now: all{f' but {len(left)}: ' + ', '.join(left) if left else ''}.")
    if a.readme:
        README.write_text(with_sentence(README.read_text(), sentence(record)))
    raise SystemExit(bool(a.check and missing))


# --- the record ---------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The ops of the catalogue."""
    return sorted(p.stem for p in GENERATED.glob("*.py") if p.stem != "__init__")


@functools.cache
def key_of(name: str) -> str:
    """The hash of an op's kernels and of what they call; of OTHERS, of the compiler and the runtime."""
    if name == OTHERS:
        files = [
            p for folder in ("codegen", "runtime") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".jinja")
        ]
        return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(files))).hexdigest()[:16]
    return fingerprint((GENERATED / f"{name}.py").read_text()).key


def needed(name: str) -> tuple[str, ...]:
    """The files of tests/gpu of which tests concern an op, whatever else does."""
    text = (GENERATED / f"{name}.py").read_text()
    if "AttentionOp(" in text:
        return ("test_attention.py",)
    if "chunkform.runtime.solves.programs" in text:
        return ("test_programs.py",)
    over_chunks = ("test_errors.py",) if "choose(some.dtype" in text else ()
    return ("test_fuzz.py", "test_decode.py", *over_chunks)


def read(path: Path = RECORD) -> dict[str, Any]:
    return json.loads(path.read_text())["ops"] if path.exists() else {}


def stale(record: dict[str, Any]) -> dict[str, str]:
    """The ops that aren't verified at this text, with the reason."""
    found = {n: reason(n, record.get(n)) for n in names()}
    return {n: why for n, why in found.items() if why}


def reason(name: str, entry: dict[str, Any] | None) -> str:
    """Why an op isn't verified; empty where it is."""
    if entry is None:
        return "not run"
    if entry["kernels"] != key_of(name):
        return f"its kernels, or functions that they call, have changed since {entry['date']}"
    if entry["failed"]:
        return f"failed on {entry['date']}: {', '.join(entry['failed'][:3])}"
    if left := [f for f in needed(name) if not entry["passed"].get(f)]:
        return f"not run: {', '.join(left)}"
    return ""


def add(outcomes: Iterable[Outcome], about: dict[str, str], path: Path = RECORD) -> None:
    """Put what became of tests into the record; several processes may do so at once, and pieces add up.

    about: the gpu, and versions. What was recorded of other kernels or versions gives way.
    """
    known = {*names(), OTHERS}
    by_op: dict[str, list[Outcome]] = {}
    for x in outcomes:
        if x.op in known:
            by_op.setdefault(x.op, []).append(x)
    if not by_op:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(Path(tempfile.gettempdir()) / "chunkform-verified.lock"):
        record = read(path)
        for name, some in by_op.items():
            record[name] = _merged(record.get(name), some, key_of(name), about)
        _write(record, path)


def _merged(old: dict[str, Any] | None, outcomes: list[Outcome], key: str, about: dict[str, str]) -> dict[str, Any]:
    versions = {n: about[n] for n in SAME}
    holds = old is not None and old["kernels"] == key and all(old[n] == x for n, x in versions.items())
    entry: dict[str, Any] = old if holds and old is not None else {"gpus": [], "passed": {}, "failed": []}
    passed = {f: set(tests) for f, tests in entry["passed"].items()}
    failed = set(entry["failed"])
    for x in outcomes:
        whole, own = f"{x.file}::{x.test}", passed.setdefault(x.file, set())
        (own.add if x.passed else own.discard)(x.test)
        (failed.discard if x.passed else failed.add)(whole)
    return {
        "kernels": key,
        "gpus": sorted({*entry["gpus"], about["gpu"]}),
        **versions,
        "date": datetime.date.today().isoformat(),
        "passed": {f: sorted(tests) for f, tests in sorted(passed.items()) if tests},
        "failed": sorted(failed),
    }


def _write(record: dict[str, Any], path: Path) -> None:
    """One line for each file of an op's tests."""
    ops = []
    for name, x in sorted(record.items()):
        files = ",\n".join(f"   {json.dumps(f)}: {json.dumps(tests)}" for f, tests in x["passed"].items())
        rest = "".join(f"  {json.dumps(n)}: {json.dumps(v)},\n" for n, v in x.items() if n not in ("passed", "counts"))
        counts = json.dumps({f: len(tests) for f, tests in x["passed"].items()})
        ops.append(f' {json.dumps(name)}: {{\n{rest}  "counts": {counts},\n  "passed": {{\n{files}\n  }}\n }}')
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        file.write('{"ops": {\n' + ",\n".join(ops) + "\n}}\n")
    os.replace(file.name, path)


def passed_before(record: dict[str, Any], versions: dict[str, str]) -> set[str]:
    """Tests that need no second run: those that have passed for kernels of today, and concern no others."""
    known = {*names(), OTHERS}
    current: set[str] = set()
    others: set[str] = set()
    for name, x in record.items():
        tests = {f"{f}::{t}" for f, own in x["passed"].items() for t in own}
        same = name in known and x["kernels"] == key_of(name)
        if same and all(x[n] == versions[n] for n in SAME):
            current |= tests
            others |= set(x["failed"])
        else:
            others |= tests | set(x["failed"])
    return current - others


# --- the sentence in the README -----------------------------------------------------------------------------------------


def sentence(record: dict[str, Any]) -> str:
    """What is verified of the catalogue, in a sentence."""
    missing, every = stale(record), names()
    held = [record[n] for n in every if n not in missing]
    if not held:
        none = f"The kernels of none of the first shelf's {len(every)} ops"
        return f"{none} have passed all tests on a GPU as they are now (`make verified`)."
    gpus = " and ".join(sorted({g for x in held for g in x["gpus"]}))
    versions = sorted({(x["torch"], x["triton"]) for x in held})
    said = " and ".join(f"torch {torch}, Triton {triton}" for torch, triton in versions)
    dates = sorted({x["date"] for x in held})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    tests = len({(f, t) for x in held for f, own in x["passed"].items() for t in own})
    which = f"all {len(every)}" if not missing else f"{len(held)} of {len(every)}"
    return (
        f"The kernels of {which} ops of the catalogue's first shelf, as they are now, have passed the {tests} tests that "
        f"concern them on {gpus} ({said}, {when}; `make verified`)."
    )


def with_sentence(text: str, said: str) -> str:
    """A README with the sentence between its markers."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no place for it: {BEGIN} {END}")
    return f"{head}{BEGIN}\n{said}\n{END}{tail}"


if __name__ == "__main__":
    main()
