"""Scans of states whose entries go through maps that compose, for torch, and how two maps of a kind compose, for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .segment_maps import Map, Segment, reduced

Maps = tuple[Any, ...]
Extreme = Callable[[Any, Any], Any]
Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]
Swap = Callable[[tuple[Segment, ...]], tuple[Map, ...]]  # segments' maps, for what enters them

STEPS = 64  # whose maps are composed; states go from so many to the next
TURN = 2 * math.pi
UNITS = 62  # the largest power of two that states are measured in: the quotient of two of these is a float32
LONG = 4096  # steps that are worked on at once


@dataclass(frozen=True)
class Law:
    """A kind of maps x -> f(x). `identity` are the numbers of the map that changes nothing. `then(first, second, extreme)` is one
    after the other, `applied(maps, x, extreme)` what a map makes of x, for values with + and *; `extreme` takes the larger or the
    smaller of two. `homogeneous`: a map is the same times a number."""

    identity: tuple[float, ...]
    then: Callable[[Maps, Maps, Extreme], Maps]
    applied: Callable[[Maps, Any, Extreme], Any]
    homogeneous: bool = False


def _affine(first: Maps, second: Maps, _: Extreme) -> Maps:
    (a, b), (p, q) = first, second
    return a * p, b * p + q


def _extreme(first: Maps, second: Maps, extreme: Extreme) -> Maps:
    (a, b, c), (p, q, r) = first, second
    return a * p, b * p + q, extreme(c * p + q, r)


def _log_sum(first: Maps, second: Maps, either: Extreme) -> Maps:
    """Of maps whose first number is 1, so that a constant one may have -inf as its second."""
    (a, b, c), (p, q, r) = first, second
    return a * p, b + q, either(c + q, r)


def _rational(first: Maps, second: Maps, _: Extreme) -> Maps:
    (a, b, c, d), (p, q, r, s) = first, second
    return p * a + q * c, p * b + q * d, r * a + s * c, r * b + s * d


def _at_extreme(maps: Maps, x: object, extreme: Extreme) -> object:
    return extreme(maps[0] * x + maps[1], maps[2])


LAWS = {
    "affine": Law((1.0, 0.0), _affine, lambda m, x, _: m[0] * x + m[1]),
    "maximum": Law((1.0, 0.0, -torch.inf), _extreme, _at_extreme),
    "logaddexp": Law((1.0, 0.0, -torch.inf), _log_sum, lambda m, x, either: either(x + m[1], m[2])),
    "minimum": Law((1.0, 0.0, torch.inf), _extreme, _at_extreme),
    "rational": Law((1.0, 0.0, 0.0, 1.0), _rational, lambda m, x, _: (m[0] * x + m[1]) / (m[2] * x + m[3]), True),
}
EXTREMES: dict[str, Extreme] = {"minimum": torch.minimum, "logaddexp": torch.logaddexp}


def scan_maps(
    kind: str, maps: tuple[Tensor, ...], first: Tensor, forward: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The states before and after each step, [B, H, T, ...], and the last one, [B, H, ...], from the maps of steps,
    [B, H, T, ...]; where not `forward`, from the last step to the first."""
    law, extreme = LAWS[kind], EXTREMES.get(kind, torch.maximum)
    count = maps[0].shape[2]
    if not count:
        return maps[0], maps[0], first
    if not forward:
        maps = tuple(x.flip(2) for x in maps)
    scale: Tensor | None = None
    state = first
    if kind == "rational":
        maps, scale = _in_own_units(maps)
        state = first / scale[:, :, 0]
    size = min(STEPS, 1 << (count - 1).bit_length())
    rest = -count % size
    if rest:
        maps = tuple(
            torch.cat((x, x.new_full((*x.shape[:2], rest, *x.shape[3:]), y)), 2)
            for x, y in zip(maps, law.identity, strict=True)
        )
    maps = tuple(x.unflatten(2, (-1, size)) for x in maps)
    shift = 1
    while shift < size:
        later = law.then(tuple(x[:, :, :, :-shift] for x in maps), tuple(x[:, :, :, shift:] for x in maps), extreme)
        maps = tuple(torch.cat((x[:, :, :, :shift], y), 3) for x, y in zip(maps, later, strict=True))
        maps = _whole(maps, law)
        shift *= 2
    parts = []
    for n in range(maps[0].shape[2]):
        parts.append(law.applied(tuple(x[:, :, n] for x in maps), state[:, :, None], extreme))
        state = parts[-1][:, :, -1]
    after = torch.cat(parts, 2)[:, :, :count]
    after = after if scale is None else after * scale
    before = torch.cat((first[:, :, None], after[:, :, :-1]), 2)
    last = after[:, :, -1]
    return (before, after, last) if forward else (before.flip(2), after.flip(2), last)


