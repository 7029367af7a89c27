"""`deterministic=True`: a sequence's bits depend on its own length and numbers alone, not on what else is in the call.

On a GPU, kernels take what they cut, and how they are compiled, from the length alone. Torch's products on a CPU round by the
number of matrices and where these lie in memory, so that the torch form takes one head of one sequence after the other, copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..launch.varlen import Packed
from .signature import Backend, Signature

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]


@dataclass(frozen=True)
class Piece:
    """One sequence, and one of its heads or, for None, all: the sequence's number, its batch entry and steps, and the head."""

    sequence: int
    entry: int
    steps: slice | None
    head: int | None

    def of(self, x: Tensor, layout: Sequence[str], heads: int) -> Tensor:
        """Its part of a tensor, whose axes are what `layout` says; of `heads`, which share those of the tensor in groups."""
        for axis, dim in enumerate(layout):
            if dim == "B":
                x = x.narrow(axis, self.entry, 1)
            elif dim == "N":
                x = x.narrow(axis, self.sequence, 1)
            elif dim == "T" and self.steps is not None:
                x = x.narrow(axis, self.steps.start, self.steps.stop - self.steps.start)
            elif dim == "H" and self.head is not None:
                x = x.narrow(axis, self.head // (heads // x.shape[axis]), 1)
        return x

    def copy_of(self, x: Tensor, layout: Sequence[str], heads: int) -> Tensor:
        """The same in fresh memory, which torch aligns: products round by where matrices lie."""
        part = self.of(x, layout, heads)
        return part.new_empty(part.shape).copy_(part)


class Wholes(dict[str, Tensor]):
    """Tensors that pieces are put into, or added to in their order."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def put(self, name: str, part: Tensor, piece: Piece, layout: Sequence[str], sizes: Mapping[str, int]) -> None:
        """A piece of a tensor that is as large as `sizes` says, and along other axes as the piece is."""
        if name not in self:
            self[name] = part.new_empty(_shape(part, layout, sizes))
        piece.of(self[name], layout, self.heads).copy_(part)

    def add(self, name: str, part: Tensor, piece: Piece, layout: Sequence[str], sizes: Mapping[str, int]) -> None:
        """The same for what several pieces have a part of."""
        if name not in self:
            self[name] = part.new_zeros(_shape(part, layout, sizes))
        piece.of(self[name], layout, self.heads).add_(part)


def _shape(part: Tensor, layout: Sequence[str], sizes: Mapping[str, int]) -> list[int]:
    return [sizes.get(dim, n) for dim, n in zip(layout, part.shape, strict=False)] + [*part.shape[len(layout) :]]


# --- the torch form, one head of one sequence after the other ---------------------------------------------------------

STEPS, STATES = ("B", "T", "H"), ("N", "H")


@dataclass(frozen=True)
class OneByOne:
    """The passes of a torch form, for one head of one sequence after the other. Nothing is kept for the backward pass."""

    signature: Signature
    backend: Backend

    def forward(
        self,
        given: Tensors,
        states: Maybe,
        constants: dict[str, float],
        packed: Packed | None = None,
        **options: object,
    ) -> tuple[Tensors, Maybe, Tensors]:
        """As `Backend.forward`."""
        sizes, pieces = self._pieces(given, packed)
        if not pieces:
            return self.backend.forward(given, states, constants, **_with(options, packed))
        outputs, finals, lost = Wholes(sizes["H"]), Wholes(sizes["H"]), set[str]()
        for piece in pieces:
            own = self._own(given, piece, sizes["H"])
            some, last, _ = self.backend.forward(own, _copies(states, piece, STATES, sizes["H"]), constants, **options)
            for n, x in some.items():
                outputs.put(n, x, piece, STEPS, sizes)
            for n, y in last.items():
                if y is None:
                    lost.add(n)
                else:
                    finals.put(n, y, piece, STATES, sizes)
        return outputs, {**finals, **dict.fromkeys(lost)}, {}

    def backward(
        self,
        given: Tensors,
        states: Maybe,
        constants: dict[str, float],
        cotangents: Maybe,
        final_cotangents: Maybe,
        needs: frozenset[str],
        packed: Packed | None = None,
        forward_options: dict[str, Any] | None = None,
    ) -> tuple[Tensors, Tensors]:
        """As `Backend.backward`, with the forward pass computed again. A parameter's gradient is summed over the sequences, in
        their order."""
        sizes, pieces = self._pieces(given, packed)
        options = forward_options or {}
        if not pieces:
            saved = self.backend.forward(given, states, constants, **_with(options, packed))[2]
            more = _with({}, packed)
            return self.backend.backward(given, states, constants, saved, cotangents, final_cotangents, needs, **more)
        per_step, heads = {a.name for a in self.signature.tensors if a.per_step}, sizes["H"]
        gradients, initial = Wholes(heads), Wholes(heads)
        for piece in pieces:
            own, first = self._own(given, piece, heads), _copies(states, piece, STATES, heads)
            saved = self.backend.forward(own, first, constants, **options)[2]
            incoming = _copies(cotangents, piece, STEPS, heads)
            last = _copies(final_cotangents, piece, STATES, heads)
            found, starts = self.backend.backward(own, first, constants, saved, incoming, last, needs)
            for n, g in found.items():
                if n in per_step:
                    gradients.put(n, g, piece, STEPS, sizes)
                else:
                    gradients.add(n, g, piece, ("H",), sizes)
            for n, g in starts.items():
                initial.put(n, g, piece, STATES, sizes)
        return gradients, initial

    def _pieces(self, given: Tensors, packed: Packed | None) -> tuple[dict[str, int], list[Piece]]:
        """B, T, H and N, and the pieces."""
        shapes = [(a, given[a.name].shape) for a in self.signature.tensors]
        heads = max(shape[a.head_axis] for a, shape in shapes)
        batch, steps = next(shape[:2] for a, shape in shapes if a.per_step)
        if packed is None:
            sequences = [(b, slice(0, steps)) for b in range(batch)]
        else:
            sequences = [(0, slice(*packed.boundaries[n : n + 2])) for n in range(packed.count)]
        sizes = {"B": batch, "T": steps, "H": heads, "N": len(sequences)}
        return sizes, [Piece(n, b, s, h) for n, (b, s) in enumerate(sequences) for h in range(heads)]

    def _own(self, given: Tensors, piece: Piece, heads: int) -> Tensors:
        return {
            a.name: piece.copy_of(given[a.name], STEPS if a.per_step else ("H",), heads) for a in self.signature.tensors
        }


def _copies(x: Maybe, piece: Piece, layout: Sequence[str], heads: int) -> Maybe:
    return {n: None if y is None else piece.copy_of(y, layout, heads) for n, y in x.items()}


def _with(options: dict[str, Any], packed: Packed | None) -> dict[str, Any]:
    return options if packed is None else options | {"packed": packed}
