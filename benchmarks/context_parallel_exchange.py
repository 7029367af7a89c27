"""Maps of segments written straight into other GPUs' memory, beside those that NCCL gathers, on the GPUs of one host.

    python -m benchmarks.context_parallel_exchange --gpus 2 --out out/exchange.json

Both ways are timed in the same processes, in turn, each with a group of its own. `bits`: of how many calls the outputs and
gradients differ between them. Microseconds: `host` is a call's time until it returns, `eager` calls that follow each other,
between events, `graph` replays of a CUDA graph of one call; `alone` is a part without a group. `exchange`: one each way, in a
graph of twenty. A rank that makes no call any more is an error on the other after the group's timeout: `hangs`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

WAYS = ("gather", "memory")
OPS = "lightning_attention,gated_linear_attention,gated_delta_rule"
TIMEOUT = 4.0  # seconds, where a rank makes no call

Row: TypeAlias = "dict[str, str | int | float]"
Groups: TypeAlias = "dict[str, dist.ProcessGroup]"
Run: TypeAlias = Callable[[], object]
OfGroup: TypeAlias = Callable[[dist.ProcessGroup | None], tuple[Tensor, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--ops", default=OPS)
    parser.add_argument("--shape", default="S5")
    parser.add_argument("--seconds", type=float, default=80.0, help="after which no further op is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, help="of a process that this starts")
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    if options.rank is not None:
        (hanging if options.hang else work)(options)
        return
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    try:
        processes(options, [])
    finally:
        processes(options, ["--hang"])


def processes(options: argparse.Namespace, more: list[str]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1])}
    command = [sys.executable, "-m", "benchmarks.context_parallel_exchange", *sys.argv[1:], *more]
    started = [subprocess.Popen([*command, "--rank", str(n)]) for n in range(options.gpus)]
    while any(x.poll() is None for x in started):
        time.sleep(0.2)
        if any(x.poll() for x in started):  # one has failed
            time.sleep(3)
            for x in started:
                x.kill()
            raise SystemExit(f"a process ended with {[x.poll() for x in started]}")


def joined(options: argparse.Namespace, timeout: float) -> str:
    torch.cuda.set_device(options.rank)
    device = f"cuda:{options.rank}"
    dist.init_process_group(
        "nccl", rank=options.rank, world_size=options.gpus, device_id=torch.device(device),
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip
    return device


def say(row: Row) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)


def work(options: argparse.Namespace) -> None:
    from chunkform.runtime.launch.parallel_compile import compile_ahead
    from chunkform.runtime.parallel import mailboxes

    start = time.monotonic()
    device = joined(options, 60.0)
    groups = {way: dist.new_group(list(range(options.gpus))) for way in WAYS}
    decided(groups, device)
    rows = raw(groups, device)
    for row in rows:
        say(row)
    names = options.ops.split(",")
    compile_ahead(lambda: [once(x, options, device, groups) for x in names], 16)
    say({"compiled": round(time.monotonic() - start, 1)})
    for name in names:
        late = torch.tensor([time.monotonic() - start > options.seconds], device=device, dtype=torch.int32)
        dist.all_reduce(late)
        if int(late):
            say({"op": name, "left out": "no time"})
            continue
        rows.append({"op": name, "gpus": options.gpus, **measured(name, options, device, groups)})
        say(rows[-1])
    bytes_ = mailboxes.bytes_of(groups["memory"])
    rows.append({"mailbox MiB": round(bytes_ / 2**20, 2), "seconds": round(time.monotonic() - start, 1)})
    say(rows[-1])
    if options.out is not None and options.rank == 0:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": options.shape}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0)


def decided(groups: Groups, device: str) -> None:
    """Each group's ranks find out how maps travel."""
    from chunkform.runtime.parallel.group import group_of
    from chunkform.runtime.parallel.mailboxes import VARIABLE, mailboxes_of

    for way, processes in groups.items():
        os.environ[VARIABLE] = way
        found = mailboxes_of(group_of("benchmark", processes), torch.device(device))
        say({"way": way, "mailboxes": found is not None})
        assert (found is not None) == (way == "memory"), way


# --- the exchange by itself -------------------------------------------------------------------------------------------


def raw(groups: Groups, device: str) -> list[Row]:
    from chunkform.runtime.parallel import mailboxes
    from chunkform.runtime.parallel.group import group_of

    rows: list[Row] = []
    group = group_of("benchmark", groups["memory"])
    boxes = mailboxes.mailboxes_of(group, torch.device(device))
    assert boxes is not None
    for width in (8 * 128 * 129, 8 * 128 * 256, 1024):
        row = torch.randn(width, device=device)
        out = row.new_empty(dist.get_world_size() * width)
        calls: dict[str, Run] = {
            "gather": lambda row=row, out=out: [
                dist.all_gather_into_tensor(out, row, group=groups["gather"]) for _ in range(2)
            ]
        }
        for programs in (32, 64, 128):
            mailboxes.PROGRAMS = programs
            there, back = (boxes.box(group, row, forward, 1000 + programs) for forward in (True, False))
            assert there is not None and back is not None

            def call(
                row: Tensor = row, there: mailboxes.Mailbox = there, back: mailboxes.Mailbox = back
            ) -> tuple[Tensor, Tensor]:
                there.send(row)
                one = there.receive(row)
                back.send(row)
                return one, back.receive(row)

            calls[f"memory {programs}"] = call
        mailboxes.PROGRAMS = 64
        wrong = 0
        for _ in range(20):
            row.normal_()
            calls["gather"]()
            one, other = calls["memory 64"]()
            whole, rank = out.view(-1, width), dist.get_rank()
            wrong += not torch.equal(one, whole[:rank]) or not torch.equal(other, whole[rank + 1 :])
        say_of = {"exchange": width, "wrong": total(wrong, device)}
        for name, call in calls.items():
            say_of[f"{name} host us"] = round(host(call, 50), 1)
            say_of[f"{name} graph us"] = round(graph(lambda call=call: [call() for _ in range(20)]) / 20, 2)
        rows.append(say_of)
    return rows


