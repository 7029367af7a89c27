"""A call of an op as a function that autograd and functorch differentiate and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from chunkform.errors import DoubleBackwardError

from ..launch.replay import layouts, replayed
from ..launch.varlen import Packed
from .call import Call
from .forward_mode import no_jvp, refuse_tangents
from .passes import backward_pass, forward_pass, keeps
from .signature import OVERWRITE, Folded

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo


def apply(call: Call, tensors: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Outputs and final states of a call, with gradients."""
    if torch._C._are_functorch_transforms_active():
        return Functional.apply(dataclasses.replace(call, finals=True), *tensors)
    if not call.needs_backward:
        return _forward(call, tensors)[0]
    return Run.apply(call, *tensors)


def _forward(call: Call, tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], tuple[str, ...] | None]:
    """Results, without final states that nobody wants, followed by what is kept for the backward pass; and the names of that,
    None where the forward pass is computed again."""

    def run(flat: Sequence[Tensor | None]) -> tuple[list[Tensor | None], tuple[str, ...] | None]:
        given = flat[: len(tensors)]
        results, saved = forward_pass(_packed_by(call, flat), given)
        results = results[: _results(call)]
        if call.needs_backward and keeps(call, given, saved):
            return [*results, *saved.values()], tuple(saved)
        return [*results], None

    def then(found: tuple[Sequence[object], tuple[str, ...] | None]) -> None:
        results, kept = found
        task = Task(call, kept, tuple(x is not None and x.requires_grad for x in tensors), overwrites=True)
        count = len(call.signature.outputs)
        cotangents = [*map(torch.empty_like, results[:count]), *[None] * len(call.signature.states)]
        task.gradients((*tensors, *results[_results(call) :], *cotangents))

    owner = (id(call.backend), "forward", call.needs_backward, call.packed is None, call.deterministic)
    return replayed(
        call.replays, "forward", _with_starts(call, tensors), run, owner, then if call.needs_backward else None
    )


def _results(call: Call) -> int:
    """How many results `_forward` has."""
    return len(call.signature.result_head_axes if call.finals else call.signature.outputs)


def _with_starts(call: Call, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The tensors of a call, with what says where its packed sequences start as the last."""
    return tensors if call.packed is None else (*tensors, call.packed.starts)


def _packed_by(call: Call, flat: Sequence[Tensor | None]) -> Call:
    """The call whose tensors are `flat`, as `_with_starts` has them."""
    starts = flat[-1]
    if call.packed is None or starts is call.packed.starts:
        return call
    assert starts is not None
    return dataclasses.replace(call, packed=Packed(starts, call.packed.count, call.packed.longest))


class Run(torch.autograd.Function):
    """Both passes of a call."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: Call, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        results, kept = _forward(call, tensors)
        ctx.call, ctx.kept, ctx.spent = call, kept, False
        ctx.alike = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        count = _results(call)
        ctx.save_for_backward(*tensors, *results[count:])
        ctx.set_materialize_grads(False)
        return tuple(x.detach() if x._is_view() else x for x in results[:count])  # views couldn't be changed in place

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, wanted, known = ctx.call, ctx.needs_input_grad[1:], ctx.saved_tensors
        if not ctx.alike:  # whatever hooks have made of it: passes take what they have saved as they have left it
            count = len(wanted)
            known = (*known[:count], *(None if x is None else x.contiguous() for x in known[count:]))
        if ctx.spent:  # by an earlier backward pass over the same graph
            task, known = Task(call, None, wanted), known[: len(wanted)]
        else:
            task = Task(call, ctx.kept, wanted, overwrites=True, alike=len(known) if ctx.alike else 0)
            ctx.spent = ctx.kept is not None and "overwrites" in call.backend.features
        tensors = (*known, *cotangents)
        if not call.finals:
            tensors = (*tensors, *[None] * len(call.signature.states))
        if torch.is_grad_enabled():  # create_graph=True
            return None, *_spread(Backward.apply(task, *tensors), wanted)
        return None, *task.gradients(tensors)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.call.signature.name)


