"""Which backend computes a call, and whether a compiler traces it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from chunkform.errors import BackendError

from .arguments import autocast_dtype, one_of
from .signature import Arguments


class Backends(Protocol):
    """An op of any kind: what it takes, and what computes it."""

    @property
    def signature(self) -> Arguments: ...
    @property
    def backends(self) -> Mapping[str, object]: ...


def chosen_backend(op: Backends, asked: str | None, tensors: dict[str, Tensor]) -> str:
    """The name of the backend for these arguments: the one that was asked for, or the best one."""
    some, name = next(iter(tensors.values())), op.signature.name
    is_double = any(x.dtype == torch.float64 for x in tensors.values())
    if asked is None:
        return "triton" if some.is_cuda and "triton" in op.backends and not is_double else "torch"
    one_of(name, "backend", asked, ("torch", "triton"), "None")
    if asked not in op.backends:
        raise BackendError(f"{name}: the {asked} backend isn't available here: is triton installed?")
    if asked == "triton":
        if not some.is_cuda and not interprets(asked):
            raise BackendError(
                f"{name}: the triton backend needs CUDA tensors, got {some.device} (or TRITON_INTERPRET=1, to interpret it)"
            )
        if is_double:
            raise BackendError(f"{name}: the triton backend computes in float32; float64 needs backend='torch'")
    return asked


def interprets(backend: str | None) -> bool:
    """Is the Triton backend, where it was asked for, to be interpreted?"""
    return backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"


def modes(device_type: str, backend: str | None) -> tuple[Hashable, ...]:
    """What the check of a call depends on beside what it is given."""
    return autocast_dtype(device_type), torch.is_grad_enabled(), interprets(backend)


def is_traced(tensors: Sequence[object]) -> bool:
    """Does something look at the call from outside: a compiler, a dispatch mode, a tensor subclass?"""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return not _PLAIN.issuperset(map(type, tensors)) and any(
        type(x) not in _PLAIN and isinstance(x, Tensor) for x in tensors
    )


_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
