"""Products of float32 on tensor cores, in Triton's interpreter: import this before kernels run there.

With "tf32x3" an operand is cut, not rounded, to 11 bits, and what that leaves is cut likewise; of the four products the smallest
is left out. The interpreter itself multiplies as in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot = InterpreterBuilder.create_dot


def _cut(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _product(
    self: Any, a: TensorHandle, b: TensorHandle, onto: TensorHandle, precision: Any, *others: Any
) -> TensorHandle:
    if "TF32x3" not in str(precision) or a.dtype.scalar != tl.float32:
        return _dot(self, a, b, onto, precision, *others)
    parts = [(_cut(x.data), _cut(x.data - _cut(x.data))) for x in (a, b)]
    (high, low), (other_high, other_low) = ((x.astype(np.float64), y.astype(np.float64)) for x, y in parts)
    found = low @ other_high + high @ other_low + high @ other_high + onto.data
    return TensorHandle(found.astype(np.float32), onto.dtype.scalar)


InterpreterBuilder.create_dot = _product
