"""A generated attention as users call it: checks arguments, makes features, runs a backend, and connects it to autograd.

The generated file brings the mathematics: features and outputs with their adjoints, the energy of a tile with its derivatives.
Here is what all attentions share. A backend computes, for features [B, H, T, width],

    forward(op, features, at)  -> averages [B, H, T, E], lse [B, H, T] and mass [B, H, T] (None where the normaliser has none)
    backward(op, features, at, averages, lse, d averages, D) -> the cotangent of each feature; D [B, H, T] is each row's own part
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.types import PublicOp

from ..op import debugging
from ..op.about import about
from ..op.arguments import check_bool, check_flag
from ..op.backend_choice import chosen_backend
from ..op.forward_mode import is_on, refuse_tangents
from ..op.front import Asked, results_of, wants_gradients
from ..op.naming import named
from ..op.torch_library import Registered, register
from .arguments import AttentionSignature, Setting, checked, temperature
from .deterministic import goes_apart
from .passes import AttentionBackend, Call, Known, Maps, Moved
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
        if torch.compiler.is_compiling() and (self.registered is None or context_parallel is not None or is_on()):
            return _outside_of_graphs(self, given, causal, output_lse, backend, context_parallel, deterministic)
        refuse_tangents(s.name, given.values())
        check_bool(s.name, "causal", causal)
        check_bool(s.name, "deterministic", deterministic)
        check_flag(s.name, "output_lse", output_lse)
        if output_lse and s.normaliser != "softmax":
            raise ArgumentError(f"{s.name}: output_lse needs a softmax; its weights have no normaliser")
        if context_parallel is not None:
            if backend is not None or deterministic:
                raise ArgumentError(f"{s.name}: context_parallel takes neither backend nor deterministic")
            from .ring import ring_attention

            if debugging.switched_on and debugging.can_look():
                debugging.look(s, [given[a.name] for a in s.tensors])
            return ring_attention(self, given, context_parallel, causal, output_lse)
        numbers = [given[a.name] for a in s.constants]
        tensors: list[Any] = [given[a.name] for a in s.tensors]
        if s.temperatures:
            numbers += [None if isinstance(tensors[n], Tensor) else tensors[n] for n in s.temperatures]
            tensors = [x if isinstance(x, Tensor) or n not in s.temperatures else None for n, x in enumerate(tensors)]
        options = causal, bool(output_lse), backend, deterministic
        asked = Asked(s, tensors, numbers, options, backend, results=s.finite_results)
        results = results_of(self.registered, self.known, asked, self._check)
        results = results[: len(s.outputs) + bool(output_lse)]
        return results[0] if len(results) == 1 else s.result(bool(output_lse))(*results)

    def __repr__(self) -> str:
        return f"<AttentionOp {self.signature.name}({', '.join(a.name for a in self.signature.arguments)})>"

    def named(self, function: Callable[P, object]) -> PublicOp[P, Any]:
        """The function that users call, whose errors name arguments, and which says what it was made of."""
        found: Any = named(function)
        return about(found) if found.__name__ == self.signature.name else found

    def maps_at(self, at: Setting) -> Maps:
        """The maps around the kernel, with the key's matrix moved where the kernel's sums are no longer for it."""
        m = self.moved
        if m is None or at.sizes[m.own] < at.sizes[m.to]:
            return self.maps
        changed = {n: getattr(m, n) for n in ("features", "feature_gradients", "kernel_features")}
        return replace(self.maps, **changed)

    def _check(self, asked: Asked) -> Known:
        s, (causal, lse, backend, deterministic) = self.signature, asked.options
        if causal and s.nodes is not None:
            raise ArgumentError(f"{s.name}: causal must be False: its queries are a fixed set, without positions")
        count = len(s.constants)
        given: dict[str, Any] = dict(zip((a.name for a in s.constants), asked.numbers, strict=False))
        given |= dict(zip(s.names, asked.tensors, strict=True))
        for place, x in zip(s.temperatures, asked.numbers[count:], strict=True):
            if asked.tensors[place] is None:
                given[s.names[place]] = x
        tensors, constants, at = checked(s, given, bool(causal))
        name = chosen_backend(self, asked.backend, tensors)
        call = Call(self, name, at, tuple(tensors), constants, backend is None, bool(lse))
        call.deterministic, call.needs_backward = bool(deterministic), wants_gradients([*tensors.values()])
        if name == "triton" and not goes_apart(call):  # whose work depends on layouts only
            call.replays = {}
        pairs = enumerate(zip(asked.tensors, tensors.values(), strict=True))
        casts = {n: y.dtype for n, (x, y) in pairs if x is not None and x.dtype != y.dtype}
        made = [n for n in s.temperatures if asked.tensors[n] is None]
        values = {n: temperature(s, s.tensors[n], given[s.names[n]], at.sizes) for n in made}
        return Known(call, casts, values)


def _outside_of_graphs(op: AttentionOp, *arguments: object) -> Any:
    """A call within a compiled function, which breaks its graph: the kernels are launched as ever."""
    return torch.compiler.disable(op)(*arguments)  # here, since it loads torch's compiler
