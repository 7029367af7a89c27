"""Rows of maps written by one GPU straight into the memory of the others of its host, in the place of a gather.

A group's mailboxes are memory that each of its processes sees of all (torch's symmetric memory). Sending and receiving are plain
launches, so that a pass which is replayed, or captured in a CUDA graph, has nothing of it to do on the host.

A group has one mailbox for each size of a row, direction, and place of an exchange in its pass. Its ranks make them at the same
call: the first of a kind, which all ranks make at the same time (`agreement.py`).
"""

from __future__ import annotations

import os
import socket
import warnings
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from chunkform.errors import ArgumentError, GroupError

from ..launch.launch import cdiv, launch
from ..launch.recorder import watching
from .group import Group
from .meeting import timeout_of

VARIABLE = "CHUNKFORM_EXCHANGE"
GATHER, MEMORY = "gather", "memory"
USUAL = MEMORY  # where nothing is said
SHARED = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"  # torch's own switch: several ranks may have one GPU
BLOCK, PROGRAMS = 2048, 64  # numbers that a program moves at once, and the most programs


def chosen() -> str:
    """How maps travel within a host, by the environment.

    Raises:
        ArgumentError: it is no way that there is.
    """
    found = os.environ.get(VARIABLE, "") or USUAL
    if found not in (GATHER, MEMORY):
        raise ArgumentError(f"{VARIABLE} must be {GATHER} or {MEMORY}, got {found}")
    return found


class Memory(Protocol):
    """Zeroed memory of the same size in each process of a group, and where this process sees it."""

    @property
    def addresses(self) -> list[int]: ...


Facts: TypeAlias = dict[str, str | bool]
Make: TypeAlias = Callable[[Group, int, torch.device], Memory]  # of so many bytes; all ranks at once


class _Symmetric:
    """Torch's symmetric memory."""

    def __init__(self, group: Group, size: int, device: torch.device) -> None:
        from torch.distributed import _symmetric_memory

        self.own = _symmetric_memory.empty(size, dtype=torch.uint8, device=device)
        self.own.zero_()
        torch.cuda.synchronize(device)  # others may write as soon as all have met
        self.handle = _symmetric_memory.rendezvous(self.own, group.processes)
        before = self.own.data_ptr() - self.handle.buffer_ptrs[group.rank]
        self.addresses = [x + before for x in self.handle.buffer_ptrs]


@dataclass(eq=False)
class Mailbox:
    """Of rows of one size, in one direction: the rows of ranks before this one, where FORWARD, or else after it.

    What was sent is received before more is sent. A pass that ended in between, as one does that begins anew with narrower tiles,
    did so on all ranks: `unread` is what it left.
    """

    memory: Memory
    table: Tensor  # the addresses, on the device
    shape: dict[str, int]  # numbers of a row, from one to the next, and bytes ahead of the counts
    options: dict[str, int]
    rank: int
    failed: int
    limit: int
    bytes: int
    unread: bool = False

    def send(self, row: Tensor) -> None:
        """Write a row to the ranks that need it."""
        if self.unread:
            self.receive(row)
        self.unread = watching.instead is None
        readers = self.options["RANKS"] - 1 - self.rank if self.options["FORWARD"] else self.rank
        if readers:
            self._launch("send_kernel", row)

    def receive(self, row: Tensor) -> Tensor:
        """The rows of the ranks that are swept before this one, like `row`: [ranks, numbers]."""
        self.unread = False
        sources = self.rank if self.options["FORWARD"] else self.options["RANKS"] - 1 - self.rank
        out = row.new_empty((sources, row.shape[0]))
        if sources:
            self._launch("receive_kernel", out)
        return out

    def _launch(self, name: str, x: Tensor) -> None:
        from . import mailbox_kernels

        launch(
            getattr(mailbox_kernels, name), (self.options["PROGRAMS"],), x, self.table.data_ptr(), *self.shape.values(),
            self.rank, self.failed, self.limit, **self.options, num_warps=4,
        )  # fmt: skip


