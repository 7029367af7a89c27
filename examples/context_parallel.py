"""The small language model on sequences that several processes share: FSDP2 for parameters, context parallelism for time.

    torchrun --nproc-per-node 4 examples/context_parallel.py --cp 2                 # CPU processes (gloo), or GPUs (NCCL)
    torchrun --nproc-per-node 8 examples/context_parallel.py --cp 4 --length 65536 --width 512 --heads 8
    torchrun --nproc-per-node 8 examples/context_parallel.py --cp 2 --tp 2 --op gated_delta_rule,rotary_attention
    torchrun --standalone --nproc-per-node 4 --max-restarts 3 examples/context_parallel.py --cp 2 --save out/checkpoints

`--cp` processes hold a part each of the same sequences, and `--tp` of them some of the heads of each layer; the others are copies
of that with other sequences. Parameters, their gradients and the optimizer's state are sharded over all that have the same heads.
The losses are those of one process with all sequences, but for rounding: `python examples/context_parallel.py --copies 2` draws
the same ones. With `--save`, a run goes on from its last checkpoint, also on another number of processes. Where torchrun is to
restart it, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: otherwise new processes may find addresses of those that were killed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from char_lm import CharacterModel, read_text
from over_heads import OverHeads


def main() -> None:
    o = arguments()
    p = places(o)
    text = read_text(o.text)
    torch.manual_seed(0)  # the same parameters everywhere, before they are cut and sharded
    model, optimizer = learner(o, p, len(text.alphabet))
    last = resumed(o, p, model, optimizer)
    codes = text.training.to(p.device)
    low, high = (o.length * n // o.cp for n in (p.part, p.part + 1))
    start = time.perf_counter()
    for step in range(last + 1, o.steps + 1):
        x = torch.cat([windows(codes, o.batch, o.length, 1000 * step + c) for c in p.sequences])
        logits = model(x[:, low:high])
        # FSDP takes the mean over all processes: weigh each part by its share of the steps
        nats = F.cross_entropy(logits.flatten(0, 1).float(), x[:, low + 1 : high + 1].flatten(), reduction="sum")
        loss = nats * o.cp / (len(x) * o.length)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for shared in (y for m in model.modules() if isinstance(m, OverHeads) for y in m.shared()):
            dist.all_reduce(shared.grad.to_local(), group=p.heads)
        optimizer.step()
        value = loss.detach().clone()
        if p.world > 1:
            dist.all_reduce(value)
            value /= p.world
        if p.first and (step % o.every == 0 or step in (1, o.steps)):
            row = {"step": step, "nats": round(value.item(), 6), "seconds": round(time.perf_counter() - start, 2)}
            if p.device.type == "cuda":
                row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
            print(json.dumps(row), flush=True)
        if o.save is not None and (step % o.save_every == 0 or step == o.steps):
            save(o, p, model, optimizer, step)


@dataclass(frozen=True)
class Places:
    """Where this process is: `part` of the sequences, which `sequences` (each a seed of its own), and the groups that it is in:
    the segments of its sequences, the heads of its layers, and all that shard its parameters."""

    device: torch.device
    world: int
    first: bool
    part: int
    sequences: range
    segments: Any = None
    heads: Any = None
    shards: Any = None


def places(o: argparse.Namespace) -> Places:
    if "RANK" not in os.environ:  # not started by torchrun
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return Places(device, 1, True, 0, range(o.copies))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=o.timeout))
    world = dist.get_world_size()
    if world % (o.cp * o.tp):
        raise SystemExit(f"--cp {o.cp} times --tp {o.tp} must divide the number of processes, {world}")
    copies = world // (o.cp * o.tp)
    mesh = init_device_mesh(device.type, (copies, o.cp, o.tp), mesh_dim_names=("dp", "cp", "tp"))
    shards = init_device_mesh(device.type, (copies * o.cp, o.tp), mesh_dim_names=("shards", "tp"))
    total = max(o.copies, copies)
    if total % copies:
        raise SystemExit(f"the {copies} copies of the model must divide --copies, got {total}")
    return Places(
        device,
        world,
        dist.get_rank() == 0,
        mesh["cp"].get_local_rank(),
        range(mesh["dp"].get_local_rank(), total, copies),
        mesh["cp"] if o.cp > 1 else None,
        mesh["tp"].get_group() if o.tp > 1 else None,
        shards["shards"],
    )


def learner(o: argparse.Namespace, p: Places, characters: int) -> tuple[CharacterModel, torch.optim.Optimizer]:
    """The model, whose heads are cut first and parameters sharded then, and its optimizer."""
    options = {} if p.segments is None else {"context_parallel": p.segments}
    model = CharacterModel(o.op.split(","), characters, o.width, o.heads, o.blocks, **options).to(p.device)
    if p.heads is not None:
        for block in model.blocks:
            block.mixer = OverHeads(block.mixer, p.heads)
    if p.shards is not None:
        cuda = p.device.type == "cuda"
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mesh=p.shards, mp_policy=policy)
        fully_shard(model, mesh=p.shards, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=o.rate, betas=(0.9, 0.98), weight_decay=0.05)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save(o: argparse.Namespace, p: Places, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Each process writes its shards. A checkpoint counts once all have: `last` names it then."""
    checkpoint.save(state(o, p, model, optimizer), checkpoint_id=o.save / f"{step}", no_dist=p.world == 1)
    if p.first:
        new = o.save / "last.new"
        new.write_text(json.dumps({"step": step, "tp": o.tp}))
        new.replace(o.save / "last")
    if p.world > 1:
        dist.barrier()


