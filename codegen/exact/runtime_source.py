"""Modules of the runtime as sources of exact meaning, on systems without Triton too: there a stand-in takes its place while
they are imported, and what was imported so is forgotten again, as nothing can run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

NAMES = ("triton", "triton.language", "triton.runtime", "triton.runtime.errors", "triton.runtime.jit")


def module_of(name: str) -> ModuleType:
    """A module of the runtime, whose functions are read and not called."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
    with _stand_in():
        return importlib.import_module(name)


class constexpr:
    def __init__(self, value: object) -> None:
        self.value = value


class _Missing(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return {"jit": _jit, "constexpr": constexpr, "OutOfResources": MemoryError}.get(name, _nothing)


def _jit(function: Callable[..., object] | None = None, **options: object) -> Callable[..., object]:
    return function if function is not None else _jit


def _nothing(*given: object, **options: object) -> None:
    """What only a system with Triton does."""


@contextmanager
def _stand_in() -> Iterator[None]:
    before = dict(sys.modules)
    made = {name: _Missing(name) for name in NAMES}
    for name, module in made.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, module)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n not in before and n.startswith(("chunkform.runtime.", "triton"))]:
            del sys.modules[name]
        sys.modules.update({name: before[name] for name in NAMES if name in before})
