"""Results of ops by name: `r = op(..)`, then `r.o` and `r.final_state`; they unpack, and are compared, as tuples are."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeAlias

from .shown import brief

Results: TypeAlias = "tuple[Any, ...]"  # outputs by name, and what comes last
Public: TypeAlias = "Callable[..., Results]"  # an op, or its step, as users call it

_made: dict[tuple[str, tuple[str, ...]], Any] = {}


def result_type(op: str, names: tuple[str, ...]) -> type[Any]:
    """The named tuple of an op's results. A name that can't be a field, or is there twice, is its place: `_1`.

    Signatures make theirs when they are made, so that a compiler of torch's that looks at a call finds them here.
    """
    found = _made.get((op, names))
    return _made.setdefault((op, names), _new(op, names)) if found is None else found


def _new(op: str, names: tuple[str, ...]) -> type[Any]:
    new: Any = namedtuple
    made = new(f"{op.replace('.', '_')}_result", names, rename=True)
    made.__reduce__ = lambda self: (_restored, (op, names, tuple(self)))  # it is in no module, where pickle would look
    made.__repr__ = brief
    made.__doc__ = f"What {op} returns: {', '.join(names)}."
    return made


def _restored(op: str, names: tuple[str, ...], values: tuple[object, ...]) -> tuple[object, ...]:
    return result_type(op, names)(*values)
