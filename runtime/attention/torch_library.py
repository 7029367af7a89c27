"""Attentions as torch knows them: `torch.ops.chunkform.<op>`, for torch.compile, torch.export and whoever else traces calls.

    <op>(arguments, constants, causal, backend, free, deterministic, keep) -> (outputs, log-sum-exp, saved)
    <op>_backward(the same, saved, cotangents, wanted) -> gradients

A softmax has a log-sum-exp. Averages, and what each row's weights are computed with, are saved where gradients will be wanted
(`keep`), and features are made again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library

from ..launch.replay import layouts, replayed
from ..op.autograd import no_second, unfold
from ..op.forward_mode import register_autograd
from ..op.signature import Folded
from ..op.torch_library import LIBRARIES, NAMESPACE, has_too_many, library_name, listed, owned_by
from .arguments import setting_of
from .deterministic import backward as backward_apart
from .deterministic import goes_apart
from .passes import (
    REMEMBERED,
    Attention,
    Call,
    Kept,
    Known,
    backward_pass,
    features_of,
    forward_kept,
    forward_results,
    gradients_of,
    no_autocast,
    owner,
)
from .transforms import argument_axes, fold_all, result_axes

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo
    from torch.autograd.function import FunctionCtx

OPTIONS = 5  # causal, backend, free, deterministic, keep


@dataclass(frozen=True, eq=False)
class Registered:
    """An attention's two passes in torch's library."""

    results: int
    forward: Any
    backward: Any

    def __call__(self, call: Call, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Outputs, and the log-sum-exp of a softmax."""
        options = (call.at.causal, call.backend, call.free, call.deterministic, call.needs_backward)
        return self.forward(*tensors, *call.constants.values(), *options)[: self.results]


def register(name: str, op: Attention) -> Registered | None:
    """Register an op under a name; a second time under the same name replaces the first. None as of `library.register`."""
    passes = _Passes(op)
    if has_too_many(passes.backward_schema()):
        return None
    name = library_name(name)
    if name in LIBRARIES:
        LIBRARIES.pop(name)._destroy()
    library = LIBRARIES[name] = Library(NAMESPACE, "FRAGMENT")
    own = f"{NAMESPACE}::{name}"
    for suffix, schema, run, fake in (
        ("", passes.forward_schema(), passes.forward, passes.fake_forward),
        ("_backward", passes.backward_schema(), passes.backward, passes.fake_backward),
    ):
        library.define(f"{name}{suffix}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(f"{name}{suffix}", run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{own}{suffix}", fake, lib=library)
    register_autograd(library, own, op.signature.name, passes.gradients, passes.setup_context)
    torch.library.register_vmap(own, passes.vmap_forward, lib=library)
    register_autograd(library, f"{own}_backward", op.signature.name, passes.refuse)
    torch.library.register_vmap(f"{own}_backward", passes.vmap_backward, lib=library)
    found = [getattr(getattr(torch.ops, NAMESPACE), f"{name}{suffix}").default for suffix in ("", "_backward")]
    passes.ops = Registered(passes.results, *found)
    return passes.ops


