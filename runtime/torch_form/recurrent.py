"""What the generated recurrent forms share: checkpoints in time, gradients that may be missing, and launches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..launch.narrowing import level
from ..launch.varlen import Packed
from .chunks import dtype_of

WIDEST = 128 * 128  # entries of a state that a program holds in registers
AHEAD = (
    24 * 1024
)  # bytes of a step's matrices of which two more steps' fit into shared memory, beside what products need
NARROW = (
    64,
    32,
)  # entries beside the axis that is cut, where a program takes several steps at once: forwards, and backwards
BLOCK = 8192  # entries of a block of its rows, where it can't


def computed_in(given: dict[str, Tensor]) -> torch.dtype:
    """The dtype of a recurrent form's arithmetic: float64 on a CPU, whatever the inputs, elsewhere float32 at least.

    A recurrence that isn't affine may amplify each step's rounding, and on a CPU the wider numbers cost little.
    """
    return torch.float64 if next(iter(given.values())).device.type == "cpu" else dtype_of(given)


def segment_length(steps: int) -> int:
    """Steps between two checkpoints: about the square root, so that checkpoints and one segment's states weigh the same."""
    return max(1, math.isqrt(steps))


@dataclass(frozen=True)
class Layout:
    """How many sequences there are, and the room for what the kernels keep of each.

    slots: checkpoints of all sequences. rooms: steps of a segment whose states the backward pass holds, of all sequences.
    table: None, or int64 [N + 1, 4] of packed sequences: the first step, steps between checkpoints, the first slot and room.
    """

    sequences: int
    segment: int
    slots: int
    rooms: int
    table: Tensor | None = None


def layout_of(batch: int, steps: int, packed: Packed | None, keeps: bool = True) -> Layout:
    """The layout of `batch` sequences of `steps` steps, or of packed ones; one segment each where nothing is kept.

    The lengths of packed sequences are known on the device only. Of lengths that add up to T, the square roots add up to at
    most sqrt(N T): so much room is made.
    """
    if packed is None:
        segment = segment_length(steps) if keeps else max(1, steps)
        return Layout(batch, segment, batch * -(-steps // segment), batch * segment)
    lengths = packed.starts.diff()
    segment = lengths.double().sqrt().long() if keeps else lengths
    segment = segment.clamp(min=1)
    counts = (lengths + segment - 1) // segment
    before = torch.nn.functional.pad(torch.stack((counts, segment)).cumsum(1), (1, 0))
    table = torch.stack((packed.starts, torch.nn.functional.pad(segment, (0, 1), value=1), *before), 1)
    most = math.isqrt(packed.count * steps) + 1
    return Layout(packed.count, 0, most + 3 * packed.count, most + packed.count, table.contiguous())


def gradient_like(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Room for a gradient: like x; in float32 where it has more heads than x, as it is summed over groups afterwards."""
    return x.new_empty(shape, dtype=x.dtype if x.shape == shape else torch.float32)


def typed_like(x: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in x's dtype, unless it has more heads than x and is summed over groups afterwards."""
    return gradient.to(x.dtype) if gradient.shape == x.shape else gradient


def incoming(x: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A gradient that comes in, or zeros that take no memory."""
    return like.new_zeros(()).expand(shape) if x is None else x


def block_of(size: int, smallest: int = 1) -> int:
    """The power of two that holds an axis."""
    return max(smallest, 1 << (size - 1).bit_length())


def tile_of(size: int, others: int, entries: int, smallest: int = 1, most: int = 256) -> int:
    """The width of a tile of an axis, a power of two: `entries` entries or fewer, where there are `others` beside it.

    But not so narrow that there are more than `most` tiles: where each writes a part of a result, parts take memory.
    """
    widest = 1 << max(0, ((entries >> 2 * level()) // others).bit_length() - 1)
    return max(smallest, block_of(size) // most, min(block_of(size), widest))


def parts_at_most(size: int, others: int) -> int:
    """How many tiles of an axis may each write a part of a result over `others`: parts weigh about as much as what is over the
    axis itself."""
    return max(8, size // max(1, others))


def is_narrow(others: int, backwards: bool = False) -> bool:
    """Does a program take several steps at once, where there are so many entries beside the axis that is cut? What these load
    has to fit into registers beside the state."""
    return others <= NARROW[backwards]


def narrow(entries: int, others: int, backwards: bool = False) -> int:
    """How many entries a program has at most: where it takes several steps at once few, since then many programs wait for memory
    side by side, and each step's sums are short."""
    return min(entries, max(64, 8 * others)) if is_narrow(others, backwards) else entries


def too_wide(entries: int) -> bool:
    """Would a program's state fill its registers several times over, so that it is better taken by rows?"""
    return entries > WIDEST >> 2 * level()


def rows_of_tile(width: int, rows: int) -> int:
    """How many rows of this width a program works on at a time."""
    return max(1, min(rows, BLOCK // width))


def warps_for(entries: int, each: int = 32) -> int:
    """Warps for a tile: some `each` of its entries in each thread, from 1 to 16 warps.

    Sums over a tile's rows go through shared memory where several warps hold them, so that fewer warps are faster as long as
    their registers hold the tile.
    """
    return 1 << min(4, (entries // (32 * each)).bit_length() - 1) if entries >= 32 * each else 1


def stages_for(loaded: int) -> int:
    """Steps under way at once in a kernel that loads so many bytes of matrices for each: Triton loads them ahead into shared
    memory, as far as every GPU has it."""
    return 3 if loaded <= AHEAD else 1


def whole_warps(entries: int) -> int:
    """Warps for a backward pass over whole states: some 32 entries in each thread, or 64 where that takes more than 4 warps."""
    return max(min(4, warps_for(entries)), warps_for(entries, 64))


def strides_of(*tensors: Tensor) -> list[int]:
    """The strides of tensors, one after the other."""
    return [s for x in tensors for s in x.stride()]


def stacked(states: list[Tensor], like: Tensor) -> Tensor:
    """Checkpoints as one tensor, [N, B, H, ...]; N may be 0."""
    return torch.stack(states) if states else like.new_empty((0, *like.shape))
