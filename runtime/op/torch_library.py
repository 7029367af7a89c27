"""Ops of any kind as torch knows them: `torch.ops.chunkform.<op>`, for torch.compile, torch.export and whoever else traces calls.

    <op>(tensors, starts, constants, options) -> (results, saved)
    <op>_backward(the same, saved, cotangents, wanted) -> gradients

A tracer sees one call with known shapes and an own backward pass, whatever the backend does inside. `starts` is there where
sequences may be packed. One of the options is `keep`: is something saved?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.library import Library

from chunkform.errors import BackendError

from ..launch.replay import layouts
from ..launch.varlen import batched_starts
from .autograd import Task, fold_all, forward_kept, no_second, unfold
from .call import is_empty
from .fits import made_at
from .forward_mode import register_autograd
from .remembered import remember
from .signature import Folded

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo
    from torch.autograd.function import FunctionCtx

    from .two_passes import TwoPasses

NAMESPACE = "chunkform"
MOST = 64  # arguments that torch's library takes
LIBRARIES: dict[str, Library] = {}

Option: TypeAlias = "str | bool | int"
Layout: TypeAlias = "tuple[Sequence[int], torch.dtype]"  # of a tensor: its shape and its dtype


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of a call in torch's library: tensors in order, and constants and options by name."""

    tensors: Sequence[Tensor]
    starts: Tensor | None
    constants: dict[str, float]
    options: dict[str, Any]


class Kind(Protocol):
    """What torch's library is told of an op, of whatever kind it is.

    tensors: by name, and then `states`, which may be None. packed: may sequences be packed? options: as a schema has them; one is
    `bool keep`. results: by name, but for what is saved.
    """

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> Sequence[str]: ...
    @property
    def states(self) -> Sequence[str]: ...
    @property
    def constants(self) -> Sequence[str]: ...
    @property
    def packed(self) -> bool: ...
    @property
    def options(self) -> Sequence[str]: ...
    @property
    def results(self) -> Sequence[str]: ...
    @property
    def head_axes(self) -> tuple[int, ...]: ...
    @property
    def result_head_axes(self) -> tuple[int, ...]: ...

    def call(self, given: Given) -> TwoPasses:
        """The call of these arguments, whose numbers may change but for constants and options."""

    def look(self, given: Given) -> None:
        """Refuse arguments whose numbers can't be."""

    def shapes(self, given: Given) -> Sequence[Layout]:
        """Of each result."""

    def saved(self, given: Given) -> Mapping[str, Layout] | None:
        """Of each tensor that is saved; None where the backward pass computes the forward pass again."""

    def batched(self, options: Mapping[str, Option], size: int) -> Mapping[str, Option]:
        """The options of a call with `size` times the heads."""


@dataclass(frozen=True, eq=False)
class Registered:
    """An op's two passes in torch's library."""

    kind: Kind
    forward: Any
    backward: Any

    def __call__(
        self,
        tensors: Sequence[Tensor | None],
        starts: Tensor | None,
        constants: Mapping[str, float],
        options: Sequence[Any],
    ) -> Sequence[Tensor]:
        """The results, without what is saved."""
        kind = self.kind
        values = [constants[n] for n in kind.constants]
        packed = [starts] if kind.packed else []
        return self.forward(*tensors, *packed, *values, *options)[: len(kind.results)]


def register(name: str, kind: Kind) -> Registered | None:
    """Register an op under a name; a second time under the same name replaces the first. None where torch's library takes fewer
    arguments than its backward pass has: then graphs are broken around it."""
    if has_too_many(_backward_schema(kind)):
        return None
    name = library_name(name)
    if name in LIBRARIES:
        LIBRARIES.pop(name)._destroy()
    library = LIBRARIES[name] = Library(NAMESPACE, "FRAGMENT")
    passes, own = _Passes(name, kind), f"{NAMESPACE}::{name}"
    for suffix, schema, run, fake in (
        ("", _forward_schema(kind), passes.forward, passes.fake_forward),
        ("_backward", _backward_schema(kind), passes.backward, passes.fake_backward),
    ):
        library.define(f"{name}{suffix}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(f"{name}{suffix}", run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{own}{suffix}", fake, lib=library)
    register_autograd(library, own, kind.name, passes.gradients, passes.setup_context)
    torch.library.register_vmap(own, passes.vmap_forward, lib=library)
    register_autograd(library, f"{own}_backward", kind.name, passes.refuse)
    torch.library.register_vmap(f"{own}_backward", passes.vmap_backward, lib=library)
    space = getattr(torch.ops, NAMESPACE)
    passes.ops = Registered(kind, *(getattr(space, f"{name}{suffix}").default for suffix in ("", "_backward")))
    return passes.ops


