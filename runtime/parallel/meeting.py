"""Do all ranks mean the same group? The first time that a group is used its ranks meet, through the store of the process group.

A rank that waits for others in one group, while one of those waits for it in another, would wait for ever: all of them raise an
error instead, which names both groups. Afterwards nothing is asked any more.
"""

from __future__ import annotations

import json
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from chunkform.errors import ArgumentError, GroupError

from .group import Group

POLL = 0.005  # seconds

_met: weakref.WeakSet[Any] = weakref.WeakSet()


def meet(group: Group) -> None:
    """Wait until every rank of the group has come to use it.

    Raises:
        ArgumentError: ranks that wait for each other pass different groups; the same error on each of them.
        GroupError: a rank didn't come within the group's timeout.
    """
    if group.size == 1 or group.processes in _met:
        return
    store = distributed_c10d._get_default_store()
    me, members = dist.get_rank(), dist.get_process_group_ranks(group.processes)
    name = f"{group.processes.group_name} {','.join(map(str, members))}"
    _say(store, me, members, waiting=True)
    store.set(f"chunkform/{name}/{me}", "here")
    until = time.monotonic() + timeout_of(group)
    missing = [r for r in members if r != me]
    while missing := [r for r in missing if not store.check([f"chunkform/{name}/{r}"])]:
        for other in missing:
            said = _said(store, other)
            problem = said.get("problem") if members in said.get("groups", ()) else None
            groups = [members, said.get("group", members)]
            if problem is None and said.get("waiting") and groups[0] != groups[1] and me in groups[1]:
                problem = _problem(group.name, {me: members, other: groups[1]})
            if problem is not None:
                _say(store, me, members, problem=problem, groups=said.get("groups", groups))
                raise ArgumentError(problem)
        if time.monotonic() > until:
            raise GroupError(
                f"{group.name}: context_parallel: rank {me} waited for ranks {', '.join(map(str, missing))} of its group "
                f"({', '.join(map(str, members))}), which didn't make the same call with the same group"
            )
        time.sleep(POLL)
    _say(store, me, members, waiting=False)
    _met.add(group.processes)


def timeout_of(group: Group) -> float:
    """Seconds that the group's collectives wait."""
    device = torch.device("cpu") if group.on_host else torch.device("cuda", torch.cuda.current_device())
    options = getattr(group.processes._get_backend(device), "options", None)
    found = getattr(options, "_timeout", None) or distributed_c10d._get_default_timeout(
        dist.get_backend(group.processes)
    )
    return found.total_seconds()


def _problem(name: str, groups: dict[int, list[int]]) -> str:
    which = "; ".join(
        f"rank {r} passes a group of {len(g)}: {', '.join(map(str, g))}" for r, g in sorted(groups.items())
    )
    return f"{name}: the ranks of context_parallel disagree on the group: {which}"


def _say(store: Any, rank: int, members: list[int], **more: Any) -> None:
    store.set(f"chunkform/rank/{rank}", json.dumps({"group": members, **more}))


def _said(store: Any, rank: int) -> dict[str, Any]:
    key = f"chunkform/rank/{rank}"
    return json.loads(store.get(key).decode()) if store.check([key]) else {}
