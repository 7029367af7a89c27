"""`deterministic=True`: a sequence's bits depend on its own length and numbers alone, not on what else is in the call.

On a GPU, kernels take what they cut, and how they are compiled, from the length alone. Torch's products on a CPU round by the
number of matrices and where these lie in memory, so that the torch form takes one head of one sequence after the other, copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..launch.varlen import Packed
from .signature import Backend, Signature

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]


# --- the torch form, one head of one sequence after the other ---------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """One head of one sequence: the sequence's number, its batch entry and steps, and the head."""

    sequence: int
    entry: int
    steps: slice
    head: int

    def of_steps(self, x: Tensor) -> Tensor:
        """Its part of [B, T, H, ..]."""
        return x[self.entry : self.entry + 1, self.steps, self.head : self.head + 1]

    def of_states(self, x: Tensor) -> Tensor:
        """Its part of [N, H, ..]."""
        return x[self.sequence : self.sequence + 1, self.head : self.head + 1]

    def of_heads(self, x: Tensor) -> Tensor:
        """Its part of a parameter, [H, ..]."""
        return x[self.head : self.head + 1]


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
        batch, steps, heads, pieces = self._pieces(given, packed)
        if not pieces:
            return self.backend.forward(given, states, constants, **_with(options, packed))
        sequences = batch if packed is None else packed.count
        outputs: Tensors = {}
        finals: Maybe = {}
        for piece in pieces:
            own = self._own(given, piece)
            some, last, _ = self.backend.forward(own, _copies(states, piece.of_states), constants, **options)
            for n, x in some.items():
                room(outputs, n, x, (batch, steps, heads))
                piece.of_steps(outputs[n]).copy_(x)
            for n, y in last.items():
                if y is None:
                    finals[n] = None
                    continue
                room(finals, n, y, (sequences, heads))
                piece.of_states(finals[n]).copy_(y)  # type: ignore[arg-type]
        return outputs, finals, {}

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
        batch, steps, heads, pieces = self._pieces(given, packed)
        options = forward_options or {}
        if not pieces:
            saved = self.backend.forward(given, states, constants, **_with(options, packed))[2]
            more = _with({}, packed)
            return self.backend.backward(given, states, constants, saved, cotangents, final_cotangents, needs, **more)
        sequences = batch if packed is None else packed.count
        per_step = {a.name for a in self.signature.tensors if a.per_step}
        gradients: Tensors = {}
        initial: Tensors = {}
        for piece in pieces:
            own, first = self._own(given, piece), _copies(states, piece.of_states)
            saved = self.backend.forward(own, first, constants, **options)[2]
            incoming, last = _copies(cotangents, piece.of_steps), _copies(final_cotangents, piece.of_states)
            found, starts = self.backend.backward(own, first, constants, saved, incoming, last, needs)
            for n, g in found.items():
                if n in per_step:
                    room(gradients, n, g, (batch, steps, heads))
                    piece.of_steps(gradients[n]).copy_(g)
                else:
                    room(gradients, n, g, (heads,), fill=0.0)
                    piece.of_heads(gradients[n]).add_(g)
            for n, g in starts.items():
                room(initial, n, g, (sequences, heads))
                piece.of_states(initial[n]).copy_(g)
        return gradients, initial

    def _pieces(self, given: Tensors, packed: Packed | None) -> tuple[int, int, int, list[_Piece]]:
        """B, T, H and the pieces."""
        shapes = [(a, given[a.name].shape) for a in self.signature.tensors]
        heads = max(shape[a.head_axis] for a, shape in shapes)
        batch, steps = next(shape[:2] for a, shape in shapes if a.per_step)
        if packed is None:
            sequences = [(b, slice(0, steps)) for b in range(batch)]
        else:
            sequences = [(0, slice(*packed.boundaries[n : n + 2])) for n in range(packed.count)]
        return batch, steps, heads, [_Piece(n, b, s, h) for n, (b, s) in enumerate(sequences) for h in range(heads)]

    def _own(self, given: Tensors, piece: _Piece) -> Tensors:
        return {
            a.name: copy_of(piece.of_steps(given[a.name]) if a.per_step else piece.of_heads(given[a.name]))
            for a in self.signature.tensors
        }


def room(into: dict[str, Tensor], name: str, like: Tensor, lead: tuple[int, ...], fill: float | None = None) -> None:
    """Have a place `name` for all pieces, whose own result is `like`."""
    if name not in into:
        shape = (*lead, *like.shape[len(lead) :])
        into[name] = like.new_empty(shape) if fill is None else like.new_full(shape, fill)


def copy_of(x: Tensor) -> Tensor:
    """Fresh memory, which torch aligns: products round by where matrices lie."""
    out = x.new_empty(x.shape)
    return out.copy_(x)


def _copies(x: Maybe, part: slice) -> Maybe:
    return {n: None if y is None else copy_of(part(y)) for n, y in x.items()}


def _with(options: dict[str, Any], packed: Packed | None) -> dict[str, Any]:
    return options if packed is None else options | {"packed": packed}