def total(x: int, device: str) -> int:
    found = torch.tensor([x], device=device)
    dist.all_reduce(found)
    return int(found)


def host(call: Run, count: int = 20, batches: int = 15) -> float:
    """Microseconds until a call returns: the median over batches, and of these over ranks."""
    for _ in range(4):
        call()
    times = []
    for _ in range(batches):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append(1e6 * (time.perf_counter() - start) / count)
    torch.cuda.synchronize()
    return over_ranks(statistics.median(times), statistics.median)


def over_ranks(x: float, of: Callable[[list[float]], float]) -> float:
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, x)
    return of(everything)


def device_time(call: Run, count: int = 20, batches: int = 9) -> float:
    """Microseconds between events of calls that follow each other, of the slowest rank."""
    times = []
    for n in range(batches + 1):
        dist.barrier()
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            call()
        last.record()
        torch.cuda.synchronize()
        if n:
            times.append(1e3 * first.elapsed_time(last) / count)
    return over_ranks(statistics.median(times), max)


def graph(call: Run) -> float:
    """Microseconds of a replay of a CUDA graph of a call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kept = call()
    found = device_time(captured.replay, 10)
    del kept
    return found


# --- ops --------------------------------------------------------------------------------------------------------------


def calls_of(
    name: str, options: argparse.Namespace, device: str, seed: int, decay: str = "usual"
) -> tuple[OfGroup, OfGroup]:
    from .context_parallel import prepared
    from .inputs import parse_shape

    shape = parse_shape(options.shape)
    part = shape.at(shape.batch, shape.steps // options.gpus)
    function, given, cotangents = prepared(name, part, device, torch.bfloat16, seed=seed, decay=decay)
    leaves = {key: x.requires_grad_() for key, x in given.items()}

    def forward(group: dist.ProcessGroup | None) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return function(**leaves, context_parallel=group)[:-1]

    def both(group: dist.ProcessGroup | None) -> tuple[Tensor, ...]:
        outputs = function(**leaves, context_parallel=group)[:-1]
        return *outputs, *torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)

    return forward, both


def once(name: str, options: argparse.Namespace, device: str, groups: Groups) -> None:
    forward, both = calls_of(name, options, device, options.rank)
    for group in (*groups.values(), None):
        forward(group)
        both(group)


def measured(name: str, options: argparse.Namespace, device: str, groups: Groups) -> Row:
    wrong = 0
    for n, decay in enumerate(("usual", "lasting", "lasting", "usual", "lasting")):
        forward, both = calls_of(name, options, device, options.rank + 100 * n, decay)
        for call in (both, forward):
            results = [call(groups[way]) for way in WAYS]
            wrong += any(not torch.equal(x, y) for x, y in zip(*results, strict=True))
    found: Row = {"bits": total(wrong, device)}
    kinds = {**groups, "alone": None}
    for call, what in ((forward, "forward"), (both, "both")):
        for way, group in kinds.items():
            run = lambda call=call, group=group: call(group)  # noqa: E731
            found[f"{what} host {way}"] = round(host(run), 1)
            found[f"{what} eager {way}"] = round(device_time(run), 1)
            found[f"{what} graph {way}"] = round(graph(run), 1)
    with torch.autograd.set_multithreading_enabled(False):
        for way, group in kinds.items():
            run = lambda group=group: both(group)  # noqa: E731
            found[f"both in one thread host {way}"] = round(host(run), 1)
            found[f"both in one thread eager {way}"] = round(device_time(run), 1)
    return found


# --- a rank that makes no call any more -------------------------------------------------------------------------------


def hanging(options: argparse.Namespace) -> None:
    from chunkform.errors import GroupError
    from chunkform.runtime.parallel.mailboxes import VARIABLE

    os.environ[VARIABLE] = "memory"
    device = joined(options, 60.0)
    _, both = calls_of("lightning_attention", options, device, options.rank)
    both(None)
    group = dist.new_group(list(range(options.gpus)), timeout=datetime.timedelta(seconds=TIMEOUT))
    for _ in range(5):
        both(group)
    torch.cuda.synchronize()
    dist.barrier()
    if options.rank:
        time.sleep(TIMEOUT + 6)
        os._exit(0)
    start = time.monotonic()
    kinds = []
    for _ in range(8):
        try:
            both(group)
            torch.cuda.synchronize()
        except GroupError as error:
            kinds.append(f"GroupError: {error}")
        except RuntimeError as error:
            kinds.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        if kinds and kinds[-1].startswith("GroupError"):
            break
    print(json.dumps({"hangs": kinds, "seconds": round(time.monotonic() - start, 2)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
