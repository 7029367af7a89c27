"""A call of an attention as a function that functorch differentiates and batches: one more axis becomes more heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ..op.autograd import fold, no_second, unfold
from ..op.forward_mode import no_jvp
from ..op.signature import Folded
from .arguments import AttentionSignature
from .passes import Call, backward_pass, forward_pass

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo


class Functional(torch.autograd.Function):
    """Both passes. Nothing but arguments is saved: the backward pass computes the forward pass again."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(forward_pass(dataclasses.replace(call, needs_backward=False), tensors)[0])

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = tuple(ctx.needs_input_grad[1:])
        found = iter(Backward.apply(ctx.call, wanted, *ctx.saved_tensors, *cotangents))
        return None, *(next(found) if w else None for w in wanted)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.call.op.signature.name)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], call: Call, *tensors: Tensor) -> Folded:
        s, n = call.op.signature, info.batch_size
        axes = result_axes(s, call.lse)
        folded = fold_all(tensors, in_dims[1:], n, argument_axes(s, call.names))
        results = Functional.apply(batched(call, n), *folded)
        return tuple(unfold(x, n, axis) for x, axis in zip(results, axes, strict=True)), axes


class Backward(torch.autograd.Function):
    """The gradients that are wanted, from arguments and cotangents. To differentiate it is refused."""

    @staticmethod
    def forward(call: Call, wanted: tuple[bool, ...], *flat: Tensor | None) -> tuple[Tensor | None, ...]:
        given, cotangents = flat[: len(wanted)], flat[len(wanted) :]
        call = dataclasses.replace(call, needs_backward=True, replays=None)
        results, kept = forward_pass(call, given)
        found, _ = backward_pass(call, kept, wanted, (*given, *results[len(cotangents) :], *cotangents))
        pairs = zip(found, given, wanted, strict=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x, w in pairs if w and x is not None)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.name = inputs[0].op.signature.name

    @staticmethod
    def backward(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Sequence[int | None], call: Call, wanted: tuple[bool, ...], *flat: Tensor | None
    ) -> Folded:
        s, n = call.op.signature, info.batch_size
        own = argument_axes(s, call.names)
        folded = fold_all(flat, in_dims[2:], n, (*own, *result_axes(s, call.lse)))
        found = Backward.apply(batched(call, n), wanted, *folded)
        axes = tuple(axis for axis, w in zip(own, wanted, strict=True) if w)
        return tuple(unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)), axes


def argument_axes(s: AttentionSignature, names: Sequence[str]) -> tuple[int, ...]:
    """The axis of heads of each tensor that is given."""
    places = {a.name: a.layout.index("H") for a in s.arguments if a.name in names}
    return tuple(places[n] for n in names)


def result_axes(s: AttentionSignature, lse: bool) -> tuple[int, ...]:
    """The axis of heads of each result: outputs, and perhaps the log-sum-exp."""
    outputs = [2 if per_position else 1 for _, per_position, _ in s.outputs]
    return (*outputs, *([1 if s.nodes else 2] if lse else []))


def batched(call: Call, size: int) -> Call:
    """The call for `size` times the heads."""
    return dataclasses.replace(call, at=dataclasses.replace(call.at, heads=call.at.heads * max(size, 1)), replays=None)


def fold_all(
    tensors: Sequence[Tensor | None], dims: Sequence[int | None], size: int, axes: Sequence[int]
) -> list[Tensor | None]:
    return [fold(x, dim, size, axis) for x, dim, axis in zip(tensors, dims, axes, strict=True)]
