"""What `chunkform check` says of one quantity of an op, and in which dtypes it calls on which device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

Op = Callable[..., Any]  # one that is checked: it gives a tensor or several
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}


@dataclass(frozen=True)
class Checked:
    """The worst relative error of one quantity of an op over all calls in one dtype.

    `allowed` is the bound, or more where the problem itself is ill-conditioned: then rounding its inputs alone changes the
    result by more than the bound. Of a call that failed, `cause` says what failures have in common, and `python` makes the
    smallest one again. `raised`: the quantity is the call itself, which ended so.
    """

    name: str
    quantity: str
    dtype: str
    device: str
    error: float
    bound: float
    allowed: float
    ok: bool
    head: int = 0
    call: Mapping[str, Any] | None = None
    raised: str = ""
    cause: str = ""
    python: str = ""

    def json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return {n: None if isinstance(x, float) and not math.isfinite(x) else x for n, x in data.items()}

    @property
    def badness(self) -> tuple[bool, float]:
        ratio = self.error / self.allowed if self.allowed else math.inf
        return not self.ok, math.inf if math.isnan(ratio) else ratio
