"""Pairwise attention over a sequence in segments: keys and values travel round the ranks, and each merges what it meets.

What a rank has after some blocks of keys is an average and the logarithm of its weights' sum; two of these merge into one
(the online softmax). Backwards the keys go round once more, with their gradients, which come home after a whole round.

Under a causal mask a rank with early steps would have little to do, and one with late steps much. So each rank works on two
blocks of the sequence, the r-th and the r-th from the end; the features of queries and keys go there first, and results come
back.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, ChunkformError

from ..op.arguments import check_bool
from ..op.autograd import Run
from ..op.backend_choice import chosen_backend
from ..parallel.agreement import Facts, agreed
from ..parallel.graphs import outside_of_graphs
from ..parallel.group import Group, group_of
from .arguments import WIDEST, Setting, checked
from .passes import RING, Attention, AttentionBackend, Call

Features = dict[str, Tensor]
Span = tuple[int, int]  # steps of the whole sequence


@outside_of_graphs
def ring_attention(
    op: Attention, given: Mapping[str, object], context_parallel: object, causal: bool = False, output_lse: bool = False
) -> Any:
    """A generated attention (`OP` of its file) where each rank has a segment of the queries, and a segment of the keys and
    values.

    Segments lie in the order of the ranks and may differ in length; under a causal mask each rank has the queries and keys of the
    same steps. Gradients of parameters are what this rank computed of them: sum them over the group.

    Args:
        given: the arguments by declared names, [B, T of this segment, H, ...].
        context_parallel: a ProcessGroup or a one-dimensional DeviceMesh.
        causal, output_lse: as for the op itself.

    Returns:
        What the op returns, for this rank's queries.

    Raises:
        ArgumentError: an argument is wrong, or differs between ranks; the same error on every rank.
        GroupError: an exchange failed.
    """
    s = op.signature
    group = group_of(s.name, context_parallel)
    made: Any = None
    error: ChunkformError | None = None
    try:
        made = _prepared(op, given, causal, output_lse)
    except ChunkformError as problem:
        error = problem
    device = next((x.device for x in given.values() if isinstance(x, Tensor)), torch.device("cpu"))
    key = None
    if made is not None:
        kinds = tuple((x.shape, x.dtype, x.requires_grad) for x in made[0].values())
        key = s.name, causal, kinds, torch.is_grad_enabled(), device.type
    everything = agreed(group, lambda: _facts(op, group, made, causal), device, error, key)
    tensors, constants, at = made
    queries, keys = ([x[n] for x in everything] for n in ("queries", "keys"))
    own_backend = "torch" if _sees_positions(op) else chosen_backend(op, None, tensors)
    ring = Ring(group, op.backends, own_backend, queries, keys)
    first = sum(queries[: group.rank]), sum(keys[: group.rank])
    part = _Part(**{n: getattr(at, n) for n in Setting.__dataclass_fields__}, first_query=first[0], first_key=first[1])
    spread = replace(op, backends={RING: AttentionBackend(ring.forward, ring.backward)})
    results = Run.apply(Call(spread, RING, part, tuple(tensors), constants, lse=output_lse), *tensors.values())
    return results[0] if len(results) == 1 else s.result(output_lse)(*results)


def _facts(op: Attention, group: Group, made: Any, causal: bool) -> tuple[Facts, Facts]:
    """What must be the same on all ranks, and what this rank has."""
    s = op.signature
    same: dict[str, Any] = {"the op": s.name, "the size of the group": group.size}
    if made is None:
        return same, {}
    tensors, _, at = made
    same |= {"causal": causal}
    for a in s.arguments:
        if a.name in tensors:
            x = tensors[a.name]
            shape = [n if d in ("T", "S") else str(k) for d, n, k in zip(a.layout, a.layout, x.shape, strict=True)]
            same[f"the shape of {a.name}"] = f"[{', '.join(shape)}]"
            same[f"the dtype of {a.name}"] = str(x.dtype).removeprefix("torch.")
            same[f"whether {a.name} needs a gradient"] = x.requires_grad and torch.is_grad_enabled()
    return same, {"queries": at.queries, "keys": at.keys}


def _prepared(op: Attention, given: Mapping[str, object], causal: bool, output_lse: bool) -> Any:
    s = op.signature
    check_bool(s.name, "causal", causal)
    if s.nodes is not None:
        raise ArgumentError(f"{s.name}: context_parallel takes no fixed queries: they have no segments")
    if output_lse and s.normaliser != "softmax":
        raise ArgumentError(f"{s.name}: output_lse needs a softmax; its weights have no normaliser")
    tensors, constants, at = checked(s, given, causal)
    if causal and at.queries != at.keys:
        raise ArgumentError(
            f"{s.name}: context_parallel: under a causal mask a rank has queries and keys of the same steps, got T = "
            f"{at.queries} and S = {at.keys}"
        )
    return tensors, constants, at


def _sees_positions(op: Attention) -> bool:
    """Does the energy itself, and not only its features, depend on where a pair is? Kernels count from the block's start."""
    return any(x.argval in ("i", "j") for x in dis.get_instructions(op.energy) if x.opname.startswith("LOAD_FAST"))


