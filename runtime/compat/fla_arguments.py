"""What the functions of flash-linear-attention are called with: each argument is of the type that its function's head says."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import TypeVar

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..op.arguments import FLOATS

Function = TypeVar("Function", bound=Callable[..., object])
VECTORS = ("q", "k", "v")  # [B, T, H, ..], of floating-point numbers


def of_an_op(*, reverse: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None) -> None:
    """The options of every function that calls an op."""


def checked(function: Function, name: str, onto: Iterable[Callable[..., object]]) -> Function:
    """The function of this name, which tells what is wrong with an argument before it does anything with it.

    onto: functions that it hands its options on to: flags of theirs, and what they take by name alone. All are in its
    signature, by which other libraries choose what they pass: transformers leaves out what isn't there.
    """
    own = inspect.signature(function).parameters.values()
    every = [p for f in onto for p in inspect.signature(f).parameters.values()]
    further = [p for p in every if p.kind is p.KEYWORD_ONLY or p.annotation == "bool"]
    order = [p.name for p in own if p.kind is not p.VAR_KEYWORD]
    named = {p.name: str(p.annotation) for p in (*further, *own) if p.kind is not p.VAR_KEYWORD}

    @functools.wraps(function)
    def call(*words: object, **options: object) -> object:
        if not torch.compiler.is_compiling():
            for n, x in (*zip(order, words, strict=False), *options.items()):
                if n in named and (wanted := _unfit(n, named[n], x)):
                    raise ArgumentError(f"{name}: {n} must be {wanted}, got {_said(x)}")
        return function(*words, **options)

    call.__signature__ = _whole(own, further)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _whole(own: Iterable[Parameter], further: Iterable[Parameter]) -> inspect.Signature:
    """Its own parameters, then by name alone those of the functions behind it, and others."""
    named = {p.name: p for p in own if p.kind is not p.VAR_KEYWORD}
    by_name = {p.name: p.replace(kind=Parameter.KEYWORD_ONLY) for p in further if p.name not in named}
    return inspect.Signature([*named.values(), *by_name.values(), Parameter("options", Parameter.VAR_KEYWORD)])


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
