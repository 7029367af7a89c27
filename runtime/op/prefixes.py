"""Prefix checkpoints: the states at every multiple of n steps of each sequence, from a forward pass.

    o, last, prefixes = op.prefixes(q, k, v, .., every=n)       # packed (cu_seqlens) or not; options of the op
    o, last = op(*rest, initial_state=prefixes.state(0, 3 * n), output_final_state=True)

A pass is taken in rounds of n steps, each from the states that the one before left: what it costs beside the pass is the states'
bytes and a launch of the op's kernels a round. Several packed sequences are put in the order of rounds first, a copy of each
argument and output.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, nearest

from .decode import listed
from .results import Public, Results, result_type
from .signature import Signature

State = TypeVar("State")  # a tensor, or a tuple of several


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """States [M, H, ..], one tensor for each state, and after how many steps of which sequence each of the M is."""

    states: tuple[Tensor, ...]
    places: tuple[tuple[int, int], ...]
    every: int
    _row: dict[tuple[int, int], int] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._row.update({place: m for m, place in enumerate(self.places)})

    def state(self, sequence: int, steps: int) -> State:
        """The state [1, H, ..] after so many steps of a sequence, as `initial_state` takes it."""
        row = self._row.get((sequence, steps))
        if row is None:
            raise ArgumentError(
                f"there is no checkpoint of sequence {sequence} after {steps} steps: there is one every {self.every} steps"
            )
        found = tuple(x[row : row + 1] for x in self.states)
        return cast(State, found[0] if len(found) == 1 else found)

    def longest(self, sequence: int, steps: int) -> int:
        """The most steps, up to `steps`, after which there is a checkpoint of a sequence; 0 where there is none."""
        return max((n for i, n in self.places if i == sequence and n <= steps), default=0)


def with_prefixes(
    signature: Signature, op: Public, arguments: tuple[object, ...], options: Mapping[str, object]
) -> Results:
    """(outputs.., last states, prefixes). Options of the op, and `every`, a number of steps."""
    name = f"{signature.name}.prefixes"
    given = dict(options)
    every = given.pop("every", None)
    if every is None:
        known = ["every", *inspect.signature(op).parameters]
        for n in options:
            if n not in known:
                raise ArgumentError(f"{name} has no argument {n!r}{nearest(n, known)}")
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ArgumentError(f"{name}: every must be a number of steps, 1 or more, got {every!r}")
    for other in ("context_parallel", "state_pool", "state_indices"):
        if given.pop(other, None) is not None:
            raise ArgumentError(f"{name} takes no {other}")
    given.pop("output_final_state", None)
    keys = [a.key for a in signature.tensors]
    if len(arguments) > len(keys):
        raise ArgumentError(f"{name} takes {', '.join(keys)} by position, and its options by name")
    tensors: dict[str, Any] = dict(zip(keys, arguments, strict=False))
    if doubled := {*tensors} & {*given}:
        raise ArgumentError(f"{name}: {', '.join(sorted(doubled))} is given twice, by position and by name")
    tensors |= {n: given.pop(n) for n in keys if n in given}
    timed = [a.key for a in signature.tensors if a.per_step]
    leading = tensors.get(timed[0])
    if {*keys} - {*tensors} or not all(isinstance(tensors[n], Tensor) and tensors[n].dim() > 1 for n in timed):
        return op(**tensors, **given)  # whose error says what doesn't fit
    starts, first = given.pop("cu_seqlens", None), given.pop("initial_state", None)
    kind = given.pop("state_dtype", None)
    if starts is None:
        rounds = _Whole(int(leading.shape[0]), int(leading.shape[1]), every)  # type: ignore[union-attr]
    else:
        rounds = _packed(name, op, tensors, given, starts, int(leading.shape[1]), every)  # type: ignore[union-attr]
    own = {n: rounds.taken(tensors[n]) for n in timed}
    states: list[Any] = [*listed(first)] or [None] * len(signature.states)
    if isinstance(rounds, _Packed) and 0 in rounds.lengths and any(x is None for x in states):
        nothing = {n: x[:, :0] for n, x in own.items()}
        *_, begun = op(
            **{**tensors, **nothing},
            initial_state=first,
            output_final_state=True,
            cu_seqlens=torch.zeros_like(starts),
            **given,
        )
        states = listed(begun)  # what the spec begins with is what a sequence without steps ends in
    parts: list[list[Tensor]] = []
    kept: list[tuple[Tensor, ...]] = []
    places: list[tuple[int, int]] = []
    finals: list[Any] = list(states)
    for turn in rounds.turns():
        here = {n: x[:, turn.where] for n, x in own.items()}
        before = [None if x is None else x[turn.live] if turn.fewer else x for x in states]
        more = {} if turn.starts is None else {"cu_seqlens": turn.starts.to(starts.device)}  # type: ignore[union-attr]
        start = None if all(x is None for x in before) else before[0] if len(before) == 1 else tuple(before)
        *outputs, last = op(**{**tensors, **here}, initial_state=start, output_final_state=True, **given, **more)
        parts.append(outputs)
        after = listed(last)
        states = [
            y if not turn.fewer else _with(x, y, turn.live, turn.count) for x, y in zip(states, after, strict=True)
        ]
        if turn.full:
            whole = [i for i, n in enumerate(turn.sequences) if n in turn.full]
            chosen = [x if len(whole) == len(turn.sequences) else x[whole] for x in after]
            kept.append(tuple(x if kind is None else x.to(kind) for x in chosen))
            places += [(turn.sequences[i], turn.steps) for i in whole]
        finals = states
    if not parts:
        *outputs, last = op(**tensors, initial_state=first, output_final_state=True, cu_seqlens=starts, **given)
        parts, finals = [outputs], listed(last)
    joined = [rounds.given_back(torch.cat(x, 1) if len(x) > 1 else x[0]) for x in zip(*parts, strict=True)]
    last = tuple(x if kind is None else x.to(kind) for x in finals)
    made = tuple(torch.cat(x) for x in zip(*kept, strict=True)) if kept else tuple(x[:0] for x in last)
    result = result_type(name, (*(n for n, _ in signature.outputs), "final_state", "prefixes"))
    return result(*joined, last[0] if len(last) == 1 else last, Prefixes(made, tuple(places), every))


def _with(before: Tensor | None, after: Tensor, live: list[int], count: int) -> Tensor:
    """The states of all sequences, where some have gone on."""
    all_of_it = after.new_empty((count, *after.shape[1:])) if before is None else before.to(after.dtype)
    return all_of_it.index_copy(0, torch.tensor(live, device=after.device), after)


# --- rounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turn:
    """A round: its steps in what is taken; the sequences that have some, and those that have all `every` of them."""

    where: slice
    steps: int
    sequences: list[int]
    full: set[int]
    count: int
    starts: Tensor | None = None

    @property
    def live(self) -> list[int]:
        return self.sequences

    @property
    def fewer(self) -> bool:
        return len(self.sequences) < self.count


@dataclass(frozen=True)
class _Whole:
    """A batch of sequences of one length."""

    batch: int
    steps: int
    every: int

    def taken(self, x: Tensor) -> Tensor:
        return x

    def given_back(self, x: Tensor) -> Tensor:
        return x

    def turns(self) -> list[_Turn]:
        found = []
        for begin in range(0, self.steps, self.every):
            end = min(begin + self.every, self.steps)
            every = list(range(self.batch))
            found.append(
                _Turn(slice(begin, end), end, every, {*every} if end - begin == self.every else set(), self.batch)
            )
        return found


@dataclass(frozen=True)
class _Packed:
    """Packed sequences of these lengths, in the order of rounds. order: where each step taken is in the row; None: as it is."""

    lengths: list[int]
    every: int
    order: Tensor | None

    def taken(self, x: Tensor) -> Tensor:
        return x if self.order is None else x.index_select(1, self.order)

    def given_back(self, x: Tensor) -> Tensor:
        if self.order is None:
            return x
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(len(self.order), device=back.device)
        return x.index_select(1, back)

    def turns(self) -> list[_Turn]:
        found, at = [], 0
        for begin in range(0, max(self.lengths, default=0), self.every):
            own = {i: min(self.every, n - begin) for i, n in enumerate(self.lengths) if n > begin}
            starts = torch.tensor([0, *own.values()]).cumsum(0)
            stop = at + int(starts[-1])
            full = {i for i, n in own.items() if n == self.every}
            found.append(_Turn(slice(at, stop), begin + self.every, list(own), full, len(self.lengths), starts))
            at = stop
        return found


def _packed(
    name: str,
    op: Public,
    tensors: Mapping[str, object],
    given: Mapping[str, object],
    starts: object,
    steps: int,
    every: int,
) -> _Packed:
    """The rounds of packed sequences, whose lengths are read, which waits for the device."""
    if not isinstance(starts, Tensor) or starts.dim() != 1 or starts.dtype not in (torch.int32, torch.int64):
        op(**tensors, **given, cu_seqlens=starts)  # whose error says what doesn't fit
    assert isinstance(starts, Tensor)
    boundaries = starts.tolist()
    if not boundaries or boundaries[0] != 0 or boundaries[-1] != steps or boundaries != sorted(boundaries):
        raise ArgumentError(f"{name}: cu_seqlens must rise from 0 to T = {steps}, got {boundaries}")
    lengths = [b - a for a, b in itertools.pairwise(boundaries)]
    order = [
        boundaries[i] + t
        for begin in range(0, max(lengths, default=0), every)
        for i, n in enumerate(lengths)
        for t in range(begin, min(begin + every, n))
    ]
    same = order == list(range(steps))
    return _Packed(lengths, every, None if same else torch.tensor(order, device=starts.device))
