"""Triton's interpreter without what it does again and again: import this before kernels run there.

For each launch, and for each function that a kernel calls, it looks through all of Triton's language for what it replaces; here
it does so once in a process, which runs kernels nowhere else. Types and shapes of blocks, made for each operation, are made once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patched_now, _np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_block_type, _tensor = tl.core.block_type.__init__, tl.core.tensor.__init__


class _Kept:
    """A scope that nothing is restored after."""

    def restore(self) -> None:
        pass


def _patch_lang(function: Callable[..., Any]) -> _Kept:
    _patched_once()
    return _Kept()


@functools.cache
def _patched_once() -> None:
    def both(tl: Any, core: Any) -> None:
        """A function whose module has the language and its core, as one must have to be interpreted."""

    both.__globals__["core"] = tl.core  # beside tl, of this module
    _patched_now(both)
    del both.__globals__["core"]


def _get_np_dtype(x: Any) -> Any:
    if isinstance(x, tl.pointer_type):
        return _np_dtype(x)
    if isinstance(x, tl.block_type):
        return _get_np_dtype(x.element_ty)
    return _np_dtype_named(x)


_np_dtype_named = functools.cache(_np_dtype)


def _init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    self.element_ty = element_ty
    self.shape, self.numel = _block(tuple(x.value if isinstance(x, tl.constexpr) else x for x in shape))
    self.name = f"<{self.shape}, {element_ty}>"


@functools.cache
def _block(shape: tuple[int, ...]) -> tuple[Any, int]:
    """The shape of blocks, and how many entries they have."""
    made = tl.core.block_type.__new__(tl.core.block_type)
    _block_type(made, tl.float32, list(shape))  # of Triton's tuples, not of Python's
    return made.shape, made.numel


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shape(tuple(type.shape)) if type.is_block() else _shape(())


@functools.cache
def _shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The shape and the number of entries of a tensor."""
    made = tl.tensor.__new__(tl.tensor)
    _tensor(made, None, tl.core.block_type(tl.float32, list(shape)) if shape else tl.float32)
    return made.shape, made.numel


interpreter._patch_lang, interpreter._get_np_dtype = _patch_lang, _get_np_dtype
tl.core.block_type.__init__ = _init_block_type
tl.core.tensor.__init__ = _init_tensor
