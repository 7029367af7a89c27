"""What runs outside of the graphs of torch.compile, without loading torch's compiler before anyone uses it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """The function as `torch.compiler.disable` has it, which would load a second's worth of torch's compiler at import."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            outside: Callable[P, R] = torch.compiler.disable(function)
            return outside(*arguments, **options)
        return function(*arguments, **options)

    return call
