"""How long `chunkform.compile` takes, from a spec to its loaded op: seconds of the processor, torch and Triton imported before.

    python -m benchmarks.compile_time            chains of coupled states, independent states, and every spec of the folders
    python -m benchmarks.compile_time --json -   the same as JSON
    python -m benchmarks.compile_time --out results/cpu   the same as compile_time.json and compile_time.md there

Each spec is compiled once, in one process, with an empty cache; what a process does once (importing the compiler's modules,
reading templates) is done for a small spec before the first is timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from chunkform.spec.language import Recurrence, catalogue, load

from . import places

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "tests/codegen/specs",
    "tests/codegen/recurrence/triton/specs",
    "spec/published",
    "benchmarks/recurrent_form",
)
COUPLED, INDEPENDENT, ANY = (
    5.0,
    10.0,
    3.0,
)  # seconds that a spec may take: eight coupled states, twenty others, any other spec


@dataclass(frozen=True)
class Timed:
    """A spec, where it is from, the seconds that it took, and those that it may take."""

    group: str
    name: str
    seconds: float
    bound: float


def chain(states: int) -> Recurrence:
    """States of which each takes a tenth of the one before it, as momentum of momentum does."""
    r = Recurrence(f"chain_{states}")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    made = [r.state(f"S_{n}", d, e) for n in range(states)]
    r.update(made[0], lam * made[0].prev + k * v.T)
    for before, s in itertools.pairwise(made):
        r.update(s, lam * s.prev + 0.1 * before.next)
    r.output("o", made[-1].next.T * q)
    return r


def independent(states: int) -> Recurrence:
    """States beside each other, each with a write of its own, and one output of all."""
    r = Recurrence(f"independent_{states}")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    total = None
    for n in range(states):
        s = r.state(f"S_{n}", d, e)
        r.update(s, lam * s.prev + (n + 1) * k * v.T)
        read = s.next.T * q
        total = read if total is None else total + read
    r.output("o", total)
    return r


def specs() -> Iterator[tuple[str, Recurrence, float]]:
    for n in (2, 4, 6, 8):
        yield "coupled states", chain(n), COUPLED
    yield "independent states", independent(20), INDEPENDENT
    yield from (("spec", r, ANY) for r in catalogue())
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).glob("[!_]*.py")):
            yield from ((folder, r, ANY) for r in load(file) if isinstance(r, Recurrence))


def timed(r: Recurrence) -> float:
    """The seconds of this process's CPU for one compile."""
    import chunkform

    start = time.process_time()
    chunkform.compile(r)
    return time.process_time() - start


def page(found: list[Timed]) -> str:
    """The times as a page: of each group the slowest, and all that are above their bounds."""
    lines = [
        "# Compile time",
        "",
        "Seconds of one core's time that `chunkform.compile` takes, from a spec to its loaded op, with an empty cache; torch",
        f"and Triton were imported before. `python -m benchmarks.compile_time --out results/cpu`, {date.today()}, Python",
        f"{platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}. All of them are in `compile_time.json`.",
        "",
        "| group | specs | seconds together | slowest | seconds | bound | above it |",
        "|---|---|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(x.group for x in found):
        own = [x for x in found if x.group == group]
        slowest = max(own, key=lambda x: x.seconds)
        above = sum(x.seconds > x.bound for x in own)
        lines.append(
            f"| {group} | {len(own)} | {sum(x.seconds for x in own):.0f} | {slowest.name} | {slowest.seconds:.1f} "
            f"| {slowest.bound:.0f} | {above} |"
        )
    late = sorted((x for x in found if x.seconds > x.bound), key=lambda x: -x.seconds)
    lines += [
        "",
        f"Above their bounds, {len(late)} of {len(found)}:",
        "",
        "| spec | seconds | bound |",
        "|---|---|---|",
    ]
    lines += [f"| {x.name} | {x.seconds:.1f} | {x.bound:.0f} |" for x in late]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds of the processor that compiling takes")
    parser.add_argument("--out", metavar="DIR", type=places.folder, help="write the times and a page of them there")
    parser.add_argument(
        "--json", metavar="PATH", type=places.file_or_stdout, help="write the times there too; - is stdout"
    )
    options = parser.parse_args()
    import torch  # noqa: F401
    import triton  # noqa: F401

    out = sys.stderr if options.json == Path("-") else sys.stdout
    found = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CHUNKFORM_CACHE"] = cache
        timed(chain(1))
        for group, r, bound in specs():
            found.append(Timed(group, r.name, timed(r), bound))
            x = found[-1]
            late = "  above its bound" if x.seconds > x.bound else ""
            print(f"{x.group:24} {x.name:36} {x.seconds:7.2f} s of {x.bound:4.1f}{late}", file=out, flush=True)
    late_ones = sum(x.seconds > x.bound for x in found)
    print(f"{len(found)} specs, {sum(x.seconds for x in found):.0f} s; {late_ones} above their bounds", file=out)
    if options.out:
        (options.out / "compile_time.json").write_text(json.dumps([asdict(x) for x in found], indent=1) + "\n")
        (options.out / "compile_time.md").write_text(page(found))
    if options.json:
        text = json.dumps([asdict(x) for x in found], indent=1) + "\n"
        sys.stdout.write(text) if options.json == Path("-") else options.json.write_text(text)
    sys.exit(late_ones > 0)


if __name__ == "__main__":
    main()
