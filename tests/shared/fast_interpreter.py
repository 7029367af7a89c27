"""Triton's interpreter without what it does again and again: import this before kernels run there.

For each launch, and for each function that a kernel calls, it looks through all of Triton's language for what it replaces; here
it does so once in a process, which runs kernels nowhere else. Types and shapes of blocks, made for each operation, are made once,
operands that already have one type and one shape aren't compared word by word, and each file of kernels is parsed once.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from . import fast_scans  # noqa: F401
from .fast_operators import operator
from .fast_source import functions

_patched_now, _np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_block_type, _tensor, _equal_now = tl.core.block_type.__init__, tl.core.tensor.__init__, tl.core.dtype.__eq__
_cast_now, _broadcast_now = TritonSemantic.cast, TritonSemantic.broadcast_impl_value
_operands_now = TritonSemantic.binary_op_type_checking_impl
_no_overflow_now = TritonSemantic.binary_op_sanitize_overflow_impl


ALONE = (tl.float32, tl.int32, tl.int64, tl.int1)  # two of one of these types are computed in it
WHOLE = (tl.int32, tl.int64)


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
    sizes = tuple(x.value if isinstance(x, tl.constexpr) else x for x in shape)
    self.element_ty = element_ty
    self.shape, self.numel, self.of_tensors, self.name = _block(sizes, element_ty.name)


@functools.cache
def _block(shape: tuple[int, ...], element: str) -> tuple[Any, int, tuple[Any, Any], str]:
    """The shape of blocks, how many entries they have, the same of their tensors, and the name."""
    plain = _plain(shape)
    return plain.shape, plain.numel, _shape(shape), f"<{plain.shape}, {element}>"


@functools.cache
def _plain(shape: tuple[int, ...]) -> Any:
    """A block as Triton makes it. All of one shape share the object for it, which is one of Triton's tuples, not of Python's."""
    made = tl.core.block_type.__new__(tl.core.block_type)
    _block_type(made, tl.float32, list(shape))
    return made


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensors if type.is_block() else _shape(())


@functools.cache
def _shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The shape and the number of entries of a tensor."""
    made = tl.tensor.__new__(tl.tensor)
    _tensor(made, None, _plain(shape) if shape else tl.float32)
    return made.shape, made.numel


def _with_element_ty(self: Any, scalar_ty: Any) -> Any:
    return self if scalar_ty is self.element_ty else tl.core.block_type(scalar_ty, self.shape)


def _equal(self: Any, other: Any) -> bool:
    if self is other:
        return True
    return self.name == other.name if isinstance(other, tl.dtype) else _equal_now(self, other)


def _cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
    kind = dst_ty.scalar
    if input.dtype is kind:
        return input
    if input.dtype is tl.int32 and kind is tl.int64:  # most of all casts, of places in memory
        made = interpreter.TensorHandle(input.handle.data.astype(np.int64), kind)
        return self.tensor(made, input.type.with_element_ty(kind) if input.type.is_block() else kind)
    return _cast_now(self, input, dst_ty, fp_downcast_rounding)


