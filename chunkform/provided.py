"""What lower rooms need of the compiler, which lies above them: the methods of specs, and what an op says about itself.

They ask for it here, and the package `chunkform`, which lies above all, puts it here. What isn't asked for isn't loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .types import Check, Explanation, Op, Spec, Verdicts


class Compiler(Protocol):
    """The functions of `chunkform` of these names, and the spec of a name in the catalogue."""

    def compile(self, spec: object) -> Op: ...
    def explain(self, spec: object, width: int, chunk: int) -> Explanation: ...
    def verify(self, spec: object, seconds: float | None) -> Verdicts: ...
    def check(self, spec: object, quick: bool, seconds: float | None, device: str | None) -> Check: ...
    def find(self, name: str) -> Spec: ...


_compiler: list[Compiler] = []


def provide(found: Compiler) -> None:
    """Say who answers."""
    _compiler[:] = [found]


def compiler() -> Compiler:
    """Who answers; the package puts it here as it is imported, before any of its modules."""
    return _compiler[0]
