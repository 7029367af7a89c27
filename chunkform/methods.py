"""What can be done with a spec, as its methods: `r.compile()`, `r.explain()`, `r.verify()`, `r.check()`.

A `Declaration` has these from here; the compiler is loaded by the first call, so that the language of specs needs nothing of it.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Check, Explanation, Op, Verdicts
    from .spec.language.declaration import Declaration


def _compiler(module: str) -> ModuleType:
    return importlib.import_module(f"chunkform.codegen.{module}")


def find_spec(name: str) -> Declaration:
    """The spec of this name in the catalogue."""
    found = importlib.import_module("chunkform.spec.language").find(name)
    return next(r for r in found if r.name == name)


class Methods:
    """The methods of every kind of spec. The same are functions of `chunkform`, which take names and files as well."""

    def compile(self) -> Op:
        """The op of this spec; see `chunkform.compile`."""
        found: Op = _compiler("commands.compile").compile_op(self)
        return found

    def explain(self, width: int = 64, chunk: int = 64) -> Explanation:
        """What the compiler derives of this spec; see `chunkform.explain`."""
        found: Explanation = _compiler("api").explain(self, width, chunk)
        return found

    def verify(self, seconds: float | None = None) -> Verdicts:
        """The verdicts on the claims of this spec; see `chunkform.verify`."""
        found: Verdicts = _compiler("api").verify(self, seconds=seconds)
        return found

    def check(self, quick: bool = False, seconds: float | None = None, device: str | None = None) -> Check:
        """The numbers of this spec's op beside the definition; see `chunkform.check`."""
        found: Check = _compiler("api").check(self, quick=quick, seconds=seconds, device=device)
        return found
