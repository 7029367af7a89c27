"""Several steps of many sequences in one launch, between rows of pools: what drafts, their commit and engines are made of.

A state is rounded to its pool's dtype after each step, so that steps one after the other give the same bits.
States that are too wide for a program's registers go step by step, each a launch of its own; so do steps whose kernel shared
memory doesn't hold, which is remembered.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from chunkform.errors import FallbackWarning

from .decode import Given, Launch, Step, backend_of, launch_of, too_large
from .passes import repeated
from .rows import kept_rows, read_rows, write_rows


@dataclass(frozen=True, eq=False)
class Places:
    """Which rows and steps are meant; None where all are, in order. All are integers on the pools' device.

    rows: [N], from which row each sequence starts; below 0 is padding. each: [N, K], the row that the state after each step goes
    to; below 0, to none. counts: [N], how many steps are taken. starts: [N + 1], where packed sequences start in [1, T, ..].
    """

    rows: Tensor | None = None
    each: Tensor | None = None
    counts: Tensor | None = None
    starts: Tensor | None = None

    def listed(self) -> tuple[Tensor | None, ...]:
        return self.rows, self.each, self.counts, self.starts


@dataclass(frozen=True)
class Writes:
    """What is written: outputs, the state after each step, and the last state, to where it came from."""

    outputs: bool = False
    each: bool = False
    last: bool = False


def several_steps(
    step: Step,
    given: Given,
    pools: Sequence[Tensor],
    kept: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: dict[str, int],
    places: Places,
    writes: Writes,
    backend: str | None = None,
) -> None:
    """Take the steps. given: by name, [B, T, H, ..]; kept: pools that `each` means, or [N * K, H, ..] in order where it is None.

    sizes: of the arguments, B being the number of sequences and T the most steps of one. All is checked by the caller.
    """
    tensors = [given[a.name] for a in step.whole.tensors]
    constants = {a.name: a.default if given[a.name] is None else given[a.name] for a in step.whole.constants}
    if sizes["B"] == 0 or sizes["T"] == 0 or sizes["H"] == 0 or _steps(step, given) == 0:
        return
    if backend_of(step, backend, [*tensors, *pools]) == "triton":  # type: ignore[list-item]
        key = _key(tensors, pools, kept, outputs, sizes, places, writes)  # type: ignore[arg-type]
        launch = _launched(step, key, tensors, pools, kept, outputs, sizes, writes)  # type: ignore[arg-type]
        if launch is not None:
            pairs = [x for pair in zip(pools, kept or pools, strict=True) for x in pair]
            into = outputs or [pools[0]] * len(step.whole.outputs)  # where none are written, an address all the same
            try:
                launch([*tensors, *pairs, *into], constants, places.listed())  # type: ignore[list-item, arg-type]
                return
            except OutOfResources as error:  # before anything was written
                step.keep(key, None)
                told = too_large(step.whole.name, sizes, error, "steps go one by one instead, each a launch of its own")
                warnings.warn(told, FallbackWarning, stacklevel=2)
        one = _one_launch(step, constants, backend)
    else:
        one = _one_in_torch(step, constants, sizes["H"])
    _one_by_one(step, one, given, pools, kept, outputs, sizes, places, writes)


def holds(step: Step, sizes: dict[str, int]) -> bool:
    """Does one launch take several steps on a GPU?"""
    return step.kernel is None or step.kernel.cut_several(sizes, True, False, False) is not None


def _key(
    tensors: list[Tensor],
    pools: Sequence[Tensor],
    kept: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: dict[str, int],
    places: Places,
    writes: Writes,
) -> tuple[object, ...]:
    """What calls of one kind have in common."""
    every = [*tensors, *pools, *kept, *outputs, *(x for x in places.listed() if x is not None)]
    looks = [(x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16 == 0) for x in every]
    which = [x is None for x in places.listed()]
    return "several", writes, len(kept), len(outputs), *which, *sizes.items(), *looks


def _launched(
    step: Step,
    key: tuple[object, ...],
    tensors: list[Tensor],
    pools: Sequence[Tensor],
    kept: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: dict[str, int],
    writes: Writes,
) -> Launch | None:
    """The launch; kept, for calls of the same kind. None where a GPU doesn't hold the states, as far as is known."""
    if key in step.launches:
        return step.launches[key]
    kernel = step.kernel
    assert kernel is not None
    cut = kernel.cut_several(sizes, writes.outputs, writes.each, writes.last)
    if cut is None:
        return None
    read = [next(i for i, a in enumerate(step.whole.tensors) if a.name == n) for n in kernel.reads]
    groups = [sizes["H"] // max(1, tensors[i].shape[step.whole.tensors[i].head_axis]) for i in read]
    strides = [s for i in read for s in tensors[i].stride()]
    for x, y in zip(pools, kept or pools, strict=True):
        strides += [*x.stride(), *y.stride()]
    for x in outputs:
        strides += x.stride()[:3]
    if not outputs:
        strides += [0] * (3 * len(step.whole.outputs))
    return step.keep(key, launch_of(step, cut, read, strides, (sizes["H"], *groups, sizes["T"]), tensors[0].device))


# --- step by step ----------------------------------------------------------------------------------------------------

One = Callable[[dict[str, Tensor], dict[str, Tensor]], tuple[list[Tensor], list[Tensor]]]


def _one_in_torch(step: Step, constants: dict[str, object], heads: int) -> One:
    def one(now: dict[str, Tensor], states: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        some, like = next(iter(states.values())), now[step.whole.leading.name]
        full = {n: repeated(x, 1 if per_step[n] else 0, heads) for n, x in now.items()}
        size = {
            d: x.shape[-len(a.dims) + i]
            for a in step.whole.tensors
            for x in [now[a.name]]
            for i, d in enumerate(a.dims)
        }
        shown = {n: like.new_empty((some.shape[0], heads, *(size[d] for d in dims))) for n, dims in step.whole.outputs}
        after = {n: torch.empty_like(x) for n, x in states.items()}
        with torch.no_grad():
            step.torch_step(full, states, constants, shown, after)
        return [*shown.values()], [*after.values()]

    per_step = {a.name: a.per_step for a in step.whole.tensors}
    return one


def _one_launch(step: Step, constants: dict[str, object], backend: str | None) -> One:
    def one(now: dict[str, Tensor], states: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        *outputs, after = step(tuple(states.values()), now | constants, backend=backend)  # type: ignore[operator]
        return outputs, list(after) if isinstance(after, tuple) else [after]

    return one


def _one_by_one(
    step: Step,
    one: One,
    given: Given,
    pools: Sequence[Tensor],
    kept: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: dict[str, int],
    places: Places,
    writes: Writes,
) -> None:
    count, most, device = sizes["B"], sizes["T"], pools[0].device
    rows = places.rows if places.rows is not None else torch.arange(count, device=device)
    begin = torch.zeros(count, dtype=torch.int64, device=device)
    lengths = torch.full_like(begin, most)
    if places.starts is not None:
        begin, lengths = places.starts[:-1].long(), places.starts.diff().long().clamp(max=most)
    if places.counts is not None:
        lengths = torch.minimum(lengths, places.counts.long())
    entries = torch.arange(count, device=device) if places.starts is None else torch.zeros_like(begin)
    lengths = torch.where(rows >= 0, lengths, 0)
    names = [n for n, _ in step.whole.states]
    states = [read_rows(x, rows) for x in pools]
    for t in range(most):
        live = t < lengths
        at = (begin + t).clamp(max=max(0, _steps(step, given) - 1))
        now = {
            a.name: x[entries, at] if a.per_step else x
            for a in step.whole.tensors
            if isinstance(x := given[a.name], Tensor)
        }
        found, after = one(now, dict(zip(names, states, strict=True)))
        if writes.outputs:
            for x, into in zip(found, outputs, strict=True):
                if places.starts is None:
                    kept_rows(x, live, into[:, t])
                else:
                    _put_packed(into[0], x, torch.where(live, at, -1))
        states = [torch.where(live.view(-1, *[1] * (x.dim() - 1)), y, x) for x, y in zip(states, after, strict=True)]
        if writes.each:
            each = torch.arange(count, device=device) * most + t if places.each is None else places.each[:, t].long()
            write_rows(kept, states, torch.where(live, each, -1))
    if writes.last:
        write_rows(pools, states, rows)


def _put_packed(into: Tensor, x: Tensor, where: Tensor) -> None:
    """into[where] = x, but where that is below 0."""
    write_rows([into], [x], where)


def _steps(step: Step, given: Given) -> int:
    return next(int(given[a.name].shape[1]) for a in step.whole.tensors if a.per_step)  # type: ignore[union-attr]


def state_bytes(pools: Sequence[Tensor]) -> int:
    """Of one sequence."""
    return sum(math.prod(x.shape[1:]) * x.element_size() for x in pools)


def input_bytes(step: Step, given: Given) -> int:
    """Of one step of one sequence."""
    found = [x for a in step.whole.tensors if a.per_step and isinstance(x := given[a.name], Tensor)]
    return sum(math.prod(x.shape[2:]) * x.element_size() for x in found)
