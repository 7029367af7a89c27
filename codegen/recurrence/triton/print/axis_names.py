"""How kernels call axes, their sizes and tiles."""

from __future__ import annotations

from ....ir.code import Code, Name
from ....ir.expr import Kept, dim_of, plain_name
from ....ir.letters import capital, is_lettered
from .reserved import RESERVED


def dim_of_kept(axis: str) -> str:
    """The dim of an axis, kept or not."""
    return axis.dim if isinstance(axis, Kept) else axis


INTERNAL = RESERVED | set("m p s t w x y".split())  # names of every kernel


def axis_name(axis: str) -> str:
    """The name of an index over an axis: that of its dim, with an underscore where kernels have another use for that."""
    dim = dim_of_kept(dim_of(axis))
    may_be_made = "_" in dim and not is_lettered(dim)  # by kernels, of another name
    name = f"{dim}_" if plain_name(dim) in INTERNAL or may_be_made else dim
    if isinstance(axis, Kept):
        return f"{name}_kept"
    return name if axis == dim else f"{name}_{len(axis) - len(dim) + 1}"


def size_name(dim: str) -> str:
    """The name of the size of a dim."""
    dim = dim_of_kept(dim)
    name = capital(dim)
    return f"{dim}_size" if not plain_name(dim).islower() or plain_name(name) in RESERVED else name


def block_name(axis: str) -> str:
    return f"block_{axis_name(axis)}"


def tile_name(axis: str) -> str:
    return f"tile_{axis_name(axis)}"


def counter(axis: str) -> str:
    """The name of the number of a slice of an axis."""
    return f"n_{axis_name(axis)}"


def count_of(axis: str) -> Code:
    """How many slices there are."""
    return (Name(size_name(dim_of(axis))) + block_name(axis) - 1) // block_name(axis)
