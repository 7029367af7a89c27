"""Passes that ran before, replayed: the same kernels for tensors that are laid out alike, at a fraction of the host's time.

What a pass puts on the device depends on how its tensors are laid out, and not on what is in them, where its backend has the
feature "replays". So one run of it is watched, and `Recorded` does the same for other tensors. It holds no tensor.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .cuda_driver import Kernels, hooked
from .parallel_compile import compile_first
from .recorder import Launch, Operation, Part, Unknown, Watch, quick, watching

Flat = Sequence[Tensor | None]
Replays: TypeAlias = (
    "dict[Hashable, int | Recorded | None]"  # how often a pass was seen; the pass; None: it has no replay
)
Pass = Callable[
    [Flat], tuple[list[Tensor | None], Any]
]  # -> results, and what is the same wherever tensors are laid out alike

ON = True  # are passes replayed at all?
SEEN = 1  # runs of a kind before one is watched
KINDS = 64  # remembered of one kind of call
SMALL = 1 << 21  # bytes of a tensor that shares an allocation with others
ALIGNED = 512  # bytes, as torch's allocator has it


def replayed(
    known: Replays | None,
    key: Hashable,
    tensors: Flat,
    run: Pass,
    owner: Hashable = None,
    then: Callable[[Any], Any] | None = None,
) -> tuple[list[Tensor | None], Any]:
    """run(tensors), or a replay of it.

    `known` has what was seen of such calls; None where nothing is to be replayed. `key` has all that `run` depends on beside
    tensors and `known`, and the layouts of tensors. The first tensor isn't None. `owner` tells passes apart that launch other
    kernels, so that these are compiled side by side before the first run; None where they aren't. What then(results and rest)
    launches, a pass that follows, is compiled behind them.
    """
    if known is None or not ON or watching.instead is not None or hooked() or _seen_from_outside():
        return run(tensors)
    device = tensors[0].device  # type: ignore[union-attr]
    if device.type == "cuda" and torch._C._cuda_getDevice() != device.index:
        with torch.cuda.device(device):
            return replayed(known, key, tensors, run, owner, then)
    found = known.get(key, 0)
    if isinstance(found, Recorded):
        results = found.replay(tensors)
        return run(tensors) if results is None else (results, found.rest)
    if found is None:
        return run(tensors)
    if found >= SEEN:
        return _watched(known, key, tensors, run)
    if len(known) >= KINDS:
        known.clear()
    known[key] = found + 1
    if owner is not None:
        compile_first(owner, tensors, run, then)
    return run(tensors)


def _seen_from_outside() -> bool:
    """Does a compiler, a mode or a transform of torch look on, and want to see each operation?"""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
    )


def layouts(tensors: Flat) -> tuple[Hashable, ...]:
    """Of each tensor all that a pass may depend on beside its numbers. Triton compiles for addresses that 16 divides."""
    return tuple(
        [
            None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, x.requires_grad, type(x))
            for x in tensors
        ]
    )


def _watched(known: Replays, key: Hashable, tensors: Flat, run: Pass) -> tuple[list[Tensor | None], Any]:
    """run(tensors), recorded if it can be."""
    known[key] = None
    alone = [None if x is None else x.detach() for x in tensors]  # the same tensor may be given twice
    before, unlike = watching.fell, watching.unlike
    with Watch(alone) as watch:
        results, rest = run(alone)
    if watching.fell != before:
        known.pop(key, None)
    elif not watch.refused and watching.unlike == unlike:
        with contextlib.suppress(Unknown):
            known[key] = Recorded(watch, [watch.seen(x) for x in results], rest)
    given = {id(a): x for a, x in zip(alone, tensors, strict=True)}
    return [x if x is None else given.get(id(x), x) for x in results], rest


def room(
    like: Tensor | None, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Memory for a tensor, which torch takes sooner where it is laid out `like` another."""
    if like is not None:
        return torch.empty_like(like)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


