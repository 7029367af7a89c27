"""What an op says about itself: `op.source()`, `op.spec` and `op.derivation`. Only who asks for them loads the compiler."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from chunkform.errors import LoadError
from chunkform.provided import compiler


class Later:
    """Something that is found when it is first looked at, and looks like what was found from then on."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self.__dict__["_find"] = functools.cache(find)

    @property
    def __class__(self) -> Any:  # so that isinstance sees what was found
        return type(self._find())

    @__class__.setter
    def __class__(self, kind: object) -> None:
        raise AttributeError("the class of what an op says about itself can't be changed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._find(), name, value)

    def __getitem__(self, key: object) -> Any:
        return self._find()[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._find())

    def __len__(self) -> int:
        return len(self._find())

    def __dir__(self) -> list[str]:
        return dir(self._find())

    def __repr__(self) -> str:
        return repr(self._find())

    def __str__(self) -> str:
        return str(self._find())

    def __eq__(self, other: object) -> bool:
        return bool(self._find() == (other._find() if type(other) is Later else other))

    def __hash__(self) -> int:
        return hash(self._find())

    def __reduce_ex__(self, protocol: object) -> Any:
        return self._find().__reduce_ex__(protocol)


def about(op: Callable[..., object]) -> Any:
    """The op, with what it says about itself."""
    op.source = functools.partial(_source, op.__module__)
    op.spec = Later(functools.partial(_spec, op.__module__, op.__name__))
    op.derivation = Later(lambda: _derivation(op))
    op._repr_latex_ = functools.partial(_latex, op)
    return op


def _source(module: str) -> str:
    """The text of the generated file, with the derivation as comments, the kernels and the torch form."""
    return inspect.getsource(sys.modules[module])


def _spec(module: str, name: str) -> Any:
    """The spec that an op was made of, where that can be known: in the catalogue. `chunkform.compile` sets its own."""
    if module == f"chunkform.generated.{name}":
        return compiler().find(name)
    raise LoadError(
        f"{name} was read from {sys.modules[module].__file__}, which doesn't hold its spec: chunkform.compile(spec) gives an op "
        "that does"
    )


def _derivation(op: Callable[..., object]) -> Any:
    return op.spec.explain().derivation


def _latex(op: Callable[..., object]) -> str | None:
    """For notebooks: the equations of a step, where the spec can be known."""
    try:
        found: str | None = op.spec._repr_latex_()
    except LoadError:
        return None
    return found
