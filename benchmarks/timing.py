"""Clocks and counters: medians of device time, host time of a call, kernel launches, peak memory, CUDA graphs, copy rate."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]


@dataclass(frozen=True)
class Effort:
    """How long to repeat, in milliseconds, and how many calls the host's time is taken over."""

    warmup: float = 25.0
    repeat: float = 100.0
    host_calls: int = 100


FIRST = 4  # calls that may compile, or be watched for a replay: the number of repeats follows from the time of those after them
QUICK = Effort(5.0, 20.0, 50)
USUAL = Effort()


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


def synchronize(device: str) -> None:
    if on_gpu(device):
        torch.cuda.synchronize()


def medians(run: Call, device: str, effort: Effort) -> dict[str, float]:
    """Milliseconds: the median of the repeats, the fifth and the ninety-fifth percentile, and how many there were.

    On a GPU by triton.testing.do_bench: between events, after warm-up, with the L2 cache emptied before each repeat.
    """
    if on_gpu(device):
        import triton

        for _ in range(FIRST):
            run()
        times = triton.testing.do_bench(run, warmup=effort.warmup, rep=effort.repeat, return_mode="all")
    else:
        times, until = [], time.perf_counter() + 1e-3 * effort.repeat
        run()
        while not times or time.perf_counter() < until:
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
    times = sorted(times)
    at = [times[min(int(q * len(times)), len(times) - 1)] for q in (0.05, 0.95)]
    return {"median": statistics.median(times), "p5": at[0], "p95": at[1], "runs": len(times)}


def seconds(run: Call, device: str) -> float:
    """Wall-clock time of one call until the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def host_microseconds(run: Call, device: str, calls: int, batches: int = 5) -> float:
    """Microseconds that the host takes to enqueue one call: the fastest batch of `calls` without a synchronisation."""
    run()
    best = float("inf")
    for _ in range(batches):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls)
    synchronize(device)
    return 1e6 * best


def peak_mebibytes(run: Call, device: str) -> float | None:
    """The most memory that one call allocates above what is allocated before it, results included."""
    if not on_gpu(device):
        return None
    release(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = run()
    synchronize(device)
    peak = torch.cuda.max_memory_allocated() - before
    del kept
    return peak / 2**20


def release(device: str) -> None:
    """Give freed memory back."""
    gc.collect()
    if on_gpu(device):
        torch.cuda.empty_cache()


def kernels(run: Call, device: str) -> dict[str, Any] | None:
    """What one call puts on the device: {launches, copies, by_name: {kernel: [times started, microseconds]}}."""
    if not on_gpu(device):
        return None
    from torch.profiler import ProfilerActivity, profile

    run()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as p:
        run()
        synchronize(device)
    events = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    count: Counter[str] = Counter(e.name for e in events)
    spent = dict.fromkeys(count, 0.0)
    for e in events:
        spent[e.name] += e.time_range.elapsed_us()
    moved = sum(n for name, n in count.items() if name.startswith(("Memcpy", "Memset")))
    longest = sorted(count, key=lambda name: -spent[name])
    return {
        "launches": sum(count.values()) - moved,
        "copies": moved,
        "by_name": {name[:120]: [count[name], round(spent[name], 1)] for name in longest[:30]},
    }


def graph(run: Call, device: str, effort: Effort) -> dict[str, Any] | None:
    """Can one call be captured in a CUDA graph: {works, reason, replay}, `replay` being the medians of its replays."""
    if not on_gpu(device):
        return None
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            kept = run()
        times = medians(captured.replay, device, effort)
        del kept, captured
    except Exception as why:  # whatever the captured code raises
        synchronize(device)
        return {"works": False, "reason": reason(why), "replay": None}
    return {"works": True, "reason": None, "replay": times}


def copy_rate(device: str, effort: Effort) -> float:
    """Bytes a second, read and written together, of one large copy on the device."""
    size = 2**30 if on_gpu(device) else 2**24
    x = torch.ones(size, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return 2 * size / (1e-3 * medians(lambda: y.copy_(x), device, effort)["median"])


def reason(why: BaseException) -> str:
    """An error in one line."""
    lines = [x.strip() for x in str(why).splitlines() if x.strip()]
    return f"{type(why).__name__}: {lines[0] if lines else ''}"[:300]
