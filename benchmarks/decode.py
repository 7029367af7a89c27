"""The decoding step on a GPU: bytes moved against the rate of a plain copy, and the host's time of a call.

    python -m benchmarks.decode [--tune] [--json PATH]

Steps run in place, in a CUDA graph that goes round as many states as the L2 cache can't hold. The bytes are those of the state,
read and written, of the inputs and of the outputs.
"""

from __future__ import annotations

import datetime
import importlib
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from chunkform.runtime.op import decode

from . import places

CASES = [  # name, B, H, D, dtype of the state
    ("lightning_attention", 64, 16, 128, torch.bfloat16),
    ("lightning_attention", 64, 16, 128, torch.float32),
    ("gated_delta_rule", 64, 16, 128, torch.bfloat16),
    ("gated_delta_rule", 64, 16, 128, torch.float32),
    ("kimi_delta_attention", 64, 16, 128, torch.bfloat16),
    ("gradient_descent_squared_momentum", 64, 16, 128, torch.bfloat16),
    ("sherman_morrison", 64, 16, 128, torch.float32),
    ("sherman_morrison", 16, 16, 256, torch.float32),
    ("lightning_attention", 1, 16, 128, torch.bfloat16),
    ("lightning_attention", 8, 16, 128, torch.bfloat16),
    ("lightning_attention", 64, 32, 64, torch.bfloat16),
    ("lightning_attention", 32, 16, 256, torch.bfloat16),
]
BEYOND_CACHE = 300e6  # bytes; an H200's L2 cache holds 60e6


@dataclass
class Row:
    """Microseconds of one step, and the share of the copy rate at which its bytes move."""

    recurrence: str
    batch: int
    heads: int
    width: int
    state: str
    microseconds: float
    terabytes_per_second: float
    of_copy_rate: float
    host_microseconds: float


def copy_rate() -> float:
    """Bytes read and written in a second by a copy of 2 GiB."""
    x = torch.empty(2**30, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    times = [timed(lambda: y.copy_(x)) for _ in range(12)]
    return 2 * x.numel() * x.element_size() / statistics.median(times[2:])


def timed(run: Any) -> float:
    """Seconds on the device."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop)


def arguments(op: Any, batch: int, heads: int, width: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """One step's random inputs by their public names."""
    given: dict[str, Any] = {}
    for a in op.signature.arguments:
        if a.kind == "constant":
            continue
        lead = (batch, heads) if a.per_step else (heads,)
        x = torch.randn(*lead, *(width for _ in a.dims), device="cuda")
        if a.kind.startswith("decay"):
            given[a.key] = torch.nn.functional.logsigmoid(x + 3)
        else:
            given[a.key] = (x / width**0.5).to(dtype if a.kind == "input" else torch.float32)
    return given


def measure(name: str, batch: int, heads: int, width: int, dtype: torch.dtype, rate: float) -> Row:
    """One case."""
    module = importlib.import_module(f"chunkform.generated.{name}")
    op, step = module.OP, getattr(module, name).step
    given = arguments(op, batch, heads, width)
    *outs, state = step(None, **given, state_dtype=dtype)
    state = state if isinstance(state, tuple) else (state,)
    of_states = 2 * sum(x.numel() * x.element_size() for x in state)
    bytes_moved = of_states + sum(x.numel() * x.element_size() for x in (*given.values(), *outs))
    copies = max(2, min(256, int(BEYOND_CACHE / of_states) + 1))
    states = [tuple(x.clone() for x in state) for _ in range(copies)]
    out = tuple(outs)

    def once() -> None:
        for s in states:
            step(s, **given, inplace=True, out=out)

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    for _ in range(3):
        graph.replay()
    seconds = statistics.median(timed(graph.replay) for _ in range(15)) / copies
    speed = bytes_moved / seconds
    small, calls = arguments(op, 1, 1, 16), 300
    *outs, s = step(None, **small, state_dtype=dtype)
    step(s, **small, inplace=True, out=tuple(outs))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step(s, **small, inplace=True, out=tuple(outs))
    host = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return Row(
        name, batch, heads, width, str(dtype).removeprefix("torch."), round(1e6 * seconds, 2), round(1e-12 * speed, 3),
        round(speed / rate, 3), round(1e6 * host, 1),
    )  # fmt: skip


def tune(rate: float) -> None:
    """The first cases with other tiles and warps."""
    usual = decode.TILE, decode.PER_WARP
    for case in CASES[:4:3]:
        for tile in (4096, 8192, 16384):
            for warp in (1024, 2048, 4096):
                decode.TILE, decode.PER_WARP = tile, warp
                importlib.import_module(f"chunkform.generated.{case[0]}").OP.step.plans.clear()
                row = measure(*case, rate)
                print(
                    f"{case[0]} {row.state} tile {tile} per warp {warp}: {row.microseconds} us, {row.of_copy_rate:.0%}"
                )
    decode.TILE, decode.PER_WARP = usual
    for case in CASES:
        importlib.import_module(f"chunkform.generated.{case[0]}").OP.step.plans.clear()


def page(about: dict[str, Any], rows: list[Row]) -> str:
    """The table of results/gpu/decode.md."""
    lines = [
        "# The decoding step on a GPU",
        "",
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}, {about['date']}; a plain copy moves "
        f"{about['copy_terabytes_per_second']} TB/s. Moved: the state, read and written, inputs and outputs. Made by "
        "`python -m benchmarks.decode`, which says how.",
        "",
        "| recurrence | B | H | D | state | one step, us | moved, TB/s | of the copy rate | host, us a call |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.recurrence} | {r.batch} | {r.heads} | {r.width} | {r.state} | {r.microseconds} | {r.terabytes_per_second} | "
        f"{r.of_copy_rate:.0%} | {r.host_microseconds} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main(
    tuning: Annotated[bool, typer.Option("--tune")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", parser=places.file)] = None,
) -> None:
    """Measure, print, and write JSON with a Markdown table beside it."""
    import triton

    rate = copy_rate()
    print(f"copy: {1e-12 * rate:.2f} TB/s")
    if tuning:
        tune(rate)
    rows = []
    for case in CASES:
        rows.append(measure(*case, rate))
        print(rows[-1])
    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_terabytes_per_second": round(1e-12 * rate, 2),
    }
    if json_path:
        json_path.write_text(json.dumps({"about": about, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
        json_path.with_suffix(".md").write_text(page(about, rows))


if __name__ == "__main__":
    typer.run(main)
