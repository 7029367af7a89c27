"""What a spec file can declare: a named thing of some kind (a recurrence, an attention, ...), with where it was declared."""

from __future__ import annotations

import keyword
from typing import Any

from chunkform.errors import NameError_, SpecError

from .source import caller


class Declaration:
    """The base of every kind. `noun` is what a kind is called in messages."""

    noun = "declaration"

    def __init__(self, name: str, doc: str = "", source: str = "") -> None:
        self.where = caller()
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            article = "an" if self.noun[0] in "aeiou" else "a"
            raise NameError_(f"{article} {self.noun}'s name must be a Python identifier, got {name!r}", self.where)
        self.name = name
        self.doc = doc
        self.source = source
        self.claims: list[Any] = []

    def quantities(self, *names: Any, **about: Any) -> Any:
        """Quantities to state claims with; only a recurrence has these."""
        raise SpecError(
            f"claims about {self.name}, a declaration of the kind {self.noun}, are stated in a Document with a Setting: "
            "see docs/claims.md",
            caller(),
        )

    claim = define = quantities

    def validate(self) -> Any:
        """Check what only the whole declaration can show; returns self."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
