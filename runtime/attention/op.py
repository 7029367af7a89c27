"""A generated attention as users call it: checks arguments, makes features, runs a backend, and connects it to autograd.

The generated file brings the mathematics: features and outputs with their adjoints, the energy of a tile with its derivatives.
Here is what all attentions share. A backend computes, for features [B, H, T, width],

    forward(op, features, at)  -> averages [B, H, T, E], lse [B, H, T] and mass [B, H, T] (None where the normaliser has none)
    backward(op, features, at, averages, lse, d averages, D) -> the cotangent of each feature; D [B, H, T] is each row's own part
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.types import PublicOp

from ..launch.replay import layouts
from ..op import debugging
from ..op.about import about
from ..op.arguments import autocast_dtype
from ..op.autograd import apply
from ..op.backend_choice import is_traced
from ..op.forward_mode import is_on, refuse_tangents
from ..op.naming import named
from ..op.torch_library import Registered, register
from .arguments import AttentionSignature, Setting, check_positive, checked, temperature
from .deterministic import goes_apart
from .passes import REMEMBERED, AttentionBackend, Call, Known, Maps, Moved, chosen
from .traced import InLibrary

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

P = ParamSpec("P")


@dataclass(frozen=True, repr=False)
class AttentionOp:
    """A generated attention; see the generated function for the public signature."""

    signature: AttentionSignature
    maps: Maps
    energy: Callable[..., Tensor]
    energy_gradients: Callable[..., dict[str, Tensor]]
    backends: dict[str, AttentionBackend]
    moved: Moved | None = None
    module: InitVar[str] = ""  # of the op, whose last part names it in `torch.ops.chunkform`
    registered: Registered | None = field(init=False, default=None, compare=False)
    known: dict[Any, Known] = field(init=False, default_factory=dict, compare=False)  # kinds that were checked before

    def __post_init__(self, module: str) -> None:
        if module:
            object.__setattr__(self, "registered", register(module.rpartition(".")[2], InLibrary(self)))

    def __call__(
        self,
        given: dict[str, Tensor | float],
        causal: bool = False,
        output_lse: bool = False,
        backend: str | None = None,
        context_parallel: ProcessGroup | None = None,
        deterministic: bool = False,
    ) -> Any:
        """The outputs (one, or a tuple), and after them the log-sum-exp [B, T, H] where asked for."""
        s = self.signature
        if not isinstance(deterministic, bool):
            raise ArgumentError(f"{s.name}: deterministic must be True or False, got {deterministic!r}")
        if torch.compiler.is_compiling():
            if self.registered is None or context_parallel is not None or is_on():
                return _outside_of_graphs(self, given, causal, output_lse, backend, context_parallel, deterministic)
            return self._traced(given, causal, output_lse, backend, deterministic)
        refuse_tangents(s.name, given.values())
        if debugging._on and debugging.can_look():
            debugging.look_at_attention(s.name, s.arguments, given)
        if context_parallel is not None:
            if backend is not None or deterministic:
                raise ArgumentError(f"{s.name}: context_parallel takes neither backend nor deterministic")
            from .ring import ring_attention

            return ring_attention(self, given, context_parallel, causal, output_lse)
        if self.registered is not None and is_traced([*given.values()]):
            return self._traced(given, causal, output_lse, backend, deterministic)
        known = self._known(given, causal, output_lse, backend, deterministic)
        for n in known.temperatures:
            check_positive(s, n, given[n])
        try:
            results = apply(known.call, self._tensors(known, given))
        except (ZeroDivisionError, OverflowError) as error:  # numbers of Python's, which constants are
            said = ", ".join(f"{n} = {x!r}" for n, x in known.call.constants.items())
            raise ArgumentError(f"{s.name}: a formula has no value where {said}: {error}") from error
        return results[0] if len(results) == 1 else s.result(output_lse)(*results)

    def __repr__(self) -> str:
        return f"<AttentionOp {self.signature.name}({', '.join(a.name for a in self.signature.arguments)})>"

    def named(self, function: Callable[P, object]) -> PublicOp[P, Any]:
        """The function that users call, whose errors name arguments, and which says what it was made of."""
        found: Any = named(function)
        return about(found) if found.__name__ == self.signature.name else found

    def _traced(
        self, given: dict[str, Tensor | float], causal: bool, output_lse: bool, backend: str | None, deterministic: bool
    ) -> Any:
        """The same as one call in torch's library."""
        assert self.registered is not None
        known = self._check(given, causal, output_lse, backend, deterministic)
        call = known.call
        options = call.at.causal, call.backend, call.free, call.deterministic, call.needs_backward
        results = self.registered(self._tensors(known, given), None, call.constants, options)
        results = results[: len(self.signature.outputs) + bool(output_lse)]
        return results[0] if len(results) == 1 else self.signature.result(output_lse)(*results)

    def _tensors(self, known: Known, given: Mapping[str, object]) -> list[Tensor]:
        """What is computed with, in the order of a call's names."""
        at = known.call.at
        tensors = [x for a in self.signature.arguments if isinstance(x := given[a.name], Tensor)]
        for place, value in known.numbers:
            tensors.insert(place, torch.full((at.heads,), value, dtype=at.dtype, device=at.device))
        return [x if kind is None else x.to(kind) for x, kind in zip(tensors, known.casts, strict=True)]

    def maps_at(self, at: Setting) -> Maps:
        """The maps around the kernel, with the key's matrix moved where the kernel's sums are no longer for it."""
        m = self.moved
        if m is None or at.sizes[m.own] < at.sizes[m.to]:
            return self.maps
        changed = {n: getattr(m, n) for n in ("features", "feature_gradients", "kernel_features")}
        return replace(self.maps, **changed)

    def _known(
        self, given: dict[str, Tensor | float], causal: bool, output_lse: bool, backend: str | None, deterministic: bool
    ) -> Known:
        """What is known of a call; the same for calls of the same kind, which differ in the numbers in tensors only."""
        values = [given[a.name] for a in self.signature.arguments]
        if is_traced(values):
            return self._check(given, causal, output_lse, backend, deterministic)
        numbers = [None if isinstance(x, Tensor) else (x, type(x)) for x in values]
        tensors = [x for x in values if isinstance(x, Tensor)]
        try:
            kind = tensors[0].device.type
            modes = (
                autocast_dtype(kind),
                torch.is_grad_enabled(),
                backend == "triton" and os.environ.get("TRITON_INTERPRET"),
            )
            key = (layouts(tensors), *numbers, causal, type(causal), bool(output_lse), backend, deterministic, modes)
            found = self.known.get(key)
        except (IndexError, TypeError, RuntimeError):  # something isn't as it should be: the check says what
            return self._check(given, causal, output_lse, backend, deterministic)
        if found is None:
            found = self._check(given, causal, output_lse, backend, deterministic)
            if found.call.backend == "triton" and not goes_apart(found.call):  # whose work depends on layouts only
                found.call.replays = {}
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known[key] = found
        return found

    def _check(
        self, given: dict[str, Tensor | float], causal: bool, output_lse: bool, backend: str | None, deterministic: bool
    ) -> Known:
        s = self.signature
        if not isinstance(causal, bool):
            raise ArgumentError(f"{s.name}: causal must be True or False, got {causal!r}")
        if causal and s.nodes is not None:
            raise ArgumentError(f"{s.name}: causal must be False: its queries are a fixed set, without positions")
        if output_lse and s.normaliser != "softmax":
            raise ArgumentError(f"{s.name}: output_lse needs a softmax; its weights have no normaliser")
        tensors, constants, at = checked(s, given, causal)
        name = chosen(self, backend, at, tensors)
        call = Call(self, name, at, tuple(tensors), constants, backend is None, bool(output_lse))
        call.deterministic = deterministic
        call.needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in tensors.values())
        casts: list[torch.dtype | None] = []
        numbers, temperatures = [], []
        for a in s.arguments:
            if a.name not in tensors:
                continue
            x, kind = given[a.name], tensors[a.name].dtype
            if not isinstance(x, Tensor):
                numbers.append((len(casts), temperature(s, a, x, at.sizes)))
            elif a.kind == "temperature":
                temperatures.append(a.name)
            casts.append(kind if isinstance(x, Tensor) and x.dtype != kind else None)
        return Known(call, tuple(casts), tuple(numbers), tuple(temperatures))


def _outside_of_graphs(op: AttentionOp, *arguments: object) -> Any:
    """A call within a compiled function, which breaks its graph: the kernels are launched as ever."""
    return torch.compiler.disable(op)(*arguments)  # here, since it loads torch's compiler
