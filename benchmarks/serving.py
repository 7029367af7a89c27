"""Decoding from a pool of states on a GPU: a step, and four drafts with their commit, beside a copy and fla's fused kernels.

    python -m benchmarks.serving [--json results/gpu/serving.json] [--ops NAME,..] [--quick]

Rows of a bfloat16 pool, and for steps of an int8 and a float8 one, rounded at random; in order and at random, in a CUDA graph
that goes round as many rows as the L2 cache can't hold. The bytes of a step are those of the rows, read and written, of the
inputs and of the outputs; beside it, a copy of as many bytes, which goes round as many buffers. Before anything is timed, a
step from a pool is compared with one of the same states outside of it, drafts with steps one after the other, and fla's
kernels with ours (serving_peers.py). The JSON is written after each op.
"""

from __future__ import annotations

import datetime
import importlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import peers, places, serving_peers
from benchmarks.decode import BEYOND_CACHE, arguments, timed
from chunkform.runtime.op import decode
from chunkform.runtime.op.small_states import LARGEST, SmallPool

OPS = ("gated_delta_rule", "kimi_delta_attention", "lightning_attention")
H, D, K = 16, 128, 4


@dataclass
class Row:
    """One case: microseconds, and the share of the rate of a copy of as many bytes."""

    recurrence: str
    what: str
    batch: int
    rows: str
    microseconds: float
    megabytes: float
    of_copy: float
    of_step: float


def graphed(rounds: Sequence[Callable[[], object]]) -> float:
    """Seconds of one of the rounds, which a CUDA graph runs one after the other."""
    for run in rounds:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in rounds:
            run()
    for _ in range(3):
        graph.replay()
    return statistics.median(timed(graph.replay) for _ in range(15)) / len(rounds)


