"""`RowMap`: outputs as functions of a step's inputs alone, which a kernel makes of each row for itself.

m = RowMap("unit")
d = m.dims("d")
x = m.inputs("x", d)
m.output("y", normalize(x))
"""

from __future__ import annotations

from typing import Any, NoReturn

from chunkform.errors import SpecError

from .expression import Dim
from .recurrence import Recurrence
from .source import caller


class RowMap(Recurrence):
    """What a layer does to a step's values before or after a recurrence: declared as one, and without states."""

    noun = "row map"

    def state(self, name: str, *dims: Dim, **about: object) -> NoReturn:
        raise SpecError(f"{self.name} is a RowMap, which has no states: declare a Recurrence", caller())

    def decay(self, names: str, *dim: Dim) -> Any:
        raise SpecError(f"{self.name} is a RowMap, in which nothing decays: write r.inputs({names!r}, ..)", caller())

    def head_decay(self, names: str, *dim: Dim) -> Any:
        raise SpecError(
            f"{self.name} is a RowMap, in which nothing decays: write r.parameters({names!r}, ..)", caller()
        )

    def output(self, name: str, term: Any, wide: bool = False) -> None:
        """An output of each step. `wide`: in float32 (float64 for float64 inputs) whatever the inputs are, as log decays want."""
        super().output(name, term)
        if wide:
            self.wide |= {name}

    def validate(self) -> RowMap:
        self._check_whole()
        return self
