"""Times of the recurrences in docs/recurrences.md that have none yet: measured on a GPU, and written into the page.

    python -m benchmarks.published_times --out OUT [--only lru,s5] [--budget SECONDS]     measure
    python -m benchmarks.published_times --write OUT/published_times.json                 write rows into the page and the data
    python -m benchmarks.published_times --missing                                        which there are

Ops are compiled by several processes, and timed one after the other by one, at S1 unless told otherwise. Those of SIZED, such as
`mamba_one_head`, have a row of their own, at heads and widths of their own. `FILE.py:NAME` is one of a spec file, which has none.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
import typer

import chunkform
from chunkform.spec.language import Recurrence, find

from . import timing
from .inputs import SHAPES, Shape, draw

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs" / "recurrences.md", ROOT / "results" / "gpu" / "published_later.json"
SPECS = ROOT / "tests" / "codegen" / "recurrence"
FILES = ("published_specs", "published_twice", "published_more", "published_later")
FIRST = (  # most read about, first; the others follow as the page has them
    "mamba2 deltanet_negative kda lru s5 mamba3 abc lightnet metala rodimus path_linear ttt_linear atlas infini_attention hgrn "
    "mingru longhorn second_order_attention s4d mega regla xpos linoss aaren omega"
).split()
STEPS = 256  # of a trial of one sequence: kernels compiled for it are those of S1
CONTEXT = multiprocessing.get_context("spawn")
COMPILING = 0.6  # of the budget
LONGEST = 40.0  # seconds that one recurrence may take to be timed


@dataclass(frozen=True)
class Sized:
    """A row of its own for a recurrence at other sizes: its title, heads, and the widths of its dims."""

    title: str
    spec: str
    heads: int
    widths: tuple[tuple[str, int], ...]


SIZED = {
    "mamba": Sized("Mamba, 2,048 channels of 16 states", "mamba", 16, (("c", 128), ("n", 16))),
    "mamba_one_head": Sized("Mamba, one head of 2,048 channels of 16 states", "mamba", 1, (("c", 2048), ("n", 16))),
}


def missing() -> list[str]:
    """Names of the page's first table of which its second has no time."""
    text, times = PAGE.read_text().split("### Times", 1)
    timed = {n for row in re.findall(r"^\| (.*?) \|", times, re.M) for n in re.findall(r"\w+", row.lower())}
    listed = [n for n in re.findall(r"^\| `(\w+)` \|", text, re.M) if n not in timed]
    return sorted(listed, key=lambda n: FIRST.index(n) if n in FIRST else len(FIRST))


def recurrences() -> dict[str, Callable[[], Recurrence]]:
    """What makes each published recurrence of the tests."""
    found: dict[str, Any] = {}
    for file in FILES:
        for table in vars(_module(file)).values():
            if isinstance(table, dict):
                found |= {n: x[0] if isinstance(x, tuple) else x for n, x in table.items() if isinstance(n, str)}
    return {n: f for n, f in found.items() if callable(f)}


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SPECS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _calls(name: str, shape: Shape, device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """The forward pass, and both with all gradients."""
    own = SIZED.get(name)
    if own is not None:
        shape = replace(shape, heads=own.heads, widths=own.widths)
    file, _, inside = name.partition(":")
    if inside:
        op = chunkform.compile(next(r for r in find(file) if r.name == inside))
    else:
        op = chunkform.compile(recurrences()[name if own is None else own.spec]())
    given, cotangents = draw(sys.modules[op.__module__].SIGNATURE, shape, device=device, dtype=torch.bfloat16)
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}

    def forward() -> object:
        with torch.no_grad():
            return op(**given)

    def both() -> object:
        outputs = op(**leaves)[: len(cotangents)]
        return torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)

    return forward, both


def prepared(job: tuple[str, Shape, str]) -> tuple[str, str]:
    """(name, why not): compile an op and its kernels in this process, for others to find."""
    name, shape, device = job
    try:
        for run in _calls(name, replace(shape, batch=1, steps=STEPS), device):
            run()
    except Exception as why:  # a recurrence that can't run is left out, and told
        return name, timing.reason(why)
    return name, ""


def timed(name: str, shape: Shape, device: str) -> list[float] | str:
    """Milliseconds of the forward pass, and of both; or why there are none."""
    try:
        return [round(timing.medians(f, device, timing.QUICK)["median"], 4) for f in _calls(name, shape, device)]
    except Exception as error:
        return timing.reason(error)
    finally:
        timing.release(device)