class _Passes:
    """What is registered of one op. `flat` are the arguments of the schema, in order."""

    ops: Registered

    def __init__(self, op: Attention) -> None:
        s = self.signature = op.signature
        self.op = op
        self.names = tuple(a.name for a in s.arguments if a.kind != "constant")
        self.constants = tuple(a.name for a in s.arguments if a.kind == "constant")
        self.count = len(self.names)
        self.own = self.count + len(self.constants) + OPTIONS  # arguments of the forward pass
        self.softmax = s.normaliser == "softmax"
        self.results = len(s.outputs) + self.softmax

    def call_schema(self) -> str:
        tensors = listed("Tensor given", self.names) + listed("float constant", self.constants)
        return ", ".join([*tensors, "bool causal", "str backend", "bool free", "bool deterministic", "bool keep"])

    def forward_schema(self) -> str:
        return f"({self.call_schema()}) -> ({'Tensor, ' * self.results}Tensor[])"

    def backward_schema(self) -> str:
        incoming = ", ".join(f"Tensor? d_{n}" for n in range(self.results))
        return f"({self.call_schema()}, Tensor[] saved, {incoming}, bool[] wanted) -> Tensor[]"

    # --- the passes themselves --------------------------------------------------------------------------------------

    def forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        call, tensors = self._known(flat), flat[: self.count]
        results, kept = forward_kept(call, tensors)
        shown: Any = [x.contiguous() for x in results[: self.results]]
        saved: Any = results[self.results + len(kept.features) :]
        if goes_apart(call):
            saved = []
        if saved:
            saved[0] = saved[0].transpose(1, 2)
        saved = [x.contiguous() for x in saved]
        return (*owned_by(shown, tensors), owned_by(saved, (*tensors, *shown)))

    def backward(self, *flat: Any) -> list[Tensor]:
        call, given = self._known(flat), flat[: self.count]
        saved, *cotangents, wanted = flat[self.own :]
        wanted = tuple(wanted)
        if goes_apart(call):
            tensors = (*given, *cotangents)
            with no_autocast(call.at.device):
                found = backward_apart(call, wanted, given, cotangents, forward_results, gradients_of)
        else:
            saved = saved or self.forward(*flat[: self.own - 1], True)[-1]
            tensors = (*given, *saved, *cotangents)
            run = functools.partial(self._gradients, call, wanted, len(saved))
            key = ("backward", wanted, layouts(tensors))
            found, _ = replayed(call.replays, key, tensors, run, owner(call, "library", wanted))
        filled = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if g is None else g.contiguous()
            for g, x, w in zip(found, given, wanted, strict=True)
            if w
        ]
        return owned_by(filled, tensors)

    def _gradients(
        self, call: Call, wanted: tuple[bool, ...], count: int, flat: Sequence[Any]
    ) -> tuple[list[Tensor | None], None]:
        """From arguments, `count` tensors that were saved, and cotangents; features are made again."""
        tensors, rest = flat[: self.count], flat[self.count :]
        (averages, *rows), cotangents = rest[:count], rest[count:]
        with no_autocast(call.at.device):
            features, backend = features_of(call, dict(zip(self.names, tensors, strict=True)))
        kept = Kept(backend, tuple(features), self.softmax, count > 1 + self.softmax)
        given = (*tensors, *features.values(), averages.transpose(1, 2), *rows, *cotangents)
        return backward_pass(call, kept, wanted, given)

    def _known(self, flat: Sequence[Any]) -> Call:
        """The call, the same for calls of the same kind."""
        known, key = self.op.known, (layouts(flat[: self.count]), *flat[self.count : self.own])
        found = known.get(key)
        if found is None:
            found = Known(self._call(flat), (), (), ())
            found.call.replays = {} if found.call.backend == "triton" and not goes_apart(found.call) else None
            if len(known) >= REMEMBERED:
                known.clear()
            known[key] = found
        return found.call

    def _call(self, flat: Sequence[Any]) -> Call:
        tensors = dict(zip(self.names, flat, strict=False))
        *constants, causal, backend, free, deterministic, keep = flat[self.count : self.own]
        named = dict(zip(self.constants, constants, strict=True))
        at = setting_of(self.signature, tensors, causal)
        call = Call(self.op, backend, at, self.names, named, free, needs_backward=keep)
        call.deterministic = deterministic
        return call

    # --- shapes only ------------------------------------------------------------------------------------------------

    def fake_forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        s, call, some = self.signature, self._call(flat), flat[0]
        at = call.at
        lead = (at.batch, at.queries, at.heads)
        shapes = [
            (*(lead if per_position else (at.batch, at.heads)), *(at.sizes[d] for d in dims))
            for _, per_position, dims in s.outputs
        ]
        rows = (at.batch, at.heads, at.queries)
        results = [some.new_empty(shape, dtype=at.low) for shape in shapes]
        if self.softmax:
            results.append(some.new_empty(rows if s.nodes else lead, dtype=at.dtype))
        if not call.needs_backward or goes_apart(call):
            return (*results, [])
        width = sum(math.prod(at.sizes[d] for d in dims) for _, dims in s.values)
        saved = [some.new_empty((*lead, width), dtype=at.low)]
        saved += [some.new_empty(rows, dtype=at.dtype) for _ in range(1 + (self.softmax and s.mass))]
        return (*results, saved)

    def fake_backward(self, *flat: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x, w in zip(flat[: self.count], flat[-1], strict=True) if w]

    # --- differentiated ---------------------------------------------------------------------------------------------

    def setup_context(self, ctx: FunctionCtx, inputs: Any, output: Sequence[Tensor]) -> None:
        ctx.rest = inputs[self.count :]
        ctx.save_for_backward(*inputs[: self.count], *output[-1])
        ctx.set_materialize_grads(False)

    def gradients(self, ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, saved = ctx.saved_tensors[: self.count], list(ctx.saved_tensors[self.count :])
        wanted = list(ctx.needs_input_grad[: self.count])
        found = iter(self.ops.backward(*tensors, *ctx.rest, saved, *cotangents[:-1], wanted))
        return tuple(next(found) if w else None for w in wanted) + (None,) * (self.own - self.count)

    def refuse(self, ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(self.signature.name)

    # --- batched ----------------------------------------------------------------------------------------------------

    def vmap_forward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, axes = info.batch_size, result_axes(self.signature, self.softmax)
        *results, _ = self.ops.forward(*self._folded(n, in_dims, flat))
        return (*(unfold(x, n, axis) for x, axis in zip(results, axes, strict=True)), []), (*axes, [])

    def vmap_backward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, (_, *cotangents, wanted) = info.batch_size, flat[self.own :]
        dims = in_dims[self.own + 1 : self.own + 1 + self.results]
        folded = fold_all(cotangents, dims, n, result_axes(self.signature, self.softmax))
        found = self.ops.backward(*self._folded(n, in_dims, flat), [], *folded, wanted)
        axes = [axis for axis, w in zip(argument_axes(self.signature, self.names), wanted, strict=True) if w]
        return [unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)], axes

    def _folded(self, n: int, in_dims: Sequence[int | None], flat: Sequence[Any]) -> list[Any]:
        """The arguments with one more axis among their heads; nothing is saved, as it would have no place for that axis."""
        tensors = fold_all(flat[: self.count], in_dims[: self.count], n, argument_axes(self.signature, self.names))
        return [*tensors, *flat[self.count : self.own - 1], False]
