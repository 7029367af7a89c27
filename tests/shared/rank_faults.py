"""Cases of `ranks.py` in which a rank is wrong, differs from others, dies or hangs: what every rank is told."""

from __future__ import annotations

import datetime
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chunkform.errors import ArgumentError

from .ranks import STEPS, Rank, arguments, difference, operation, some_arguments, span

HANGS = 4.0  # seconds that a group waits for a rank that has stopped


def refusal(at: Rank, call: Callable[[], Any], *, says: str) -> dict[str, float]:
    """All ranks raise one and the same error, which says what is asked for."""
    try:
        call()
    except ArgumentError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    everything: list[Any] = [None] * at.size
    dist.all_gather_object(everything, text, group=at.processes)
    assert len(set(everything)) == 1, everything
    assert re.search(says, text), text
    return {}


def case_shapes_differ(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at)
    if at.rank == 1:
        parts = {n: torch.cat((x, x), 2) for n, x in parts.items()}
    says = (
        r"gated_delta_rule: the ranks of context_parallel disagree on the shape of q: \[2, T, 2, \d\] on ranks 0, 2; "
    )
    return refusal(at, lambda: op(parts, context_parallel=at.processes), says=says + r"\[2, T, 4, \d\] on rank 1")


def case_differ_later(at: Rank) -> dict[str, float]:
    """A call that was made before, on some ranks: all raise, and the next one that all make is as before."""
    op, given, _, parts = some_arguments(at, torch.float64)
    low, high = span(at)
    for _ in range(2):
        op(parts, context_parallel=at.processes)
    others = {n: torch.cat((x, x), 2) for n, x in parts.items()} if at.rank == 0 else parts
    says = r"disagree on the shape of q: \[2, T, 4, \d\] on rank 0; \[2, T, 2, \d\] on ranks 1, 2"
    refusal(at, lambda: op(others, context_parallel=at.processes), says=says)
    return {"output": difference(op(parts, context_parallel=at.processes)[0], op(given)[0][:, low:high])}


def case_lengths_change(at: Rank) -> dict[str, float]:
    """The same call on one rank, of which the others have more or fewer steps, and then none."""
    op, given, _, _ = some_arguments(at, torch.float64)
    out = {}
    for n, own in enumerate((9, 9, 5, 0, 9)):
        low, high = (0, 8) if at.rank == 0 else (8, 8 + own)
        parts = {a.name: given[a.name][:, low:high] if a.per_step else given[a.name] for a in op.signature.arguments}
        out[str(n)] = difference(op(parts, context_parallel=at.processes)[0], op(given)[0][:, low:high])
    return out


def case_dtypes_differ(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at, torch.float16 if at.rank == 2 else torch.bfloat16)
    says = "disagree on the dtype of q: bfloat16 on ranks 0, 1; float16 on rank 2"
    return refusal(at, lambda: op(parts, context_parallel=at.processes), says=says)


def case_ops_differ(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at, name="delta_rule" if at.rank == 0 else "gated_delta_rule")
    says = (
        "delta_rule and gated_delta_rule: the ranks of context_parallel disagree on the op: delta_rule on rank 0; gated"
    )
    return refusal(at, lambda: op(parts, context_parallel=at.processes), says=says)


def case_gradients_differ(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at)
    parts = {n: x.requires_grad_(at.rank > 0) for n, x in parts.items()}
    return refusal(at, lambda: op(parts, context_parallel=at.processes), says="disagree on whether q needs a gradient")


def case_one_rank_is_wrong(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at)
    if at.rank == 2:
        parts["v"] = parts["v"][:, :-1]
    says = r"on rank 2 of context_parallel: gated_delta_rule: v has T = 21, but q has T = 22"
    return refusal(at, lambda: op(parts, context_parallel=at.processes), says=says)


def case_borders_differ(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at)
    parts = {n: x[:1] for n, x in parts.items()}
    borders = torch.tensor([0, 3 + at.rank, STEPS])
    call = lambda: op(parts, cu_seqlens=borders, context_parallel=at.processes)  # noqa: E731
    return refusal(at, call, says="disagree on cu_seqlens: 2 sequences, 26 steps")


