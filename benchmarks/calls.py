"""One call of an op: its forward pass alone, and with the gradients of everything that has one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .peers import Subject


def forward(subject: Subject, given: dict[str, Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """The forward pass, without autograd."""
    plain = {key: x.detach() for key, x in given.items()}

    def run() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return subject.call(plain)

    return run


def forward_backward(
    subject: Subject, given: dict[str, Tensor], cotangents: list[Tensor]
) -> Callable[[], tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]]:
    """Both passes, with the gradients of every argument; a peer yields None for those that it has none of."""
    leaves = {key: x.detach().requires_grad_() for key, x in given.items()}

    def run() -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
        outputs = subject.call(leaves)
        return outputs, torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)

    return run


def both_passes(
    subject: Subject, given: dict[str, Tensor], cotangents: list[Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None]]:
    """(outputs, gradients by the names of arguments) of one call."""
    outputs, gradients = forward_backward(subject, given, cotangents)()
    return tuple(x.detach() for x in outputs), dict(zip(given, gradients, strict=True))
