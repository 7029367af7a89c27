"""A recurrent form over many segments of a sequence at once, where each entry of the states is multiplied and added to.

Over a segment of a sequence such a step is S_out = A S_in + b, entry by entry, whatever a step multiplies by: numbers of either
sign, zeros, or a rotation of the entries of several states. So three runs make all steps, each of all segments at once:

    b     the last states of the recurrent form from zeros
    A     the last states of the steps without what they add, from ones
    S_in  is known for each segment by then, and the recurrent form makes the outputs from there

Backwards the same with the transposed map: dS_in = A^T dS_out + the gradient by the segment's own outputs.

Where a step puts each column of the states through one matrix instead, A is that matrix, made by the same steps from columns of
a unit matrix. A vector is one column, so that A takes a run for each of its rows.

Where a step multiplies by the same in all steps, as a rotation by constant angles does, A is a power of one step's map, and its
rounding would be the same in all segments, and add up: so it is made, and segments are joined, in float64. Nor does such a
sequence run whole where it is long, however many heads fill a GPU.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..launch.varlen import Packed
from .recurrent import narrow
from .segment_maps import Map, Segment
from .segment_products import ByColumn, ByEntry, Products, Tensors

SHORT = 16  # steps of the shortest segment
TILE = 2048  # entries of a state that a program has
FILL = 256  # tiles of all sequences and heads that fill a GPU: with segments they take some three times the work
FILL_TOGETHER = 64  # the same of tiles that take several steps at once
WHOLE = 8192  # steps that rounding to the same side may add up in, where entries turn into each other
AT_ONCE = 16  # times as many of them with segments, where a segment's map costs as much as many steps

Linear = dict[tuple[str, str], Tensor]
Forward = Callable[..., tuple[Tensors, Tensors, Tensors]]
Backward = Callable[..., tuple[Tensors, Tensors]]
Start = Callable[..., Tensors]
StartGradients = Callable[..., Tensors]
Maybe = dict[str, Tensor | None]
Times = Callable[[Tensor, Tensor], Tensor]
Swap = Callable[[tuple[Segment, ...]], tuple[Map, ...]]  # a segment's maps, for what enters it


@dataclass(frozen=True)
class _Segments:
    """Where segments lie: as packed sequences, and which sequence each is of, in order; each sequence has one at least."""

    packed: Packed
    sequence: Tensor  # [M], on the device
    first: Tensor  # [N]: each sequence's first segment
    last: Tensor  # [N]: its last segment
    rows: int | None  # segments of each sequence, where all are equally long


class InSegments:
    """The two functions of a recurrent form, over segments of the sequence. `maps` takes the steps without what they add;
    `groups`: states that are mixed with each other; `per_step`: arguments that run over steps; `entries`: how many numbers the
    states have; `columns`: of states each column of which goes through one matrix, the place of the axis that counts them, and
    how many axes there are; `runs`: how many make A, where these are many; `beside`: how many entries lie beside the axis that is
    cut, where steps are taken several at once; `constant`: are the maps of all steps the same? Then `maps` takes float64 as well.
    `start` makes the states before the first step where
    the spec sets any, and `start_gradients` what parameters get through them."""

    def __init__(
        self,
        forward: Forward,
        backward: Backward,
        maps: Forward,
        groups: tuple[tuple[str, ...], ...],
        per_step: tuple[str, ...],
        entries: int,
        columns: Mapping[str, tuple[int | None, int]] | None = None,
        runs: int = 1,
        start: Start | None = None,
        start_gradients: StartGradients | None = None,
        beside: int | None = None,
        constant: bool = False,
    ) -> None:
        self._forward, self._backward, self._maps = forward, backward, maps
        self.groups, self.per_step = groups, per_step
        self._runs, self._constant = runs, constant
        tile = TILE if beside is None else narrow(TILE, beside)
        # how much of a GPU a sequence's head fills: a program has a tile of one, if not all of it
        self._share = max(entries, tile) / tile / (FILL if tile == TILE else FILL_TOGETHER)
        self._first, self._first_gradients = start, start_gradients
        self._by: Products = ByEntry() if columns is None else ByColumn(columns)

    @property
    def states(self) -> tuple[str, ...]:
        """Of all groups."""
        return tuple(n for g in self.groups for n in g)

    def forward(
        self,
        given: Tensors,
        states: dict[str, Tensor | None],
        constants: dict[str, float],
        packed: Packed | None = None,
        **options: object,
    ) -> tuple[Tensors, Tensors, Tensors]:
        """(outputs, final states, what the backward pass uses), as the recurrent form's own function has them."""
        segments = self.segments_of(given, packed)
        if segments is None:
            return self._forward(given, states, constants, packed, **options)
        flat = self._flat(given)
        begun, nothing = self._begun(given, states, constants, segments)
        _, local, _ = self._forward(flat, nothing, constants, segments.packed, **dict.fromkeys(options, False))
        linear = self._linear(flat, constants, local, segments)
        starts = {n: self._start(begun[n], local[n], segments) for n in self.states}
        entering, leaving = self._chained(starts, linear, local, segments, backwards=False)
        outputs, _, saved = self._forward(flat, entering, constants, segments.packed, **options)
        finals = {n: x[segments.last] for n, x in leaving.items()}
        saved = {f"segments {n}": x for n, x in saved.items()}
        if saved:
            saved |= {f"map {to} {of}": x for (to, of), x in linear.items()}
        return {n: self._shaped(x, given) for n, x in outputs.items()}, finals, saved

    def backward(
        self,
        given: Tensors,
        states: dict[str, Tensor | None],
        constants: dict[str, float],
        saved: Tensors,
        cotangents: dict[str, Tensor | None],
        final_cotangents: dict[str, Tensor | None],
        needs: frozenset[str],
        packed: Packed | None = None,
    ) -> tuple[Tensors, Tensors]:
        """(gradients, gradients of the initial states)."""
        segments = self.segments_of(given, packed)
        if segments is None:
            return self._backward(given, states, constants, saved, cotangents, final_cotangents, needs, packed)
        flat = self._flat(given)
        # maps first: what is saved may be made only as it is asked for (`runtime/solves/programs.py`, `Again`)
        linear = {(to, of): saved[f"map {to} {of}"] for g in self.groups for to in g for of in g}
        kept = {n.removeprefix("segments "): x for n, x in saved.items() if n.startswith("segments ")}
        some = {n: None if x is None else self._joined(x) for n, x in cotangents.items()}
        wanted = frozenset({*needs, *self.states})
        _, nothing = self._begun(given, states, constants, segments)
        _, local = self._backward(
            flat, nothing, constants, kept, some, self._none(), frozenset(self.states), segments.packed
        )
        ends = self._leaving(final_cotangents, linear, local, segments)
        gradients, first = self._backward(flat, nothing, constants, kept, some, ends, wanted, segments.packed)
        out = {n: self._shaped(x, given) if n in self.per_step else x for n, x in gradients.items() if n in needs}
        first = {n: x[segments.first] for n, x in first.items()}
        if self._first_gradients is not None:
            for n, x in self._first_gradients(given, states, constants, first).items():
                if n in out:
                    out[n] = out[n] + x.sum(0).to(out[n].dtype)
        return out, {n: x for n, x in first.items() if n in needs}

    # --- a segment of a sequence whose others lie on other ranks ------------------------------------------------------

    def forward_states(
        self, given: Tensors, states: dict[str, Tensor | None], constants: dict[str, float], exchange: Swap
    ) -> Tensors:
        """The states that enter this segment, by the maps of all."""
        segments = self.segments_of(given, None) or _one_each(given[self.per_step[0]])
        flat = self._flat(given)
        begun, nothing = self._begun(given, states, constants, segments)
        _, local, _ = self._forward(flat, nothing, constants, segments.packed)
        linear = self._linear(flat, constants, local, segments)
        starts = {n: self._start(begun[n], local[n], segments) for n in self.states}
        return self._exchanged(linear, local, starts, segments, exchange, backwards=False)

    def backward_states(
        self,
        given: Tensors,
        states: dict[str, Tensor | None],
        constants: dict[str, float],
        saved: Mapping[str, Tensor],
        cotangents: dict[str, Tensor | None],
        final_cotangents: dict[str, Tensor | None],
        exchange: Swap,
    ) -> Tensors:
        """The gradients of the states that leave this segment, by the transposed maps of all."""
        segments = self.segments_of(given, None) or _one_each(given[self.per_step[0]])
        flat = self._flat(given)
        kept = {n.removeprefix("segments "): x for n, x in saved.items() if n.startswith("segments ")}
        _, nothing = self._begun(given, states, constants, segments)
        if not kept:  # it ran whole
            kept = self._forward(flat, nothing, constants, segments.packed)[2]
        some = {n: None if x is None else self._joined(x) for n, x in cotangents.items()}
        _, local = self._backward(
            flat, nothing, constants, kept, some, self._none(), frozenset(self.states), segments.packed
        )
        linear = self._linear(flat, constants, local, segments)
        ends = {n: self._start(final_cotangents.get(n), local[n], segments) for n in self.states}
        return self._exchanged(self._transposed(linear), local, ends, segments, exchange, backwards=True)

    def _exchanged(
        self,
        linear: Linear,
        local: Tensors,
        entering: Tensors,
        segments: _Segments,
        exchange: Swap,
        backwards: bool,
    ) -> Tensors:
        found = []
        local, entering = self._by.lined(local), self._by.lined(entering)
        for group in self.groups:
            law = functools.partial(_composed, self._by.times, len(group))
            blocks = [_by_place(linear[to, of], segments) for to in group for of in group]
            places = list(zip(*blocks, *(_by_place(local[n], segments) for n in group), strict=True))
            whole = functools.reduce(
                lambda before, after, law=law: law(after, before), places[:: -1 if backwards else 1]
            )
            whole = tuple(x.to(local[group[0]].dtype) for x in whole)
            count = len(blocks)
            own = tuple(entering[n] for n in group)
            apply = functools.partial(_applied, self._by.times, len(group))
            found.append(Segment(group, law, apply, whole[:count], whole[count:], own))
        entered = exchange(tuple(found))
        states = {
            n: x for group, own in zip(self.groups, entered, strict=True) for n, x in zip(group, own, strict=True)
        }
        return self._by.stored(states)

    # --- segments --------------------------------------------------------------------------------------------------------

    def segments_of(self, given: Tensors, packed: Packed | None) -> _Segments | None:
        """The segments of a call's sequences; None where the recurrent form takes them as they are."""
        some = given[self.per_step[0]]
        batch, steps = some.shape[:2]
        heads = self._heads(given)
        count = batch if packed is None else packed.count
        longest = steps if packed is None else packed.longest
        filled = some.is_cuda and self._fill(count * heads) >= 1
        if longest < 4 * SHORT or 0 in (batch, heads) or (filled and not (self._adds_up and longest > WHOLE)):
            return None
        size = max(SHORT, 1 << (math.isqrt(longest).bit_length() - 1))
        if filled:  # few segments, each of which has the states of all heads
            size = WHOLE // 2
        if some.is_cuda and self._by.dear:
            size = max(size, int(longest * self._fill(count * heads)) // AT_ONCE)
        if self._runs > 1:  # half of the steps at most, one after the other
            size = min(size, longest // (2 * (self._runs + 3)))
            if size < SHORT:
                return None
        if packed is None:
            return _equal_segments(batch, steps, size, some.device)
        return _packed_segments(packed, steps, size)

    @property
    def _adds_up(self) -> bool:
        """May states keep their size, while all steps multiply them by the same? An entry by itself decays or grows."""
        return self._constant and (self._by.dear or any(len(g) > 1 for g in self.groups))

    def _flat(self, given: Tensors) -> Tensors:
        return {n: self._joined(x) if n in self.per_step else x for n, x in given.items()}

    def _joined(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [1, B T, ...]"""
        return x.reshape(1, -1, *x.shape[2:])

    def _shaped(self, x: Tensor, given: Tensors) -> Tensor:
        """[1, B T, ...] -> [B, T, ...]"""
        return x.reshape(*given[self.per_step[0]].shape[:2], *x.shape[2:])

    def _none(self) -> dict[str, Tensor | None]:
        return dict.fromkeys(self.states)

    def _fill(self, rows: int) -> float:
        """How much of a GPU so many sequences and heads fill."""
        return rows * self._share

    def _heads(self, given: Tensors) -> int:
        return max(x.shape[2 if n in self.per_step else 0] for n, x in given.items())

    def _begun(
        self, given: Tensors, states: dict[str, Tensor | None], constants: dict[str, float], segments: _Segments
    ) -> tuple[Maybe, Maybe]:
        """The states before the first step, given or as the spec sets them; and, of a segment that runs from zeros, zeros
        where the spec sets others."""
        if self._first is None:
            return states, self._none()
        begun = self._first(given, states, constants, segments.last.shape[0], self._heads(given))
        return {**begun}, {n: x.new_zeros((segments.sequence.shape[0], *x.shape[1:])) for n, x in begun.items()}

    # --- maps ---------------------------------------------------------------------------------------------------------

    def _linear(self, flat: Tensors, constants: dict[str, float], local: Tensors, segments: _Segments) -> Linear:
        """A, by (to, of): the last states of the steps without what they add, from ones in one state after the other."""
        if self._constant:
            once = {n: (x[:, :1] if n in self.per_step else x).double() for n, x in flat.items()}
            one = self._units_mapped(once, constants, {n: x[:1].double() for n, x in local.items()}, None)
            return self._powers(one, segments.packed.starts.diff(), segments.packed.longest)
        return self._units_mapped(flat, constants, local, segments.packed)

    def _units_mapped(
        self, flat: Tensors, constants: dict[str, float], local: Tensors, packed: Packed | None
    ) -> Linear:
        parts: dict[tuple[str, str], list[tuple[int, Tensor]]] = {}
        zeros = {n: torch.zeros_like(x) for n, x in local.items()}
        for k in range(max(map(len, self.groups))):
            groups = [g for g in self.groups if k < len(g)]
            for units in itertools.zip_longest(*(self._by.units(g[k], local[g[k]]) for g in groups)):
                first = {g[k]: unit for g, unit in zip(groups, units, strict=True) if unit is not None}
                _, last, _ = self._maps(flat, zeros | {n: x for n, (_, x) in first.items()}, constants, packed)
                for g in (g for g in groups if g[k] in first):
                    for to in g:
                        parts.setdefault((to, g[k]), []).append((first[g[k]][0], last[to]))
        return {(to, of): self._by.gathered(to, x) for (to, of), x in parts.items()}

    def _powers(self, one: Linear, lengths: Tensor, longest: int) -> Linear:
        """The maps of so many steps each, of which all have the map `one`."""
        lengths = lengths.view(-1, *[1] * (next(iter(one.values())).dim() - 1))
        found = {
            (to, of): (self._by.unit(a) if to == of else torch.zeros_like(a)).expand(len(lengths), *a.shape[1:])
            for (to, of), a in one.items()
        }
        for bit in range(longest.bit_length()):
            more = self._product(one, found)
            found = {pair: torch.where((lengths >> bit) % 2 == 1, more[pair], a) for pair, a in found.items()}
            one = self._product(one, one)
        return found

    def _product(self, later: Linear, earlier: Linear) -> Linear:
        times = self._by.times
        return {
            (to, of): _sum(times(later[to, k], earlier[k, of]) for k in g) for g in self.groups for to in g for of in g
        }

    def _start(self, state: Tensor | None, like: Tensor, segments: _Segments) -> Tensor:
        """The states that enter sequences."""
        return like.new_zeros((segments.last.shape[0], *like.shape[1:])) if state is None else state.to(like.dtype)

    def _leaving(
        self,
        final_cotangents: dict[str, Tensor | None],
        linear: Linear,
        local: Tensors,
        segments: _Segments,
    ) -> Tensors:
        """The gradients of the states that leave each segment."""
        ends = {n: self._start(final_cotangents.get(n), local[n], segments) for n in self.states}
        return self._chained(ends, self._transposed(linear), local, segments, backwards=True)[0]

    def _transposed(self, linear: Linear) -> Linear:
        return {(of, to): self._by.transposed(a) for (to, of), a in linear.items()}

    def _chained(
        self, given: Tensors, linear: Linear, local: Tensors, segments: _Segments, backwards: bool
    ) -> tuple[Tensors, Tensors]:
        by = self._by
        some = local if not self._constant else {n: x.double() for n, x in local.items()}
        first = {n: x.to(some[n].dtype) for n, x in given.items()}
        found = _chained(by.lined(first), linear, by.lined(some), segments, backwards, by.times)
        into, out = ({n: x.to(local[n].dtype) for n, x in by.stored(states).items()} for states in found)
        return into, out


def _chained(
    given: Tensors, linear: Linear, local: Tensors, segments: _Segments, backwards: bool, times: Times
) -> tuple[Tensors, Tensors]:
    """What goes into each segment's map A x + b, and what comes out, where `given` goes into that of each sequence's first
    segment, or of its last one `backwards`: of all sequences at once where they have equally many segments, else one segment
    after the other."""
    even = segments.rows is not None
    maps = {pair: _by_place(a, segments) for pair, a in linear.items()}
    added = {n: _by_place(b, segments) for n, b in local.items()}
    count = len(next(iter(added.values())))
    order = range(count - 1, -1, -1) if backwards else range(count)
    edges = segments.last if backwards else segments.first
    begins = torch.zeros_like(segments.sequence, dtype=torch.bool).index_fill(0, edges, True)
    states = given if even else {n: torch.zeros_like(x[0]) for n, x in given.items()}
    into, out = [], []
    for n in order:
        if not even:  # a sequence begins with what is given for it
            own = {m: x.index_select(0, segments.sequence[n : n + 1])[0] for m, x in given.items()}
            states = {m: torch.where(begins[n], own[m], x) for m, x in states.items()}
        into.append(states)
        after = {m: x[n] for m, x in added.items()}
        for (to, of), a in maps.items():
            after[to] = after[to] + times(a[n], states[of])
        states = after
        out.append(states)
    if backwards:
        into, out = into[::-1], out[::-1]
    return _stacked(into, even), _stacked(out, even)


def _composed(times: Times, n: int, later: Map, earlier: Map) -> Map:
    """The map of two segments, one after the other: n x n factors, then n that are added."""
    linear = [_sum(times(later[n * i + k], earlier[n * k + j]) for k in range(n)) for i in range(n) for j in range(n)]
    return (*linear, *_applied(times, n, later, earlier[n * n :]))


def _applied(times: Times, n: int, of: Map, states: Map) -> Map:
    """What a map makes of n states."""
    return tuple(of[n * n + i] + _sum(times(of[n * i + k], states[k]) for k in range(n)) for i in range(n))


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)


def _by_place(x: Tensor, segments: _Segments) -> tuple[Tensor, ...]:
    """Of each place in time: of all sequences at once, or the only segment there."""
    return x.unbind(0) if segments.rows is None else x.unflatten(0, (-1, segments.rows)).unbind(1)


def _stacked(found: list[Tensors], even: bool) -> Tensors:
    """[M, ...] of what was found for each place in time."""
    if even:
        return {n: torch.stack([x[n] for x in found], 1).flatten(0, 1) for n in found[0]}
    return {n: torch.stack([x[n] for x in found]) for n in found[0]}


@functools.lru_cache(64)
def _equal_segments(batch: int, steps: int, size: int, device: torch.device) -> _Segments:
    """The segments of `batch` sequences of equally many steps."""
    rows = max(1, -(-steps // size))
    begins = [b * steps + n * size for b in range(batch) for n in range(rows)]
    starts = torch.tensor([*begins, batch * steps], device=device)
    sequence = torch.arange(batch, device=device).repeat_interleave(rows)
    first = torch.arange(batch, device=device) * rows
    return _Segments(Packed(starts, batch * rows, size), sequence, first, first + rows - 1, rows)


def _one_each(some: Tensor) -> _Segments:
    """Sequences as one segment each."""
    batch, steps = some.shape[:2]
    return _equal_segments(batch, steps, max(1, steps), some.device)


def _packed_segments(packed: Packed, steps: int, size: int) -> _Segments:
    """The segments of packed sequences, whose lengths only the device knows: as many as there may be, of which the last are empty
    and belong to no sequence's end."""
    lengths = packed.starts.diff()
    counts = ((lengths + size - 1) // size).clamp(min=1)
    ends = counts.cumsum(0)
    count = steps // size + packed.count
    place = torch.arange(count, device=lengths.device)
    sequence = torch.searchsorted(ends, place, right=True).clamp(max=packed.count - 1)
    offset = place - (ends - counts)[sequence]
    starts = torch.minimum(packed.starts[sequence] + offset * size, packed.starts[sequence + 1])
    starts = torch.nn.functional.pad(starts, (0, 1), value=steps)
    return _Segments(Packed(starts, count, size), sequence, ends - counts, ends - 1, None)
