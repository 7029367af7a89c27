"""An op as users call it: checks its arguments, chooses a backend, and connects both passes to autograd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError, DoubleBackwardError

from .arguments import FLOATS, checked, checked_states, one_of
from .decode import Step
from .packed import Packed, packed_of
from .passes import Call, run_backward, run_forward
from .signature import Argument, Backend, Signature

__all__ = ["Argument", "Backend", "Op", "Signature"]


@dataclass(frozen=True)
class Op:
    """A generated op. Calling it validates and dispatches; `backends` has `torch` and, where triton is installed, `triton`.

    `step` computes one step, for generation.
    """

    signature: Signature
    backends: dict[str, Backend]
    step: Step | None = None

    def __call__(
        self,
        given: dict[str, Any],
        initial_state: Any = None,
        output_final_state: bool = False,
        backend: str | None = None,
        cu_seqlens: Any = None,
        context_parallel: Any = None,
        recompute: str = "auto",
        precision: str = "default",
        state_dtype: torch.dtype | None = None,
    ) -> Any:
        """(outputs.., final state): `given` by declared names; see the generated function for the public signature."""
        name = self.signature.name
        one_of(name, "recompute", recompute, ("auto", "always", "never"))
        one_of(name, "precision", precision, ("fast", "default", "high"))
        if state_dtype is not None and state_dtype not in FLOATS:
            raise ArgumentError(
                f"{name}: state_dtype must be a floating-point torch.dtype or None, got {state_dtype!r}"
            )
        if context_parallel is not None:
            if backend is not None or precision != "default":
                raise ArgumentError(f"{name}: context_parallel takes neither backend nor precision")
            from .parallel import run

            return run(self, given, initial_state, output_final_state, cu_seqlens, context_parallel)
        tensors, constants, sizes = checked(self.signature, given)
        some = next(iter(tensors.values()))
        packed = None
        if cu_seqlens is not None:
            packed = packed_of(name, cu_seqlens, sizes["B"], sizes["T"], some.device)
        states = checked_states(self.signature, initial_state, tensors, sizes, packed.count if packed else None)
        chosen = _backend(self, backend, tensors)
        _supported(self, chosen, packed, precision)
        call = Call(self.signature, self.backends[chosen], constants, sizes["H"], packed, precision, recompute)
        results = _Run.apply(call, tuple(tensors), tuple(states), *tensors.values(), *states.values())
        outputs, finals = results[: len(self.signature.outputs)], results[len(self.signature.outputs) :]
        last: Any = None
        if output_final_state:
            if state_dtype is not None:
                finals = tuple(x.to(state_dtype) for x in finals)
            last = finals[0] if len(finals) == 1 else tuple(finals)
        return (*outputs, last)


class _Run(torch.autograd.Function):
    """Both passes of an op. Second derivatives are refused with a clear error."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, names: tuple[str, ...], state_names: tuple[str, ...], *tensors: Tensor | None
    ) -> Any:
        given = dict(zip(names, tensors, strict=False))
        states = dict(zip(state_names, tensors[len(names) :], strict=True))
        outputs, finals, saved = run_forward(call, given, states)
        ctx.call, ctx.names, ctx.state_names, ctx.saved_names = call, names, state_names, tuple(saved)
        ctx.save_for_backward(*tensors, *saved.values())
        ctx.set_materialize_grads(False)
        return (
            *(outputs[n] for n, _ in call.signature.outputs),
            *(finals[n] for n, _ in call.signature.states),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        signature = ctx.call.signature
        tensors = ctx.saved_tensors
        count = len(ctx.names) + len(ctx.state_names)
        given = dict(zip(ctx.names, tensors, strict=False))
        states = dict(zip(ctx.state_names, tensors[len(ctx.names) : count], strict=True))
        saved = dict(zip(ctx.saved_names, tensors[count:], strict=True))
        outputs = [n for n, _ in signature.outputs]
        cotangents = dict(zip(outputs, gradients, strict=False))
        finals = dict(zip((n for n, _ in signature.states), gradients[len(outputs) :], strict=True))
        wanted = ctx.needs_input_grad[3:]
        needs = frozenset(n for n, w in zip((*ctx.names, *ctx.state_names), wanted, strict=True) if w)
        with torch.no_grad():
            inner, initial = run_backward(ctx.call, given, states, saved, cotangents, finals, needs)
        found: list[Tensor | None] = [inner.get(n) if n in needs else None for n in ctx.names]
        found += [initial.get(n) if n in needs else None for n in ctx.state_names]
        if torch.is_grad_enabled():  # create_graph=True
            present = [i for i, g in enumerate(found) if g is not None]
            guarded = _NoSecond.apply(
                signature.name, len(present), *(found[i] for i in present), *tensors[:count], *gradients
            )
            for i, g in zip(present, guarded, strict=True):
                found[i] = g
        return (None, None, None, *found)


class _NoSecond(torch.autograd.Function):
    """Passes gradients through, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor | None) -> Any:
        ctx.name = name
        return tuple(x.view_as(x) for x in tensors[:count] if x is not None)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise DoubleBackwardError(
            f"{ctx.name} has no second derivatives: its gradients were asked for their own gradient (double backward)"
        )


# --- backends -------------------------------------------------------------------------------------------------------


def _backend(op: Op, asked: str | None, tensors: dict[str, Tensor]) -> str:
    x = next(iter(tensors.values()))
    name = op.signature.name
    if asked is None:
        return "triton" if x.is_cuda and "triton" in op.backends and x.dtype != torch.float64 else "torch"
    if asked not in ("torch", "triton"):
        raise ArgumentError(f"{name}: backend must be 'torch', 'triton' or None, got {asked!r}")
    if asked not in op.backends:
        raise BackendError(f"{name}: the {asked} backend isn't available here: is triton installed?")
    if asked == "triton":
        if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
            raise BackendError(
                f"{name}: the triton backend needs CUDA tensors, got {x.device} (or TRITON_INTERPRET=1, to interpret it)"
            )
        if any(t.dtype == torch.float64 for t in tensors.values()):
            raise BackendError(f"{name}: the triton backend computes in float32; float64 needs backend='torch'")
    return asked


def _supported(op: Op, backend: str, packed: Packed | None, precision: str) -> None:
    """Refuse what a backend can't do, and nothing else can do for it."""
    features, name = op.backends[backend].features, op.signature.name
    if packed is not None and "packed" not in features:
        raise BackendError(
            f"{name}: cu_seqlens: the {backend} backend of this op takes no packed sequences yet; use backend='torch'"
        )
    if precision == "high" and backend != "torch" and "precision" not in features:
        raise BackendError(
            f"{name}: precision='high': the {backend} backend of this op has one precision; use backend='torch'"
        )
