"""Recurrences and causal attention in one model whose sequences lie in segments on several GPUs: what each layer takes, and what
the exchange between contiguous segments and balanced blocks does.

    python -m benchmarks.hybrid_parallel --gpus 2 --out out/hybrid.json
    python -m benchmarks.hybrid_parallel --device cpu --gpus 2 --shape 1x256x2x16 --dtype float32      # gloo, to try it out

Milliseconds of forward and backward of the slowest rank, between events, the median over repeats: a layer of a recurrence, one of
attention over the ring, both one after the other, and the moves of one attention alone (queries, keys and values to the blocks,
averages and gradients between the two). `one GPU` is without a group, on the whole sequence, where memory has room for it.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from chunkform.runtime.attention.ring import Places, Ring
from chunkform.runtime.parallel.group import group_of

from .context_parallel import prepared, timed, worst
from .context_parallel_host import in_processes, joined
from .inputs import Shape, parse_shape

REPEATS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--recurrence", default="gated_delta_rule")
    parser.add_argument("--attention", default="softmax_attention")
    parser.add_argument("--shape", default="S5", help="of the whole sequences, as in benchmarks.gpu")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    row = in_processes(work, options.gpus, options)
    print(json.dumps(row))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=1) + "\n")


def work(rank: int, count: int, port: int, queue: Any, options: argparse.Namespace) -> None:
    device = joined(rank, count, port, options.device)
    cuda = options.device == "cuda"
    shape, dtype = parse_shape(options.shape), getattr(torch, options.dtype)
    part = shape.at(shape.batch, shape.steps // options.gpus)
    gpu = torch.cuda.get_device_name() if cuda else "cpu"
    row: dict[str, Any] = {"device": gpu, "gpus": options.gpus, "shape": shape.spelled}
    row |= {"recurrence": options.recurrence, "attention": options.attention}
    for where, size, group in (("segments", part, dist.group.WORLD), ("one GPU", shape, None)):
        layers = [recurrence(options.recurrence, size, device, dtype, group)]
        layers.append(attention(options.attention, size, device, dtype, group))
        calls = {"recurrence": layers[0], "attention": layers[1], "both": functools.partial(in_turn, layers)}
        for name, call in calls.items():
            row[f"{name}, {where}"] = statistics.median(worst(timed(call, REPEATS, cuda), device))
    moves, moved = exchanges(options.attention, part, device, dtype)
    row["exchange"] = statistics.median(worst(timed(moves, REPEATS, cuda), device))
    row["exchange, MiB of a rank"] = moved / 2**20
    if rank == 0:
        queue.put(json.dumps({n: round(x, 4) if isinstance(x, float) else x for n, x in row.items()}))
    dist.barrier()
    dist.destroy_process_group()


def in_turn(layers: list[Any]) -> None:
    for layer in layers:
        layer()


def recurrence(name: str, shape: Shape, device: str, dtype: torch.dtype, group: Any) -> Any:
    function, given, cotangents = prepared(name, shape, device, dtype, seed=dist.get_rank())
    leaves = {key: x.requires_grad_() for key, x in given.items()}

    def both() -> None:
        outputs = function(**leaves, context_parallel=group)[:-1]
        torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)

    return both


def attention(name: str, shape: Shape, device: str, dtype: torch.dtype, group: Any) -> Any:
    function = getattr(importlib.import_module("chunkform.generated"), name)
    leaves = [x.requires_grad_() for x in drawn(shape, device, dtype, 3)]
    more = {} if group is None else {"context_parallel": group}

    def both() -> None:
        o = function(*leaves, causal=True, **more)
        torch.autograd.grad(o, leaves, torch.ones_like(o))

    return both


def drawn(shape: Shape, device: str, dtype: torch.dtype, count: int) -> list[Tensor]:
    size = shape.batch, shape.steps, shape.heads, shape.width
    return [torch.randn(size, device=device, dtype=dtype) for _ in range(count)]


def exchanges(name: str, part: Shape, device: str, dtype: torch.dtype) -> tuple[Any, int]:
    """The moves of one attention, forward and backward, and the bytes that they send from this rank."""
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    group = group_of(name, dist.group.WORLD)
    lengths = [part.steps] * group.size
    where = Places(Ring(group, op.backends, "torch", lengths, lengths), True)
    near, far = (
        {str(n): x.transpose(1, 2).contiguous() for n, x in enumerate(drawn(part, device, dtype, count))}
        for count in (1, 2)
    )
    averages, grown = ({"0": x["0"].float()} for x in (near, near))
    arriving = {n: x.float() for n, x in far.items()}

    def moves() -> None:
        where.out(near)
        where.out(far, keys=True)
        where.home(averages)
        where.out(near | {"averages": averages["0"], "d": near["0"]})
        where.out(far, keys=True)
        where.home(grown)
        where.home(arriving, keys=True)

    own = where.own
    low, high = group.rank * part.steps, (group.rank + 1) * part.steps
    stays = sum(max(0, min(b, high) - max(a, low)) for a, b in own)
    each = part.batch * part.heads * part.width * (part.steps - stays)
    low_bytes, wide_bytes = near["0"].element_size(), 4
    return moves, each * (7 * low_bytes + 5 * wide_bytes)


if __name__ == "__main__":
    main()
