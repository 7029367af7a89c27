"""What can be done with a spec, as its methods: `r.compile()`, `r.explain()`, `r.verify()`, `r.check()`.

The compiler answers them. It is loaded by the first call, so that the language of specs needs nothing of it.
"""

from __future__ import annotations

from chunkform.provided import compiler
from chunkform.types import Check, Explanation, Op, Verdicts


class Queries:
    """The methods of every kind of spec. The same are functions of `chunkform`, which take names and files as well."""

    def compile(self) -> Op:
        """The op of this spec; see `chunkform.compile`."""
        return compiler().compile(self)

    def explain(self, width: int = 64, chunk: int = 64) -> Explanation:
        """What the compiler derives of this spec; see `chunkform.explain`."""
        return compiler().explain(self, width, chunk)

    def verify(self, seconds: float | None = None) -> Verdicts:
        """The verdicts on the claims of this spec; see `chunkform.verify`."""
        return compiler().verify(self, seconds)

    def check(self, quick: bool = False, seconds: float | None = None, device: str | None = None) -> Check:
        """The numbers of this spec's op beside the definition; see `chunkform.check`."""
        return compiler().check(self, quick, seconds, device)
