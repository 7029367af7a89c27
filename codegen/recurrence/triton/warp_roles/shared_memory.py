"""A sweep's schedule in less shared memory, where it would not fit: tensors that leave a chunk go through one buffer, one after
the other, in the place of a buffer each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

from ....ir.warp_schedule import Buffer, Drain, Put, Ring, Role, Schedule, Send, Step, WhereGiven, flat
from .whole import OUT

PROGRAM = 232448  # bytes of shared memory that a program may have on a GPU that runs these
TRITON = 1480  # bytes that Triton adds, for barriers and for what roles are given: it has been seen to add 1476
STEPS, CHUNKS, STAGES, WIDEST = 32, 2, 2, 128  # of a chunk; of a stage; of a launch; channels of the widest tile
ELEMENT, NUMBER, BARRIER = 2, 4, 8  # bytes


def fitting(s: Schedule) -> Schedule:
    """The schedule, of a sweep that loads its matrices, as it fits a program's shared memory at its widest."""
    if bytes_of(s) + TRITON <= PROGRAM:
        return s
    shapes = Counter((b.shape, b.maybe) for b in s.buffers if b.tile is not None)
    alike = [b for b in s.buffers if b.tile is not None and not b.maybe and shapes[b.shape, b.maybe] > 1]
    if len({b.shape for b in alike}) != 1:
        return s
    own = {b.name: b for b in alike}
    rest = tuple(b for b in s.buffers if b.name not in own)
    buffers = (*rest, Buffer(OUT, alike[0].shape, target=alike[0].target))
    return replace(s, buffers=buffers, roles=tuple(_through_one(r, own) for r in s.roles))


def bytes_of(s: Schedule) -> int:
    """Bytes of what a schedule has in shared memory, with stages of several chunks, at the widest."""
    rings = sum(_bytes(x, CHUNKS) * (s.barriers_of(x.name).stages or STAGES) for x in s.rings)
    barriers = sum(2 * BARRIER * (x.stages or STAGES) for x in s.barriers)
    return rings + barriers + sum(_bytes(b, 1) for b in s.buffers)


def _bytes(x: Ring | Buffer, chunks: int) -> int:
    known = {"C": STEPS, "1": 1}
    entries = prod(int(n) if n.isdigit() else known.get(n, WIDEST) for n in x.shape)
    return chunks * entries * (NUMBER if isinstance(x, Ring) and not x.is_operand else ELEMENT)


def _through_one(r: Role, own: dict[str, Buffer]) -> Role:
    """A role that sends what goes through these buffers through one."""
    places = [x.buffer for x in flat(r.each) if isinstance(x, Send)]
    if not own.keys() & set(places):
        return r
    return replace(r, each=tuple(_sent(x, own, places) for x in r.each))


def _sent(x: Step, own: dict[str, Buffer], places: list[str]) -> Step:
    match x:
        case Put(place=place) if place in own:
            return replace(x, place=OUT)
        case Send(buffer=name) if name in own:
            return Send(OUT, own[name].tile, own[name].target)
        case Drain(under_way=names) if own.keys() & (set(places) - set(names)):
            return Drain()  # before what goes through this buffer: what was sent last may have been there
        case Drain(under_way=names):
            return Drain(tuple(OUT if n in own else n for n in names))
        case WhereGiven(steps=steps):
            return replace(x, steps=tuple(_sent(y, own, places) for y in steps))
    return x
