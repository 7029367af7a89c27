"""The small language model on sequences that several processes share: FSDP2 for parameters, context parallelism for time.

    torchrun --nproc-per-node 4 examples/context_parallel.py --cp 2                 # CPU processes (gloo), or GPUs (NCCL)
    torchrun --nproc-per-node 8 examples/context_parallel.py --cp 4 --length 65536 --width 512 --heads 8

`--cp` processes hold a part each of the same sequences; the others are copies of that with other sequences. Parameters, their
gradients and the optimizer's state are sharded over all of them. The losses are those of one process with all sequences, but for
rounding: `python examples/context_parallel.py --copies 2` draws the same ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from char_lm import CharacterModel, read_text


def main() -> None:
    o = arguments()
    shared = "RANK" in os.environ  # started by torchrun
    if shared:
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    else:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = dist.get_world_size() if shared else 1
    if world % o.cp:
        raise SystemExit(f"--cp {o.cp} must divide the number of processes, {world}")
    group, part, copy, copies = None, 0, 0, o.copies
    if shared:
        mesh = init_device_mesh(device.type, (world // o.cp, o.cp), mesh_dim_names=("dp", "cp"))
        group, part = mesh["cp"], mesh["cp"].get_local_rank()
        copy, copies = mesh["dp"].get_local_rank(), world // o.cp

    text = read_text(o.text)
    torch.manual_seed(0)  # the same parameters everywhere, before they are sharded
    options = {"context_parallel": group} if o.cp > 1 else {}
    model = CharacterModel(o.op, len(text.alphabet), o.width, o.heads, o.blocks, **options).to(device)
    if shared:
        everyone = init_device_mesh(device.type, (world,), mesh_dim_names=("all",))
        policy = (
            MixedPrecisionPolicy(torch.bfloat16, torch.float32) if device.type == "cuda" else MixedPrecisionPolicy()
        )
        for block in model.blocks:
            fully_shard(block, mesh=everyone, mp_policy=policy)
        fully_shard(model, mesh=everyone, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.rate, betas=(0.9, 0.98), weight_decay=0.05)

    codes = text.training.to(device)
    low, high = (o.length * n // o.cp for n in (part, part + 1))
    start = time.perf_counter()
    for step in range(1, o.steps + 1):
        mine = range(copies) if not shared else (copy,)
        x = torch.cat([windows(codes, o.batch, o.length, 1000 * step + c) for c in mine])
        logits = model(x[:, low:high])
        # FSDP takes the mean over all processes: weigh each part by its share of the steps
        nats = F.cross_entropy(logits.flatten(0, 1).float(), x[:, low + 1 : high + 1].flatten(), reduction="sum")
        loss = nats * o.cp / (len(x) * o.length)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        value = loss.detach().clone()
        if shared:
            dist.all_reduce(value)
            value /= world
        if part == copy == 0 and (step % o.every == 0 or step in (1, o.steps)):
            row = {"step": step, "nats": round(value.item(), 6), "seconds": round(time.perf_counter() - start, 2)}
            if device.type == "cuda":
                row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
            print(json.dumps(row), flush=True)


def windows(codes: Tensor, batch: int, length: int, seed: int) -> Tensor:
    """[batch, length + 1] pieces of the text, the same wherever the seed is."""
    first = torch.randint(len(codes) - length, (batch, 1), generator=torch.Generator().manual_seed(seed))
    return codes[(first + torch.arange(length + 1)).to(codes.device)]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--op", default="gated_delta_rule", help="a recurrence of the catalogue that is parallel over chunks"
    )
    p.add_argument("--cp", type=int, default=1, help="processes that share a sequence")
    p.add_argument("--copies", type=int, default=1, help="without torchrun: batches that as many processes would have")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int, default=4, help="sequences of each copy")
    p.add_argument("--length", type=int, default=512, help="characters of a whole sequence")
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--heads", type=int, default=2)
    p.add_argument("--blocks", type=int, default=2)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--every", type=int, default=10)
    p.add_argument("--text", type=Path)
    return p.parse_args()


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        gc.collect()  # what holds groups goes before they do: else they may end after their threads, which aborts the process
        dist.destroy_process_group()
