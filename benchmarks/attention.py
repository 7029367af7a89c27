"""Attention on a GPU beside torch's FlexAttention with the same energy: time and peak memory, forward and forward with backward.

    python benchmarks/attention.py [--out results/gpu] [--quick]     the comparison
    python benchmarks/attention.py --tune                            blocks, warps and stages of each kernel

Each case is compiled in a process of its own, all at once; then they are timed one after the other, ours and FlexAttention's
in turns. Both are given the same tensors: `self_attention` and `kattention` project them first; of FlexAttention the whole
function, projections and all, is compiled by torch.compile.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import os
import statistics
import traceback
from pathlib import Path
from typing import Any

import torch

from chunkform.codegen.checking.accuracy import relative_error

HEADS = 16
LENGTHS = {4096: 4, 16384: 1}  # T -> batch
WIDTHS = (64, 128)
OPS = ("softmax_attention", "self_attention", "kattention")
FIRST = 4  # calls that may compile, or be watched for a replay
ROOT = Path(__file__).resolve().parent.parent

# Candidates of --tune: rows, keys, warps, stages; whether blocks of rows are held in registers; registers a thread.
TUNE = {
    ("forward", 128): [
        (128, 128, 8, 3, True),
        (128, 64, 8, 3, True),
        (64, 128, 4, 3, True, 255),
        (64, 64, 4, 3, True, 255),
        (64, 64, 4, 3, False, 168),
    ],
    ("forward", 64): [
        (128, 64, 8, 3, True),
        (128, 64, 8, 3, True, 128),
        (64, 128, 4, 3, True, 168),
        (64, 64, 4, 3, True, 168),
        (64, 64, 4, 3, True, 128),
    ],
    ("rows", 128): [(128, 64, 8, 4, True), (64, 64, 4, 3, True, 255), (64, 64, 4, 3, False, 255)],
    ("rows", 64): [(128, 64, 4, 3), (64, 64, 4, 3, True, 168), (64, 64, 4, 3), (64, 128, 4, 2)],
    ("keys", 128): [(64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 4, 2, False, 255)],
    ("keys", 64): [(64, 64, 4, 3), (64, 64, 4, 3, False, 168), (64, 128, 8, 3), (128, 64, 4, 3)],
}
TUNED = tuple(itertools.product(("softmax_attention", "self_attention", "kattention"), (False, True)))


# --- what is compared ---------------------------------------------------------------------------------------------------


def given(op: str, batch: int, T: int, D: int) -> dict[str, torch.Tensor]:
    """Random arguments, which need gradients."""
    g = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        x = torch.randn(*shape, generator=g, device="cuda") * scale
        return x.to(dtype).requires_grad_()

    if op == "softmax_attention":
        return {n: normal(batch, T, HEADS, D) for n in "qkv"}
    wide = {"dtype": torch.float32, "scale": D**-0.5}
    made = {"x": normal(batch, T, HEADS, D), "Q": normal(HEADS, D, D, **wide), "K": normal(HEADS, D, D, **wide)}
    if op == "self_attention":
        made["Q"] = normal(HEADS, D, D, dtype=torch.float32, scale=D**-1.0)
        return made | {"V": normal(HEADS, D, D, **wide)}
    return made | {"b": normal(HEADS, D, dtype=torch.float32, scale=0.1)}


def ours(op: str, causal: bool, D: int) -> Any:
    import chunkform.generated

    function = getattr(chunkform.generated, op)
    if op == "kattention":
        return lambda **a: function(**a, beta=D**-0.5, causal=causal)
    return lambda **a: function(**a, causal=causal)


def flex(op: str, causal: bool, D: int, T: int) -> Any:
    """The same through FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cuda")

    attend = torch.compile(flex_attention, dynamic=False)

    def projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bthe,hde->bhtd", x, w.to(x.dtype))

    def softmax_attention(q: Any, k: Any, v: Any) -> Any:
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask).transpose(1, 2)

    def self_attention(x: Any, Q: Any, K: Any, V: Any) -> Any:
        y = flex_attention(projected(x, Q), projected(x, K), x.transpose(1, 2), block_mask=mask, scale=1.0)
        return torch.einsum("bhte,hde->bthd", y, V.to(x.dtype))

    beta = D**-0.5

    @torch.compile(dynamic=False)
    def features(x: Any, Q: Any, K: Any, b: Any) -> Any:
        k = projected(x, K)
        bias = beta * (torch.einsum("bhtd,hd->bht", k, b.to(k.dtype)).float() - 0.5 * k.float().square().sum(-1))
        return projected(x, Q), k, bias

    def kattention(
        x: Any, Q: Any, K: Any, b: Any
    ) -> Any:  # FlexAttention takes no bias that is computed where it is compiled
        q, k, bias = features(x, Q, K, b)

        def energy(score: Any, n: Any, h: Any, i: Any, j: Any) -> Any:
            return score + bias[n, h, j]

        return attend(q, k, x.transpose(1, 2), score_mod=energy, block_mask=mask, scale=beta).transpose(1, 2)

    if op == "self_attention":
        return torch.compile(self_attention, dynamic=False)
    return {"softmax_attention": softmax_attention, "kattention": kattention}[op]


