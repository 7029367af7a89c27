"""What the functions of flash-linear-attention are called with: each argument is of the type that its function's head says."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..op.arguments import FLOATS

Function = TypeVar("Function", bound=Callable[..., object])
VECTORS = ("q", "k", "v")  # [B, T, H, ..], of floating-point numbers


def checked(function: Function, name: str) -> Function:
    """The function of this name, which tells what is wrong with an argument before it does anything with it."""
    parameters = inspect.signature(function).parameters
    named = {n: str(p.annotation) for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    order = list(named)

    @functools.wraps(function)
    def call(*words: object, **options: object) -> object:
        if not torch.compiler.is_compiling():
            for n, x in (*zip(order, words, strict=False), *options.items()):
                if n in named and (wanted := _unfit(n, named[n], x)):
                    raise ArgumentError(f"{name}: {n} must be {wanted}, got {_said(x)}")
        return function(*words, **options)

    return call  # type: ignore[return-value]


def _unfit(name: str, kind: str, x: object) -> str:
    """What an argument must be, where it isn't."""
    optional = " or None" if "None" in kind else ""
    if x is None and (optional or kind == "bool"):
        return ""
    if name in VECTORS:
        fits = isinstance(x, Tensor) and x.dtype in FLOATS and not x.is_nested and x.dim() == 4
        return "" if fits else f"a tensor of floating-point numbers with 4 axes [B, T, H, {name}'s channels]"
    if kind.startswith("Tensor"):
        return "" if isinstance(x, Tensor) and not x.is_nested else f"a tensor{optional}"
    if kind == "bool":
        return "" if isinstance(x, bool) else "True or False"
    if kind.partition(" ")[0] in ("float", "int"):
        one = isinstance(x, Tensor) and x.dim() == 0
        fits = one or (isinstance(x, numbers.Real) and not isinstance(x, bool))
        return "" if fits else f"a number{optional}"
    return ""


def _said(x: object) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    return "a nested tensor" if x.is_nested else f"one of {list(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
