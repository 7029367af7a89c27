"""`deterministic=True` of attentions: sequences one after the other, so that no product's rounding depends on the batch.

Torch's products of matrices round by how many rows and matrices there are. On a GPU that is those with parameters; on a CPU also
those of queries with keys, and each head goes alone as well (see `deterministic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..op.deterministic import Piece, Wholes
from .arguments import AttentionSignature, Setting

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


def goes_apart(call: Call) -> bool:
    """Does one sequence of this call go after the other?"""
    products = any(not a.per_step and a.dims for a in call.op.signature.arguments)
    return call.deterministic and (call.backend == "torch" or products)


def _pieces(call: Call) -> list[Piece]:
    at: Setting = call.at
    heads: Any = range(at.heads) if call.backend == "torch" else (None,)
    return [Piece(b, b, None, h) for b in range(at.batch) for h in heads]


def forward(call: Call, tensors: Sequence[Tensor], computed: Computed) -> list[Tensor]:
    """Outputs, and the log-sum-exp where it is wanted. `computed` makes them of one piece."""
    at, pieces, found = call.at, _pieces(call), Wholes(call.at.heads)
    if not pieces:
        return computed(replace(call, needs_backward=False), tensors)[0]
    for piece in pieces:
        shown, _ = computed(_call(call, piece, False), _own(call, tensors, piece))
        for (n, layout), x in zip(call.op.signature.results, shown, strict=False):
            found.put(n, x, piece, layout, {"B": at.batch, "H": at.heads})
    return [*found.values()]


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
    s, heads = call.op.signature, call.at.heads
    sums = Wholes(heads)
    for piece in _pieces(call):
        one = _call(call, piece, True)
        own = _own(call, tensors, piece)
        results = zip(cotangents, s.results, strict=False)
        incoming = [None if g is None else piece.of(g, layout, heads) for g, (_, layout) in results]
        saved = computed(one, own)[1]
        found = gradients(one, dict(zip(call.names, own, strict=True)), saved, incoming, needs)
        for x, n, layout in zip(tensors, s.names, s.layouts, strict=True):
            if n in needs and (g := found.get(n)) is not None:
                wide = g.to(torch.promote_types(x.dtype, torch.float32))
                sums.add(n, wide, piece, layout, dict(zip(layout, x.shape, strict=True)))
    return [sums[n].to(x.dtype) if n in sums else None for n, x in zip(s.names, tensors, strict=True)]


def _call(call: Call, piece: Piece, needs_backward: bool) -> Call:
    """The call of one piece."""
    at = replace(call.at, batch=1, heads=call.at.heads if piece.head is None else 1)
    return replace(call, at=at, deterministic=False, replays=None, needs_backward=needs_backward)


def _own(call: Call, tensors: Sequence[Tensor], piece: Piece) -> list[Tensor]:
    layouts = call.op.signature.layouts
    return [piece.copy_of(x, layout, call.at.heads) for x, layout in zip(tensors, layouts, strict=True)]
