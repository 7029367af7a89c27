"""A recorder of kernels' launches that runs none of them: what a pass would launch, without a GPU, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from chunkform.runtime.launch.recorder import watching


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel's name, its grid, and the arguments that are tensors without entries."""

    kernel: str
    grid: tuple[int, ...]
    empty: tuple[str, ...]


@contextmanager
def recorded() -> Iterator[list[Launched]]:
    """The launches of this thread meanwhile, in the place of which nothing is done."""
    found: list[Launched] = []

    def note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        empty = [n for n, x in zip(kernel.arg_names, args, strict=False) if isinstance(x, Tensor) and not x.numel()]
        found.append(Launched(kernel.fn.__name__, grid, tuple(empty)))

    before, watching.instead = watching.instead, note
    try:
        yield found
    finally:
        watching.instead = before
