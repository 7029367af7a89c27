"""What generated programs of ops share: gradients that several readers add to, what passes keep, and the check of solves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, ConditionError

from ..op.arguments import check_flag
from ..op.results import result_type


class Sums:
    """Gradients by quantity. Parts are added up in float32 at least, and rounded once."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}
        self.starts: dict[str, list[Tensor]] = {}

    def add(self, name: str, x: Tensor | None) -> None:
        if x is not None:
            self.parts.setdefault(name, []).append(x)

    def add_all(self, inner: dict[str, Tensor], names: dict[str, str]) -> None:
        """An op's gradients, by its own names; `names` says what they are called here."""
        for own, name in names.items():
            self.add(name, inner.get(own))

    def start(self, name: str, x: Tensor | None) -> None:
        """The gradient of an initial state."""
        if x is not None:
            self.starts.setdefault(name, []).append(x)

    def get(self, name: str, like: Tensor | None = None) -> Tensor | None:
        """The sum so far, in the dtype of `like`."""
        if name not in self.parts:
            return None
        x = _total(self.parts[name])
        return x if like is None else x.to(like.dtype)

    def take(self, name: str, like: Tensor | None = None) -> Tensor | None:
        """The whole sum, which nobody needs after this."""
        x = self.get(name, like)
        self.parts.pop(name, None)
        return x

    def gradients(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums for the arguments, typed like these."""
        return {n: _total(self.parts[n], x.dtype) for n, x in given.items() if n in self.parts}

    @property
    def initial(self) -> dict[str, Tensor]:
        return {n: _total(x) for n, x in self.starts.items()}


def _total(parts: list[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """The sum, in a dtype if there is one. Torch adds tensors of 16 bits in float32, and rounds once; so it does into `out`."""
    if len(parts) == 1:
        return parts[0] if dtype is None else parts[0].to(dtype)
    kinds = {x.dtype for x in parts}
    wide = (
        parts[0].dtype
        if len(parts) == 2 and len(kinds) == 1
        else functools.reduce(torch.promote_types, kinds, torch.float32)
    )
    *others, last = parts
    total = others[0].to(wide)
    for x in others[1:]:
        total = total + x
    return torch.add(total, last, out=total.new_empty(total.shape, dtype=dtype or wide))


class Again(dict):
    """What an op's forward pass keeps, made when it is first asked for: few backward passes need any of it."""

    def __init__(self, forward: Callable[[], tuple[Any, Any, dict[str, Tensor]]]) -> None:
        super().__init__()
        self.forward = forward

    def __missing__(self, name: str) -> Tensor:
        if not self:
            self.update(self.forward()[2])
        if name not in self:
            raise KeyError(name)
        return self[name]


def kept(node: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """What an op keeps for its backward pass, under names of its node."""
    return {f"{node}: {n}": x for n, x in saved.items()}


def part(node: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `kept` kept."""
    return {n.removeprefix(f"{node}: "): x for n, x in saved.items() if n.startswith(f"{node}: ")}


def wanted(needs: frozenset[str], names: dict[str, str], arguments: tuple[str, ...]) -> frozenset[str]:
    """The op's own names of what needs a gradient: what is asked for, and what other ops made."""
    return frozenset(own for own, name in names.items() if name in needs or name not in arguments)


def zeros_where_none(x: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if x is None else x


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def whole_sequence(name: str, attention: str, initial_state: object, output_final_state: bool) -> None:
    """Refuse to begin or to end in the middle of a sequence, whose keys no state holds."""
    for what, given in (("initial_state", initial_state is not None), ("output_final_state", output_final_state)):
        if given:
            raise ArgumentError(
                f"{name}: {what} can't be given, since its attention {attention} sees all keys of a sequence, and a state "
                "holds none: give the whole sequence"
            )


def inverted(x: Tensor | None) -> Tensor | None:
    """The inverse of a state."""
    return None if x is None else torch.linalg.inv(x)


def through_inverse(inverse: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient of H, from that of its inverse P: -P^T dP P^T; and as well the other way round."""
    return None if gradient is None else -(inverse.mT @ gradient.to(inverse.dtype) @ inverse.mT)


def checked_solves(name: str, residuals: dict[str, Tensor], limit: float, why: dict[str, str]) -> None:
    """Raise where the residual of a solve is above `limit`. It waits for the device.

    Raises:
        ConditionError: names the solve, the batch entry, step and head where the residual is largest, and what to do.
        ArgumentError: `limit` is no number that a residual may be above.
    """
    if isinstance(limit, bool) or not isinstance(limit, Real) or not limit >= 0:
        raise ArgumentError(f"{name}: check must be a number, 0 or more, or None, got {limit!r}")
    for solve, residual in residuals.items():
        if not residual.numel():
            continue
        worst = residual.nan_to_num(nan=float("inf")).flatten()
        at = int(worst.argmax())
        value = float(worst[at])
        if value > limit:
            t, h = residual.shape[1:]
            raise ConditionError(
                f"{name}: the solve {solve} didn't converge: its residual |b - H x| / |b| is {value:.1e} at batch entry "
                f"{at // (t * h)}, step {at // h % t}, head {at % h}, and should be below {limit:.0e}. {why[solve]}"
            )


def results(found: Any, count: int, output_residual: bool) -> Any:
    """An op's results as a program hands them on: the residuals, without gradients, only when asked for."""
    if not isinstance(output_residual, bool):
        check_flag(type(found).__name__.removesuffix("_result"), "output_residual", output_residual)
    outputs, residuals, last = found[:count], found[count:-1], found[-1]
    shown = tuple(x.detach() for x in residuals) if output_residual else ()
    if not residuals or output_residual:
        return type(found)(*outputs, *shown, last)
    names = type(found)._fields
    return result_type(type(found).__name__.removesuffix("_result"), (*names[:count], "final_state"))(*outputs, last)