@dataclass(frozen=True)
class _Part(Setting):
    """A setting whose queries and keys begin somewhere in the sequence."""

    first_query: int = 0
    first_key: int = 0

    def position(self, name: str) -> Tensor:
        first, count = (self.first_query, self.queries) if name == "i" else (self.first_key, self.keys)
        return torch.arange(first, first + count, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Ring:
    """Both passes over the ring, in the form of an attention's backend; `queries` and `keys` are the lengths of all segments."""

    group: Group
    backends: dict[str, AttentionBackend]
    chosen: str
    queries: list[int]
    keys: list[int]

    def inner(self, features: Features) -> AttentionBackend:
        """What computes a pair of blocks: the torch form where the kernels don't hold so wide features, or there is no pair."""
        wide = max(x.shape[-1] for x in features.values() if x.ndim == 4) > WIDEST
        return self.backends["torch" if wide or any(0 in x.shape for x in features.values()) else self.chosen]

    def forward(self, op: Attention, features: Features, at: _Part) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(averages, lse, mass) of this rank's queries over all keys."""
        where, softmax = Places(self, at.causal), op.signature.normaliser == "softmax"
        near, far, rest = self._sides(features)
        near, far = where.out(near), where.out(far, keys=True)
        merged = [_Merged() for _ in where.own]
        for rank, block in self._round(far, where):
            for n, span in enumerate(where.own):
                for other, key_features in zip(where.of(rank), _cut(block, where.of(rank)), strict=True):
                    if not _meets(span, other, at.causal):
                        continue
                    inputs = _pick(near, where.own, n) | key_features | rest
                    averages, lse, mass = self.inner(inputs).forward(op, inputs, _block(at, span, other))
                    weights = lse if softmax else mass
                    assert weights is not None
                    merged[n].take(averages, weights, softmax)
        width = features["value"].shape[-1]
        parts = [m.result(at, span, width, softmax) for m, span in zip(merged, where.own, strict=True)]
        averages, weights = (torch.cat(x, 2) for x in zip(*parts, strict=True))
        home = where.home({"averages": averages, "weights": weights})
        averages, weights = home["averages"].to(at.low), home["weights"]
        return (averages, weights, (weights > -math.inf).to(at.dtype)) if softmax else (averages, None, weights)

    def backward(
        self,
        op: Attention,
        features: Features,
        at: _Part,
        averages: Tensor,
        lse: Tensor | None,
        d: Tensor,
        D: Tensor,
        *wanted: object,
    ) -> Features:
        """The cotangent of each feature of this rank's segment."""
        where = Places(self, at.causal)
        near, far, rest = self._sides(features)
        rows = {"averages": averages, "d": d, "D": D} | ({} if lse is None else {"lse": lse})
        moved = where.out(near | rows)
        far = where.out(far, keys=True)
        grown = {n: [torch.zeros_like(x, dtype=at.dtype) for x in _pieces(moved[n], where.own)] for n in near}
        total: Features = {}
        arriving = {n: torch.zeros_like(x, dtype=at.dtype) for n, x in far.items()}
        for rank, block in self._round(far, where, arriving):
            spans = where.of(rank)
            found_keys = {n: _pieces(x, spans) for n, x in arriving.items()}
            for n, span in enumerate(where.own):
                own = _pick(moved, where.own, n)
                mine = {name: own.pop(name) for name in rows}
                for m, (other, key_features) in enumerate(zip(spans, _cut(block, spans), strict=True)):
                    if not _meets(span, other, at.causal):
                        continue
                    inputs = own | key_features | rest
                    found = self.inner(inputs).backward(
                        op,
                        inputs,
                        _block(at, span, other),
                        mine["averages"],
                        mine.get("lse"),
                        mine["d"],
                        mine["D"],
                        *wanted,
                    )
                    for name, g in found.items():
                        if name in near:
                            grown[name][n] += g
                        elif name in far:
                            found_keys[name][m].add_(g)
                        else:
                            total[name] = total[name] + g if name in total else g
        out = where.home({n: torch.cat(x, 2) for n, x in grown.items()})
        out |= where.home(arriving, keys=True)
        for name, x in rest.items():
            out[name] = total.get(name, torch.zeros((at.batch, at.heads), dtype=at.dtype, device=x.device))
        return {n: g if n in rest else g.to(features[n].dtype) for n, g in out.items()}

    def _sides(self, features: Features) -> tuple[Features, Features, Features]:
        """Features of queries, of keys, and of neither."""
        near = {n: x for n, x in features.items() if n.startswith(("query", "row")) and n != "row"}
        far = {n: x for n, x in features.items() if n.startswith(("key", "value", "column"))}
        return near, far, {n: x for n, x in features.items() if n not in near and n not in far and n != "row"}

    def _round(self, own: Features, where: Places, gradients: Features | None = None) -> Iterator[tuple[int, Features]]:
        """(rank, its features of keys) for each rank, this one's first; the next ones travel meanwhile.

        `gradients` of the features go along: what has been added to them goes on with them, and after the round they are home.
        """
        group, here = self.group, own
        to, of = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        for step in range(group.size):
            rank, following = (group.rank - step) % group.size, (group.rank - 1 - step) % group.size
            last = step == group.size - 1
            there = {n: x.new_empty((*x.shape[:2], where.length(following), *x.shape[3:])) for n, x in here.items()}
            names = list(here)
            travel = None
            if not last:
                travel = group.exchange([(here[n], to) for n in names], [(there[n], of) for n in names])
            yield rank, here
            if gradients is not None and group.size > 1:
                arrived = {
                    n: x.new_empty((*x.shape[:2], where.length(following), *x.shape[3:])) for n, x in gradients.items()
                }
                group.exchange([(gradients[n], to) for n in names], [(arrived[n], of) for n in names]).wait()
                gradients |= arrived
            if travel is not None:
                travel.wait()
                here = there


class _Merged:
    """Averages over the keys that were met so far, and the log-sum-exp or the sum of their weights."""

    def __init__(self) -> None:
        self.averages: Tensor | None = None
        self.weights: Tensor | None = None

    def take(self, averages: Tensor, weights: Tensor, softmax: bool) -> None:
        averages = averages.to(weights.dtype)
        if self.averages is None or self.weights is None:
            self.averages, self.weights = averages, weights
        elif not softmax:
            self.averages, self.weights = self.averages + averages, self.weights + weights
        else:
            both = torch.logaddexp(self.weights, weights)
            seen = torch.where(both == -math.inf, 0, both)
            mine, other = ((x - seen).exp()[..., None] for x in (self.weights, weights))
            self.averages, self.weights = self.averages * mine + averages * other, both

    def result(self, at: Setting, span: Span, width: int, softmax: bool) -> tuple[Tensor, Tensor]:
        if self.averages is not None and self.weights is not None:
            return self.averages, self.weights
        rows = torch.zeros((at.batch, at.heads, span[1] - span[0]), dtype=at.dtype, device=at.device)
        return rows.new_zeros((*rows.shape, width)), rows - math.inf if softmax else rows


@dataclass(frozen=True)
class Places:
    """Which blocks of the sequence each rank works on, and how features get there from where they lie, and back."""

    ring: Ring
    causal: bool

    @property
    def own(self) -> list[Span]:
        return self.of(self.ring.group.rank, keys=False)

    def of(self, rank: int, keys: bool = True) -> list[Span]:
        """The blocks of a rank: under a causal mask one from the start and one from the end of the sequence."""
        lengths = self.ring.keys if keys else self.ring.queries
        if not self.causal:
            start = sum(lengths[:rank])
            return [(start, start + lengths[rank])]
        total, count = sum(lengths), 2 * len(lengths)
        cut = [total * n // count for n in range(count + 1)]
        return [(cut[n], cut[n + 1]) for n in (rank, count - 1 - rank)]

    def length(self, rank: int) -> int:
        return sum(end - start for start, end in self.of(rank))

    def out(self, features: Features, keys: bool = False) -> Features:
        """From the segments to the blocks."""
        return self._moved(features, self._parts(keys), [self.of(r, keys) for r in range(self.ring.group.size)])

    def home(self, features: Features, keys: bool = False) -> Features:
        return self._moved(features, [self.of(r, keys) for r in range(self.ring.group.size)], self._parts(keys))

    def _parts(self, keys: bool) -> list[list[Span]]:
        lengths = self.ring.keys if keys else self.ring.queries
        return [[(sum(lengths[:r]), sum(lengths[: r + 1]))] for r in range(len(lengths))]

    def _moved(self, features: Features, old: list[list[Span]], new: list[list[Span]]) -> Features:
        """Features over steps, axis 2, from the spans that hold them to others."""
        if not self.causal or not features:
            return features
        group = self.ring.group
        out = {
            n: x.new_empty((*x.shape[:2], sum(b - a for a, b in new[group.rank]), *x.shape[3:]))
            for n, x in features.items()
        }
        sends, receives, landings = [], [], []
        for rank in range(group.size):
            for here, there in _shared(old[group.rank], new[rank]):
                for n, x in features.items():
                    part = x[:, :, here[0] : here[1]]
                    if rank == group.rank:
                        out[n][:, :, there[0] : there[1]] = part
                    else:
                        sends.append((part.contiguous(), rank))
            for _, there in _shared(old[rank], new[group.rank]) if rank != group.rank else ():
                for n, x in features.items():
                    landing = x.new_empty((*x.shape[:2], there[1] - there[0], *x.shape[3:]))
                    receives.append((landing, rank))
                    landings.append((n, there, landing))
        group.exchange(sends, receives).wait()
        for n, there, landing in landings:
            out[n][:, :, there[0] : there[1]] = landing
        return out


def _shared(old: list[Span], new: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Steps that lie in both, as they are counted within `old` and within `new`."""
    at = 0
    for a, b in old:
        goal = 0
        for c, d in new:
            low, high = max(a, c), min(b, d)
            if low < high:
                yield (at + low - a, at + high - a), (goal + low - c, goal + high - c)
            goal += d - c
        at += b - a


def _meets(queries: Span, keys: Span, causal: bool) -> bool:
    """Have the blocks any pair, and does it count?"""
    return queries[0] < queries[1] and keys[0] < keys[1] and (not causal or keys[0] <= queries[0])


def _block(at: _Part, queries: Span, keys: Span) -> _Part:
    """The setting of two blocks, which under a causal mask are the same, or the keys' lies wholly before."""
    return replace(
        at,
        queries=queries[1] - queries[0],
        keys=keys[1] - keys[0],
        causal=at.causal and queries == keys,
        first_query=queries[0],
        first_key=keys[0],
    )


def _pieces(x: Tensor, spans: list[Span]) -> list[Tensor]:
    return list(x.split([b - a for a, b in spans], 2))


def _cut(features: Features, spans: list[Span]) -> list[Features]:
    cut = {n: _pieces(x, spans) for n, x in features.items()}
    return [{n: x[k] for n, x in cut.items()} for k in range(len(spans))]


def _pick(features: Features, spans: list[Span], n: int) -> Features:
    return _cut(features, spans)[n]
