"""The processes that share a sequence, in the order of its segments."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from chunkform.errors import ArgumentError, GroupError

from ..launch.recorder import act

c10d: Any = getattr(torch._C, "_distributed_c10d", None)


@dataclass(frozen=True)
class Group:
    """rank: the place of this process, and of its segment of the sequence, among `size`."""

    name: str  # of what runs on it, for messages
    processes: dist.ProcessGroup
    rank: int
    size: int

    @property
    def on_host(self) -> bool:
        """Can the group exchange what lies in the memory of the hosts?"""
        return "cpu:" in dist.get_backend_config(self.processes)

    def gather(self, x: Tensor) -> Gathering:
        """Start to collect x, of one shape on all ranks, from all of them."""
        flat = x.contiguous().view(-1)
        out = flat.new_empty(self.size * flat.shape[0])
        collective = _Collective(self.processes.group_name)
        try:
            act(collective.begin, out, flat)
        except RuntimeError as error:
            raise self.failed(error) from error
        return Gathering(self, collective, out, x.shape)

    def shift(self, x: Tensor, to: int | None, of: int | None) -> Passing:
        """Start to send x to a rank, and to receive what lies alike from another."""
        message = _Message(self.processes.group_name, to, of)
        out = None if of is None else torch.empty_like(x)
        tensors = [y for y, rank in ((x, to), (out, of)) if rank is not None and y is not None]
        passing = Passing(self, message, tensors, out)
        if tensors:
            try:
                act(message.begin, *tensors)
            except RuntimeError as error:
                raise self.failed(error) from error
        return passing

    def exchange(self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> Transfer:
        """Start to send tensors to ranks, and to fill others from ranks."""
        ops = [dist.P2POp(dist.isend, x.contiguous(), group=self.processes, group_peer=r) for x, r in sends]
        ops += [dist.P2POp(dist.irecv, x, group=self.processes, group_peer=r) for x, r in receives]
        try:
            return Transfer(self, dist.batch_isend_irecv(ops) if ops else [], [x for x, _ in sends])
        except RuntimeError as error:
            raise self.failed(error) from error

    def failed(self, error: RuntimeError) -> GroupError:
        return GroupError(
            f"{self.name}: context_parallel: an exchange among the {self.size} ranks of the group failed on rank "
            f"{self.rank}; another rank ended, didn't make the same call, or took longer than the group's timeout: {error}"
        )


class _Collective:
    """Collects from all ranks, from when it begins until it is waited for, on a stream of its own; or `at_once`, where nothing
    is done meanwhile, on the stream that asks. It names the process group, and doesn't hold it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: Any = None
        self.beside, self.inside = c10d.AllgatherOptions(), c10d.AllgatherOptions()
        self.beside.asyncOp, self.inside.asyncOp = True, False

    def begin(self, out: Tensor, x: Tensor) -> None:
        self.work = c10d._resolve_process_group(self.name)._allgather_base(out, x, self.beside)

    def at_once(self, out: Tensor, x: Tensor) -> None:
        work = c10d._resolve_process_group(self.name)._allgather_base(out, x, self.inside)
        if work is not None:
            work.wait()

    def wait(self, out: Tensor) -> None:
        work, self.work = self.work, None
        work.wait()


@dataclass(frozen=True)
class Gathering:
    """What is on its way from all ranks."""

    group: Group
    collective: _Collective
    out: Tensor
    shape: torch.Size

    def wait(self) -> Tensor:
        """[size, ...], by rank."""
        try:
            act(self.collective.wait, self.out)
        except RuntimeError as error:
            raise self.group.failed(error) from error
        return self.out.view(self.group.size, *self.shape)


class _Message:
    """To a rank and from another, of a process group that it names, and doesn't hold."""

    def __init__(self, name: str, to: int | None, of: int | None) -> None:
        self.name, self.to, self.of = name, to, of
        self.work: list[Any] = []

    def begin(self, *tensors: Tensor) -> None:
        """Of what is sent, if anything is, and what is received, if anything is."""
        group = c10d._resolve_process_group(self.name)
        ways = [(dist.isend, self.to)] * (self.to is not None) + [(dist.irecv, self.of)] * (self.of is not None)
        self.work = dist.batch_isend_irecv(
            [dist.P2POp(way, x, group=group, group_peer=rank) for (way, rank), x in zip(ways, tensors, strict=True)]
        )

    def wait(self, *tensors: Tensor) -> None:
        work, self.work = self.work, []
        for x in work:
            x.wait()


@dataclass(frozen=True)
class Passing:
    """What is on its way to a rank, and from another."""

    group: Group
    message: _Message
    tensors: list[Tensor]
    out: Tensor | None

    def wait(self) -> Tensor | None:
        """What has come, if anything was to come."""
        if self.tensors:
            try:
                act(self.message.wait, *self.tensors)
            except RuntimeError as error:
                raise self.group.failed(error) from error
        return self.out


@dataclass(frozen=True)
class Transfer:
    """Messages on their way; `held` keeps what is sent alive."""

    group: Group
    work: list[Any]
    held: list[Tensor]

    def wait(self) -> None:
        try:
            for work in self.work:
                work.wait()
        except RuntimeError as error:
            raise self.group.failed(error) from error


# By the id of what was given: it, its process group, rank and size. None of them is held: groups end when their owner ends them.
_known: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], tuple[int, int]]] = {}


def group_of(name: str, given: object) -> Group:
    """The group of a ProcessGroup or a one-dimensional DeviceMesh.

    Raises:
        ArgumentError: it is neither, has several dimensions, or this process isn't in it.
    """
    known = _known.get(id(given))
    if known is not None and known[0]() is given and dist.is_initialized():
        found = known[1]()
        if found is not None:
            return Group(name, found, *known[2])
    what = f"{name}: context_parallel"
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(f"{what} needs torch.distributed: call torch.distributed.init_process_group first")
    processes = given
    if isinstance(given, dist.DeviceMesh):
        if given.ndim != 1:
            raise ArgumentError(
                f"{what} must be a DeviceMesh of one dimension, such as mesh['cp'], got {given.ndim}: {given.mesh_dim_names}"
            )
        processes = given.get_group()
    if not isinstance(processes, dist.ProcessGroup):
        if processes == dist.GroupMember.NON_GROUP_MEMBER:
            raise ArgumentError(f"{what}: this process (rank {dist.get_rank()}) isn't in the group")
        raise ArgumentError(f"{what} must be a ProcessGroup or a DeviceMesh, got {type(given).__name__}")
    place = processes.rank(), processes.size()
    if len(_known) > 64:
        _known.clear()
    _known[id(given)] = weakref.ref(given), weakref.ref(processes), place
    return Group(name, processes, *place)
