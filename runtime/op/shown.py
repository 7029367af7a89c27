"""Values that hold tensors in one line: their dtypes and shapes, and not their numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor


def brief(x: Any) -> str:
    """`float32 [2, 4, 16]` for a tensor; of tuples, lists and dicts what they hold; others as they are."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
    if hasattr(x, "_fields"):
        return f"{type(x).__name__}({', '.join(f'{n}={brief(v)}' for n, v in zip(x._fields, x, strict=True))})"
    if isinstance(x, tuple | list):
        inner = ", ".join(map(brief, x))
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{n}: {brief(v)}' for n, v in x.items())}}}"
    return " ".join(repr(x).split())


def brief_fields(x: Any) -> str:
    """A dataclass in one line; for its `__repr__`."""
    return f"{type(x).__name__}({', '.join(f'{f.name}={brief(getattr(x, f.name))}' for f in fields(x) if f.repr)})"
