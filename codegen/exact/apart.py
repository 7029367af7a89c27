"""Values of programs that have gone different ways: parts of what a name stands for, and how they come together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .launch_memory import Memory

Value: TypeAlias = Any
Parts: TypeAlias = "Sequence[tuple[np.ndarray, Value]]"  # the numbers of programs, and the value that these have


class Pointer:
    """Places in a tensor, [1 or programs, ..], or one place for all."""

    __slots__ = ("memory", "places")

    def __init__(self, memory: Memory, places: np.ndarray | int = 0) -> None:
        self.memory, self.places = memory, places


class Exact:
    """Numbers to compute with, [1 or programs, ..]; integers and truth values are plain arrays of such shapes."""

    __slots__ = ("entries",)

    def __init__(self, entries: np.ndarray) -> None:
        self.entries = entries


@dataclass(frozen=True)
class Rows:
    """Tiles of a matrix in memory: of so many rows and columns, with these strides, as a copy engine moves them."""

    pointer: Pointer
    sizes: tuple[Value, ...]
    strides: tuple[Value, ...]
    tile: tuple[int, ...]


@dataclass(frozen=True)
class Apart:
    """A value of which some programs have one part each, and others none."""

    parts: Parts

    def among(self, programs: np.ndarray) -> Parts:
        """The parts of these programs."""
        found = [(a, v, np.isin(a, programs)) for a, v in self.parts]
        return [(a[take], chosen(v, take)) for a, v, take in found if take.any()]


def chosen(x: Value, take: np.ndarray) -> Value:
    """What a value is for some of the programs that have it."""
    if isinstance(x, np.ndarray):
        return x if len(x) == 1 else x[take]
    if isinstance(x, Exact):
        return x if len(x.entries) == 1 else Exact(x.entries[take])
    if isinstance(x, Pointer):
        own = chosen(x.places, take)
        return x if own is x.places else Pointer(x.memory, own)
    if isinstance(x, tuple):
        return tuple(chosen(y, take) for y in x)
    if isinstance(x, Rows):
        return Rows(chosen(x.pointer, take), chosen(x.sizes, take), chosen(x.strides, take), x.tile)
    return x


def joined(programs: np.ndarray, parts: Parts) -> Value:
    """What parts are for all programs, if they cover these and are of one kind."""
    values = [v for _, v in parts]
    if sum(len(a) for a, _ in parts) < len(programs) or any(isinstance(v, Apart) for v in values):
        return Apart([y for a, v in parts for y in (v.among(a) if isinstance(v, Apart) else [(a, v)])])
    first = values[0]
    if all(_alike(v, first) for v in values):
        return first
    if all(isinstance(v, Exact) for v in values):
        made = _placed(programs, [(a, v.entries) for a, v in parts])
        return Apart(parts) if made is None else Exact(made)
    if all(isinstance(v, Pointer) and v.memory is first.memory for v in values):
        made = _placed(programs, [(a, v.places) for a, v in parts])
        return Apart(parts) if made is None else Pointer(first.memory, made)
    if all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        return tuple(joined(programs, [(a, v[n]) for a, v in parts]) for n in range(len(first)))
    if all(isinstance(v, int | np.integer | np.ndarray) for v in values):
        made = _placed(programs, parts)
        return Apart(parts) if made is None else made
    return Apart(parts)


def _alike(a: Value, b: Value) -> bool:
    """Is it the same for all programs, and the same?"""
    if isinstance(a, np.ndarray | Exact | Pointer | tuple):
        own = a.entries if isinstance(a, Exact) else a.places if isinstance(a, Pointer) else a
        return a is b and (not isinstance(own, np.ndarray) or len(own) == 1)
    return bool(type(a) is type(b) and a == b)


def _placed(programs: np.ndarray, parts: Parts) -> np.ndarray | None:
    """The parts of arrays, in the order of programs; None where their shapes differ."""
    arrays = [np.atleast_1d(np.asarray(v)) for _, v in parts]
    rank = max(x.ndim for x in arrays)
    arrays = [x.reshape(len(x), *(1,) * (rank - x.ndim), *x.shape[1:]) for x in arrays]
    try:
        shape = np.broadcast_shapes(*(x.shape[1:] for x in arrays))
    except ValueError:
        return None
    out = np.empty((len(programs), *shape), dtype=np.result_type(*arrays))
    for (a, _), x in zip(parts, arrays, strict=True):
        out[np.searchsorted(programs, a)] = x
    return out
