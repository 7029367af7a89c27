"""Memory in Triton's interpreter as a GPU's that is never mapped: import this before kernels run there.

Each tensor of a launch begins at an address that no other one is near, and what a kernel loads, stores or adds to in memory must
lie in the tensor whose pointer it was made of: an access beside it raises an `OutsideOfTensor`, which names the tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

APART = 40  # each tensor has so many bits of addresses for itself
LAUNCHED: set[str] = set()  # names of kernels
ALIGNED = 4096  # by as many bytes as its address is divided by, up to these, so is the one that it has here


class OutsideOfTensor(IndexError):
    """A kernel's access beside the tensor whose pointer it was made of."""


class _Memory:
    """The tensors of one launch: where they begin here, in the process, and how many bytes there are from first to last."""

    def __init__(self, kernel: str, names: dict[int, str]) -> None:
        self.kernel, self.names = kernel, names
        self.tensors: list[str] = []
        self.begins, self.real, self.sizes = (np.zeros(0, np.uint64) for _ in range(3))

    def enter(self, x: torch.Tensor) -> int:
        """The address of a tensor here."""
        begin = (len(self.tensors) + 1 << APART) + x.data_ptr() % ALIGNED
        steps = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        size = x.element_size() * (1 + steps) if x.numel() else 0
        self.tensors.append(f"{self.names.get(x.data_ptr(), '?')}, {x.dtype} {list(x.shape)} by {list(x.stride())}")
        self.begins = np.append(self.begins, np.uint64(begin))
        self.real = np.append(self.real, np.uint64(x.data_ptr()))
        self.sizes = np.append(self.sizes, np.uint64(size))
        return begin

    def found(self, pointers: np.ndarray, mask: np.ndarray, itemsize: int, what: str) -> np.ndarray:
        """Addresses in the process, of those that are masked in, which all have to lie in their tensors."""
        which = (pointers >> np.uint64(APART)).astype(np.int64) - 1
        known = (which >= 0) & (which < len(self.tensors))
        own = np.where(known, which, 0)
        offsets = pointers - self.begins[own]
        right = known & (offsets < 1 << APART) & (offsets + np.uint64(itemsize) <= self.sizes[own])
        wrong = np.broadcast_to(mask, right.shape) & ~right
        if wrong.any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            raise OutsideOfTensor(self._told(int(pointers[at]), at, int(wrong.sum()), itemsize, what))
        return np.where(right, self.real[own] + offsets, 0).astype(np.uint64)

    def _told(self, pointer: int, at: tuple[int, ...], count: int, itemsize: int, what: str) -> str:
        which = round(pointer / (1 << APART)) - 1
        if not 0 <= which < len(self.tensors):
            return f"{self.kernel} {what} at {pointer}, which lies in no tensor ({count} places, the first at {at})"
        byte = pointer - int(self.begins[which])
        return (
            f"{self.kernel} {what} {itemsize} bytes at byte {byte} of {int(self.sizes[which])} of {self.tensors[which]} "
            f"({count} places of the block, the first at {at})"
        )


_memory = _Memory("", {})
_call, _converted = GridExecutor.__call__, interpreter._implicit_cvt
_load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
_cas, _rmw = InterpreterBuilder.create_atomic_cas, InterpreterBuilder.create_atomic_rmw


def _launched(self: Any, *args: Any, **options: Any) -> None:
    global _memory
    LAUNCHED.add(self.fn.__name__)
    given = dict(zip(self.arg_names, args, strict=False)) | options
    names = {x.data_ptr(): n for n, x in given.items() if isinstance(x, torch.Tensor)}
    before, _memory = _memory, _Memory(self.fn.__name__, names)
    try:
        _call(self, *args, **options)
    finally:
        _memory = before


def _pointer(x: Any) -> Any:
    made = _converted(x)
    if isinstance(x, torch.Tensor):
        made.handle.data[...] = _memory.enter(x)
    return made


def _in_process(pointers: TensorHandle, mask: Any, what: str) -> TensorHandle:
    itemsize = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
    return TensorHandle(_memory.found(pointers.data, mask, itemsize, what), pointers.dtype)


def create_masked_load(self: Any, pointers: TensorHandle, mask: TensorHandle, *rest: Any, **more: Any) -> TensorHandle:
    return _load(self, _in_process(pointers, mask.data, "loads"), mask, *rest, **more)


def create_masked_store(self: Any, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: Any) -> Any:
    return _store(self, _in_process(pointers, mask.data, "stores"), value, mask, *rest)


def create_atomic_cas(self: Any, pointers: TensorHandle, *rest: Any) -> TensorHandle:
    return _cas(self, _in_process(pointers, np.True_, "compares"), *rest)


def create_atomic_rmw(self: Any, op: Any, pointers: TensorHandle, value: Any, mask: TensorHandle, *rest: Any) -> Any:
    return _rmw(self, op, _in_process(pointers, mask.data, "changes"), value, mask, *rest)


for made in (create_masked_load, create_masked_store, create_atomic_cas, create_atomic_rmw):
    setattr(InterpreterBuilder, made.__name__, made)
GridExecutor.__call__, interpreter._implicit_cvt = _launched, _pointer
