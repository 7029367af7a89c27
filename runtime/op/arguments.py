"""What an op is called with: shapes, types, devices and values, checked with one clear error each."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .signature import Argument, Arguments, Signature

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
POSITIONS = ("B", "T", "S")  # dims of which there may be nothing
Sizes = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Checked:
    """What an op knows of a call whose arguments fit.

    casts: the dtype that each argument and state is cast to, None where it stays. sizes: of each dim, and B, T and H; H is the
    largest number of heads: an argument may have fewer, where H is a multiple of them.
    """

    casts: tuple[torch.dtype | None, ...]
    constants: dict[str, float]
    sizes: Sizes
    backend: str


def check_call(
    signature: Signature, tensors: Sequence[Tensor | None], given: Mapping[str, object], sequences: int | None
) -> Checked:
    """Shapes, types and devices of arguments and states, in order; `sequences` is the number of packed ones, or None.

    Raises:
        ArgumentError: one doesn't fit; the message names it.
    """
    constants = constants_of(signature, given)
    own, states = tensors[: len(signature.tensors)], tensors[len(signature.tensors) :]
    sizes = check_tensors(signature, zip(signature.tensors, signature.layouts, own, strict=True))
    first: Any = own[0]
    kinds = dtypes_of(list(zip(signature.tensors, own, strict=True)))
    wide = torch.float64 if torch.float64 in kinds else torch.float32
    check_states(signature, states, sizes if sequences is None else sizes | {"N": sequences}, sequences, first)
    kinds += [wide for _ in states]
    casts = tuple(None if x is None or x.dtype == kind else kind for x, kind in zip(tensors, kinds, strict=True))
    return Checked(casts, constants, sizes, "")


def constants_of(s: Arguments, given: Mapping[str, object]) -> dict[str, float]:
    """The numbers among the arguments of an op of any kind."""
    return {a.name: _constant(f"{s.name}: {a.key}", a, given[a.name]) for a in s.constants}


def check_tensors(s: Arguments, given: Iterable[tuple[Argument, tuple[str, ...], object]]) -> Sizes:
    """The size of each dim, of arguments with their layouts and values, whose shapes, types and devices fit each other."""
    sizes: dict[str, tuple[Any, str]] = {}
    heads: dict[str, Any] = {}
    first: tuple[str, Tensor] | None = None
    for a, layout, one in given:
        value = _check_tensor(s.name, a.key, layout, one)
        shape = f"{a.key} must be [{', '.join(layout)}], got {list(value.shape)}"
        for dim, n in zip(layout, value.shape, strict=True):
            if dim == "H":
                heads[a.key] = n
                continue
            known = sizes.setdefault(dim, (n, a.key))
            if known[0] != n:
                raise ArgumentError(
                    f"{s.name}: {a.key} has {dim} = {n}, but {known[1]} has {dim} = {known[0]}; {shape}"
                )
            if n == 0 and dim not in POSITIONS:
                raise ArgumentError(f"{s.name}: {a.key} has {dim} = 0; widths must be at least 1")
            if dim in s.even and n % 2:
                raise ArgumentError(
                    f"{s.name}: {a.key} has {dim} = {n}, but must have an even {dim}, whose halves are turned; {shape}"
                )
        first = first or (a.key, value)
        if value.device != first[1].device:
            raise ArgumentError(f"{s.name}: {a.key} is on {value.device}, but {first[0]} is on {first[1].device}")
    return {dim: n for dim, (n, _) in sizes.items()} | {"H": _heads(s.name, heads)}


def checked(
    signature: Signature, given: Mapping[str, Tensor | float]
) -> tuple[dict[str, Tensor], dict[str, float], Sizes]:
    """Arguments by name, in the types that the op computes with; the constants; and sizes as in `Checked`."""
    tensors: list[Tensor] = [given[a.name] for a in signature.tensors]
    found = check_call(signature, [*tensors, *(None for _ in signature.states)], given, None)
    cast = {
        a.name: x if kind is None else x.to(kind)
        for a, x, kind in zip(signature.tensors, tensors, found.casts, strict=False)
    }
    return cast, found.constants, found.sizes


def checked_states(
    signature: Signature, initial: object, tensors: dict[str, Tensor], sizes: Sizes, sequences: int | None
) -> dict[str, Tensor | None]:
    """The initial states by name, in float32 (float64 where an argument is); `sequences` are packed, or None."""
    states = states_of(signature, initial)
    some = next(iter(tensors.values()))
    check_states(signature, states, sizes if sequences is None else sizes | {"N": sequences}, sequences, some)
    wide = torch.float64 if some.dtype == torch.float64 else torch.float32
    return {n: None if x is None else x.to(wide) for (n, _), x in zip(signature.states, states, strict=True)}


def _check_tensor(name: str, key: str, layout: tuple[str, ...], value: object) -> Tensor:
    """The value, which is a tensor of as many axes, of a dtype that ops compute with."""
    what, shape = f"{name}: {key}", f"[{', '.join(layout)}]"
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{what} must be a tensor {shape}, got {type(value).__name__}")
    if value.dtype not in FLOATS:
        raise ArgumentError(
            f"{what} must be float32, bfloat16, float16 or float64, got {str(value.dtype).removeprefix('torch.')}"
        )
    check_dense(what, value)
    if value.dim() != len(layout):
        raise ArgumentError(f"{what} must have {len(layout)} axes {shape}, got the shape {list(value.shape)}")
    return value


def check_dense(what: str, x: Tensor) -> None:
    """Refuse a tensor whose entries don't lie in memory by strides."""
    if x.layout != torch.strided or x.is_nested:
        raise ArgumentError(
            f"{what} must be a dense tensor, got {'a nested one' if x.is_nested else f'the layout {x.layout}'}"
        )


