"""A call of an op of any kind as a function that autograd and functorch differentiate and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from chunkform.errors import DoubleBackwardError

from ..launch.replay import layouts, replayed
from .forward_mode import no_jvp, refuse_tangents
from .signature import OVERWRITE, Folded

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo

    from .two_passes import Flat, Saved, TwoPasses


def apply(passes: TwoPasses, tensors: Flat) -> Sequence[Tensor]:
    """The results of a call, with gradients."""
    if torch._C._are_functorch_transforms_active():
        return Functional.apply(passes, *tensors)
    if not passes.needs_backward:
        return forward_kept(passes, tensors)[0]
    return Run.apply(passes, *tensors)


def forward_kept(passes: TwoPasses, tensors: Flat) -> tuple[list[Tensor | None], tuple[str, ...] | None]:
    """Results, followed by what is kept for the backward pass; and the names of that, None where the forward pass is computed
    again."""

    def run(flat: Flat) -> tuple[list[Tensor | None], tuple[str, ...] | None]:
        results, saved = _starting(passes, flat).forward(flat[: len(tensors)])
        if saved is None or not passes.needs_backward:
            return [*results], None
        return [*results, *saved.values()], tuple(saved)

    def then(found: tuple[Sequence[object], tuple[str, ...] | None]) -> None:
        results, kept = found
        task = Task(passes, kept, tuple(x is not None and x.requires_grad for x in tensors), overwrites=True)
        count, outputs = len(passes.result_head_axes), passes.outputs
        cotangents = [*map(torch.empty_like, results[:outputs]), *[None] * (count - outputs)]
        task.gradients((*tensors, *results[count:], *cotangents))

    owner = ("forward", passes.needs_backward, *passes.owner)
    more = then if passes.needs_backward else None
    return replayed(passes.replays, "forward", _with_starts(passes, tensors), run, owner, more)


def _with_starts(passes: TwoPasses, tensors: Flat) -> Flat:
    """The tensors of a call, with what says where its packed sequences start as the last."""
    starts = passes.starts
    return tensors if starts is None else (*tensors, starts)


def _starting(passes: TwoPasses, flat: Flat) -> TwoPasses:
    """The call whose tensors are `flat`, as `_with_starts` has them."""
    own, starts = passes.starts, flat[-1]
    if own is None or starts is own:
        return passes
    assert starts is not None
    return passes.starting(starts)


class Run(torch.autograd.Function):
    """Both passes of a call."""

    @staticmethod
    def forward(ctx: FunctionCtx, passes: TwoPasses, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        results, kept = forward_kept(passes, tensors)
        ctx.passes, ctx.kept, ctx.spent = passes, kept, False
        ctx.alike = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        count = len(passes.result_head_axes)
        ctx.save_for_backward(*tensors, *results[count:])
        ctx.set_materialize_grads(False)
        # Views couldn't be changed in place. What is saved can't, and a version that they share tells.
        return tuple(x.detach() if x._is_view() else x for x in results[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        passes, wanted, known = ctx.passes, tuple(ctx.needs_input_grad[1:]), ctx.saved_tensors
        if not ctx.alike:  # whatever hooks have made of it: passes take what they have saved as they have left it
            count = len(wanted)
            known = (*known[:count], *(None if x is None else x.contiguous() for x in known[count:]))
        if ctx.spent:  # by an earlier backward pass over the same graph
            task, known = Task(passes, None, wanted), known[: len(wanted)]
        else:
            task = Task(passes, ctx.kept, wanted, overwrites=True, alike=len(known) if ctx.alike else 0)
            ctx.spent = ctx.kept is not None and passes.overwrites
        if torch.is_grad_enabled():  # create_graph=True
            return None, *_spread(Backward.apply(task, *known, *cotangents), wanted)
        return None, *task.gradients((*known, *cotangents))

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.passes.name)


class Functional(torch.autograd.Function):
    """The same for functorch, which wants what is saved among the results: nothing is, and the backward pass makes it again."""

    @staticmethod
    def forward(passes: TwoPasses, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(passes.forward(tensors, keep=False)[0])

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.passes, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = tuple(ctx.needs_input_grad[1:])
        task = Task(ctx.passes, None, wanted)
        return None, *_spread(Backward.apply(task, *ctx.saved_tensors, *cotangents), wanted)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.passes.name)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], passes: TwoPasses, *tensors: Tensor | None) -> Folded:
        n, axes = info.batch_size, passes.result_head_axes
        results = Functional.apply(passes.batched(n), *fold_all(tensors, in_dims[1:], n, passes.head_axes))
        return tuple(unfold(x, n, axis) for x, axis in zip(results, axes, strict=True)), axes


@dataclass(slots=True, eq=False)
class Task:
    """A backward pass. kept: the names of what was saved, or None where the forward pass is computed again. overwrites: is what
    was saved lost with it? alike: how many of its tensors are laid out alike in all calls of this kind."""

    passes: TwoPasses
    kept: tuple[str, ...] | None
    wanted: tuple[bool, ...]
    overwrites: bool = False
    alike: int = 0

    def gradients(self, flat: Flat) -> list[Tensor | None]:
        """From arguments and states, what was kept, and cotangents."""
        passes = self.passes
        refuse_tangents(passes.name, flat)
        tensors = _with_starts(passes, flat)
        if passes.replays is None:
            return self._run(tensors)[0]
        key = (self.kept, self.wanted, layouts(tensors[self.alike :]))
        return replayed(passes.replays, key, tensors, self._run, (self.kept, self.wanted, *passes.owner))[0]

    def _run(self, flat: Flat) -> tuple[list[Tensor | None], None]:
        count = len(self.wanted)
        end = count + len(self.kept or ())
        saved: Saved | None = None
        if self.kept is not None:
            saved = dict(zip(self.kept, flat[count:end], strict=True))
            saved |= {OVERWRITE: None} if self.overwrites else {}
        cotangents = flat[end : end + len(self.passes.result_head_axes)]
        passes = _starting(self.passes, flat)
        with torch.no_grad():
            return passes.backward(flat[:count], saved, cotangents, self.wanted), None


class Backward(torch.autograd.Function):
    """The backward pass where something may differentiate or batch it: the first is refused."""

    @staticmethod
    def forward(task: Task, *flat: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(
            torch.zeros_like(x) if g is None else g
            for g, x, w in zip(task.gradients(flat), flat, task.wanted, strict=False)
            if w and x is not None
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor | None, ...]) -> None:
        ctx.name = inputs[0].passes.name

    @staticmethod
    def backward(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Sequence[int | None], task: Task, *flat: Tensor | None) -> Folded:
        n, own, results = info.batch_size, task.passes.head_axes, task.passes.result_head_axes
        count, end = len(own), len(own) + len(task.kept or ())
        dims = in_dims[1:]
        arguments = fold_all(flat[:count], dims[:count], n, own)
        cotangents = fold_all(flat[end:], dims[end:], n, results)
        found = Backward.apply(Task(task.passes.batched(n), None, task.wanted), *arguments, *cotangents)
        axes = tuple(axis for axis, w, x in zip(own, task.wanted, flat, strict=False) if w and x is not None)
        return tuple(unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)), axes


def _spread(found: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(found)
    return [next(rest) if w else None for w in wanted]


# --- batches of calls: one more axis becomes more heads; of none, one call with zeros has the shapes ----------------


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


def fold_all(
    tensors: Sequence[Tensor | None], dims: Sequence[int | None], size: int, axes: Sequence[int]
) -> list[Tensor | None]:
    """Each tensor, folded at its own axis of heads."""
    return [fold(x, dim, size, axis) for x, dim, axis in zip(tensors, dims, axes, strict=True)]


# --- what isn't there -----------------------------------------------------------------------------------------------


def no_second(name: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"{name} has no second derivatives: its gradients were asked for their own gradient (double backward)"
    )
