"""Mailboxes in Triton's interpreter: the ranks of a group in one process, in an order that is drawn.

python mailboxes.py    # prints what came in each case, as JSON

Each rank sends and receives once a call. What would have to wait for another rank comes when that has come, or gives up.
Cases: "right"; "broken", where a first pass ended after it had sent; "unread", where ranks write though others haven't read;
"early", where a rank reads what isn't there.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from chunkform.errors import GroupError
from chunkform.runtime.parallel import mailboxes as module
from chunkform.runtime.parallel.group import Group
from chunkform.runtime.parallel.mailbox_kernels import SLOTS
from chunkform.runtime.parallel.mailboxes import Mailboxes

CALLS, SIZE = 6, 100
LOOKS = 3  # until a kernel gives up


class Shared:
    """The memory of all ranks, which all have made when all see each other's."""

    def __init__(self, memories: dict[int, torch.Tensor]) -> None:
        self.addresses = [memories[r].data_ptr() for r in sorted(memories)]


def came(ranks: int, forward: bool, seed: int, case: str) -> dict[str, Any]:
    """How many rows came wrong, how many calls a rank was ahead of one that reads from it, and what was given up."""
    draw = random.Random(seed)
    memories: dict[int, torch.Tensor] = {}
    groups = [Group("test", None, r, ranks) for r in range(ranks)]  # type: ignore[arg-type]

    def kept(group: Group, size: int, device: torch.device) -> Shared:
        memories[group.rank] = torch.zeros(-(-size // 8), dtype=torch.int64)
        return Shared({r: memories.get(r, torch.empty(0)) for r in range(ranks)})

    boxes = [Mailboxes(kept, torch.device("cpu"), LOOKS, torch.zeros(1, dtype=torch.int64)) for _ in range(ranks)]
    like = torch.zeros(SIZE)
    places = [b.box(g, like, forward, 0) for b, g in zip(boxes, groups, strict=True)]
    for box in places:  # every rank's addresses, now that all are there
        box.table.copy_(torch.tensor([memories[r].data_ptr() for r in range(ranks)]))
    rows = torch.randn(ranks, CALLS, SIZE)
    at = [0] * ranks  # steps of each rank: it sends, receives, sends, ..
    wrong, ahead = 0, 0
    before = {r: [s for s in range(ranks) if (s < r if forward else s > r)] for r in range(ranks)}
    after = {r: [s for s in range(ranks) if r in before[s]] for r in range(ranks)}
    in_turn = list(range(ranks)) if forward else list(reversed(range(ranks)))
    if case == "broken":
        for r in in_turn:
            places[r].send(torch.zeros(SIZE))
    while any(x < 2 * CALLS for x in at):
        able = [r for r in range(ranks) if at[r] < 2 * CALLS]
        ready = [r for r in able if case == "unread" or _ready(at, r, before[r], after[r])]
        if case == "early":
            r = next(r for r in able if before[r])
            at[r] = 1
        elif case == "broken":
            r = min(in_turn, key=at.__getitem__)
        else:
            r = draw.choice(ready)
        call, receives = divmod(at[r], 2)
        if receives:
            if case == "unread" and not all(at[s] > 2 * call for s in before[r]):
                continue
            got = places[r].receive(rows[r, call])
            if case == "early":
                break
            wrong += not torch.equal(got, rows[before[r], call])
        else:
            if case == "unread":
                counts = memories[r][places[r].shape["counts"] // 8 :]
                programs = places[r].options["PROGRAMS"]
                counts[ranks * programs : 2 * ranks * programs] = 10**6
            places[r].send(rows[r, call].clone())
        at[r] += 1
        if after[r]:
            ahead = max(ahead, max(at[r] - at[s] for s in after[r]) // 2)
    said = ""
    try:
        for b, g in zip(boxes, groups, strict=True):
            b.check(g)
    except GroupError as error:
        said = str(error)
    return {"wrong": wrong, "ahead": ahead, "said": said}


def _ready(at: list[int], rank: int, before: list[int], after: list[int]) -> bool:
    """Would the next step of a rank wait for nobody?"""
    call, receives = divmod(at[rank], 2)
    if receives:
        return all(at[s] > 2 * call for s in before)
    return all(at[s] >= 2 * (call - SLOTS + 1) for s in after)


def main() -> None:
    module.BLOCK, module.PROGRAMS = 32, 2
    found: dict[str, list[Any]] = {"right": [], "broken": [], "unread": [], "early": []}
    for seed, (ranks, forward) in enumerate([(2, True), (3, False), (4, True)], 2):
        for case, own in found.items():
            own.append(came(ranks, forward, seed, case))
    print(json.dumps({"slots": SLOTS, **found}))


if __name__ == "__main__":
    main()