def has_too_many(schema: str) -> bool:
    """Has it more arguments than torch's library takes?"""
    return schema.partition(" -> ")[0].count(",") >= MOST


def library_name(name: str) -> str:
    """A name as torch's library takes it, in ASCII letters."""
    return "".join(x if x.isascii() else f"u{ord(x):x}" for x in name)


def listed(what: str, names: Iterable[str]) -> list[str]:
    """The parts of a schema that are of these names; a number stands for one that isn't in ASCII letters."""
    return [f"{what}_{n if n.isascii() else place}" for place, n in enumerate(names)]


def _call_schema(kind: Kind) -> str:
    tensors = listed("Tensor given", kind.tensors) + listed("Tensor? initial", kind.states)
    starts = ["Tensor? starts"] if kind.packed else []
    return ", ".join([*tensors, *starts, *listed("float constant", kind.constants), *kind.options])


def _forward_schema(kind: Kind) -> str:
    return f"({_call_schema(kind)}) -> ({', '.join([*listed('Tensor result', kind.results), 'Tensor[] saved'])})"


def _backward_schema(kind: Kind) -> str:
    incoming = ", ".join(listed("Tensor? d_result", kind.results))
    return f"({_call_schema(kind)}, Tensor[] saved, {incoming}, bool[] wanted) -> Tensor[]"


