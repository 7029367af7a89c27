"""Forward-mode derivatives, which ops don't have: whoever asks for one is told so, in every way to ask.

Torch carries tangents beside tensors, and what knows nothing of them drops them without a word: a kernel, and an op of torch's
library. So each way into an op looks for tangents, where there may be any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_unwrapped, maybe_get_level, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.library import Library

from chunkform.errors import DoubleBackwardError


def is_on() -> bool:
    """May there be tensors with tangents?"""
    return forward_ad._current_level >= 0


def refuse_tangents(name: str, tensors: Iterable[object]) -> None:
    """Refuse tensors with tangents. Where there can be none, this costs nothing.

    Raises:
        DoubleBackwardError: one of `tensors` has a tangent, of functorch or of `torch.autograd.forward_ad`.
    """
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and _has_tangent(x) for x in tensors):
        raise no_jvp(name)


def _has_tangent(x: Tensor) -> bool:
    """Is there a tangent at any level of functorch's transforms, from the innermost outwards, or outside of them?"""
    top = peek_interpreter_stack()
    if (top is None or top.key() == TransformType.Jvp) and _unpacked(x) is not None:
        return True
    if top is None:
        return False
    if maybe_get_level(x) == top.level():
        x = get_unwrapped(x)
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    with temporarily_pop_interpreter_stack():
        return _has_tangent(x)


def _unpacked(x: Tensor) -> Tensor | None:
    return torch._VF._unpack_dual(x, level=0).tangent  # type: ignore[attr-defined]


def no_jvp(name: str) -> DoubleBackwardError:
    return DoubleBackwardError(f"{name} has no forward-mode derivatives (jvp): use reverse mode")


def register_autograd(
    library: Library, own: str, name: str, backward: Callable[..., Any], setup: Callable[..., None] | None = None
) -> None:
    """`torch.library.register_autograd` of the op `own`, which also refuses tangents: torch by itself drops them."""
    op = torch._library.utils.lookup_op(own)
    differentiated = torch._library.autograd.make_autograd_impl(op, torch._library.autograd.Info(backward, setup))

    def guarded(keys: object, *arguments: object, **options: object) -> Any:
        if forward_ad._current_level >= 0:  # here a transform of functorch has unwrapped what it wrapped
            given = (y for x in arguments for y in (x if isinstance(x, list | tuple) else (x,)))
            if any(isinstance(x, Tensor) and _unpacked(x) is not None for x in given):
                raise no_jvp(name)
        return differentiated(keys, *arguments, **options)

    library.impl(own.partition("::")[2], guarded, "Autograd", with_keyset=True)