class Recorded:
    """A pass as what it does with slots: its arguments are in the first, and what it makes follows.

    What only kernels use shares tensors, in slots behind the others: one for all steps, for what is small, and one for each
    `period`. At the end of a period what isn't used again is let go of; a period ends where more memory would be held otherwise
    than if each tensor went after its last use. In between memory is taken at once, and kernels follow.
    """

    def __init__(self, watch: Watch, results: list[Part | None], rest: object) -> None:
        """Raises `Unknown` where a kernel can't be launched in this way."""
        self.rest, self.device = rest, watch.device
        steps = _at_once(watch.steps)
        self.lock = threading.Lock()
        self.models = _models(watch)
        sizes = {slot: _bytes(x) for slot, x in watch.wholes.items()}
        returned = {x.slot for x in results if x is not None}
        operated = set().union(*(x.slots for x in steps if isinstance(x, Operation)))
        named = returned | operated
        wholes = watch.wholes | {  # memory that kernels alone fill is taken in the layout in which it is returned
            x.slot: x
            for x in results
            if x is not None and x.slot in watch.rooms - operated and (x.offset, _bytes(x)) == (0, sizes[x.slot])
        }
        self.results = [None if x is None else x.slot if x == wholes[x.slot] else x for x in results]
        spans: dict[int, tuple[int, int]] = {}
        for k, step in enumerate(steps):
            spans |= {n: (spans.get(n, (k, k))[0], k) for n in step.slots if n >= watch.given}
        ends = {slot: len(steps) if slot in returned else last for slot, (_, last) in spans.items()}
        large = {slot: (*spans[slot], sizes[slot]) for slot in spans if sizes[slot] > SMALL}
        periods = _periods({slot: (first, ends[slot], size) for slot, (first, _, size) in large.items()}, steps)
        sharing: list[list[int]] = [[] for _ in range(periods[-1] + 2)]
        for slot in watch.rooms & spans.keys() - named:
            first, last = (periods[k] for k in spans[slot])
            if first == last or slot not in large:
                sharing[1 + first if first == last else 0].append(slot)
        self.places: dict[int, tuple[int, int]] = {}
        shared: dict[int, Part] = {}
        for n, slots in enumerate(sharing):
            if len(slots) > 1:
                places, size = placed({slot: (*spans[slot], sizes[slot]) for slot in slots})
                self.places |= {slot: (watch.count + n, at) for slot, at in places.items()}
                shared[n] = Part(watch.count + n, 0, (size,), (1,), torch.uint8)
        self.blank = [None] * (watch.count + len(sharing))
        self.steps: list[Callable[[list[Any]], None]] = []
        self.group: list[Launch] = []
        self.rooms = [shared[0]] if 0 in shared else []  # that the group needs
        period = -1
        for k, step in enumerate(steps):
            if periods[k] != period:
                done = [n for n in large if n not in self.places and ends[n] < k and periods[ends[n]] == period]
                done += [shared[period + 1].slot] if period + 1 in shared and period >= 0 else []
                if done:
                    self._end_group()
                    self.steps.append(_LetGo(done))
                period = periods[k]
                self.rooms += [shared[period + 1]] if period + 1 in shared else []
            self.rooms += [wholes[n] for n in step.slots & watch.rooms - self.places.keys() if spans[n][0] == k]
            if isinstance(step, Launch):
                self.group.append(step)
            else:
                self._end_group()
                self.steps.append(quick(step, wholes))
        self.rooms += [wholes[slot] for slot in returned & watch.rooms - spans.keys()]
        self._end_group()

    def _end_group(self) -> None:
        if self.rooms:
            self.steps.append(_Rooms(self.rooms, self.models, self.device))
        if self.group:
            kernels = Kernels if self.device.type == "cuda" else Interpreted
            self.steps.append(kernels(self.group, self.places, self.device))
        self.rooms, self.group = [], []

    def replay(self, tensors: Flat) -> list[Tensor | None] | None:
        """The results for other tensors; None while another thread is at it."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            slots: list[Any] = [*tensors, *self.blank[len(tensors) :]]
            for step in self.steps:
                step(slots)
        finally:
            self.lock.release()
        return [slots[x] if isinstance(x, int) else None if x is None else x.of(slots) for x in self.results]


def _at_once(steps: Sequence[Launch | Operation]) -> list[Launch | Operation]:
    """What begins and is waited for right away, as one step where it can be: a stream of its own takes longer."""
    out: list[Launch | Operation] = []
    for step in steps:
        before = out[-1] if out else None
        if isinstance(step, Operation) and isinstance(before, Operation):
            begun, waited = (getattr(x.function, "__self__", None) for x in (before, step))
            at_once = getattr(begun, "at_once", None) if begun is waited else None
            if at_once is not None:
                out[-1] = Operation(at_once, before.args, before.options, before.makes)
                continue
        out.append(step)
    return out


def _periods(spans: Mapping[int, tuple[int, int, int]], steps: Sequence[object]) -> list[int]:
    """The period of each step, for memory (first use, last use, bytes): as few as hold no more than is in use at some step."""
    born = [[x for x in spans.values() if x[0] == k] for k in range(len(steps))]
    most = max(
        [sum(n for first, last, n in spans.values() if first <= k <= last) for k in range(len(steps))], default=0
    )
    found: list[int] = []
    held: list[tuple[int, int, int]] = []
    for k, new in enumerate(born):
        held += new
        ends = sum(x[2] for x in held) > most
        if ends:
            held = [x for x in held if x[1] >= k]
        found.append(found[-1] + ends if found else 0)
    return found or [0]


class _Rooms:
    """Takes memory for tensors. models: slots of arguments, by the layouts that they have."""

    def __init__(self, rooms: list[Part], models: Mapping[object, int], device: torch.device) -> None:
        found = [(x, models.get((x.shape, x.stride, x.dtype))) for x in rooms]
        self.rooms = [(x.slot, model, (x.shape, x.stride, x.dtype, device)) for x, model in found]

    def __call__(self, slots: list[Tensor]) -> None:
        for slot, model, layout in self.rooms:
            slots[slot] = room(None if model is None else slots[model], *layout)


def _models(watch: Watch) -> dict[Any, int]:
    """Slots of arguments whose layouts `torch.empty_like` keeps, by shape, strides and dtype."""
    found = {}
    for slot, x in watch.wholes.items():
        if slot < watch.given:
            seen = torch.empty_strided(x.shape, x.stride, dtype=x.dtype, device="meta")
            if torch.empty_like(seen).stride() == x.stride:
                found[x.shape, x.stride, x.dtype] = slot
    return found


class _LetGo:
    """Lets go of tensors."""

    def __init__(self, done: list[int]) -> None:
        self.done = done

    def __call__(self, slots: list[Tensor]) -> None:
        for slot in self.done:
            slots[slot] = None


class Interpreted:
    """Launches that Triton's interpreter runs."""

    def __init__(self, launches: Sequence[Launch], places: Mapping[int, tuple[int, int]], device: torch.device) -> None:
        self.launches, self.places = launches, places

    def __call__(self, slots: list[Tensor]) -> None:
        for x in self.launches:
            x.kernel[x.grid](*(self._tensor(y, slots) for y in x.args), **x.options)

    def _tensor(self, x: Any, slots: list[Tensor]) -> Any:
        if type(x) is not Part or x.slot not in self.places:
            return x.of(slots) if type(x) is Part else x
        slot, begin = self.places[x.slot]
        at = (begin + x.offset) // x.dtype.itemsize
        return torch.empty(0, dtype=x.dtype).set_(slots[slot].untyped_storage(), at, x.shape, x.stride)


def placed(spans: Mapping[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """(where each lies, bytes in all) of memory (first use, last use, bytes), so that what is in use at once doesn't overlap."""
    places: dict[int, int] = {}
    end = 0
    for slot, (first, last, size) in sorted(spans.items(), key=lambda x: -x[1][2]):
        at = 0
        others = [n for n in places if spans[n][0] <= last and first <= spans[n][1]]
        for n in sorted(others, key=places.__getitem__):
            if at + size <= places[n]:
                break
            at = max(at, places[n] + _aligned(spans[n][2]))
        places[slot] = at
        end = max(end, at + _aligned(size))
    return places, end


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _bytes(x: Part) -> int:
    """From the first element of a tensor to its last."""
    if 0 in x.shape:
        return 0
    return x.dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride, strict=True)))
