"""Where sequences, their segments and their chunks lie in tensors [B, T, H, ...], for kernels.

A chunk has a place among those of its batch entry. Packed sequences (`Packed`) begin a chunk each, so sequence n has its chunks
from place starts[n] // chunk + n on; places that no chunk has are skipped. A sequence that isn't packed may be swept in
`segments` of `length` steps each, by programs of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..launch.fixed_split import fixed
from ..launch.launch import cdiv, processors
from ..launch.varlen import INTERVAL, Packed

SEGMENTS = 2048  # at most so many segments for all batch entries together
SHORTEST = 4  # chunks of a segment
LEVELS = INTERVAL.bit_length() - 1  # of what is made of all steps of a checkpoint interval
GROUP = 32  # chunks that a program looks at, for those that are of a large decay range


@dataclass(frozen=True)
class ChunkLayout:
    """Of one call. Where sequences are packed, each chunk's place has its steps, `begins` up to `stops`, the sequence that it is
    of (`owners`), and the place after that sequence's last (`ends`); all [chunks]."""

    batch: int
    steps: int
    heads: int
    chunk: int
    chunks: int
    sequences: int
    starts: torch.Tensor | None = None
    begins: torch.Tensor | None = None
    stops: torch.Tensor | None = None
    owners: torch.Tensor | None = None
    ends: torch.Tensor | None = None

    @property
    def whole(self) -> bool:
        """Is every chunk whole?"""
        return self.starts is None and self.steps % self.chunk == 0

    @property
    def even(self) -> bool:
        """May kernels be compiled for whole chunks alone? Not where they are to be those of packed sequences as well."""
        return self.whole and not fixed()

    @property
    def swept(self) -> tuple[int | torch.Tensor | None, ...]:
        """Arguments of a kernel that sweeps over sequences, beside its segments."""
        return self.steps, self.heads, self.chunks, self.starts

    @property
    def at_once(self) -> tuple[int | torch.Tensor | None, ...]:
        """Arguments of a kernel that takes every chunk on its own."""
        return self.steps, self.heads, self.chunks, self.begins, self.stops

    @property
    def programs(self) -> int:
        """Chunks of all batch entries and heads."""
        return self.batch * self.heads * self.chunks

    def length(self, segments: int) -> int:
        """Steps of a segment: whole chunks, whatever the chunk of another pass over the same sequences is."""
        return max(1, cdiv(cdiv(self.steps, segments), INTERVAL)) * INTERVAL if segments > 1 else max(1, self.steps)


def chunk_layout(packed: Packed | None, shape: tuple[int, int, int], chunk: int) -> ChunkLayout:
    """The places of [B, T, H] in chunks of `chunk` steps; `packed` is a `Packed` or None. Nothing waits for the device."""
    batch, steps, heads = shape
    if packed is None:
        return ChunkLayout(batch, steps, heads, chunk, cdiv(steps, chunk), batch)
    starts, count = packed.starts, packed.count
    chunks = steps // chunk + count
    first = starts[:-1] // chunk + torch.arange(count, device=starts.device)
    place = torch.arange(chunks, device=starts.device)
    n = torch.searchsorted(first, place, right=True) - 1
    begins = starts[n] + (place - first[n]) * chunk
    stops = torch.minimum(begins + chunk, starts[n + 1])
    ends = first[n] + (starts[n + 1] - starts[n] + chunk - 1) // chunk
    return ChunkLayout(batch, steps, heads, chunk, chunks, count, starts, begins, stops, n, ends)


def segments_for(p: ChunkLayout, programs: int) -> int:
    """Into how many segments to cut sequences, where `programs` would sweep over whole ones: enough to fill the GPU twice.

    Into none where sequences are packed, and so into none either where the split may depend on a sequence's length only."""
    if p.starts is not None or fixed() or not torch.cuda.is_available():
        return 1
    wanted = 2 * processors()
    if 2 * programs > wanted:
        return 1
    longest = p.steps // (SHORTEST * 64)
    return max(1, min(wanted // max(1, programs), longest, SEGMENTS // max(1, p.batch)))
