"""An op as users call it: checks its arguments, chooses a backend, and connects both passes to autograd."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError, DoubleBackwardError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Argument:
    """One argument. kind: input | decay | parameter | decay parameter | constant; decays are given as natural logarithms."""

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    default: float | None = None

    @property
    def key(self) -> str:
        """The name under which it is passed."""
        return f"log_{self.name}" if self.kind.startswith("decay") else self.name

    @property
    def per_step(self) -> bool:
        return self.kind in ("input", "decay")

    @property
    def layout(self) -> tuple[str, ...]:
        return (("B", "T", "H") if self.per_step else ("H",)) + self.dims


@dataclass(frozen=True)
class Signature:
    """The arguments, states and outputs of an op, with the dims of each."""

    name: str
    arguments: tuple[Argument, ...]
    states: tuple[tuple[str, tuple[str, ...]], ...]
    outputs: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Backend:
    """The two passes of one backend, as printed in the generated file."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Op:
    """A generated op. Calling it validates and dispatches; `backends` has `torch` and, where triton is installed, `triton`."""

    signature: Signature
    backends: dict[str, Backend]

    def __call__(
        self,
        given: dict[str, Any],
        initial_state: Any = None,
        output_final_state: bool = False,
        backend: str | None = None,
    ) -> Any:
        """(outputs.., final state): `given` by declared names; see the generated function for the public signature."""
        tensors, constants = _checked(self.signature, given)
        states = _checked_states(self.signature, initial_state, tensors)
        name = _backend(self, backend, tensors)
        results = _Run.apply(self, name, tuple(tensors), tuple(states), constants, *tensors.values(), *states.values())
        outputs, finals = results[: len(self.signature.outputs)], results[len(self.signature.outputs) :]
        last: Any = None
        if output_final_state:
            last = finals[0] if len(finals) == 1 else tuple(finals)
        return (*outputs, last)