@dataclass(eq=False)
class Mailboxes:
    """Of a group, on one device."""

    make: Make
    device: torch.device
    limit: int
    failed: Tensor  # [1], what a kernel gave up on, in memory of the host that the device sees
    known: dict[Hashable, Mailbox] = field(default_factory=dict)
    stream: Any = None  # on which a mailbox was last used
    number: int = -1  # of that stream

    def __post_init__(self) -> None:
        self.word = self.failed.numpy()  # which is read in less time

    @property
    def bytes(self) -> int:
        """Of this process's memory."""
        return sum(x.bytes for x in self.known.values())

    def box(self, group: Group, row: Tensor, forward: bool, place: int) -> Mailbox | None:
        """For rows like this one; None where it isn't there, and can't be made now, on any rank."""
        key = row.dtype, row.shape[0], forward, place
        found = self.known.get(key)
        if found is None and not _captured(self.device):
            with _disable_current_modes():
                found = self.known[key] = self._made(group, row, forward)
        return found

    def _made(self, group: Group, row: Tensor, forward: bool) -> Mailbox:
        from .mailbox_kernels import SLOTS

        size, item = row.shape[0], row.element_size()
        stride = cdiv(size * item, 16) * 16 // item
        programs = max(1, min(PROGRAMS, cdiv(size, BLOCK)))
        counts = SLOTS * (group.size - 1) * stride * item
        words = 2 * (group.size + 1) * programs
        try:
            memory = self.make(group, counts + 8 * words, self.device)
        except RuntimeError as error:
            raise GroupError(
                f"{group.name}: context_parallel: rank {group.rank} of {group.size} has no memory that the others see "
                f"({error}); {VARIABLE}={GATHER} does without"
            ) from error
        table = torch.tensor(memory.addresses, dtype=torch.int64, device=self.device)
        shape = {"size": size, "stride": stride, "counts": counts}
        options = {"RANKS": group.size, "PROGRAMS": programs, "FORWARD": forward, "BLOCK": BLOCK}
        return Mailbox(
            memory, table, shape, options, group.rank, self.failed.data_ptr(), self.limit, counts + 8 * words
        )

    def check(self, group: Group) -> None:
        """Raises GroupError where a kernel has given up."""
        word = int(self.word[0])
        if word:
            call, what = divmod(word, 2 * group.size)
            did = "write" if what < group.size else "read"
            raise GroupError(
                f"{group.name}: context_parallel: rank {group.rank} waited for rank {what % group.size} of {group.size} to {did} "
                f"the maps of exchange {call}, longer than the group's timeout; it ended, or didn't make the same call"
            )

    def in_order(self) -> None:
        """What follows on this stream comes after what was done on another: ranks use mailboxes in one order.

        In a graph that is captured its own order holds.
        """
        if self.device.type != "cuda":
            return
        number = torch._C._cuda_getCurrentRawStream(self.device.index)
        if number == self.number or _captured(self.device):
            return
        now = torch.cuda.current_stream(self.device)
        if self.stream is not None:
            now.wait_stream(self.stream)
        self.stream, self.number = now, number


OF_GROUPS: weakref.WeakKeyDictionary[Any, Mailboxes | None] = weakref.WeakKeyDictionary()


def mailboxes_of(group: Group, device: torch.device) -> Mailboxes | None:
    """Those of a group, None where its ranks can't or aren't to see each other's memory. All find out at the same call."""
    if group.processes in OF_GROUPS:
        return OF_GROUPS[group.processes]
    if device.type != "cuda" or group.size == 1 or _captured(device):
        return None
    with _disable_current_modes():
        found = OF_GROUPS[group.processes] = _decided(group, device)
    return found


def known_of(group: Group) -> Mailboxes | None:
    """Those of a group, if there are any yet."""
    return OF_GROUPS.get(group.processes)


def bytes_of(processes: dist.ProcessGroup) -> int:
    """Of this process's memory in the mailboxes of a group, which torch's allocator doesn't count."""
    found = OF_GROUPS.get(processes)
    return 0 if found is None else found.bytes


def _captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _decided(group: Group, device: torch.device) -> Mailboxes | None:
    """What all ranks say of themselves decides it, and then whether they can."""
    said: list[Any] = [None] * group.size
    dist.all_gather_object(said, _facts(device), group=group.processes)
    if not _all(group, agree(said) and all(_peers(device, x["gpu"]) for x in said)):
        return None
    try:
        _Symmetric(group, 8, device)
        able = True
    except RuntimeError as error:
        warnings.warn(
            f"{group.name}: context_parallel: maps are gathered, as GPUs can't share memory: {error}", stacklevel=2
        )
        able = False
    if not _all(group, able):
        return None
    failed = torch.zeros(1, dtype=torch.int64).pin_memory()
    found = Mailboxes(_Symmetric, device, int(1e9 * timeout_of(group)), failed)
    found.in_order()
    return found


def _all(group: Group, mine: bool) -> bool:
    """Do all ranks say yes?"""
    said: list[Any] = [None] * group.size
    dist.all_gather_object(said, mine, group=group.processes)
    return all(said)


def _facts(device: torch.device) -> Facts:
    """What a rank says of itself."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = socket.gethostname() + (boot.read_text().strip() if boot.exists() else "")
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    shared = os.environ.get(SHARED) == "1"
    return {"way": chosen(), "able": _able(), "host": host, "gpu": gpu, "shared": shared}


def agree(said: list[Facts]) -> bool:
    """Are all ranks on one host, each with a GPU of its own unless all are to share, and want and can this?"""
    wanted = all(x["way"] == MEMORY and x["able"] for x in said)
    apart = len({x["gpu"] for x in said}) == len(said) or all(x["shared"] for x in said)
    return wanted and apart and len({x["host"] for x in said}) == 1


def _able() -> bool:
    """Has this torch symmetric memory, and is there a Triton to write kernels in?"""
    try:
        import triton  # noqa: F401
        from torch.distributed import _symmetric_memory
    except ImportError:
        return False
    return hasattr(_symmetric_memory, "rendezvous") and hasattr(_symmetric_memory, "empty")


def _peers(device: torch.device, gpu: str) -> bool:
    """Does this GPU see the memory of another, which is given by its number?"""
    own = device.index
    for n in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(n).uuid) == gpu:
            return n == own or torch.cuda.can_device_access_peer(own, n)
    return False
