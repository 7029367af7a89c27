"""`deterministic=True` of attentions: sequences one after the other, so that no product's rounding depends on the batch.

Torch's products of matrices round by how many rows and matrices there are. On a GPU that is those with parameters; on a CPU also
those of queries with keys, and each head goes alone as well (see `deterministic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..op.deterministic import copy_of
from .arguments import AttentionArgument, AttentionSignature, Setting

Computed = Callable[..., tuple[list[Any], Any]]


class Signed(Protocol):
    """What has an attention's signature."""

    @property
    def signature(self) -> AttentionSignature: ...


class Call(Protocol):
    """What is asked of a call of an attention."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def op(self) -> Signed: ...
    @property
    def at(self) -> Setting: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def backend(self) -> str: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def lse(self) -> bool: ...


@dataclass(frozen=True)
class _Piece:
    """One batch entry, with one of its heads or, for None, all."""

    entry: int
    head: int | None

    def place(self, x: Tensor, per_position: bool, heads: int) -> Tensor:
        """Its part of [B, T, H or fewer, ..], or of a parameter, [H or fewer, ..]."""
        x = x[self.entry : self.entry + 1] if per_position else x
        if self.head is None:
            return x
        axis = 2 if per_position else 0
        return x.narrow(axis, self.head // (heads // x.shape[axis]), 1)

    def of_result(self, x: Tensor, axis: int) -> Tensor:
        """Its part of a result, whose heads are along `axis`."""
        x = x[self.entry : self.entry + 1]
        return x if self.head is None else x.narrow(axis, self.head, 1)


def goes_apart(call: Call) -> bool:
    """Does one sequence of this call go after the other?"""
    products = any(not a.per_step and a.dims for a in call.op.signature.arguments)
    return call.deterministic and (call.backend == "torch" or products)


def _pieces(call: Call) -> list[_Piece]:
    at: Setting = call.at
    heads: Any = range(at.heads) if call.backend == "torch" else (None,)
    return [_Piece(b, h) for b in range(at.batch) for h in heads]


def forward(call: Call, tensors: Sequence[Tensor], computed: Computed) -> list[Tensor]:
    """Outputs, and the log-sum-exp where it is wanted. `computed` makes them of one piece."""
    s, at = call.op.signature, call.at
    pieces, found = _pieces(call), list[Tensor]()
    if not pieces:
        return computed(replace(call, needs_backward=False), tensors)[0]
    axes = s.result_head_axes
    for piece in pieces:
        shown, _ = computed(_call(call, piece, False), _own(call, tensors, piece))
        if not found:
            for x, axis in zip(shown, axes, strict=True):
                shape = [at.batch, *x.shape[1:]]
                shape[axis] = at.heads
                found.append(x.new_empty(shape))
        for whole, x, axis in zip(found, shown, axes, strict=True):
            piece.of_result(whole, axis).copy_(x)
    return found


def backward(
    call: Call,
    needs: frozenset[str],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    computed: Computed,
    gradients: Callable[..., dict[str, Tensor]],
) -> list[Tensor | None]:
    """The gradients of arguments, with the forward pass computed again. What several pieces add to is summed in their order.

    `computed` and `gradients` are both passes of one piece.
    """
    s, at = call.op.signature, call.at
    arguments = [_argument(s, n) for n in call.names]
    sums: list[Tensor | None] = [None] * len(tensors)
    axes = s.result_head_axes
    for piece in _pieces(call):
        one = _call(call, piece, True)
        own = _own(call, tensors, piece)
        incoming = [None if g is None else piece.of_result(g, axis) for g, axis in zip(cotangents, axes, strict=False)]
        saved = computed(one, own)[1]
        found = gradients(one, dict(zip(call.names, own, strict=True)), saved, incoming, needs)
        for n, (x, a) in enumerate(zip(tensors, arguments, strict=True)):
            g = found.get(a.name)
            if g is None or a.name not in needs:
                continue
            if sums[n] is None:
                sums[n] = torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
            piece.place(sums[n], a.per_step, at.heads).add_(g.to(sums[n].dtype))  # type: ignore[arg-type, union-attr]
    return [None if g is None else g.to(x.dtype) for g, x in zip(sums, tensors, strict=True)]


def _call(call: Call, piece: _Piece, needs_backward: bool) -> Call:
    """The call of one piece."""
    at = replace(call.at, batch=1, heads=call.at.heads if piece.head is None else 1)
    return replace(call, at=at, deterministic=False, replays=None, needs_backward=needs_backward)


def _own(call: Call, tensors: Sequence[Tensor], piece: _Piece) -> list[Tensor]:
    s = call.op.signature
    parts = [piece.place(x, _argument(s, n).per_step, call.at.heads) for n, x in zip(call.names, tensors, strict=True)]
    return [copy_of(x) for x in parts]


def _argument(s: AttentionSignature, name: str) -> AttentionArgument:
    return next(a for a in s.arguments if a.name == name)