def _heads(name: str, heads: dict[str, int]) -> int:
    """The most that an argument has; others may have fewer, of which they are a multiple."""
    most = next(iter(heads))
    for key, n in heads.items():
        if n > heads[most]:
            most = key
    for key, n in heads.items():
        if n != heads[most] and (n == 0 or heads[most] % n):
            raise ArgumentError(
                f"{name}: {key} has H = {n}, but {most} has H = {heads[most]}, which isn't a multiple of it"
            )
    return heads[most]


def _constant(what: str, a: Argument, value: object) -> float:
    if value is None:
        value = a.default
    if isinstance(value, bool) or not isinstance(value, Real) or not -math.inf < float(value) < math.inf:
        raise ArgumentError(f"{what} must be a finite number, got {value!r}")
    number, (low, high) = float(value), a.domain or (None, None)
    if (low is not None and number < low) or (high is not None and number > high):
        told = (
            f"at least {low:g}"
            if high is None
            else f"at most {high:g}"
            if low is None
            else f"between {low:g} and {high:g}"
        )
        raise ArgumentError(f"{what} must be {told}, as the spec says, got {value!r}")
    return number


def dtypes_of(given: Sequence[tuple[Argument, Tensor]]) -> list[torch.dtype]:
    """Inputs in their common dtype, or autocast's; log decays and parameters in float32 (float64 where an argument is).

    An input of one number a step and head may be wider than the others, and stays so.
    """
    inputs = [x.dtype for a, x in given if a.is_input and a.dims]
    inputs = inputs or [x.dtype for a, x in given if a.is_input]
    common = functools.reduce(torch.promote_types, inputs) if inputs else torch.float32
    if any(x.dtype == torch.float64 for _, x in given):
        common = torch.float64
    else:
        common = autocast_dtype(given[0][1].device.type) or common
    wide = torch.float64 if common == torch.float64 else torch.float32
    return [wide if not a.is_input else common if a.dims else torch.promote_types(x.dtype, common) for a, x in given]


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast casts the operands of products to, where it is on."""
    if device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside, products are computed in the dtype of their operands. (Arguments were cast when the op was called.)"""
    if autocast_dtype(device.type) is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def states_of(signature: Signature, initial: object) -> list[Tensor | None]:
    """The initial states in order, None where the spec's own is meant."""
    if initial is None:
        return [None] * len(signature.states)
    values = list(initial) if isinstance(initial, tuple | list) else [initial]
    if len(values) != len(signature.states):
        names = ", ".join(n for n, _ in signature.states)
        raise ArgumentError(
            f"{signature.name}: initial_state must hold {len(signature.states)} states ({names}), got {len(values)}"
        )
    return values


def check_states(
    signature: Signature,
    states: Sequence[Tensor | None],
    sizes: Sizes,
    sequences: int | None,
    like: Tensor,
    called: str = "initial_state",
    first: str = "",
) -> None:
    """Shapes, types and devices of states; nothing is made of them. called, first: what they and their first axis are named."""
    for (name, dims), value in zip(signature.states, states, strict=True):
        if value is None:
            continue
        what = f"{signature.name}: {called}" + (f" of {name}" if len(states) > 1 else "")
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            raise ArgumentError(f"{what} must be in float32, bfloat16, float16 or float64, got {_kind(value)}")
        check_dense(what, value)
        layout = (first or ("B" if sequences is None else "N"), "H", *dims)
        expected = [sizes.get(d) for d in layout]
        if value.dim() != len(layout) or any(
            n is not None and n != m for n, m in zip(expected, value.shape, strict=True)
        ):
            raise ArgumentError(f"{what} must be [{', '.join(layout)}] = {expected}, got the shape {list(value.shape)}")
        if value.device != like.device:
            raise ArgumentError(f"{what} is on {value.device}, but the inputs are on {like.device}")


def one_of(name: str, key: str, value: object, allowed: tuple[str, ...], other: str = "") -> None:
    """Refuse an option that isn't one of `allowed`; `other` is what else the caller takes."""
    if not isinstance(value, str) or value not in allowed:
        *most, last = [*map(repr, allowed), *([other] if other else [])]
        raise ArgumentError(f"{name}: {key} must be {', '.join(most)} or {last}, got {value!r}")


def check_bool(name: str, key: str, value: object) -> None:
    """Refuse what isn't True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}: {key} must be True or False, got {value!r}")


def check_deterministic(name: str, value: object) -> None:
    """Refuse what isn't True or False, of an op whose steps may replay chunks."""
    if not isinstance(value, bool):
        raise ArgumentError(
            f'{name}: deterministic must be True or False, got {value!r}; "chunk" is for decoding steps'
        )


def check_flag(name: str, key: str, value: object) -> None:
    """Refuse what is neither true nor false; None, which other libraries hand on, is false, and 0 and 1 are numbers for these."""
    if value is not None and not (isinstance(value, Real) and value in (0, 1)):
        raise ArgumentError(f"{name}: {key} must be True or False, got {value!r}")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