def case_borders_end_early(at: Rank) -> dict[str, float]:
    op, _, _, parts = some_arguments(at)
    parts = {n: x[:1] for n, x in parts.items()}
    borders = torch.tensor([0, 3, STEPS - 1])
    says = "cu_seqlens must start with 0 and end with 26, the number of steps on all ranks"
    return refusal(at, lambda: op(parts, cu_seqlens=borders, context_parallel=at.processes), says=says)


def case_halos_differ(at: Rank) -> dict[str, float]:
    from chunkform.runtime.parallel import halo

    says = "halo: the ranks of context_parallel disagree on width: 1 on rank 0; 2 on rank 1; 3 on rank 2"
    return refusal(at, lambda: halo(torch.zeros(1, 4, 2), at.rank + 1, at.processes), says=says)


def case_recurrent_form(at: Rank) -> dict[str, float]:
    op = operation("sherman_morrison", at.folder)
    given, _ = arguments(op, packed=False)
    says = "sherman_morrison: context_parallel needs a recurrence that is affine in its state"
    return refusal(at, lambda: op(given, context_parallel=at.processes), says=says)


def case_groups_differ(at: Rank) -> dict[str, float]:
    """Rank 1 shares with rank 3 alone, the others with all: every rank is told, also those that only wait."""
    everyone, pair = dist.new_group([0, 1, 2, 3]), dist.new_group([1, 3])
    op, _, _, parts = some_arguments(at)
    says = "disagree on the group: rank 1 passes a group of 2: 1, 3; rank 3 passes a group of 4: 0, 1, 2, 3"
    return refusal(at, lambda: op(parts, context_parallel=pair if at.rank == 1 else everyone), says=says)


def case_keys_differ(at: Rank) -> dict[str, float]:
    from chunkform.generated.softmax_attention import OP
    from chunkform.runtime.attention.ring import ring_attention

    q, v = torch.randn(1, 3, 2, 4), torch.randn(1, 3 + (at.rank == 1), 2, 4)
    says = r"on rank 1 of context_parallel: softmax_attention: v has S = 4, but k has S = 3"
    return refusal(at, lambda: ring_attention(OP, {"q": q, "k": q, "v": v, "scale": None}, at.processes), says=says)


# --- a rank that dies ---------------------------------------------------------------------------------------------------


def die(rank: int, port: int, folder: str) -> None:
    """Rank 1 ends before the call; rank 0 must get an error well within the group's timeout."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=10))
    at = Rank(dist.group.WORLD, rank, 2, Path(folder))
    op, _, _, parts = some_arguments(at)
    op(parts, context_parallel=at.processes)  # all is well once
    if rank == 1:
        os._exit(0)
    try:
        op(parts, context_parallel=at.processes)
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    Path(folder, "dead.txt").write_text(text)
    os._exit(0)


# --- a rank that hangs --------------------------------------------------------------------------------------------------


def hang(rank: int, port: int, folder: str) -> None:
    """Rank 1 stops ahead of the call, and stays; ranks 0 and 2 must get an error after the group's timeout."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=3, timeout=datetime.timedelta(seconds=60))
    few = dist.new_group(timeout=datetime.timedelta(seconds=HANGS))
    at = Rank(few, rank, 3, Path(folder))
    op, _, _, parts = some_arguments(at)
    parts = {n: x.requires_grad_() for n, x in parts.items()}
    op(parts, context_parallel=few)[0].sum().backward()  # all is well once
    if rank == 1:
        while not all(Path(folder, f"hung {other}.json").exists() for other in (0, 2)):
            time.sleep(0.1)
        os._exit(0)
    start = time.monotonic()
    try:
        op(parts, context_parallel=few)[0].sum().backward()
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    written = Path(folder, f"hung {rank}.tmp")
    written.write_text(json.dumps({"text": text, "seconds": time.monotonic() - start}))
    written.rename(Path(folder, f"hung {rank}.json"))
    os._exit(0)
