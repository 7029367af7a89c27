"""bfloat16 in Triton's interpreter, as a GPU computes it: import this before kernels run there.

The interpreter holds such numbers as integers of 16 bits, and would multiply these; it cuts off what it should round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_cast, _binary, _unary = (getattr(InterpreterBuilder, f"{x}") for x in ("cast_impl", "binary_op", "unary_op"))
_dot, _to = InterpreterBuilder.create_dot, InterpreterBuilder.create_fp_to_fp


def wide(x: np.ndarray) -> np.ndarray:
    """What these 16 bits are, in float32."""
    return (np.asarray(x).astype(np.uint32) << 16).view(np.float32)


def narrow(x: np.ndarray) -> np.ndarray:
    """The 16 bits of what x is rounded to, the even one of two that are as near."""
    single = np.ascontiguousarray(x, dtype=np.float32).reshape(np.shape(x))
    bits = single.view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), 0x7FC0, near).astype(np.uint16)


def _is(x: Any) -> bool:
    return bool(x.dtype.scalar == tl.bfloat16)


def _widened(x: TensorHandle) -> TensorHandle:
    return TensorHandle(wide(x.data), tl.float32) if _is(x) else x


def _narrowed(x: TensorHandle) -> TensorHandle:
    return TensorHandle(narrow(x.data), tl.bfloat16)


def cast_impl(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
    if dst_type.scalar == tl.bfloat16:
        return src if _is(src) else _narrowed(src)
    return _cast(self, _widened(src), dst_type)


def create_fp_to_fp(self: Any, src: TensorHandle, dst_type: Any, rounding_mode: Any) -> TensorHandle:
    if _is(src) or dst_type.scalar == tl.bfloat16:
        return cast_impl(self, src, dst_type)
    return _to(self, src, dst_type, rounding_mode)


def binary_op(self: Any, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., Any]) -> TensorHandle:
    if not _is(lhs):
        return _binary(self, lhs, rhs, op)
    made = op(wide(lhs.data), wide(rhs.data))
    return TensorHandle(made if made.dtype == bool else narrow(made), tl.bfloat16)


def unary_op(self: Any, arg: TensorHandle, op: Callable[..., Any]) -> TensorHandle:
    return _narrowed(_unary(self, _widened(arg), op)) if _is(arg) else _unary(self, arg, op)


def create_dot(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
    return _dot(self, _widened(a), _widened(b), *rest)


def get_bf16(self: Any, value: float) -> TensorHandle:
    return _narrowed(TensorHandle(np.array([value], dtype=np.float32), tl.float32))


for made in (cast_impl, create_fp_to_fp, binary_op, unary_op, create_dot, get_bf16):
    setattr(InterpreterBuilder, made.__name__, made)