class _Run(torch.autograd.Function):
    """Both passes of an op. Second derivatives are refused with a clear error."""

    @staticmethod
    def forward(
        ctx: Any,
        op: Op,
        backend: str,
        names: tuple[str, ...],
        state_names: tuple[str, ...],
        constants: dict[str, float],
        *tensors: Tensor | None,
    ) -> Any:
        given = dict(zip(names, tensors, strict=False))
        states = dict(zip(state_names, tensors[len(names) :], strict=True))
        outputs, finals, saved = op.backends[backend].forward(given, states, constants)
        ctx.op, ctx.backend, ctx.names, ctx.state_names, ctx.constants = op, backend, names, state_names, constants
        ctx.saved_names = tuple(saved)
        ctx.save_for_backward(*tensors, *saved.values())
        ctx.set_materialize_grads(False)
        return (
            *(outputs[n] for n, _ in op.signature.outputs),
            *(finals[n] for n, _ in op.signature.states),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        signature = ctx.op.signature
        tensors = ctx.saved_tensors
        count = len(ctx.names) + len(ctx.state_names)
        given = dict(zip(ctx.names, tensors, strict=False))
        states = dict(zip(ctx.state_names, tensors[len(ctx.names) : count], strict=True))
        saved = dict(zip(ctx.saved_names, tensors[count:], strict=True))
        outputs = [n for n, _ in signature.outputs]
        cotangents = dict(zip(outputs, gradients, strict=False))
        finals = dict(zip((n for n, _ in signature.states), gradients[len(outputs) :], strict=True))
        wanted = ctx.needs_input_grad[5:]
        needs = frozenset(n for n, w in zip((*ctx.names, *ctx.state_names), wanted, strict=True) if w)
        with torch.no_grad():
            inner, initial = ctx.op.backends[ctx.backend].backward(
                given, states, ctx.constants, saved, cotangents, finals, needs
            )
        found: list[Tensor | None] = [inner.get(n) if n in needs else None for n in ctx.names]
        found += [initial.get(n) if n in needs else None for n in ctx.state_names]
        if torch.is_grad_enabled():  # create_graph=True
            present = [i for i, g in enumerate(found) if g is not None]
            guarded = _NoSecond.apply(
                signature.name, len(present), *(found[i] for i in present), *tensors[:count], *gradients
            )
            for i, g in zip(present, guarded, strict=True):
                found[i] = g
        return (None, None, None, None, None, *found)


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


# --- arguments ------------------------------------------------------------------------------------------------------


def _checked(signature: Signature, given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Tensors of fitting shapes, types and devices, inputs in one common dtype; and the constants."""
    tensors: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for a in signature.arguments:
        value = given[a.name]
        what = f"{signature.name}: {a.key}"
        if a.kind == "constant":
            constants[a.name] = _constant(what, a, value)
            continue
        shape = f"[{', '.join(a.layout)}]"
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{what} must be a tensor {shape}, got {type(value).__name__}")
        if value.dtype not in FLOATS:
            raise ArgumentError(
                f"{what} must be float32, bfloat16, float16 or float64, got {str(value.dtype).removeprefix('torch.')}"
            )
        if value.dim() != len(a.layout):
            raise ArgumentError(f"{what} must have {len(a.layout)} axes {shape}, got the shape {list(value.shape)}")
        for dim, n in zip(a.layout, value.shape, strict=True):
            known = sizes.setdefault(dim, (n, a.key))
            if known[0] != n:
                raise ArgumentError(
                    f"{what} has {dim} = {n}, but {known[1]} has {dim} = {known[0]}; {a.key} must be {shape}, "
                    f"got {list(value.shape)}"
                )
        tensors[a.name] = value
    devices = {a.key: tensors[a.name].device for a in signature.arguments if a.name in tensors}
    first = next(iter(devices))
    for key, device in devices.items():
        if device != devices[first]:
            raise ArgumentError(f"{signature.name}: {key} is on {device}, but {first} is on {devices[first]}")
    for dim, (n, key) in sizes.items():
        if dim not in ("B", "T", "H") and n == 0:
            raise ArgumentError(f"{signature.name}: {key} has {dim} = 0; widths must be at least 1")
    return _same_type(signature, tensors), constants


def _constant(what: str, a: Argument, value: Any) -> float:
    if value is None:
        value = a.default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def _same_type(signature: Signature, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs in their common dtype; log decays and parameters in float32 (float64 where an input is)."""
    inputs = [tensors[a.name].dtype for a in signature.arguments if a.kind == "input"]
    common = torch.float32
    if inputs:
        common = inputs[0]
        for dtype in inputs[1:]:
            common = torch.promote_types(common, dtype)
    if any(x.dtype == torch.float64 for x in tensors.values()):
        common = torch.float64
    wide = torch.float64 if common == torch.float64 else torch.float32
    kinds = {a.name: a.kind for a in signature.arguments}
    return {n: x.to(common if kinds[n] == "input" else wide) for n, x in tensors.items()}


def _checked_states(signature: Signature, initial: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor | None]:
    names = [n for n, _ in signature.states]
    if initial is None:
        return dict.fromkeys(names)
    values = initial if isinstance(initial, tuple | list) else (initial,)
    if len(values) != len(names):
        raise ArgumentError(
            f"{signature.name}: initial_state must hold {len(names)} states ({', '.join(names)}), got {len(values)}"
        )
    sizes: dict[str, int] = {}
    for a in signature.arguments:
        if a.name in tensors:
            sizes |= dict(zip(a.layout, tensors[a.name].shape, strict=True))
    any_tensor = next(iter(tensors.values()))
    wide = torch.float64 if any_tensor.dtype == torch.float64 else torch.float32
    out: dict[str, Tensor | None] = {}
    for (name, dims), value in zip(signature.states, values, strict=True):
        what = f"{signature.name}: initial_state" + (f" of {name}" if len(names) > 1 else "")
        if value is None:
            out[name] = None
            continue
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            raise ArgumentError(f"{what} must be a floating-point tensor, got {_kind(value)}")
        layout = ("B", "H", *dims)
        expected = [sizes.get(d) for d in layout]
        if value.dim() != len(layout) or any(
            n is not None and n != m for n, m in zip(expected, value.shape, strict=True)
        ):
            raise ArgumentError(f"{what} must be [{', '.join(layout)}] = {expected}, got the shape {list(value.shape)}")
        if value.device != any_tensor.device:
            raise ArgumentError(f"{what} is on {value.device}, but the inputs are on {any_tensor.device}")
        out[name] = value.to(wide)
    return out


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


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