def compiled(names: list[str], shape: Shape, device: str, end: float) -> dict[str, str]:
    """Compile all of them by several processes, until a time: why not ("" where it went well), by the names of those done."""
    found: dict[str, str] = {}
    with CONTEXT.Pool(max(1, min(len(names), (os.cpu_count() or 2) - 2))) as pool:
        made = pool.imap_unordered(prepared, [(n, shape, device) for n in names])
        while len(found) < len(names) and (left := end - time.monotonic()) > 0:
            try:
                found.update([made.next(left)])
            except multiprocessing.TimeoutError:
                break
        pool.terminate()
    return found


def measured(names: list[str], shape: Shape, device: str, budget: float, out: Path) -> dict[str, Any]:
    """Milliseconds by name, forward and with backward, written after each. First all are compiled, which takes a part of the
    budget at most, as nothing else is to run while one is timed. One process times them; a fault, which none that follows would
    survive there, or a call that takes too long ends it, and another one goes on."""
    begun, found = time.monotonic(), dict[str, Any]()
    end = begun + budget
    whys = compiled(names, shape, device, begun + COMPILING * budget)
    print(f"compiled {len(whys)} of {len(names)} in {time.monotonic() - begun:.0f} s", flush=True)
    alone = CONTEXT.Pool(1)
    for name in names:
        why, left = whys.get(name, "not compiled within the time"), end - time.monotonic()
        if not why and left <= 0:
            why = "the time budget was spent"
        if not why:
            try:
                ms = alone.apply_async(timed, (name, shape, device)).get(min(LONGEST, left))
            except multiprocessing.TimeoutError:
                ms = "it took too long"
            if isinstance(ms, list):
                found[name] = ms
            else:
                why = ms
                alone.terminate()
                alone = CONTEXT.Pool(1)
        print(f"{name:28s} {why or found[name]}", flush=True)
        out.write_text(json.dumps({"shape": shape.name, "ms": found}, indent=1) + "\n")
    alone.terminate()
    return found


def write(file: Path) -> None:
    """Rows of a run into the page, sorted among those that are data, and into the data."""
    told = json.loads(file.read_text())
    data = json.loads(DATA.read_text())
    page = PAGE.read_text()
    for name, ms in told["ms"].items():
        if ":" in name:
            continue
        if name in SIZED:
            title = SIZED[name].title
            own = data["ms"].setdefault(title, {})
            own[told["shape"]] = ms
            row = f"| {title} | " + " | ".join(_shown(own.get(s)) for s in ("S1", "S2")) + " |"
            page = re.sub(rf"^\| {re.escape(title)} \|.*$", row, page, flags=re.M)
            continue
        data["ms"].setdefault(name, {})[told["shape"]] = ms
        row = f"| `{name}` | " + " | ".join(_shown(data["ms"][name].get(s)) for s in ("S1", "S2")) + " |\n"
        page = (
            re.sub(rf"^\| `{name}` \| [\d., ]*\|[\d., ]*\|\n", "", page, flags=re.M) if name not in missing() else page
        )
        timed_rows = re.finditer(r"^\| `(\w+)` \| [\d.]+, .*\|\n", page, re.M)
        after = [m for m in timed_rows if m[1] < name and m.start() >= page.index("| `agalite` | 2")]
        at = after[-1].end() if after else page.index("| `agalite` | 2")
        page = page[:at] + row + page[at:]
    data["ms"] = dict(sorted(data["ms"].items()))
    rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(x)}" for n, x in data["ms"].items())
    DATA.write_text(f'{{\n "about": {json.dumps(data["about"])},\n "ms": {{\n{rows}\n }}\n}}\n')
    PAGE.write_text(page)


def _shown(ms: list[float] | None) -> str:
    return "" if ms is None else ", ".join(f"{x:.1f}" if x >= 100 else f"{x:.3f}" for x in ms)


def main(
    out: Annotated[Path | None, typer.Option(help="write published_times.json into this folder")] = None,
    only: Annotated[str, typer.Option(help="names, with commas between; else what the page has no time of")] = "",
    shape: Annotated[str, typer.Option(help="S1 or S2")] = "S1",
    budget: Annotated[float, typer.Option(help="seconds after which nothing new is timed")] = 3600.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try this program out")] = "cuda",
    written: Annotated[Path | None, typer.Option("--write", help="a published_times.json")] = None,
    listed: Annotated[bool, typer.Option("--missing", help="say which have no time")] = False,
) -> None:
    """Measure published recurrences, or write what was measured into the page."""
    if written is not None:
        write(written)
    elif listed or out is None:
        print(" ".join(missing()))
    else:
        out.mkdir(parents=True, exist_ok=True)
        names = only.split(",") if only else missing()
        measured(names, SHAPES[shape], device, budget, out / "published_times.json")


if __name__ == "__main__":
    typer.run(main)
