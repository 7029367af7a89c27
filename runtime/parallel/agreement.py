"""Do all ranks make the same call? Each says what it calls; where they differ, all raise the same error."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .group import Group
from .meeting import meet

SIZE = 4096  # bytes of what a rank says
Facts = dict[str, Any]

KINDS = 256  # of calls, remembered for each group


@dataclass(frozen=True)
class _Heard:
    """What this rank said of a call, and all of them; and what each has of its own."""

    mine: Tensor
    rows: Tensor
    own: list[Facts]


_Memory = weakref.WeakKeyDictionary[Any, dict[Hashable, _Heard]]
_agreed: _Memory = weakref.WeakKeyDictionary()  # once for all
_heard: _Memory = weakref.WeakKeyDictionary()  # at the last call of a kind, and asked again at the next


def agreed(
    group: Group,
    facts: Callable[[], tuple[Facts, Facts]],
    device: torch.device,
    error: Exception | None = None,
    key: Hashable | None = None,
) -> list[Facts]:
    """What each rank has of its own, by rank. `facts` are what must be the same on all ranks, and what is this rank's own.

    `error` is what this rank found wrong with its arguments: then all ranks raise it. Over a group that can exchange what lies in
    host memory this happens at every call. Over NCCL alone it would make the host wait for the GPU, so it happens once for
    each `key`, which says as much as the facts do; at every call where there is none.

    Raises:
        ArgumentError: ranks differ, or one of them had an error; the message is the same on all ranks.
    """
    meet(group)
    heard = (_heard if group.on_host else _agreed).setdefault(group.processes, {})
    before = heard.get(key) if key is not None and error is None else None
    if before is not None and not group.on_host:
        return before.own
    where = torch.device("cpu") if group.on_host else device
    mine = _said(group.name, facts(), error).to(where) if before is None else before.mine
    rows = group.gather(mine).wait().cpu()
    if before is not None and torch.equal(before.rows, rows):
        return before.own
    everything = [json.loads(bytes(row.tolist()).decode()) for row in rows]
    problem = _problem(group.name, everything)
    if problem is not None:
        raise ArgumentError(problem) from error
    own = [x["own"] for x in everything]
    if key is not None and error is None:
        if len(heard) >= KINDS and group.on_host:
            heard.clear()
        heard[key] = _Heard(mine, rows, own)
    return own


def _said(name: str, facts: tuple[Facts, Facts], error: Exception | None) -> Tensor:
    """[SIZE], what this rank says."""
    same, own = facts
    data = json.dumps({"error": None if error is None else str(error), "same": same, "own": own}).encode()
    if len(data) > SIZE:
        short = {"error": f"{name}: context_parallel: what a call says takes {len(data)} bytes, {SIZE} fit"}
        data = json.dumps({**short, "same": {}, "own": {}}).encode()
    return torch.frombuffer(bytearray(data.ljust(SIZE)), dtype=torch.uint8)


def _problem(name: str, everything: list[Facts]) -> str | None:
    """What is wrong, in words that are the same on every rank."""
    errors: dict[str, list[int]] = {}
    for rank, said in enumerate(everything):
        if said["error"] is not None:
            errors.setdefault(said["error"], []).append(rank)
    if errors:
        return "; ".join(f"on {_ranks(ranks)} of context_parallel: {text}" for text, ranks in errors.items())
    for key in dict.fromkeys(k for said in everything for k in said["same"]):
        values: dict[str, list[int]] = {}
        for rank, said in enumerate(everything):
            values.setdefault(json.dumps(said["same"].get(key)), []).append(rank)
        if len(values) > 1:
            names = sorted({said["same"].get("the op", name) for said in everything})
            which = "; ".join(f"{_shown(v)} on {_ranks(ranks)}" for v, ranks in values.items())
            return f"{' and '.join(names)}: the ranks of context_parallel disagree on {key}: {which}"
    return None


def _shown(text: str) -> str:
    value = json.loads(text)
    return "nothing" if value is None else str(value)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
