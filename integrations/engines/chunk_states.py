"""States at chunk boundaries, as SGLang's prefills return them third: `h` [B, chunks, HV, V, K], each the state before a chunk.

An engine takes a few of them for its cache of prefixes, or none. So they are made when they are asked for: a pass over the tokens
before, of the sequences that are meant.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.results import Public

from .pools import op_of, public_of, whole

STEPS = 64  # of a chunk of the engine's


@dataclass(frozen=True, eq=False)
class ChunkStates:
    """Indexed as a tensor is: `h[0]` and `h.squeeze(0)` are of the same kind, `h[numbers]` and `h.tensor()` are tensors.

    given: the op's arguments by declared names, [B, T, H, ..], which must not be written to until then. first: states before
    them, of each sequence. starts: of packed ones. chosen: the numbers of those that are meant; None is all, [B, chunks].
    """

    name: str
    given: dict[str, Tensor]
    first: Tensor | None
    starts: Tensor | None
    v_first: bool
    chosen: Tensor | None = None

    @functools.cached_property
    def _lengths(self) -> list[int]:
        if self.starts is not None:
            return [int(n) for n in self.starts.diff().tolist()]
        batch, steps = self.given["v"].shape[:2]
        return [steps] * batch

    @functools.cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Of each number, the sequence and how many of its steps come before."""
        return tuple((n, t) for n, length in enumerate(self._lengths) for t in range(0, length, STEPS))

    @functools.cached_property
    def numbers(self) -> Tensor:
        if self.chosen is not None:
            return self.chosen
        batch = 1 if self.starts is not None else self.given["v"].shape[0]
        return torch.arange(len(self.places), device="cpu").view(batch, len(self.places) // max(1, batch))

    @property
    def shape(self) -> torch.Size:
        heads, values, keys = self.given["v"].shape[2], self.given["v"].shape[3], self.given["k"].shape[3]
        return torch.Size((*self.numbers.shape, heads, *((values, keys) if self.v_first else (keys, values))))

    def __len__(self) -> int:
        return self.shape[0]

    def squeeze(self, dim: int) -> ChunkStates:
        return replace(self, chosen=self.numbers.squeeze(dim))

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return self._made(self.numbers.index_select(dim, index.cpu()))

    def __getitem__(self, key: int | slice | Tensor | list[int]) -> ChunkStates | Tensor:
        if isinstance(key, int | slice):
            return replace(self, chosen=self.numbers[key])
        return self._made(self.numbers[key.cpu() if isinstance(key, Tensor) else torch.tensor(key, device="cpu")])

    def track(self, kept: Tensor, chunks: Tensor) -> None:
        """Put the state before chunk `chunks[n]` of each sequence n into kept[n], where that isn't below 0."""
        meant = [(n, STEPS * c) for n, c in enumerate(chunks.tolist()) if c >= 0]
        beyond = [(n, steps // STEPS) for n, steps in meant if steps > self._lengths[n]]
        if beyond or tuple(kept.shape) != (len(self._lengths), *self.shape[-3:]):
            raise ArgumentError(
                f"{self.name}: track_state must be {[len(self._lengths), *self.shape[-3:]]}, got {list(kept.shape)}, and "
                f"track_chunk_idx chunks of these sequences, which none is of (sequence, chunk): {beyond}"
            )
        if meant:
            at = torch.tensor([n for n, _ in meant], device=kept.device)
            kept.index_copy_(0, at, self._states(meant).to(kept.dtype))

    def tensor(self) -> Tensor:
        """All that are meant, in float32."""
        return self._made(self.numbers)

    def _made(self, numbers: Tensor) -> Tensor:
        wanted = [self.places[n] for n in numbers.flatten().tolist()]
        made = self._states(wanted)
        return made.view(*numbers.shape, *made.shape[1:])

    def _states(self, wanted: list[tuple[int, int]]) -> Tensor:
        """States [M, HV, ..] by sequence and steps, in one pass over as many tokens as are needed."""
        some = self.given["v"]
        zero = torch.zeros(self.shape[-3:], dtype=torch.float32, device=some.device)
        begins = {n: zero if self.first is None else self.first[n].float() for n, _ in wanted}
        longest: dict[int, int] = {}
        for n, steps in wanted:
            longest[n] = max(steps, longest.get(n, 0))
        longest = {n: steps for n, steps in longest.items() if steps}
        found = {(n, 0): x for n, x in begins.items()}
        if longest:
            found |= self._passed(longest, begins, all(t in (0, longest[n]) for n, t in wanted if n in longest))
        return torch.stack([found[place] for place in wanted]) if wanted else zero.new_zeros(0, *zero.shape)

    def _passed(self, longest: dict[int, int], begins: dict[int, Tensor], ends: bool) -> dict[tuple[int, int], Tensor]:
        """States of these sequences after so many steps; unless these are all, at every chunk before too."""
        device = self.given["v"].device
        offsets = [0]
        for length in self._lengths:
            offsets.append(offsets[-1] + length)
        at = torch.cat([torch.arange(offsets[n], offsets[n] + steps) for n, steps in longest.items()]).to(device)
        given = {key: x.flatten(0, 1)[at].unsqueeze(0) for key, x in self.given.items()}
        starts = torch.tensor([0, *longest.values()], device=device).cumsum(0)
        first = torch.stack([begins[n] for n in longest])
        if ends:
            _, last = whole(self.name, given, first, starts, self.v_first, True)
            assert last is not None
            return {place: x for place, x in zip(longest.items(), last, strict=True)}
        keys = {a.name: a.key for a in op_of(self.name).signature.tensors}
        arguments = {keys[n]: x for n, x in given.items()}
        options = {"initial_state": first.mT if self.v_first else first, "cu_seqlens": starts, "every": STEPS}
        checkpointed: Public = public_of(self.name).prefixes  # type: ignore[attr-defined]
        *_, prefixes = checkpointed(**arguments, **options)
        order = list(longest)
        (states,) = prefixes.states
        return {
            (order[n], steps): x.mT if self.v_first else x
            for (n, steps), x in zip(prefixes.places, states, strict=True)
        }
