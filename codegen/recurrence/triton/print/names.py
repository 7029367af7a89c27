"""Python names of what kernels and the functions that launch them speak of."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ....ir.expr import Kept, Node, identifier, plain_name
from ....ir.letters import is_lettered, step_names
from ....ir.step_program import WHOSE_LOGARITHM
from ...chunkwise.compiled import Compiled
from .axis_names import axis_name, block_name, counter, size_name, tile_name
from .reserved import RESERVED

STEMS = {
    "read": "read",
    "write": "write",
    "matrix": "matrix",
    "own": "own",
    "scaled": "scaled",
    "intra": "intra",
    "prologue": "ahead",
    "transition": "weight",
}


PARTS = frozenset(
    {"early", "late", "before", "last", "ends"}
)  # of a leaf, by which launchers call tensors of their own


class NameOf(Protocol):
    """What leaves are called in kernels, and which numbers the formulas have of what is made."""

    def __call__(self, x: Node) -> str: ...
    def number(self, key: tuple[str, str]) -> int | None: ...


class Names:
    """Python names of leaves: those of the spec where they are free, numbered ones for what the compiler found."""

    def __init__(self, c: Compiled) -> None:
        axes = [x for d in c.step.dims for x in (d, Kept(d))]
        self.reserved = set(RESERVED) | {
            plain_name(f(x)) for x in axes for f in (size_name, axis_name, block_name, tile_name, counter)
        }
        self.own = {x for n in step_names(c.step) for x in (n, f"d{n}")}
        self.known: dict[object, str] = {}
        self.taken = set(self.reserved)  # all names that there are, in plain letters
        self.counts: Counter[str] = Counter()
        self.numbers = c.numbers

    def number(self, key: tuple[str, str]) -> int | None:
        """The number of the formula, at the file's head, of a read or a write, or of a state after a chunk."""
        return self.numbers.get((key[0], plain_name(key[1])))

    def __call__(self, x: Node) -> str:
        key: object = x.attrs[:2] if x.op == "leaf" else x
        if x.op == "leaf" and x.attrs[0] in WHOSE_LOGARITHM:
            key = (WHOSE_LOGARITHM[x.attrs[0]], x.attrs[1])
        if key not in self.known:
            self.known[key] = self._new(x)
            self.taken.add(plain_name(self.known[key]))
        return self.known[key]

    def _new(self, x: Node) -> str:
        kind = x.attrs[0] if x.op == "leaf" else "decay_of"
        if kind in STEMS or x.op != "leaf":
            stem = STEMS.get(kind, "decay")
            self.counts[stem] += 1
            name = f"{stem}{self.counts[stem]}"
        else:
            name = identifier(x.attrs[1])
            if (
                plain_name(name).rstrip("0123456789") in STEMS.values()
            ):  # which matrices and weights are called as they are
                name += "_"
            whole, _, part = x.attrs[1].rpartition(".")
            if whole and part in PARTS:
                name += "_"
        while plain_name(name) in self.taken or self._may_be_made(name):
            name += "_"
        return name

    def _may_be_made(self, name: str) -> bool:
        """May kernels make this name of another one? Of names in letters of their own they make no other such name."""
        return name in self.own and not is_lettered(name) and any(name.startswith(f"{x}_") for x in self.own)