class _Passes:
    """What is registered of one op. `flat` are the arguments of the schema, in order."""

    ops: Registered

    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.count = len(kind.tensors) + len(kind.states)
        self.first = self.count + kind.packed  # constant
        self.options = [x.rpartition(" ")[2] for x in kind.options]
        self.own = self.first + len(kind.constants) + len(self.options)  # arguments of the forward pass
        self.results = len(kind.results)
        self.known: dict[Any, TwoPasses] = {}  # calls by what they have in common

    def _given(self, flat: Sequence[Any]) -> Given:
        """The arguments by what they are."""
        end = self.own - len(self.options)
        constants = dict(zip(self.kind.constants, flat[self.first : end], strict=True))
        starts = flat[self.count] if self.kind.packed else None
        return Given(flat[: self.count], starts, constants, dict(zip(self.options, flat[end : self.own], strict=True)))

    def _call(self, flat: Sequence[Any], given: Given) -> TwoPasses:
        """The call, which is the same for calls of the same kind, but for where packed sequences start."""
        starts = given.starts
        begun = None if starts is None else layouts([starts])
        kind = layouts(given.tensors), begun, *flat[self.first : self.own]
        found = self.known.get(kind)
        if found is None:
            found = self.kind.call(given)
            remember(self.known, kind, found)
        return found if starts is None else found.starting(starts)

    # --- the passes themselves --------------------------------------------------------------------------------------

    def forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        given = self._given(flat)
        self.kind.look(given)
        found, names = forward_kept(self._call(flat, given), given.tensors)
        results, saved = found[: self.results], dict(zip(names or (), found[self.results :], strict=False))
        kept = self.kind.saved(given) or {}
        if is_empty(given.tensors) or made_at(saved):  # nothing of it is there, or what nobody will ask for
            saved = {n: given.tensors[0].new_zeros(shape, dtype=dtype) for n, (shape, dtype) in kept.items()}
        for n, (shape, _) in kept.items():
            if (x := saved.get(n)) is None or tuple(x.shape) != tuple(shape):
                raise BackendError(f"{self.name}: the backend announces to save {n} {list(shape)}, and doesn't")
        held = [x.to(dtype).contiguous() for n, (_, dtype) in kept.items() if (x := saved[n]) is not None]
        shown = [x.contiguous() for x in results if x is not None]
        return (*owned_by(shown, given.tensors), owned_by(held, (*given.tensors, *shown)))

    def backward(self, *flat: Any) -> list[Tensor]:
        given = self._given(flat)
        saved, *cotangents, wanted = flat[self.own :]
        kept = self.kind.saved(given)
        if kept is None or is_empty(given.tensors):
            names, saved = None, []
        else:
            names = tuple(kept)
        found = Task(self._call(flat, given), names, tuple(wanted)).gradients((*given.tensors, *saved, *cotangents))
        filled = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if g is None else g.contiguous()
            for g, x, w in zip(found, given.tensors, wanted, strict=True)
            if w
        ]
        return owned_by(filled, (*given.tensors, *cotangents, *saved))

    # --- shapes only ------------------------------------------------------------------------------------------------

    def fake_forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        given = self._given(flat)
        some, kept = given.tensors[0], self.kind.saved(given) or {}
        results = [some.new_empty(shape, dtype=dtype) for shape, dtype in self.kind.shapes(given)]
        return (*results, [some.new_empty(shape, dtype=dtype) for shape, dtype in kept.values()])

    def fake_backward(self, *flat: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x, w in zip(flat[: self.count], flat[-1], strict=True) if w]

    # --- differentiated ---------------------------------------------------------------------------------------------

    def setup_context(self, ctx: FunctionCtx, inputs: Any, output: Sequence[Tensor]) -> None:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx.places = [isinstance(x, Tensor) for x in inputs]
        ctx.rest = [x for x in inputs if not isinstance(x, Tensor)]
        ctx.save_for_backward(*tensors, *output[-1])
        ctx.set_materialize_grads(False)

    def gradients(self, ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = iter(ctx.saved_tensors)
        rest = iter(ctx.rest)
        inputs = [next(tensors) if is_tensor else next(rest) for is_tensor in ctx.places]
        wanted = list(ctx.needs_input_grad[: self.count])
        found = iter(self.ops.backward(*inputs, list(tensors), *cotangents[:-1], wanted))
        return tuple(next(found) if w else None for w in wanted) + (None,) * (self.own - self.count)

    def refuse(self, ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(self.kind.name)

    # --- batched ----------------------------------------------------------------------------------------------------

    def vmap_forward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, axes = info.batch_size, self.kind.result_head_axes
        if self.kind.packed and in_dims[self.count] is not None:
            raise batched_starts(self.kind.name)
        *results, saved = self.ops.forward(*self._folded(n, in_dims, flat))
        unfolded = [unfold(x, n, axis) for x, axis in zip(results, axes, strict=True)]
        return (*unfolded, saved), (*axes, [None] * len(saved))

    def vmap_backward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, (_, *cotangents, wanted) = info.batch_size, flat[self.own :]
        dims = in_dims[self.own + 1 : self.own + 1 + self.results]
        folded = fold_all(cotangents, dims, n, self.kind.result_head_axes)
        found = self.ops.backward(*self._folded(n, in_dims, flat), [], *folded, wanted)
        axes = [axis for axis, w in zip(self.kind.head_axes, wanted, strict=True) if w]
        return [unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)], axes

    def _folded(self, n: int, in_dims: Sequence[int | None], flat: Sequence[Any]) -> list[Any]:
        """The arguments with one more axis among their heads; nothing is saved, as it would have no place for that axis."""
        tensors = fold_all(flat[: self.count], in_dims[: self.count], n, self.kind.head_axes)
        options = {**self.kind.batched(self._given(flat).options, n), "keep": False}
        rest = flat[self.count : self.own - len(self.options)]
        return [*tensors, *rest, *(options[name] for name in self.options)]


def owned_by(results: list[Tensor], others: Sequence[Tensor | None]) -> list[Tensor]:
    """The results, each with memory of its own, as the library asks for it."""
    taken = {x.untyped_storage()._cdata for x in others if x is not None}
    out = []
    for x in results:
        if x.untyped_storage()._cdata in taken:
            x = x.clone()
        taken.add(x.untyped_storage()._cdata)
        out.append(x)
    return out
