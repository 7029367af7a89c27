"""A call of an op of any kind, from its tensors to its results: looked at, known or checked, cast, and handed to autograd, or to
torch's library where something looks on from outside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..launch.replay import layouts
from . import debugging
from .autograd import apply
from .backend_choice import is_traced, modes
from .remembered import known

if TYPE_CHECKING:
    from .signature import Arguments
    from .torch_library import Option, Registered
    from .two_passes import TwoPasses


class Known(Protocol):
    """A kind of call: what was found out about its arguments."""

    @property
    def constants(self) -> dict[str, float]: ...

    def prepared(self, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """What is computed with, in the dtypes in which it is."""

    def passes(self, tensors: Sequence[Tensor | None], starts: Tensor | None) -> TwoPasses:
        """The call."""

    def in_library(self, tensors: Sequence[Tensor | None]) -> Sequence[Option]:
        """The options of the call in torch's library."""


K = TypeVar("K", bound=Known)


@dataclass(slots=True, eq=False)
class Asked:
    """What a call is given. tensors: in order, states behind arguments; None for a state, or where a number was given. numbers:
    constants, and what was given in the place of tensors. options: all that its check depends on beside these.

    states, results: what states and results are, and their axes, for who looks at values.
    """

    signature: Arguments
    tensors: list[Tensor | None]
    numbers: Sequence[object]
    options: tuple[Hashable, ...]
    backend: str | None
    starts: Tensor | None = None
    states: debugging.States = ()
    results: debugging.States = ()

    def kind(self) -> Hashable:
        """The same for calls which differ in the numbers in tensors only."""
        starts, where = self.starts, cast("Tensor", self.tensors[0])
        key = layouts(self.tensors), self.options, modes(where.device.type, self.backend)
        if starts is not None:
            key = (*key, layouts([starts]))
        return (*key, *[(x, type(x)) for x in self.numbers]) if self.numbers else key


def results_of(
    registered: Registered | None, kinds: dict[Hashable, K], asked: Asked, check: Callable[[Asked], K]
) -> Sequence[Tensor]:
    """The results of a call, with gradients. `kinds` has what `check` found of earlier ones.

    Raises:
        ArgumentError: an argument doesn't fit; or a formula has no value for these constants, which are numbers of Python's.
    """
    looking = debugging.switched_on and debugging.can_look()
    spoilt: list[bool] = []
    if looking:
        asked = _looked_at(asked, spoilt)
    traced = registered is not None and is_traced(asked.tensors)
    found = check(asked) if traced else known(kinds, asked, check)
    tensors = found.prepared(asked.tensors)
    try:
        if traced:
            assert registered is not None
            results = registered(tensors, asked.starts, found.constants, found.in_library(tensors))
        else:
            results = apply(found.passes(tensors, asked.starts), tensors)
    except (ZeroDivisionError, OverflowError) as error:
        said = ", ".join(f"{n} = {x!r}" for n, x in found.constants.items())
        raise ArgumentError(f"{asked.signature.name}: a formula has no value where {said}: {error}") from error
    if looking:
        debugging.look_at_results(asked.signature, asked.results, results, spoilt)
    return results


def _looked_at(asked: Asked, spoilt: list[bool]) -> Asked:
    """The call, whose values were looked at, and whose gradients will be."""
    s, states = asked.signature, asked.states
    debugging.look(s, asked.tensors, asked.starts, states)
    tensors = debugging.watched(s, asked.tensors, spoilt, states)
    more = asked.numbers, asked.options, asked.backend, asked.starts, states, asked.results
    return Asked(s, tensors, *more)


def wants_gradients(tensors: Sequence[Tensor | None]) -> bool:
    """Will gradients of any of these be asked for?"""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
