"""What an op is called with: shapes, types, devices and values, checked with one clear error each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .signature import Argument, Signature

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Sizes = dict[str, int]


def checked(signature: Signature, given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, float], Sizes]:
    """Tensors in the types that the op computes with, the constants, and the size of each dim, B, T and H.

    H is the largest number of heads; an argument may have fewer, where H is a multiple of them.
    """
    tensors: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    sizes: dict[str, tuple[int, str]] = {}
    heads: dict[str, int] = {}
    first: Tensor | None = None
    for a in signature.arguments:
        value = given[a.name]
        if a.kind == "constant":
            constants[a.name] = _constant(f"{signature.name}: {a.key}", a, value)
            continue
        _check_tensor(signature, a, value)
        for dim, n in zip(a.layout, value.shape, strict=True):
            if dim == "H":
                heads[a.key] = n
                continue
            known = sizes.setdefault(dim, (n, a.key))
            if known[0] != n:
                raise ArgumentError(
                    f"{signature.name}: {a.key} has {dim} = {n}, but {known[1]} has {dim} = {known[0]}; {a.key} must be "
                    f"[{', '.join(a.layout)}], got {list(value.shape)}"
                )
            if n == 0 and dim not in ("B", "T"):
                raise ArgumentError(f"{signature.name}: {a.key} has {dim} = 0; widths must be at least 1")
        if first is None:
            first = value
        elif value.device != first.device:
            key = next(iter(heads))
            raise ArgumentError(f"{signature.name}: {a.key} is on {value.device}, but {key} is on {first.device}")
        tensors[a.name] = value
    found = {dim: n for dim, (n, _) in sizes.items()} | {"H": _heads(signature, heads)}
    return _same_type(signature, tensors), constants, found


def _check_tensor(signature: Signature, a: Argument, value: Any) -> None:
    what, shape = f"{signature.name}: {a.key}", f"[{', '.join(a.layout)}]"
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{what} must be a tensor {shape}, got {type(value).__name__}")
    if value.dtype not in FLOATS:
        raise ArgumentError(
            f"{what} must be float32, bfloat16, float16 or float64, got {str(value.dtype).removeprefix('torch.')}"
        )
    if value.dim() != len(a.layout):
        raise ArgumentError(f"{what} must have {len(a.layout)} axes {shape}, got the shape {list(value.shape)}")


def _heads(signature: Signature, heads: dict[str, int]) -> int:
    most = max(heads, key=lambda key: heads[key])
    for key, n in heads.items():
        if n != heads[most] and (n == 0 or heads[most] % n):
            raise ArgumentError(
                f"{signature.name}: {key} has H = {n}, but {most} has H = {heads[most]}, which isn't a multiple of it"
            )
    return heads[most]


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


def checked_states(
    signature: Signature, initial: Any, tensors: dict[str, Tensor], sizes: Sizes, sequences: int | None
) -> dict[str, Tensor | None]:
    """The initial states in float32 (float64 where an input is); `sequences` are packed, or None."""
    names = [n for n, _ in signature.states]
    if initial is None:
        return dict.fromkeys(names)
    values = initial if isinstance(initial, tuple | list) else (initial,)
    if len(values) != len(names):
        raise ArgumentError(
            f"{signature.name}: initial_state must hold {len(names)} states ({', '.join(names)}), got {len(values)}"
        )
    any_tensor = next(iter(tensors.values()))
    wide = torch.float64 if any_tensor.dtype == torch.float64 else torch.float32
    known = sizes if sequences is None else sizes | {"N": sequences}
    out: dict[str, Tensor | None] = {}
    for (name, dims), value in zip(signature.states, values, strict=True):
        what = f"{signature.name}: initial_state" + (f" of {name}" if len(names) > 1 else "")
        if value is None:
            out[name] = None
            continue
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            raise ArgumentError(f"{what} must be a floating-point tensor, got {_kind(value)}")
        layout = ("B" if sequences is None else "N", "H", *dims)
        expected = [known.get(d) for d in layout]
        if value.dim() != len(layout) or any(
            n is not None and n != m for n, m in zip(expected, value.shape, strict=True)
        ):
            raise ArgumentError(f"{what} must be [{', '.join(layout)}] = {expected}, got the shape {list(value.shape)}")
        if value.device != any_tensor.device:
            raise ArgumentError(f"{what} is on {value.device}, but the inputs are on {any_tensor.device}")
        out[name] = value.to(wide)
    return out


def one_of(name: str, key: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse an option that isn't one of `allowed`."""
    if value not in allowed:
        raise ArgumentError(f"{name}: {key} must be {' or '.join(map(repr, allowed))}, got {value!r}")


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
