"""Each kernel's time in both passes of an op, with candidates for its configuration, and errors of each against float64.

    python -m benchmarks.kernels --ops lightning_attention,gated_delta_rule
    python -m benchmarks.kernels --ops gated_delta_rule --shape S2 --configs now,chunk=64:block=64,registers=128
    python -m benchmarks.kernels --ops gated_delta_rule --configs now,out/before

A candidate changes fields of `runtime.launch.Config`; `now` is the one that is used. Or it is a folder, with a slash in its path,
of files that another version of the compiler wrote (`chunkform build --out`), which run with the runtime that is here. Each
candidate of each op runs in a process of its own: all compile at once, then one after the other is timed. A candidate is only
worth having if its errors are those of `now`, at widths below 64 too: some that are fast compute something else (a fault of the
compiler).
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.multiprocessing as mp
import typer
from rich.console import Console
from rich.table import Table

from chunkform.codegen.checking.accuracy import relative_error

from . import peers, places, timing
from .calls import forward, forward_backward
from .inputs import draw, parse_shape

OPS = "lightning_attention,gated_linear_attention,gated_delta_rule,kimi_delta_attention"
REPEATS = 4
SMALL = ("1x256x2x128", "1x150x2x32")  # where errors are taken


def main(
    ops: Annotated[str, typer.Option(help="recurrences of the catalogue, with commas between")] = OPS,
    configs: Annotated[
        str, typer.Option(help="candidates: fields with colons between, or a folder; candidates with commas between")
    ] = "now",
    shape: Annotated[str, typer.Option(help="as in benchmarks.gpu")] = "S1",
    out: Annotated[Path | None, typer.Option(parser=places.file, help="write the numbers here")] = None,
) -> None:
    """Microseconds of each kernel in both passes, medians of calls, and errors."""
    changes = {text: parsed(text) for text in configs.split(",")}
    for text in filter(is_folder, changes):
        for op in ops.split(","):
            if not Path(text, f"{op}.py").is_file():
                raise typer.BadParameter(f"--configs: expected a folder with {op}.py, got {text}")
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.kernels: torch sees no CUDA device")
    jobs = [(op, text, changes[text], shape) for op in ops.split(",") for text in changes]
    context = mp.get_context("spawn")
    barrier, turn, results = context.Barrier(len(jobs)), context.Lock(), context.Queue()
    workers = [context.Process(target=work, args=(job, barrier, turn, results)) for job in jobs]
    for w in workers:
        w.start()
    rows = [results.get(timeout=600) for _ in jobs]
    for w in workers:
        w.join(20)
    rows.sort(key=lambda r: (r["op"], r.get("us", 1e9)))
    show(rows)
    if out is not None:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": peers.version("triton")}
        out.write_text(json.dumps({"about": about, "shape": shape, "rows": rows}, indent=1) + "\n")


def is_folder(text: str) -> bool:
    """Is a candidate a folder of generated files?"""
    return "/" in text


def parsed(text: str) -> dict[str, int]:
    """The fields that a candidate changes."""
    from chunkform.runtime.launch.launch import Config

    if text == "now" or is_folder(text):
        return {}
    known = {f.name for f in fields(Config)} - {"itemsize"}
    found = {}
    for part in text.split(":"):
        name, _, value = part.partition("=")
        if name not in known or not value.isdecimal() or int(value) < 1:
            raise typer.BadParameter(
                f"{part!r}: expected FIELD=NUMBER with a field of {', '.join(sorted(known))}, a folder, or now"
            )
        found[name] = int(value)
    return found


def work(job: tuple[str, str, dict[str, int], str], barrier: Any, turn: Any, results: Any) -> None:
    """One candidate of one op."""
    op, text, change, shape = job
    row: dict[str, Any] = {"op": op, "config": text}
    run = None
    try:
        import chunkform.generated
        from chunkform.runtime.launch import replay

        replay.ON = False  # so that the profiler names kernels
        if is_folder(text):
            chunkform.generated.__path__.insert(0, text)
        module = importlib.import_module(f"chunkform.generated.{op}")
        usual = module.choose
        module.choose = lambda *a: replace(usual(*a), **change)
        subject = peers.ours(op)
        row["errors"] = {size: errors(subject, size) for size in SMALL}
        given, cotangents = draw(
            subject.signature, parse_shape(shape), device="cuda", dtype=torch.bfloat16, unit=subject.unit
        )
        run = forward_backward(subject, given, cotangents)
        run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        run, row["problem"] = None, f"{type(error).__name__}: {error}"[:300]
    barrier.wait(500)
    if run is not None:
        with turn:
            try:
                row["kernels"] = times(run)
                row["us"] = sum(row["kernels"].values())
                replay.ON = True
                row["forward_backward"] = timing.medians(run, "cuda", timing.QUICK)
                row["forward"] = timing.medians(forward(subject, given), "cuda", timing.QUICK)
            except Exception:
                row["problem"] = traceback.format_exc()[-300:]
    results.put(row)


def errors(subject: peers.Subject, shape: str) -> dict[str, float]:
    """||x - reference|| / ||reference|| of outputs and gradients in bfloat16, of the worst head, against the op in float64."""
    given, cotangents = draw(
        subject.signature, parse_shape(shape), device="cuda", dtype=torch.bfloat16, unit=subject.unit
    )
    outputs, gradients = forward_backward(subject, given, cotangents)()
    wide = {n: x.double() for n, x in given.items()}
    whole, exact = forward_backward(subject, wide, [x.double() for x in cotangents])()
    names = [*(f"output {n}" for n in range(len(outputs))), *(f"d{n}" for n in given)]
    heads = {f"d{a.key}": a.head_axis for a in subject.signature.arguments}
    found = {}
    for name, x, y in zip(names, (*outputs, *gradients), (*whole, *exact), strict=True):
        if x is not None and y is not None:
            found[name] = relative_error(x, y, heads.get(name, 2))
    return found


def times(run: Any) -> dict[str, float]:
    """Microseconds of each kernel in one call."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as p:
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            found[e.name[:60]] += e.time_range.elapsed_us() / REPEATS
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def show(rows: list[dict[str, Any]]) -> None:
    """A table: the candidates of each op, the fastest first."""
    table = Table("op", "config", "us", "f ms", "f+b ms", "largest error", "of", "slowest kernels, us")
    for r in rows:
        if "us" not in r:
            table.add_row(r["op"], r["config"], "", "", "", "", "", r.get("problem", ""))
            continue
        worst = max(((e, f"{n}, {size}") for size, x in r["errors"].items() for n, e in x.items()), key=_size)
        slowest = ", ".join(f"{n} {t:.0f}" for n, t in list(r["kernels"].items())[:6])
        medians = [f"{r[n]['median']:.3f}" if n in r else "" for n in ("forward", "forward_backward")]
        table.add_row(r["op"], r["config"], f"{r['us']:.0f}", *medians, f"{worst[0]:.1e}", worst[1], slowest)
    Console().print(table)


def _size(found: tuple[float, str]) -> float:
    """NaN is the largest."""
    return found[0] if found[0] == found[0] else float("inf")


if __name__ == "__main__":
    sys.exit(typer.run(main))