class Functional(torch.autograd.Function):
    """The same for functorch, which wants what is saved among the results."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(forward_pass(call, tensors)[0])

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        task = Task(ctx.call, None, tuple(wanted))
        return None, *_spread(Backward.apply(task, *ctx.saved_tensors, *cotangents), wanted)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.call.signature.name)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], call: Call, *tensors: Tensor | None) -> Folded:
        s, n = call.signature, info.batch_size
        results = Functional.apply(batched(call, n), *_fold_all(tensors, in_dims[1:], n, s.head_axes))
        return tuple(
            unfold(x, n, axis) for x, axis in zip(results, s.result_head_axes, strict=True)
        ), s.result_head_axes


@dataclass(slots=True, eq=False)
class Task:
    """A backward pass. kept: the names of what was saved, or None where the forward pass is computed again. overwrites: is what
    was saved lost with it? alike: how many of its tensors are laid out alike in all calls of this kind."""

    call: Call
    kept: tuple[str, ...] | None
    wanted: tuple[bool, ...]
    overwrites: bool = False
    alike: int = 0

    def gradients(self, flat: Sequence[Tensor | None]) -> list[Tensor | None]:
        """From arguments and states, what was kept, and cotangents."""
        refuse_tangents(self.call.signature.name, flat)
        tensors = _with_starts(self.call, flat)
        if self.call.replays is None:
            return self._run(tensors)[0]
        key = (self.kept, self.wanted, layouts(tensors[self.alike :]))
        owner = (id(self.call.backend), self.kept, self.wanted, self.call.packed is None, self.call.deterministic)
        return replayed(self.call.replays, key, tensors, self._run, owner)[0]

    def _run(self, flat: Sequence[Tensor | None]) -> tuple[list[Tensor | None], None]:
        s, kept = self.call.signature, len(self.kept or ())
        count, end = len(s.names), len(s.names) + kept
        saved: dict[str, Any] | None = None
        if self.kept is not None:
            saved = dict(zip(self.kept, flat[count:end], strict=True))
            saved |= {OVERWRITE: None} if self.overwrites else {}
        cotangents = flat[end : end + len(s.result_head_axes)]
        return backward_pass(_packed_by(self.call, flat), flat[:count], saved, cotangents, self.wanted), None


class Backward(torch.autograd.Function):
    """The backward pass where something may differentiate or batch it: the first is refused."""

    @staticmethod
    def forward(task: Task, *flat: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(task.call.signature.names)
        gradients = task.gradients(flat)
        return tuple(
            torch.zeros_like(x) if g is None else g
            for g, x, w in zip(gradients, flat[:count], task.wanted, strict=True)
            if w and x is not None
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.name = inputs[0].call.signature.name

    @staticmethod
    def backward(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], task: Task, *flat: Tensor | None) -> Folded:
        s, n = task.call.signature, info.batch_size
        count, kept = len(s.names), len(task.kept or ())
        dims = in_dims[1:]
        arguments = _fold_all(flat[:count], dims[:count], n, s.head_axes)
        cotangents = _fold_all(flat[count + kept :], dims[count + kept :], n, s.result_head_axes)
        found = Backward.apply(Task(batched(task.call, n), None, task.wanted), *arguments, *cotangents)
        axes = [axis for axis, w, x in zip(s.head_axes, task.wanted, flat, strict=False) if w and x is not None]
        return tuple(unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)), tuple(axes)


def _spread(found: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(found)
    return [next(rest) if w else None for w in wanted]


# --- batches of calls: one more axis becomes more heads; of none, one call with zeros has the shapes ----------------


def batched(call: Call, size: int) -> Call:
    """The call for `size` times the heads."""
    return dataclasses.replace(call, heads=call.heads * max(size, 1), recompute="always", replays=None)


def fold(x: Tensor | None, dim: int | None, size: int, axis: int) -> Tensor | None:
    """x with its batch axis `dim` (None: the same for all) in front of its heads, as one axis with them."""
    if x is None:
        return None
    if size == 0:
        return x if dim is None else x.sum(dim)
    if dim is None:
        x = x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])
    else:
        x = x.movedim(dim, axis)
    return x.flatten(axis, axis + 1)


def unfold(x: Tensor, size: int, axis: int) -> Tensor:
    """The reverse: the batch axis is axis `axis`."""
    if size == 0:
        return x.unsqueeze(axis).narrow(axis, 0, 0)
    return x.unflatten(axis, (size, x.shape[axis] // size))


def _fold_all(
    tensors: Sequence[Tensor | None], dims: Sequence[int | None], size: int, axes: Sequence[int]
) -> list[Tensor | None]:
    return [fold(x, dim, size, axis) for x, dim, axis in zip(tensors, dims, axes, strict=True)]


# --- what isn't there -----------------------------------------------------------------------------------------------


def no_second(name: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"{name} has no second derivatives: its gradients were asked for their own gradient (double backward)"
    )