def _in_own_units(maps: Maps) -> tuple[Maps, Tensor]:
    """Quotients x -> (a x + b) / (c x + d) of states in units of each step, powers of two near sqrt(b / c), and these: of numbers
    as far from 1 as a variance may be, products of maps have no digits left in float32. A step's unit depends on that step alone,
    so that nothing depends on later ones."""
    a, b, c, d = maps
    exponent = ((b.abs().log2() - c.abs().log2()) / 2).round().clamp(-UNITS, UNITS)
    unit = torch.ldexp(torch.ones_like(b), torch.where((b != 0) & (c != 0), exponent, 0.0))
    before = torch.cat((unit[:, :, :1], unit[:, :, :-1]), 2)
    return (a * (before / unit), b / unit, c * before, d), unit


def scan_turns(
    kind: str, maps: tuple[Tensor, ...], first: Tensor, forward: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """`scan_maps` of sums of angles, of which only cos and sin are taken: summed in float64, less whole turns before and after
    each step. The last state is the sum itself, in float64, for what goes on from there."""
    dtype = maps[-1].dtype
    before, after, last = scan_maps(kind, tuple(x.double() for x in maps), first.double(), forward)
    return less_turns(before).to(dtype), less_turns(after).to(dtype), last


def less_turns(x: Tensor) -> Tensor:
    """Angles less whole turns, from half a turn backwards to half a turn forwards."""
    return x - TURN * torch.round(x / TURN)


# --- a sequence whose other segments lie on other ranks ---------------------------------------------------------------


@dataclass(frozen=True)
class ScanSegment(Segment):
    """The map of a segment's steps together, of a `kind` of the table. `linear` has its numbers, `entering` the state."""

    kind: str = "affine"

    def sent(self, starts: bool) -> Map:
        return _constant(self.kind, _at(self.kind, self.linear, self.entering[0])) if starts else self.linear

    def entered(self, rows: Tensor, direction: int) -> Map:
        if not len(rows):
            return super().entered(rows, direction)
        parts = rows.split([x.numel() for x in self.linear], 1)
        maps = tuple(x.view(-1, *own.shape).movedim(0, 2) for x, own in zip(parts, self.linear, strict=True))
        whole = reduced(self.law, maps, direction)
        return (_at(self.kind, whole, torch.zeros_like(self.entering[0])),)


def entering(name: str, kind: str, maps: Map, first: Tensor, exchange: Swap, forward: bool = True) -> Tensor:
    """The state that enters this segment, [B, H, ...], by the maps of all segments: of its steps, [B, H, T, ...]."""
    law = LAWS[kind]

    def then(later: Map, earlier: Map) -> Map:
        found = _whole(law.then(earlier, later, EXTREMES.get(kind, torch.maximum)), law)
        if not law.homogeneous:
            return found
        nothing = ~torch.stack([x != 0 for x in earlier]).any(0)  # as what lies before a start is told
        return tuple(torch.where(nothing, x, y) for x, y in zip(later, found, strict=True))

    unchanged = tuple(torch.full_like(first, x) for x in law.identity)
    whole = reduced(then, maps, 1 if forward else -1) if maps[0].shape[2] else unchanged
    segment = ScanSegment((name,), then, lambda m, x: (_at(kind, m, x[0]),), whole, (), (first,), kind)
    ((found,),) = exchange((segment,))
    return found


def _whole(maps: Map, law: Law) -> Map:
    """A map with numbers near 1, where it is the same times a number."""
    if not law.homogeneous:
        return maps
    largest = reduce(torch.maximum, (x.abs() for x in maps))
    return tuple(x / torch.where(largest > 0, largest, 1.0) for x in maps)


def _at(kind: str, maps: Map, x: Tensor) -> Tensor:
    found: Tensor = LAWS[kind].applied(maps, x, EXTREMES.get(kind, torch.maximum))
    return found


def _constant(kind: str, x: Tensor) -> Map:
    """The map that makes x of anything."""
    if kind == "affine":
        return torch.zeros_like(x), x
    if kind == "rational":
        return torch.zeros_like(x), x, torch.zeros_like(x), torch.ones_like(x)
    if kind == "logaddexp":
        return torch.zeros_like(x), torch.full_like(x, -torch.inf), x
    return torch.zeros_like(x), x, x


# --- a long sequence in segments ----------------------------------------------------------------------------------------


def forward_in_segments(
    part: Callable[..., tuple[Tensors, Tensors, Tensors]],
    per_step: list[str],
    given: Tensors,
    states: Maybe,
    constants: dict[str, float],
    size: int,
) -> tuple[Tensors, Tensors, Tensors]:
    """What `part` makes of a sequence, of so many steps at once; saved are the states that enter each part after the first."""
    steps = given[per_step[0]].shape[1]
    if steps <= size:
        outputs, last, saved = part(given, states, constants)
        return outputs, _narrowed(last, given), saved
    made: list[Tensors] = []
    kept: Tensors = {}
    now: Any = states
    for n, start in enumerate(range(0, steps, size)):
        if n:
            kept |= {f"{n} {name}": x for name, x in now.items() if x is not None}
        outputs, last, _ = part(_steps(given, per_step, start, size), now, constants)
        made.append(outputs)
        now = last
    return {n: torch.cat([x[n] for x in made], 1) for n in made[0]}, _narrowed(now, given), kept


def _narrowed(states: Maybe, given: Tensors) -> Tensors:
    """Last states, in float64 where something that is given is."""
    wide = any(x.dtype == torch.float64 for x in given.values())
    return {n: x.float() if x.dtype == torch.float64 and not wide else x for n, x in states.items() if x is not None}


def backward_in_segments(
    part: Callable[..., tuple[Tensors, Tensors]],
    per_step: list[str],
    given: Tensors,
    states: Maybe,
    constants: dict[str, float],
    saved: Tensors,
    cotangents: Maybe,
    final_cotangents: Maybe,
    needs: frozenset[str],
    size: int,
) -> tuple[Tensors, Tensors]:
    """Gradients of a sequence by `part`, of so many steps at once; those of parameters are summed."""
    steps = given[per_step[0]].shape[1]
    if steps <= size:
        return part(given, states, constants, {}, cotangents, final_cotangents, needs)
    found: list[Tensors] = []
    now: Any = final_cotangents
    starts = range(0, steps, size)
    for n, start in reversed(list(enumerate(starts))):
        first = {name: saved.get(f"{n} {name}") for name in states} if n else states
        own = {name: None if x is None else x[:, start : start + size] for name, x in cotangents.items()}
        gradients, now = part(_steps(given, per_step, start, size), first, constants, {}, own, now, needs)
        found.append(gradients)
    out = {}
    for name in found[0]:
        parts = [x[name] for x in found]
        out[name] = torch.cat(parts[::-1], 1) if name in per_step else reduce(torch.add, parts)
    return out, now


def _steps(given: Tensors, per_step: list[str], start: int, size: int) -> Tensors:
    return {n: x[:, start : start + size] if n in per_step else x for n, x in given.items()}
