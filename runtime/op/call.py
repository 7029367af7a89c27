"""What a call of an op says beside its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..launch.replay import Replays
from ..launch.varlen import Packed
from .signature import Backend, Signature

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Wants:
    """What a call's forward pass is to leave: final states, and what its backward pass uses.

    recompute: "auto", "always" or "never", as the public function has it. announced: no more is kept than what the backend
    announces to save.
    """

    finals: bool = True
    needs_backward: bool = True
    recompute: str = "auto"
    announced: bool = False


@dataclass(slots=True, eq=False)
class Call:
    """What a call says beside its tensors. heads: H, the largest head count among the arguments. plain: the torch form, where it
    isn't the backend."""

    signature: Signature
    backend: Backend
    constants: dict[str, float]
    heads: int
    packed: Packed | None = None
    wants: Wants = Wants()
    exchange: Any = None  # how segments of a sequence on other ranks hand on what enters this one
    computed: torch.dtype | None = None  # what the op casts arguments to; None where they stay
    replays: Replays | None = None  # what was seen of calls of this kind (`replay`); None: nothing is replayed
    deterministic: bool = False  # does what is cut depend on a sequence's length alone?
    one_by_one: bool = False  # does the backend take one head of one sequence after the other?
    plain: Backend | None = None

    def over(self, given: Tensors) -> Call:
        """The call as these arguments have it computed: where there are no sequences, steps or heads, by the torch form, so that
        no kernel is ever launched over nothing."""
        return self if self.plain is None or not is_empty(given.values()) else replace(self, backend=self.plain)

    @property
    def needs_backward(self) -> bool:
        return self.wants.needs_backward

    @property
    def kernels(self) -> Backend:
        return self.backend

    @property
    def has_form(self) -> bool:
        """Is there a torch form, which exchanges states with other ranks on its way, as this call does?"""
        return self.plain is not None and (self.exchange is None or "exchange" in self.plain.features)

    def in_torch(self) -> Call:
        """The call as the torch form computes it."""
        return self if self.plain is None else replace(self, backend=self.plain, one_by_one=self.deterministic)

    def dtype(self, given: Tensors) -> torch.dtype:
        """What its kernels compute in."""
        return self.computed or given[self.signature.leading.name].dtype

    @property
    def options(self) -> dict[str, Any]:
        """What the backend's passes take beside tensors."""
        out: dict[str, Any] = {}
        if self.packed is not None:
            out["packed"] = self.packed
        if self.exchange is not None:
            out["exchange"] = self.exchange
        return out


def is_empty(tensors: Iterable[Tensor | None]) -> bool:
    """Is there nothing to do for a call with these arguments? Widths are at least 1, so that sequences, steps or heads are 0."""
    return any(x is not None and 0 in x.shape for x in tensors)


def result_types(signature: Signature, given: Tensors) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of outputs, and of final states."""
    kind = given[signature.leading.name].dtype
    return kind, torch.promote_types(kind, torch.float32)


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
    deterministic: bool,
    wants: Wants,
) -> Call:
    """A call of a backend."""
    computed = computed_in(signature, name, precision, tensors)
    call = Call(signature, backends[name], constants, heads, packed, wants, computed=computed, plain=backends["torch"])
    call.deterministic, call.one_by_one = deterministic, deterministic and name == "torch"
    return call