def copied(moved: int) -> float:
    """Seconds of a copy that reads and writes so many bytes together: by the copy engine, or by a kernel, whose rate doesn't hang
    on where the memory lies; the faster one."""
    count = max(3, int(BEYOND_CACHE / moved) + 1)
    pairs = [[torch.empty(moved // 4, dtype=torch.bfloat16, device="cuda") for _ in range(2)] for _ in range(count)]
    engine = graphed([lambda x=x, y=y: y.copy_(x) for x, y in pairs])
    return min(engine, graphed([lambda x=x, y=y: torch.neg(x, out=y) for x, y in pairs]))


def size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def op_of(name: str) -> tuple[Any, Any]:
    module = importlib.import_module(f"chunkform.generated.{name}")
    return getattr(module, name), module.OP


def over_steps(op: Any, batch: int) -> dict[str, torch.Tensor]:
    """K steps' arguments, [B, K, H, ..]."""
    each = [arguments(op, batch, H, D) for _ in range(K)]
    return {n: torch.stack([x[n] for x in each], 1) for n in each[0]}


def check(name: str) -> None:
    """The pool's step against the plain one, bit for bit; drafts and their commit against steps."""
    call, op = op_of(name)
    many = over_steps(op, 5)
    pool = 0.1 * torch.randn(9, H, D, D, device="cuda", dtype=torch.bfloat16)
    rows = torch.tensor([7, -1, 0, 3, 8], device="cuda", dtype=torch.int32)
    real = (rows >= 0).nonzero().flatten()
    stepped, drafted, states = pool.clone(), pool.clone(), [pool.clone()]
    o, drafts = call.draft(drafted, **many, state_indices=rows)
    assert torch.equal(drafted, pool), f"{name}: drafts wrote to the pool"
    for t in range(K):
        now = {n: x[:, t] for n, x in many.items()}
        alone, after = call.step(states[-1][rows.clamp(min=0)], **now)
        found, _ = call.step(stepped, **now, state_indices=rows)
        assert torch.equal(found[real], alone[real]) and not found[1].any(), f"{name}: a step's output in a pool"
        assert torch.equal(stepped[rows[real]], after[real]), f"{name}: a step's state in a pool"
        far = float((o[real, t].float() - alone[real].float()).abs().max() / alone[real].float().abs().max())
        assert far < 2e-2, f"{name}: draft {t} is {far} from the step"
        states.append(stepped.clone())
    accepted = torch.tensor([4, 1, 2, 0, 3], device="cuda")
    call.commit(drafts, accepted)
    worst = 0.0
    for row, n in zip(rows[real].tolist(), accepted[real].tolist(), strict=True):
        worst = max(worst, float((drafted[row].float() - states[n][row].float()).abs().max()))
    assert worst < 2e-2, f"{name}: a committed state is {worst} from the steps'"
    untouched = [1, 2, 4, 5, 6]
    assert torch.equal(drafted[untouched], pool[untouched]), f"{name}: other rows were touched"
    serving_peers.check(name, call, many)
    print(
        f"{name}: a pool's steps have the bits of plain ones; committed states differ by {worst:.1e} from those of steps"
    )


def measure(name: str, batch: int, random: bool) -> list[Row]:
    call, op = op_of(name)
    torch.cuda.empty_cache()  # the pool is memory of its own, not a part of what an earlier case has left
    state = batch * H * D * D * 2
    sets = max(3, int(BEYOND_CACHE / (2 * state)) + 1)
    pool = 0.1 * torch.randn(sets * batch, H, D, D, device="cuda", dtype=torch.bfloat16)
    order = torch.randperm(len(pool), device="cuda") if random else torch.arange(len(pool), device="cuda")
    rows = [x.contiguous() for x in order.int().view(sets, batch)]
    given, many = arguments(op, batch, H, D), over_steps(op, batch)
    out = torch.empty(batch, H, D, device="cuda", dtype=torch.bfloat16)
    outs = torch.empty(batch, K, H, D, device="cuda", dtype=torch.bfloat16)
    half = torch.randint(0, K + 1, (batch,), device="cuda")
    told = "random" if random else "in order"
    found: list[Row] = []

    def row(what: str, seconds: float, moved: int) -> None:
        step = found[0].microseconds if found else 1e6 * seconds
        share = copied(moved) / seconds
        found.append(
            Row(name, what, batch, told, round(1e6 * seconds, 2), round(1e-6 * moved, 1), round(share, 3),
                round(1e6 * seconds / step, 2))
        )  # fmt: skip
        print(found[-1], flush=True)

    moved = 2 * state + size([*given.values(), out])
    row("step", graphed([lambda r=r: call.step(pool, **given, state_indices=r, out=out) for r in rows]), moved)
    drafting = [lambda r=r: call.draft(pool, **many, state_indices=r, out=outs) for r in rows]
    row(f"{K} drafts", graphed(drafting), state + size([*many.values(), outs]))

    def both(r: torch.Tensor, accepted: torch.Tensor) -> None:
        _, drafts = call.draft(pool, **many, state_indices=r, out=outs)
        call.commit(drafts, accepted)

    every = 3 * state + 2 * size([*many.values()]) + size([outs])
    row(f"{K} drafts, some accepted", graphed([lambda r=r: both(r, half) for r in rows]), every)
    for dtype in LARGEST:
        row(f"step, {str(dtype)[6:]}", *small_step(name, batch, order, given, out, dtype))
    for what, rounds, moved in beside_fla(name, given, many, random):
        row(what, graphed(rounds), moved)
    return found


def beside_fla(
    name: str, given: dict[str, torch.Tensor], many: dict[str, torch.Tensor], random: bool
) -> Iterator[serving_peers.Timed]:
    """What fla's kernels do, by them and by ours: states of a pool, which may be in any order, and states outside of one."""
    batch = len(given["q"])
    entries = batch * H * D * D
    count = max(2, int(BEYOND_CACHE / (2 * (1 + K) * entries)) + 1) * batch * K
    pool = 0.1 * torch.randn(count, H, D, D, device="cuda", dtype=torch.bfloat16)
    order = torch.randperm(count, device="cuda") if random else torch.arange(count, device="cuda")
    yield from serving_peers.between_rows(name, given, many, pool, order)
    del pool
    if not random:
        call, sets = op_of(name)[0], max(3, int(BEYOND_CACHE / (8 * entries)) + 1)
        states = [0.1 * torch.randn(batch, H, D, D, device="cuda") for _ in range(sets)]
        yield from serving_peers.alone(name, call, given, states)


def small_step(
    name: str, batch: int, order: torch.Tensor, given: dict[str, torch.Tensor], out: torch.Tensor, dtype: torch.dtype
) -> tuple[float, int]:
    """Seconds of a step between rows of small states, and its bytes."""
    call, _ = op_of(name)
    dims, sets = dict.fromkeys("de", D), 2 * len(order) // batch  # rows take half as many bytes
    pool = SmallPool.zeros(call, sets * batch, H, dims, dtype, "cuda")
    for some in torch.arange(len(pool), device="cuda").split(256):
        pool.write(some, [0.1 * torch.randn(len(some), H, D, D, device="cuda")])
    rows = [x.contiguous() for x in torch.cat([order, order + len(order)]).int().view(sets, batch)]
    seconds = graphed([lambda r=r: call.step(pool, **given, state_indices=r, out=out) for r in rows])
    return seconds, 2 * pool.bytes * batch // len(pool) + size([*given.values(), out])


def tune(name: str) -> None:
    """Steps and drafts with other tiles and warps, in random order."""
    usual = decode.TILE, decode.PER_WARP
    for tile, warp in ((8192, 4096), (8192, 2048), (16384, 4096), (16384, 2048), (4096, 2048)):
        decode.TILE, decode.PER_WARP = tile, warp
        _, op = op_of(name)
        op.step.plans.clear()
        op.step.launches.clear()
        print(f"tile {tile}, per warp {warp}:")
        for batch in (64, 256):
            measure(name, batch, True)
    decode.TILE, decode.PER_WARP = usual


def page(about: dict[str, Any], rows: list[Row]) -> str:
    """The table of results/gpu/serving.md."""
    of_fla = f", fla {about['fla']}" if about.get("fla") else ""
    lines = [
        "# Decoding from a pool of states on a GPU",
        "",
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}{of_fla}, {about['date']}; {H} heads of {D} "
        f"channels, a bfloat16 pool. A row's rate is that of a copy of as many bytes in the same run. Made by "
        "`python -m benchmarks.serving`, which says how.",
        "",
        "| recurrence | what | B | rows | us | MB | of a copy's rate | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.recurrence} | {r.what} | {r.batch} | {r.rows} | {r.microseconds} | {r.megabytes} | {r.of_copy:.0%} | "
        f"{r.of_step or ''} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main(
    json_path: Annotated[Path | None, typer.Option("--json", parser=places.file)] = None,
    ops: Annotated[str, typer.Option("--ops", help="recurrences, separated by commas")] = ",".join(OPS),
    quick: Annotated[bool, typer.Option("--quick", help="one op, 64 sequences")] = False,
    tuning: Annotated[bool, typer.Option("--tune", help="other tiles and warps")] = False,
) -> None:
    """Measure, print, and write JSON with a Markdown table beside it."""
    import triton

    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "fla": peers.version("fla-core"),
    }
    names = OPS[:1] if quick else [x for x in ops.split(",") if x]
    for name in names:
        check(name)
    if tuning:
        return tune(names[0])
    rows: list[Row] = []
    for name in names:
        for batch in (64,) if quick else (64, 256):
            for random in (False, True):
                rows += measure(name, batch, random)
        if json_path:
            json_path.write_text(json.dumps({"about": about, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
            json_path.with_suffix(".md").write_text(page(about, rows))
    return None


if __name__ == "__main__":
    typer.run(main)
