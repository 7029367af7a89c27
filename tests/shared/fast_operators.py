"""Operators between blocks and numbers in Triton's interpreter, straight in NumPy where types and shapes say that this is all
that happens; `fast_interpreter` puts them in the place of Triton's.

Triton goes through some thirty calls for a sum of two blocks. What isn't plain, such as other types, shapes that don't fit or a
sum of 32 bits that overflows, goes its way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

FLOAT, INT, LONG, BOOL = tl.float32, tl.int32, tl.int64, tl.int1
WHOLE, FLOATS = (INT, LONG), (FLOAT, tl.float16, tl.float64)
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide}
ORDER = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal
}  # fmt: skip
LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or}
_block_type = tl.core.block_type
_tensor = tl.core.tensor


def operator(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of tensors that is Triton's own, `plain`, where it isn't one of these."""
    word = name.strip("_")
    if word == "getitem":
        return _getitem(plain)
    turned = word[:1] == "r" and word[1:] in ARITHMETIC
    word = word[1:] if turned else word
    if word in ARITHMETIC:
        made = functools.partial(_arithmetic, ARITHMETIC[word], word == "add", turned)
    elif word in ORDER:
        made = functools.partial(_ordered, ORDER[word])
    elif word in LOGIC:
        made = functools.partial(_logical, LOGIC[word])
    else:
        return plain

    def operation(self: Any, other: Any, *, _semantic: Any = None) -> Any:
        found = made(self, other)
        return plain(self, other) if found is None else found

    return operation


def _arithmetic(op: Any, adds: bool, turned: bool, self: Any, other: Any) -> Any:
    kind = self.dtype
    other = _beside(kind, other)
    if other is None:
        return None
    x, y, beside = self.handle.data, other.handle.data, other.dtype
    if not _fit(self, other) or (op is np.divide and not kind is beside is FLOAT):
        return None
    if kind is beside:
        if kind not in FLOATS and kind not in WHOLE:
            return None
    elif kind in WHOLE and beside in WHOLE:
        kind, x, y = LONG, x.astype(np.int64), y.astype(np.int64)
    elif adds and not turned and beside in WHOLE and kind.is_ptr():
        return _moved(self, other)
    else:
        return None
    if kind is INT:  # which must not overflow
        made = op(y, x, dtype=np.int64) if turned else op(x, y, dtype=np.int64)
        if made.min() < -(2**31) or made.max() >= 2**31:
            return None
        made = made.astype(np.int32)
    else:
        made = op(y, x) if turned else op(x, y)
    return _made(made, kind, kind, self, other)


def _moved(pointers: Any, offsets: Any) -> Any:
    """Pointers, so many entries further on."""
    handle = pointers.handle
    width = max(1, handle.get_element_ty().primitive_bitwidth // 8)
    made = handle.data + width * offsets.handle.data.astype(np.uint64)
    return _made(made, pointers.dtype, handle.dtype, pointers, offsets)


def _ordered(op: Any, self: Any, other: Any) -> Any:
    if type(other) is not _tensor:
        other = _number_alone(type(other), other, str(other)) if type(other) in (int, float) else None
        if other is None:
            return None
    kind, beside = self.dtype, other.dtype
    plain = kind in FLOATS or kind in WHOLE if kind is beside else kind in WHOLE and beside in WHOLE
    if not plain or not _fit(self, other):
        return None
    return _made(op(self.handle.data, other.handle.data), BOOL, kind, self, other)


def _logical(op: Any, self: Any, other: Any) -> Any:
    if type(other) is not _tensor or not self.dtype is other.dtype is BOOL or not _fit(self, other):
        return None
    return _made(op(self.handle.data, other.handle.data), BOOL, BOOL, self, other)


def _beside(kind: Any, other: Any) -> Any:
    """The other operand as a tensor; None where Triton has to look."""
    if type(other) is tl.constexpr:
        other = other.value
    if type(other) is _tensor:
        return other
    if (type(other) is int and kind in WHOLE) or (type(other) in (int, float) and kind in FLOATS):
        return _number(kind, other, str(other))
    return None


@functools.cache
def _number(kind: Any, value: float, written: str) -> Any:
    """A number in the type of what it is beside; zeros differ as they are written."""
    if kind in WHOLE and not kind.get_int_min_value() <= value <= kind.get_int_max_value():
        return None
    return interpreter.interpreter_semantic.scalar_constant(value, kind)


@functools.cache
def _number_alone(python: type, value: float, written: str) -> Any:
    """A number in the type that it has by itself."""
    return interpreter.interpreter_semantic.to_tensor(value)


def _fit(x: Any, y: Any) -> bool:
    """Are they of one shape, or numbers, or are axes of one entry as long as those of the other?"""
    a, b = x.type, y.type
    if isinstance(a, _block_type) and isinstance(b, _block_type):
        return a.shape is b.shape or _joined(x.handle.data.shape, y.handle.data.shape)
    return True


@functools.cache
def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))


def _made(data: np.ndarray, kind: Any, of_handle: Any, x: Any, y: Any) -> Any:
    """The tensor with this data, a block where one of these is a block."""
    if isinstance(x.type, _block_type) or isinstance(y.type, _block_type):
        return _block(data, kind, of_handle)
    return _with(data, kind, of_handle, kind)


def _block(data: np.ndarray, kind: Any, of_handle: Any) -> Any:
    return _with(data, kind, of_handle, _type(kind, data.shape))


def _with(data: np.ndarray, kind: Any, of_handle: Any, of_tensor: Any) -> Any:
    handle = TensorHandle.__new__(TensorHandle)
    handle.data, handle.dtype, handle.attr = data, of_handle, {}
    return _tensor(handle, of_tensor)


_types: dict[tuple[int, tuple[int, ...]], Any] = {}


def _type(kind: Any, shape: tuple[int, ...]) -> Any:
    """The type of blocks of this shape. Kinds are told apart by what they are, not by name."""
    found = _types.get((id(kind), shape))
    if found is None:
        found = _types[id(kind), shape] = _block_type(kind, list(shape))  # which keeps the kind, and so its id
    return found


def _getitem(plain: Callable[..., Any]) -> Callable[..., Any]:
    """New axes, as in x[:, None]."""

    def operation(self: Any, slices: Any, *, _semantic: Any = None) -> Any:
        if type(slices) is tuple and isinstance(self.type, _block_type) and all(map(_is_whole, slices)):
            return _block(self.handle.data[slices], self.dtype, self.handle.dtype)
        return plain(self, slices)

    return operation


def _is_whole(x: Any) -> bool:
    """Is it a new axis, or all of one?"""
    return x is None or (type(x) is slice and x.start is None and x.stop is None and x.step is None)
