"""Ops as torch knows them: `torch.ops.chunkform.<op>`, for torch.compile, torch.export and whoever else traces calls.

    <op>(arguments, states, starts, constants, heads, backend, precision, keep, deterministic) -> (outputs, final states, saved)
    <op>_backward(the same, saved, cotangents, wanted) -> gradients

A tracer sees one call with known shapes and an own backward pass, whatever the backend does inside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library

from chunkform.errors import BackendError

from ..launch.varlen import Packed, batched_starts, block_count, check_values
from .autograd import fold, no_second, unfold
from .call import Call, is_empty
from .fits import made_at
from .forward_mode import register_autograd
from .passes import backward_pass, forward_pass, result_types
from .signature import Backend, Folded, Signature

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo
    from torch.autograd.function import FunctionCtx

NAMESPACE = "chunkform"
MOST = 64  # arguments that torch's library takes
OPTIONS = 5  # heads, backend, precision, keep, deterministic
LIBRARIES: dict[str, Library] = {}


@dataclass(frozen=True, eq=False)
class Registered:
    """An op's two passes in torch's library."""

    signature: Signature
    forward: Any
    backward: Any

    def __call__(
        self, tensors: Sequence[Tensor], starts: Tensor | None, constants: dict[str, float], heads: int, *options: Any
    ) -> Sequence[Tensor]:
        """Outputs and final states. options: backend, precision, keep, deterministic."""
        values = [constants[a.name] for a in self.signature.constants]
        found = self.forward(*tensors, starts, *values, heads, *options)
        return found[: len(self.signature.outputs) + len(self.signature.states)]


def register(name: str, signature: Signature, backends: dict[str, Backend]) -> Registered | None:
    """Register an op under a name; a second time under the same name replaces the first. None where torch's library takes fewer
    arguments than its backward pass has: then graphs are broken around it."""
    if has_too_many(_backward_schema(signature)):
        return None
    name = library_name(name)
    if name in LIBRARIES:
        LIBRARIES.pop(name)._destroy()
    library = LIBRARIES[name] = Library(NAMESPACE, "FRAGMENT")
    passes = _Passes(name, signature, backends)
    for suffix, schema, run, fake in (
        ("", _forward_schema(signature), passes.forward, passes.fake_forward),
        ("_backward", _backward_schema(signature), passes.backward, passes.fake_backward),
    ):
        library.define(f"{name}{suffix}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(f"{name}{suffix}", run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}{suffix}", fake, lib=library)
    own = f"{NAMESPACE}::{name}"
    register_autograd(library, own, signature.name, passes.gradients, passes.setup_context)
    torch.library.register_vmap(own, passes.vmap_forward, lib=library)
    register_autograd(library, f"{own}_backward", signature.name, passes.refuse)
    torch.library.register_vmap(f"{own}_backward", passes.vmap_backward, lib=library)
    space = getattr(torch.ops, NAMESPACE)
    found = [getattr(space, f"{name}{suffix}").default for suffix in ("", "_backward")]
    passes.ops = Registered(signature, *found)
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


def _call_schema(s: Signature) -> str:
    tensors = listed("Tensor given", (a.name for a in s.tensors)) + listed("Tensor? initial", dict(s.states))
    constants = listed("float constant", (a.name for a in s.constants))
    return ", ".join(
        [*tensors, "Tensor? starts", *constants, "SymInt heads", "str backend", "str precision", "bool keep"]
        + ["bool deterministic"]
    )


def _forward_schema(s: Signature) -> str:
    results = listed("Tensor output", dict(s.outputs)) + listed("Tensor final", dict(s.states))
    return f"({_call_schema(s)}) -> ({', '.join([*results, 'Tensor[] saved'])})"


def _backward_schema(s: Signature) -> str:
    incoming = listed("Tensor? d_output", dict(s.outputs)) + listed("Tensor? d_final", dict(s.states))
    return f"({_call_schema(s)}, Tensor[] saved, {', '.join(incoming)}, bool[] wanted) -> Tensor[]"


class _Passes:
    """What is registered of one op. `flat` are the arguments of the schema, in order."""

    ops: Registered

    def __init__(self, name: str, signature: Signature, backends: dict[str, Backend]) -> None:
        self.name, self.signature, self.backends = name, signature, backends
        self.count = len(signature.names)
        self.own = self.count + 1 + len(signature.constants) + OPTIONS  # arguments of the forward pass
        self.results = len(signature.outputs) + len(signature.states)

    # --- the passes themselves --------------------------------------------------------------------------------------

    def forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        call, tensors = self._call(flat)
        if call.packed is not None:
            check_values(f"{self.signature.name}: cu_seqlens", call.packed.starts, call.packed.longest)
        results, saved = forward_pass(call, tensors)
        kept = self._layout(flat)
        found: list[Tensor] = []
        if kept is not None:
            if self._is_empty(flat) or made_at(saved):  # nothing of it is there, or what nobody will ask for
                saved = {n: tensors[0].new_zeros(shape, dtype=kind) for n, (shape, kind) in kept.items()}
            for n, (shape, _) in kept.items():
                if n not in saved or tuple(saved[n].shape) != shape:
                    raise BackendError(f"{self.name}: the backend announces to save {n} {list(shape)}, and doesn't")
            found = [saved[n].to(kind).contiguous() for n, (_, kind) in kept.items()]
        return (*owned_by([x.contiguous() for x in results], tensors), owned_by(found, (*tensors, *results)))

    def backward(self, *flat: Any) -> list[Tensor]:
        call, tensors = self._call(flat)
        saved, *cotangents, wanted = flat[self.own :]
        kept = self._layout(flat)
        again = kept is None or self._is_empty(flat)
        named = None if again else _Kept(zip(kept, saved, strict=True), call, tensors)
        found = backward_pass(call, tensors, named, cotangents, wanted)
        filled = [
            torch.zeros_like(x, memory_format=torch.contiguous_format) if g is None else g.contiguous()
            for g, x, w in zip(found, tensors, wanted, strict=True)
            if w
        ]
        return owned_by(filled, (*tensors, *cotangents, *saved))

    def _call(self, flat: Sequence[Any]) -> tuple[Call, Sequence[Tensor]]:
        tensors, starts = flat[: self.count], flat[self.count]
        *constants, heads, backend, precision, keep, deterministic = flat[self.count + 1 : self.own]
        packed = None
        if starts is not None:
            packed = Packed(starts.to(torch.int64), starts.shape[0] - 1, tensors[0].shape[1])
        named = {a.name: x for a, x in zip(self.signature.constants, constants, strict=True)}
        call = make_call(
            self.signature, self.backends, backend, named, heads, packed, precision, tensors, deterministic
        )
        call.recompute, call.announced = "never" if keep else "always", True
        return call, tensors

    def _is_empty(self, flat: Sequence[Any]) -> bool:
        return is_empty(flat[: len(self.signature.tensors)])

    def _layout(self, flat: Sequence[Any]) -> dict[str, tuple[tuple[int, ...], torch.dtype]] | None:
        """Shape and dtype of each tensor that is saved; None where the forward pass is computed again."""
        tensors, starts = flat[: self.count], flat[self.count]
        heads, name, precision, keep, deterministic = flat[self.own - OPTIONS : self.own]
        backend = self.backends[name]
        if deterministic and name == "torch":  # which goes one by one
            return None
        if not keep or backend.saved is None or (starts is not None and not backend.saved_packed):
            return None
        sizes = self._sizes(tensors, heads)
        sequences = None if starts is None else starts.shape[0] - 1
        computed = computed_in(self.signature, name, precision, tensors)
        kind = self._types(tensors)[0] if computed is None else computed
        kinds = {"input": kind, "wide": torch.promote_types(kind, torch.float32)}
        return {
            n: (tuple(_saved_size(d, sizes, sequences) for d in dims), kinds[which])
            for n, (dims, which) in backend.saved.items()
        }

    def _types(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, torch.dtype]:
        return result_types(self.signature, {a.name: x for a, x in zip(self.signature.tensors, tensors)})

    def _sizes(self, tensors: Sequence[Tensor], heads: int) -> dict[str, int]:
        sizes: dict[str, Any] = {}
        for a, x in zip(self.signature.tensors, tensors, strict=False):
            sizes |= dict(zip(a.layout, x.shape, strict=True))
        return sizes | {"H": heads}

    # --- shapes only ------------------------------------------------------------------------------------------------

    def fake_forward(self, *flat: Any) -> tuple[Tensor | list[Tensor], ...]:
        tensors, starts, heads = flat[: self.count], flat[self.count], flat[self.own - OPTIONS]
        sizes, some = self._sizes(tensors, heads), tensors[0]
        sequences = sizes["B"] if starts is None else starts.shape[0] - 1
        kind, wide = self._types(tensors)
        layouts = [
            (wide if name in self.signature.wide else kind, ("B", "T", "H", *dims))
            for name, dims in self.signature.outputs
        ]
        layouts += [(wide, ("N", "H", *dims)) for _, dims in self.signature.states]
        sizes |= {"N": sequences}
        results = [some.new_empty([sizes[d] for d in layout], dtype=dtype) for dtype, layout in layouts]
        kept = self._layout(flat) or {}
        return (*results, [some.new_empty(shape, dtype=kind) for shape, kind in kept.values()])

    def fake_backward(self, *flat: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x, w in zip(flat[: self.count], flat[-1], strict=True) if w]

    # --- differentiated ---------------------------------------------------------------------------------------------

    def setup_context(self, ctx: FunctionCtx, inputs: Any, output: Sequence[Tensor]) -> None:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx.places = [isinstance(x, Tensor) for x in inputs]
        ctx.rest = [x for x in inputs if not isinstance(x, Tensor)]
        ctx.kept = len(output[-1])
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
        raise no_second(self.signature.name)

    # --- batched ----------------------------------------------------------------------------------------------------

    def vmap_forward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, axes = info.batch_size, self.signature.result_head_axes
        if in_dims[self.count] is not None:
            raise batched_starts(self.signature.name)
        *results, saved = self.ops.forward(*self._folded(n, in_dims, flat, keep=False))
        return (*(unfold(x, n, axis) for x, axis in zip(results, axes, strict=True)), saved), (
            *axes,
            [None] * len(saved),
        )

    def vmap_backward(self, info: VmapInfo, in_dims: Sequence[int | None], *flat: Any) -> Folded:
        n, s = info.batch_size, self.signature
        _, *cotangents, wanted = flat[self.own :]
        dims = in_dims[self.own + 1 :]
        folded = [fold(g, dim, n, axis) for g, dim, axis in zip(cotangents, dims, s.result_head_axes, strict=False)]
        found = self.ops.backward(*self._folded(n, in_dims, flat, keep=False), [], *folded, wanted)
        axes = [axis for axis, w in zip(s.head_axes, wanted, strict=True) if w]
        return [unfold(g, n, axis) for g, axis in zip(found, axes, strict=True)], axes

    def _folded(self, n: int, in_dims: Sequence[int | None], flat: Sequence[Any], keep: bool) -> list[Any]:
        tensors = [
            fold(x, dim, n, axis)
            for x, dim, axis in zip(flat[: self.count], in_dims, self.signature.head_axes, strict=False)
        ]
        rest = list(flat[self.count : self.own])
        rest[-OPTIONS], rest[-2] = rest[-OPTIONS] * max(n, 1), keep
        return [*tensors, *rest]


def _saved_size(dim: str, sizes: Mapping[str, int], sequences: int | None) -> int:
    """The size of a dim of what is saved, as `Backend.saved` has it."""
    if "T" not in dim.split():
        return sizes[dim]
    times, _, blocks = dim.rpartition("T")
    steps = int(times or 1) * sizes["T"]
    return block_count(steps, sequences) if blocks else steps


class _Kept(dict):
    """What was kept of what the forward pass saved; the rest is computed again when it is asked for."""

    def __init__(self, kept: Iterable[tuple[str, Tensor]], call: Call, tensors: Sequence[Tensor]) -> None:
        super().__init__(kept)
        self.call, self.tensors = call, tensors

    def __missing__(self, name: str) -> Tensor:
        call = dataclasses.replace(self.call, recompute="never", needs_backward=True)
        saved = forward_pass(call, self.tensors)[1]
        self.update({n: x for n, x in saved.items() if n not in self})
        return saved[name]


def computed_in(
    signature: Signature, name: str, precision: str, tensors: Sequence[Tensor | None]
) -> torch.dtype | None:
    """What the op casts a call's arguments to; None where they stay."""
    if precision == "default":
        return None
    kind = result_types(signature, {a.name: x for a, x in zip(signature.tensors, tensors)})[0]
    if precision == "high":
        widest = torch.float64 if name == "torch" else torch.float32
        return None if torch.promote_types(kind, widest) == kind else widest
    return torch.bfloat16 if name != "torch" and kind == torch.float32 else None


def make_call(
    signature: Signature,
    backends: dict[str, Backend],
    name: str,
    constants: dict[str, float],
    heads: int,
    packed: Packed | None,
    precision: str,
    tensors: Sequence[Tensor | None],
    deterministic: bool = False,
) -> Call:
    """A call of a backend."""
    computed = computed_in(signature, name, precision, tensors)
    call = Call(signature, backends[name], constants, heads, packed, computed=computed, plain=backends["torch"])
    call.deterministic, call.one_by_one = deterministic, deterministic and name == "torch"
    return call


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
