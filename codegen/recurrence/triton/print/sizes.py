"""Sizes of axes, and of tiles along them, as functions that launch kernels have them."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.code import Call
from ....ir.expr import dim_of
from ....ir.python_code import Fixed, Part, made_by
from .axis_names import size_name


def size(axis: str) -> Fixed:
    """How many entries an axis has."""
    return Fixed(size_name(dim_of(axis)))


def sizes(axes: Iterable[str]) -> list[Fixed]:
    return [size(a) for a in axes]


def padded(axis: str) -> Call:
    """How wide a tile is that has all of an axis."""
    return made_by("config.padded", size(axis))


def cdiv(count: Part, each: Part) -> Call:
    """How many parts there are of so many entries each."""
    return made_by("cdiv", count, each)


def least(*values: Part) -> Call:
    return made_by("min", *values)
