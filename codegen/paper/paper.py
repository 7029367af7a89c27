"""A document with the claims that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chunkform.spec.language.claims import Claim, Setting

from .document import Document, Equation, ReadRow, Taken
from .symbols import Symbols


@dataclass
class Paper:
    """A document with the claims that it makes, in its order."""

    path: str
    document: Document
    parts: list[Symbols] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    of_row: dict[str, ReadRow] = field(default_factory=dict)
    equations: dict[str, Equation] = field(default_factory=dict)  # of claims
    settings: dict[tuple[Setting, str], Setting] = field(default_factory=dict)  # where conditions on quantities hold
    again: Callable[[Taken], Paper] | None = None  # the document, with what it leaves open taken in another way

    @property
    def symbols(self) -> Symbols:
        """Those of the part with a recurrence, or of the first."""
        return next((s for s in self.parts if s.recurrence is not None), self.parts[0])

    @property
    def recurrence(self) -> Any:
        return self.symbols.recurrence

    @property
    def guesses(self) -> list[str]:
        return list(dict.fromkeys(g for s in self.parts for g in s.guesses))