def _broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Both in one shape: that of blocks is looked up, and those that have it stay what they are."""
    a, b = lhs.type, rhs.type
    left, right = a.is_block(), b.is_block()
    if not (left and right):
        return _broadcast_now(self, lhs, rhs) if left or right else (lhs, rhs)
    if a.shape is b.shape:
        return lhs, rhs
    joint = _joint(tuple(a.shape.values), tuple(b.shape.values))
    if joint is None:
        return _broadcast_now(self, lhs, rhs)
    return tuple(
        x
        if x.type.shape is joint
        else self.tensor(self.builder.create_broadcast(x.handle, joint), tl.core.block_type(x.dtype, joint))
        for x in (lhs, rhs)
    )


@functools.cache
def _joint(a: tuple[int, ...], b: tuple[int, ...]) -> Any | None:
    """The shape of both, or None where their axes have to be looked at."""
    if len(a) != len(b) or any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        return None
    return _plain(tuple(map(max, a, b))).shape


def _operands(
    self: Any,
    lhs: Any,
    rhs: Any,
    left_ptr: bool = False,
    right_ptr: bool = False,
    check: bool = True,
    div: bool = False,
) -> tuple[Any, Any]:
    """Operands of one type have it; what a number is beside a type is looked up."""
    left, right = isinstance(lhs, tl.tensor), isinstance(rhs, tl.tensor)
    if left and right:
        if lhs.dtype is rhs.dtype and lhs.dtype in ALONE:
            return _broadcast(self, lhs, rhs)
        if lhs.dtype in WHOLE and rhs.dtype in WHOLE and check:
            return _broadcast(self, _cast(self, lhs, tl.int64), _cast(self, rhs, tl.int64))
        if lhs.dtype.is_ptr() and left_ptr and rhs.dtype.is_int():
            return _broadcast(self, lhs, rhs)
    elif check and left and type(rhs) in (int, float) and not lhs.dtype.is_ptr():
        kind, number = _number(self, lhs.dtype, rhs, str(rhs), False, div)
        return _broadcast(self, _cast(self, lhs, kind), number)
    elif check and right and type(lhs) in (int, float) and not rhs.dtype.is_ptr():
        kind, number = _number(self, rhs.dtype, lhs, str(lhs), True, div)
        return _broadcast(self, number, _cast(self, rhs, kind))
    return _operands_now(self, lhs, rhs, left_ptr, right_ptr, check, div)


@functools.cache
def _number(semantic: Any, dtype: Any, value: float, written: str, left: bool, div: bool) -> tuple[Any, Any]:
    """(the type that both are computed in, the number in it), beside a tensor of `dtype`; zeros differ as they are written."""
    other = semantic.scalar_constant(0, dtype)
    x, y = (value, other) if left else (other, value)
    x, y = _operands_now(semantic, x, y, False, False, True, div)
    return (y.dtype, x) if left else (x.dtype, y)


def _no_overflow(self: Any, lhs: Any, rhs: Any, binary_op: Callable[..., Any]) -> None:
    """That no sum or product of 32 bits overflows, as Triton's own check says in ten operations."""
    if lhs.dtype is not tl.int32:
        _no_overflow_now(self, lhs, rhs, binary_op)
        return
    made = _IN_NUMPY[binary_op.__name__](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    if not (made.min() >= -(2**31) and made.max() < 2**31):
        _no_overflow_now(self, lhs, rhs, binary_op)


_IN_NUMPY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Operations of the language as the interpreter's, without the look at who calls them."""
    plain, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def operation(*args: Any, _semantic: Any = None, **more: Any) -> Any:
        return plain(*args, _semantic=semantic, **more)

    scope.set_attr(obj, name, operator(name, operation) if obj is tl.core.tensor else operation)


def _rewrite_ast(self: Any) -> Any:
    """The function as the interpreter runs it, found in its file, which is parsed once: Triton looks for the end of each one
    word by word, and twice."""
    code = self.fn.__code__
    try:
        found = functions(code.co_filename, os.stat(code.co_filename).st_mtime_ns)
        node = found[code.co_name, code.co_firstlineno]
    except (OSError, KeyError, SyntaxError):
        return _rewritten_now(self)
    self.filename = code.co_filename
    body = [ast.FunctionDef(**vars(node) | {"body": [_assigned(x) for x in node.body], "decorator_list": []})]
    return self._compile_and_exec(ast.Module(body, []))


def _assigned(x: Any) -> Any:
    """A statement whose assignments make tensors, as the interpreter's: a copy where it holds any."""
    if isinstance(x, ast.Assign):
        if len(x.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        place = {n: getattr(x.value, n) for n in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
        name = ast.Name("interpreter_semantic", ast.Load(), **place)
        call = ast.Attribute(name, "to_tensor", ast.Load(), **place)
        value = ast.Call(call, [x.value, ast.Constant(False, **place)], [], **place)
        return ast.Assign(**vars(x) | {"value": value})
    inner = {n: [_assigned(y) for y in getattr(x, n)] for n in ("body", "orelse") if getattr(x, n, None)}
    return type(x)(**vars(x) | inner) if inner and isinstance(x, ast.stmt) else x


_rewritten_now = interpreter.FunctionRewriter.rewrite_ast
interpreter.FunctionRewriter.rewrite_ast = _rewrite_ast
interpreter._patch_lang, interpreter._get_np_dtype, interpreter._patch_attr = _patch_lang, _get_np_dtype, _patch_attr
tl.core.block_type.__init__, tl.core.tensor.__init__ = _init_block_type, _init_tensor
tl.core.block_type.with_element_ty, tl.core.dtype.__eq__ = _with_element_ty, _equal
TritonSemantic.cast, TritonSemantic.broadcast_impl_value = _cast, _broadcast
TritonSemantic.binary_op_type_checking_impl = _operands
TritonSemantic.binary_op_sanitize_overflow_impl = _no_overflow
