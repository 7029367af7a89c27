"""What runs where a GPU's shared memory doesn't hold the tiles of a call's kernels: narrower tiles, and at last the torch form.

A level says what runs: 0 what is chosen at first, then narrower tiles, then the torch form. It is found when a launch fails, and
remembered for each op, device, dtype and widths. Both passes of a call have the same one, as chunks depend on it: what a forward
pass saves has its level among its names, and where a backward pass has another one, the forward pass is computed again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from triton.runtime.errors import OutOfResources

from chunkform.errors import FallbackWarning

from ..launch.launch import is_pinned
from ..launch.narrowing import FORM, is_told, narrowed
from ..launch.narrowing import level as current
from ..launch.recorder import watching

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..launch.replay import Replays
    from .signature import Arguments


class Fitting(Protocol):
    """A call of an op of any kind, whose kernels may not fit. kernels: what launches them. has_form: can the torch form take
    their place? dtype: what they compute in, of these arguments."""

    @property
    def signature(self) -> Arguments: ...
    @property
    def kernels(self) -> object: ...
    @property
    def has_form(self) -> bool: ...
    @property
    def needs_backward(self) -> bool: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def replays(self) -> Replays | None: ...

    def dtype(self, given: Mapping[str, Tensor]) -> torch.dtype: ...
    def in_torch(self) -> Self:
        """The call as the torch form computes it."""


C = TypeVar("C", bound=Fitting)
R = TypeVar("R")

MARKS = tuple(f"made at level {n}" for n in range(FORM + 1))  # names of nothing among what is saved

_levels: dict[Hashable, tuple[int, object]] = {}  # with what a key names by its id, so that this stays its own
_told: set[Hashable] = set()


def fitted(call: C, given: Mapping[str, Tensor], which: str, run: Callable[[C, int], R]) -> R:
    """run(call, level) with the call at the first level whose tiles fit. `which`: the pass. Within another pass, at its level."""
    if is_told():
        return run(at_level(call, current()), current())
    level, failed = level_of(call, given, which), None
    while True:
        try:
            with narrowed(level):
                watching.unlike += level == FORM  # what the torch form does may depend on numbers
                found = run(at_level(call, level), level)
        except OutOfResources as error:
            if is_pinned() or level == FORM or (level + 1 == FORM and not call.has_form):
                raise
            level, failed = level + 1, error
            _remember(call, given, which, level)
        else:
            if failed is not None:
                _tell(call, given, which, level, failed)
            return found


def level_of(call: Fitting, given: Mapping[str, Tensor], which: str) -> int:
    """The level at which calls like this one fit, as far as is known."""
    if not _levels:
        return 0
    return _levels.get(_key(call, given, which), (0, None))[0]


def at_level(call: C, level: int) -> C:
    """The call as this level has it."""
    return call if level < FORM else call.in_torch()


def mark(saved: dict[str, Tensor], level: int) -> dict[str, Tensor]:
    """What a forward pass saves, with its level: as it is at level 0, which most are at."""
    return saved if level == 0 else saved | {MARKS[level]: None}  # type: ignore[dict-item]


def unmarked(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a backward pass takes of it."""
    return saved if made_at(saved) == 0 else {n: x for n, x in saved.items() if n not in MARKS}


def made_at(saved: Mapping[str, object]) -> int:
    """The level at which this was saved."""
    return next((n for n, x in enumerate(MARKS) if x in saved), 0)


def forget() -> None:
    """Try wide tiles again."""
    _levels.clear()
    _told.clear()


def _key(call: Fitting, given: Mapping[str, Tensor], which: str) -> Hashable:
    """What remembers a level. Forward passes alone don't follow backward passes; nor do those of deterministic calls, whose
    numbers depend on no call before them."""
    follows = which if call.deterministic else "both" if call.needs_backward else "alone"
    device = next(iter(given.values())).device
    widths = tuple((x.dtype, x.shape[a.head_axis + 1 :]) for a in call.signature.tensors for x in (given[a.name],))
    return id(call.kernels), device, widths, call.dtype(given), follows


def _remember(call: Fitting, given: Mapping[str, Tensor], which: str, level: int) -> None:
    """Take this level from now on. What was recorded of such calls at another level is recorded anew."""
    _levels[_key(call, given, which)] = level, call.kernels
    watching.fell += 1
    if call.replays is not None:
        call.replays.clear()


def _tell(call: Fitting, given: Mapping[str, Tensor], which: str, level: int, error: OutOfResources) -> None:
    """Say once what runs instead."""
    key = _key(call, given, which), level
    if key not in _told:
        _told.add(key)
        warnings.warn(told(call, given, level, error), FallbackWarning, stacklevel=3)


def told(call: Fitting, given: Mapping[str, Tensor], level: int, error: OutOfResources) -> str:
    """Which op, what didn't fit, and what runs instead."""
    sizes = {d: n for a in call.signature.tensors for d, n in zip(a.layout, given[a.name].shape, strict=True)}
    dtype = str(call.dtype(given)).removeprefix("torch.")
    widths = ", ".join(f"{d} = {n}" for d, n in sizes.items() if d not in ("B", "T", "S", "H"))
    what = f"{call.signature.name}: {widths} in {dtype} need {error.required} bytes of {error.name}"
    instead = "narrower tiles run instead, which may be slower"
    if level == FORM:
        instead = (
            "the torch form runs instead, which is many times slower: smaller widths or two bytes a number may fit"
        )
    return f"{what}, of which this GPU has {error.limit} for a program; {instead}"