# --- one case, in a process of its own ----------------------------------------------------------------------------------


def compare_case(job: tuple[str, int, int, bool], wait: Any, turn: Any, quick: bool) -> list[dict[str, Any]]:
    op, D, T, causal = job
    arguments = given(op, LENGTHS[T], T, D)
    g = torch.randn(LENGTHS[T], T, HEADS, D, device="cuda", dtype=torch.bfloat16)
    row: dict[str, Any] = {"op": op, "D": D, "T": T, "B": LENGTHS[T], "H": HEADS, "causal": causal}
    sides, results = {}, {}
    for name, make in (("ours", lambda: ours(op, causal, D)), ("flex", lambda: flex(op, causal, D, T))):
        try:
            f = make()
            y = f(**arguments)
            grads = torch.autograd.grad(y, list(arguments.values()), g)
            sides[name], results[name] = f, [y.detach(), *grads]
        except Exception as error:
            row[f"{name}_error"] = f"{type(error).__name__}: {error}"[:300]
    if len(results) == 2:
        names = ["y", *(f"d{n}" for n in arguments)]
        row["difference"] = {
            n: relative_error(a, b, 2 if a.ndim == 4 else 0)
            for n, a, b in zip(names, results["ours"], results["flex"], strict=True)
        }
    results.clear()
    wait()
    with turn:
        row |= measured(sides, arguments, g, quick)
    return [row]


