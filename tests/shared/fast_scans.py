"""Scans and reductions of Triton's interpreter by functions of our own, an axis at a time; `fast_interpreter` imports this.

Triton calls the function for each entry of a block. What it combines are whole slices here, one after the other as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import ReduceOps, ScanOps


def generic_scan(self: Any, input: Any) -> list[Any]:
    given = [np.moveaxis(x.handle.data, self.axis, 0) for x in input]
    if given[0].ndim == 1:
        return list(_scan(self, input))
    found = [np.empty_like(x) for x in given]
    so_far = None
    for n in range(len(given[0])):
        so_far = _combined(self, input, so_far, [x[n] for x in given])
        for whole, x in zip(found, so_far, strict=True):
            whole[n] = x.handle.data
    return [self.to_tensor(np.moveaxis(x, 0, self.axis), y.dtype) for x, y in zip(found, input, strict=True)]


def generic_reduce(self: Any, input: Any) -> list[Any]:
    if self.axis is None or input[0].handle.data.ndim == 1:
        return list(_reduce(self, input))
    given = [np.moveaxis(x.handle.data, self.axis, 0) for x in input]
    so_far = None
    for n in range(len(given[0])):
        so_far = _combined(self, input, so_far, [x[n] for x in given])
    assert so_far is not None
    data = [np.broadcast_to(x.handle.data, y[0].shape) for x, y in zip(so_far, given, strict=True)]
    if self.keep_dims:
        data = [np.expand_dims(x, self.axis) for x in data]
    return [self.to_tensor(x, y.dtype) for x, y in zip(data, input, strict=True)]


def _combined(self: Any, input: Any, so_far: Any, slices: list[np.ndarray]) -> tuple[Any, ...]:
    """What was combined so far, with the next slice of each input."""
    own = tuple(self.to_tensor(x, y.dtype) for x, y in zip(slices, input, strict=True))
    if so_far is None:
        return own
    made = self.combine_fn.fn(*so_far, *own)
    return tuple(made) if isinstance(made, tuple) else (made,)


_scan, _reduce = ScanOps.generic_scan, ReduceOps.generic_reduce
ScanOps.generic_scan, ReduceOps.generic_reduce = generic_scan, generic_reduce
