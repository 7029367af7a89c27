"""How far a result is from its reference: relative errors of each head for itself, as one head's can hide behind another's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..ir.step_program import StepProgram

# Where a problem is ill-conditioned, so many times the error that rounding makes of its definition is allowed as well.
AMPLIFIED = 4.0


def relative_error(
    value: Tensor, reference: Tensor, apart: int | tuple[int, ...] | None, dtype: torch.dtype | None = None
) -> float:
    """The largest of `errors_apart`, and NaN where any of them is; 0 where there are none."""
    errors = errors_apart(value, reference, () if apart is None else apart, dtype)
    if not errors.numel():
        return 0.0
    return float("nan") if bool(errors.isnan().any()) else float(errors.max())


def errors_apart(
    value: Tensor, reference: Tensor, apart: int | tuple[int, ...], dtype: torch.dtype | None = None
) -> Tensor:
    """||value - reference|| / ||reference|| in float64, of each part for itself.

    `apart` is the axis of the heads; or axes, as of heads and channels. Norms are over all others.

    - A part whose reference is smaller than the smallest normal number of `dtype` (the value's own where None) in each entry
      counts as if it were that large: below it a number has fewer digits, or becomes zero.
    - A part whose reference is zero has no size of its own: its error counts beside the largest part. Where all of them are
      zero, the error is the plain norm.
    - A result of another shape is infinitely far.
    - Entries for which the reference has no finite value (a division by zero) don't count.
    """
    axes = (apart,) if isinstance(apart, int) else apart
    if value.shape != reference.shape:
        return torch.tensor([torch.inf])
    smallest = torch.finfo(dtype or value.dtype).tiny
    value, reference = value.detach().to(torch.float64), reference.detach().to(torch.float64)
    defined = reference.isfinite()
    value, reference = torch.where(defined, value, 0.0), torch.where(defined, reference, 0.0)
    front = tuple(range(len(axes)))
    shape = [reference.shape[a] for a in axes]
    difference, size = (
        x.movedim(axes, front).reshape(*shape, -1).norm(dim=-1) if x.numel() else x.new_zeros(shape)
        for x in (value - reference, reference)
    )
    entries = reference.numel() / max(1, size.numel())
    largest = size.max() if size.numel() else size.new_zeros(())
    others = torch.where(largest > 0, largest, 1.0)
    return difference / torch.where(size > 0, size.clamp(min=smallest * entries**0.5), others)


@dataclass(frozen=True)
class Judged:
    """The head of a quantity that is worst beside what is allowed to it."""

    head: int
    error: float
    bound: float
    rounding: float | None = None  # what rounding makes of the definition; taken where `bound` isn't met

    @property
    def allowed(self) -> float:
        """The bound, or what the problem's own conditioning makes of rounding."""
        known = self.rounding is not None and math.isfinite(self.rounding)
        return max(self.bound, AMPLIFIED * self.rounding) if known else self.bound  # type: ignore[operator]

    @property
    def overflows(self) -> bool:
        """Has the definition itself no value where it is rounded?"""
        return self.rounding is not None and not math.isfinite(self.rounding)

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed  # NaN fails

    @property
    def badness(self) -> tuple[bool, float]:
        ratio = self.error / self.allowed if self.allowed else math.inf
        return not self.ok, math.inf if math.isnan(ratio) else ratio


def judge(
    value: Tensor,
    reference: Tensor,
    heads: int,
    bound: float,
    rounded: Callable[[], Iterable[Tensor]] = tuple,
    dtype: torch.dtype | None = None,
) -> Judged:
    """The worst head of a quantity. Where one misses the bound, AMPLIFIED times the error of that head in any of `rounded` is
    allowed to it as well: these are what rounding makes of the definition."""
    errors = errors_apart(value, reference, heads, dtype).tolist()
    rows = [Judged(h, e, bound) for h, e in enumerate(errors)]
    if not all(r.ok for r in rows):
        others = [errors_apart(x, reference, heads, dtype or value.dtype) for x in rounded()]
        if others:
            amplified = torch.stack(others).amax(0).tolist()
            rows = [replace(r, rounding=amplified[r.head]) for r in rows]
    return max(rows, key=lambda r: r.badness, default=Judged(0, 0.0, bound))


def head_axis(program: StepProgram, quantity: str) -> int:
    """The axis of the heads in a quantity of a recurrence's or a program's op: an output, `final S`, `dq`, `d initial S`."""
    if quantity in program.outputs:
        return 2
    if quantity.startswith(("final ", "d initial ")):
        return 1
    names = {f"d{'log_' if v.is_decay else ''}{v.name}": v for v in program.variables}
    names |= {f"d{v.name}": v for v in program.variables if f"d{v.name}" not in names}  # as the oracle has them
    return 2 if names[quantity].per_step else 0
