"""The host's time from call to return where a sequence lies in segments on several GPUs, beside one GPU's and torch's own share.

    python -m benchmarks.context_parallel_host --gpus 2 --out out/host.json [--profile]
    python -m benchmarks.context_parallel_host --device cpu --gpus 2 --shape 2x512x2x16 --calls 3    # gloo, to try it out

Microseconds, at the segments that the sequences of a shape have on so many GPUs. Each number is a rank's median over batches of
calls that follow each other without a synchronisation, and of these the median over ranks:

- `forward`, `both`: one call with the group; `.. alone`: the same call without a group.
- `.. in one thread`: with torch's backward passes where they are called, and not in a thread of their own.
- `.. from a standstill`: one call after all ranks have met and their GPUs are idle, which finds the host's caches cold.
- `bare`, `least`: torch's own share, both passes of a function of as many tensors that does nothing, or takes memory only.
- `gather`: what a pass hands on, as the passes do it; `torch's gather`: the same by torch.distributed, and `.. at once`: without
  a stream of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import io
import json
import os
import pstats
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from chunkform.runtime.parallel.group import group_of

from . import timing
from .context_parallel import OPS, prepared
from .host import Nothing, Taking, bare
from .inputs import parse_shape

BATCHES = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="2", help="numbers of ranks, with commas between")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--shape", default="S5", help="of the whole sequences, as in benchmarks.gpu")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--calls", type=int, default=20, help="in a batch")
    parser.add_argument("--profile", action="store_true", help="also which functions take the time, of rank 0")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for count in map(int, options.gpus.split(",")):
        rows += in_processes(work, count, options)
    if options.out is not None:
        gpu = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        options.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"device": gpu, "torch": torch.__version__, "shape": options.shape, "date": f"{datetime.date.today()}"}
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def in_processes(work: Callable[..., None], count: int, options: argparse.Namespace) -> Any:
    """What rank 0 puts into the queue as JSON: `work(rank, count, port, queue, options)` in processes of their own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(count, port, queue, options), nprocs=count)
    return json.loads(queue.get())


def joined(rank: int, count: int, port: int, kind: str) -> str:
    """The device of a process, which joins the others."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if kind != "cuda":
        dist.init_process_group("gloo", rank=rank, world_size=count)
        return "cpu"
    torch.cuda.set_device(rank)
    device = f"cuda:{rank}"
    dist.init_process_group("nccl", rank=rank, world_size=count, device_id=torch.device(device))
    return device


def work(rank: int, count: int, port: int, queue: Any, options: argparse.Namespace) -> None:
    device = joined(rank, count, port, options.device)
    rows = []
    for name in options.ops.split(","):
        own = measured(name, count, device, options)
        everything: list[Any] = [None] * count
        dist.all_gather_object(everything, own)
        row = {n: round(statistics.median(x[n] for x in everything), 1) for n in own}
        rows.append({"op": name, "gpus": count, **row})
        if rank == 0:
            print(json.dumps(rows[-1]), flush=True)
    if rank == 0:
        queue.put(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def measured(name: str, count: int, device: str, options: argparse.Namespace) -> dict[str, float]:
    """Microseconds on this rank."""
    shape = parse_shape(options.shape)
    part = shape.at(shape.batch, shape.steps // count)
    function, given, cotangents = prepared(name, part, device, getattr(torch, options.dtype), seed=dist.get_rank())
    leaves = {key: x.requires_grad_() for key, x in given.items()}

    def forward(group: object = dist.group.WORLD) -> None:
        with torch.no_grad():
            function(**leaves, context_parallel=group)

    def both(group: object = dist.group.WORLD) -> None:
        outputs = function(**leaves, context_parallel=group)[:-1]
        torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)

    calls: dict[str, Callable[[], Any]] = {
        "forward": forward,
        "forward alone": lambda: forward(None),
        "both": both,
        "both alone": lambda: both(None),
        "bare": bare(given, Nothing),
        "least": bare(given, Taking),
    }
    found = {key: batches(call, device, options.calls) for key, call in calls.items()}
    with torch.autograd.set_multithreading_enabled(False):
        for key in ("both", "both alone", "bare", "least"):
            found[f"{key} in one thread"] = batches(calls[key], device, options.calls)
    for key in ("forward", "forward alone", "both", "both alone"):
        found[f"{key} from a standstill"] = batches(calls[key], device, 1)
    width = part.batch * part.heads * 2 * part.width**2
    found |= {key: batches(call, device, options.calls) for key, call in gathers(device, width).items()}
    if options.profile:
        for key in ("forward", "both"):
            text = profile(calls[key], device, options.calls)
            if dist.get_rank() == 0:
                print(f"{name}, {key}\n{text}", flush=True)
    return found


def gathers(device: str, width: int) -> dict[str, Callable[[], Any]]:
    """Ways to hand on `width` numbers of float32."""
    group = group_of("gather", dist.group.WORLD)
    x = torch.zeros(width, device=device)
    out = x.new_empty(group.size * width)
    ways = {
        "gather": lambda: group.gather(x).wait(),
        "torch's gather": lambda: dist.all_gather_into_tensor(out, x, async_op=True).wait(),
    }
    return ways | {"torch's gather at once": lambda: dist.all_gather_into_tensor(out, x)}


def batches(call: Callable[[], Any], device: str, count: int) -> float:
    """Microseconds of one of `count` calls that follow each other: the median over batches."""
    for _ in range(4):  # which compile, and are watched for replays
        call()
    times = []
    for _ in range(BATCHES):
        dist.barrier()
        timing.synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append(1e6 * (time.perf_counter() - start) / count)
    timing.synchronize(device)
    return statistics.median(times)


def profile(call: Callable[[], Any], device: str, count: int) -> str:
    """The functions that take the most time of their own."""
    timing.synchronize(device)
    seen = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        call()
        seen.enable()
        for _ in range(10 * count):
            call()
        seen.disable()
    timing.synchronize(device)
    text = io.StringIO()
    pstats.Stats(seen, stream=text).strip_dirs().sort_stats("tottime").print_stats(25)
    return text.getvalue()


if __name__ == "__main__":
    main()