def measured(
    sides: dict[str, Any], arguments: dict[str, torch.Tensor], g: torch.Tensor, quick: bool
) -> dict[str, float]:
    """Times of both, in turns, so that both find the GPU as warm as the other; and their peak memory."""
    leaves = list(arguments.values())

    def forward(f: Any) -> None:
        with torch.no_grad():
            f(**arguments)

    def both(f: Any) -> None:
        torch.autograd.grad(f(**arguments), leaves, g)

    out = {}
    for part, run in (("forward", forward), ("both", both)):
        times = in_turns({name: functools.partial(run, f) for name, f in sides.items()}, quick)
        out |= {f"{name}_{part}_ms": statistics.median(found) for name, found in times.items()}
    for name, f in sides.items():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both(f)
        torch.cuda.synchronize()
        out[f"{name}_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return out


def in_turns(runs: dict[str, Any], quick: bool) -> dict[str, list[float]]:
    """Milliseconds of single calls of each in turns, the L2 cache emptied before each: what one does to the GPU's clocks and
    temperature meets the others as well."""
    cache = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    for run in runs.values():
        for _ in range(FIRST):
            run()

    def turn() -> dict[str, tuple[Any, Any]]:
        found = {}
        for name, run in runs.items():
            cache.zero_()
            found[name] = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            found[name][0].record()
            run()
            found[name][1].record()
        return found

    def elapsed(found: dict[str, tuple[Any, Any]]) -> dict[str, float]:
        torch.cuda.synchronize()
        return {name: first.elapsed_time(last) for name, (first, last) in found.items()}

    spent = sum(elapsed(turn()).values())
    turns = [turn() for _ in range(max(10, int((50 if quick else 250) / spent)))]
    return {name: [elapsed(found)[name] for found in turns] for name in runs}


def tune_case(job: tuple[str, int, str, bool, tuple], wait: Any, turn: Any, quick: bool) -> list[dict[str, Any]]:
    """Time one kernel with a candidate, and compare the op's numbers with those of the blocks that are used now."""
    from chunkform.runtime.attention import launch as host

    kernel, D, op, causal, candidate = job
    T, usual, calls = 4096, host.choose, []
    about = {"kernel": kernel, "D": D, "op": op, "causal": causal, "blocks": candidate}
    arguments = given(op, LENGTHS[T], T, D)
    g = torch.randn(LENGTHS[T], T, HEADS, D, device="cuda", dtype=torch.bfloat16)

    def found() -> list[torch.Tensor]:
        y = ours(op, causal, D)(**arguments)
        return [y, *(torch.autograd.grad(y, list(arguments.values()), g) if kernel != "forward" else ())]

    def record(k: Any, grid: Any, *args: Any, **options: Any) -> None:
        calls.append((k, grid, args, options))
        k[grid](*args, **options)

    reference = found()
    host.choose = lambda name, *a: host.CheckpointSchedule(*candidate) if name == kernel else usual(name, *a)
    before, host.launch = host.launch, record
    try:
        pairs = zip(found(), reference, strict=True)
        error = max(relative_error(a, b, 2 if a.ndim == 4 else 0) for a, b in pairs)
    finally:
        host.launch, host.choose = before, usual
    k, grid, args, options = next(c for c in calls if c[0].fn.__name__ == f"{kernel}_kernel")
    wait()
    with turn:
        ms = statistics.median(in_turns({"it": lambda: k[grid](*args, **options)}, True)["it"])
    return [{**about, "ms": round(ms, 4), "difference": error}]


def _worker(case: Any, job: Any, barrier: Any, turn: Any, quick: bool, results: Any) -> None:
    waited = False

    def wait() -> None:
        nonlocal waited
        waited = True
        torch.cuda.synchronize()
        barrier.wait(240)

    try:
        rows = case(job, wait, turn, quick)
    except Exception:
        rows = [{"job": str(job), "problem": traceback.format_exc()[-600:]}]
    if not waited:
        barrier.wait(240)
    results.put(rows)


def run_all(case: Any, jobs: list[Any], quick: bool) -> list[dict[str, Any]]:
    """The rows of each job, each in a process, timed in turns."""
    import torch.multiprocessing as mp

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    context = mp.get_context("spawn")
    barrier, turn, results = context.Barrier(len(jobs)), context.Lock(), context.Queue()
    workers = [context.Process(target=_worker, args=(case, j, barrier, turn, quick, results)) for j in jobs]
    for w in workers:
        w.start()
    rows = [r for _ in jobs for r in results.get(timeout=400)]
    for w in workers:
        w.join(20)
    return rows


def profile(op: str, D: int, T: int, causal: bool) -> None:
    """Print what takes the device's time in a pass forward and backward, ours and FlexAttention's."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    arguments = given(op, LENGTHS[T], T, D)
    g = torch.randn(LENGTHS[T], T, HEADS, D, device="cuda", dtype=torch.bfloat16)
    for name, f in (("ours", ours(op, causal, D)), ("flex", flex(op, causal, D, T))):
        for _ in range(3):
            torch.autograd.grad(f(**arguments), list(arguments.values()), g)
        torch.cuda.synchronize()
        with record(activities=[ProfilerActivity.CUDA]) as found:
            torch.autograd.grad(f(**arguments), list(arguments.values()), g)
            torch.cuda.synchronize()
        print(f"== {name}: {op}, D = {D}, T = {T}, {'causal' if causal else 'full'}")
        for e in sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)[:18]:
            print(f"{e.self_device_time_total:9.0f} us  {e.count:3d}  {e.key[:110]}")


# --- the report ---------------------------------------------------------------------------------------------------------


def page(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Attention beside FlexAttention",
        "",
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}, {about['date']}. Made by "
        "`python benchmarks/attention.py`; every number is in `attention.json`. bfloat16, medians in ms; peak memory in MiB "
        "beyond the arguments; ratio: FlexAttention's time over ours."
        + (f" {about['note']}" if "note" in about else ""),
        "",
        "| op | D | T | B | H | seen | forward | Flex | ratio | with backward | Flex | ratio | peak | Flex |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if "ours_both_ms" not in r or "flex_both_ms" not in r:
            lines.append(
                f"| {r.get('op')} | {r.get('D')} | {r.get('T')} | {r.get('ours_error', r.get('flex_error', r.get('problem')))} |"
            )
            continue
        f, b = r["flex_forward_ms"] / r["ours_forward_ms"], r["flex_both_ms"] / r["ours_both_ms"]
        lines.append(
            f"| {r['op']} | {r['D']} | {r['T']} | {r['B']} | {r['H']} | {'causal' if r['causal'] else 'full'} | "
            f"{r['ours_forward_ms']:.3f} | {r['flex_forward_ms']:.3f} | {f:.2f} | "
            f"{r['ours_both_ms']:.3f} | {r['flex_both_ms']:.3f} | {b:.2f} | "
            f"{r['ours_peak_mib']:.0f} | {r['flex_peak_mib']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--profile", action="store_true", help="what takes the time, in one case of each op")
    parser.add_argument("--quick", action="store_true", help="shorter timings")
    parser.add_argument("--ops", nargs="*", default=list(OPS), choices=OPS)
    a = parser.parse_args()
    if a.tune:
        jobs = [(*key, *case, c) for key, candidates in TUNE.items() for case in TUNED for c in candidates]
        rows = run_all(tune_case, jobs, True)
        for r in sorted(
            rows, key=lambda r: (*(str(r.get(n)) for n in ("kernel", "D", "op", "causal")), r.get("ms", 1e9))
        ):
            print(json.dumps(r))
        return
    if a.profile:
        for op in a.ops:
            profile(op, 128, 4096, False)
        return
    import triton

    jobs = list(itertools.product(a.ops, WIDTHS, LENGTHS, (True, False)))
    rows = run_all(compare_case, jobs, a.quick)
    rows.sort(key=lambda r: (str(r.get("op")), r.get("D", 0), r.get("T", 0), not r.get("causal")))
    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    a.out.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(json.dumps(r) for r in rows)
    (a.out / "attention.json").write_text(f'{{"about": {json.dumps(about)}, "rows": [\n{body}\n]}}\n')
    (a.out / "attention.md").write_text(page(about, rows))
    print(page(about, rows))
    for r in rows:
        print(
            {
                k: v
                for k, v in r.items()
                if k in ("op", "D", "T", "causal", "difference", "problem") or k.endswith("error")
            }
        )


if __name__ == "__main__":
    main()