def resumed(o: argparse.Namespace, p: Places, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step of the last checkpoint, whose state model and optimizer have then; 0 where there is none. The processes may be
    more or fewer than those that wrote it, but for those that share the heads."""
    if o.save is None or not (o.save / "last").exists():
        return 0
    last = json.loads((o.save / "last").read_text())
    if last["tp"] != o.tp:
        raise SystemExit(f"{o.save} was written with --tp {last['tp']}, got --tp {o.tp}")
    found = state(o, p, model, optimizer)
    checkpoint.load(found, checkpoint_id=o.save / f"{last['step']}", no_dist=p.world == 1)
    own = found[_shard(o, p)]
    set_state_dict(model, optimizer, model_state_dict=own["model"], optim_state_dict=own["optimizer"])
    return last["step"]


def state(o: argparse.Namespace, p: Places, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Of the processes with other heads, each has parameters of its own, by names of its own."""
    own, moments = get_state_dict(model, optimizer)
    return {_shard(o, p): {"model": own, "optimizer": moments}}


def _shard(o: argparse.Namespace, p: Places) -> str:
    return f"heads {0 if p.heads is None else p.heads.rank()} of {o.tp}"


def windows(codes: Tensor, batch: int, length: int, seed: int) -> Tensor:
    """[batch, length + 1] pieces of the text, the same wherever the seed is."""
    first = torch.randint(len(codes) - length, (batch, 1), generator=torch.Generator().manual_seed(seed))
    return codes[(first + torch.arange(length + 1)).to(codes.device)]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--op",
        default="gated_delta_rule",
        help="recurrences of the catalogue that are parallel over chunks, or attentions; blocks take them in turn",
    )
    p.add_argument("--cp", type=int, default=1, help="processes that share a sequence")
    p.add_argument("--tp", type=int, default=1, help="processes that share the heads of a layer")
    p.add_argument("--copies", type=int, default=1, help="batches of a step, if they are more than copies of the model")
    p.add_argument("--save", type=Path, help="checkpoints go to this folder, and a run goes on from the last of them")
    p.add_argument("--save-every", type=int, default=10, help="steps")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds that a process waits for others")
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
