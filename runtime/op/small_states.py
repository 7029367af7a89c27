"""Small states: pools in int8 or float8 with a scale for each row of a state, or in bfloat16, rounded at random.

    pool = SmallPool.zeros(gated_delta_rule, rows=100, heads=16, dims={"d": 128, "e": 128}, dtype=torch.int8)
    o, _ = gated_delta_rule.step(pool, q=q, .., state_indices=rows)

A number is rounded up with the probability of how far up it lies, so that what is rounded away adds up to nothing on average.
On a GPU a step's kernel reads and writes int8 and float8 itself (`small_step.py`). Elsewhere rows are read into float32 before
what is asked for, and written back after it: by a kernel each on a GPU (`row_kernels.py`), else in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from . import row_kernels
from .rows import read_rows, told, write_rows

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
DTYPES = (torch.int8, torch.float8_e4m3fn, torch.bfloat16)


@dataclass(frozen=True)
class Small:
    """One state of all rows: the numbers [P, H, ..], and the scales [P, H, .., 1] of its last axis; none in bfloat16."""

    numbers: Tensor
    scales: Tensor | None

    def read(self, rows: Tensor) -> Tensor:
        made = row_kernels.read(self.numbers, self.scales, rows, torch.float32)
        if made is not None:
            return made
        found = read_rows(_bytes(self.numbers), rows).view(self.numbers.dtype).float()
        return found if self.scales is None else found * read_rows(self.scales, rows)

    def write(self, rows: Tensor, state: Tensor, stochastic: bool) -> None:
        drawn = stochastic and self.numbers.dtype in DTYPES
        if row_kernels.write(self.numbers, self.scales, state, rows, drawn):
            return
        numbers, scales = small(state, self.numbers.dtype, stochastic)
        write_rows([_bytes(self.numbers)], [_bytes(numbers)], rows)
        if self.scales is not None:
            write_rows([self.scales], [scales], rows)  # type: ignore[list-item]


@dataclass(frozen=True, eq=False)
class SmallPool:
    """Pools of all states of an op, in the place of tensors: for a step, and a prefill, with `state_indices`.

    stochastic: rounded at random, with torch's own random numbers, or in a kernel with numbers that follow from `drawn`, [P, H],
    a count that begins at random and goes on with each step; else to the nearest, which drifts.
    """

    states: tuple[Small, ...]
    stochastic: bool = True
    drawn: Tensor | None = None

    @classmethod
    def zeros(
        cls,
        op: object,
        rows: int,
        heads: int,
        dims: Mapping[str, int],
        dtype: torch.dtype = torch.int8,
        device: torch.device | str = "cpu",
        stochastic: bool = True,
    ) -> SmallPool:
        """A pool of an op's states, all of them zero. Numbers without axes stay in float32."""
        if dtype not in DTYPES:
            raise ArgumentError(
                f"SmallPool: dtype must be torch.int8, torch.float8_e4m3fn or torch.bfloat16, got {dtype}"
            )
        states = getattr(op, "states", None)
        if states is None:
            raise ArgumentError(f"SmallPool: op must be an op, whose states are known, got {told(op)}")
        for what, count in {"rows": rows, "heads": heads, **dims}.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ArgumentError(f"SmallPool: {what} must be a number, 0 or more, got {told(count)}")
        missing = sorted({d for _, axes in states for d in axes} - {*dims})
        if missing:
            raise ArgumentError(
                f"SmallPool: dims must have the sizes of {', '.join(missing)} as well, got {dict(dims)}"
            )
        made: list[Small] = []
        for _, axes in states:
            kind = dtype if axes else torch.float32
            shape = (rows, heads, *(dims[d] for d in axes))
            scaled = kind in LARGEST
            numbers = torch.zeros(shape, device=device).to(kind)
            made.append(Small(numbers, torch.zeros((*shape[:-1], 1), device=device) if scaled else None))
        drawn = None
        if stochastic and any(s.scales is not None for s in made):
            drawn = torch.randint(0, 1 << 31, (rows, heads), dtype=torch.int32, device=device)
        return cls(tuple(made), stochastic, drawn)

    def __len__(self) -> int:
        return int(self.states[0].numbers.shape[0])

    @property
    def bytes(self) -> int:
        """Of all rows."""
        parts = [self.drawn, *(x for s in self.states for x in (s.numbers, s.scales))]
        return sum(x.numel() * x.element_size() for x in parts if x is not None)

    def read(self, rows: Tensor) -> list[Tensor]:
        """The states of these rows in float32, zero for padding."""
        return [s.read(rows) for s in self.states]

    def write(self, rows: Tensor, states: Sequence[Tensor]) -> None:
        """States into these rows, but for padding."""
        for small_one, state in zip(self.states, states, strict=True):
            small_one.write(rows, state.float(), self.stochastic)


def small(x: Tensor, dtype: torch.dtype, stochastic: bool | Tensor) -> tuple[Tensor, Tensor | None]:
    """(numbers, scales) of float32 x: x is about numbers * scales. stochastic: everywhere, nowhere, or where this is true."""
    if dtype == torch.bfloat16 and isinstance(stochastic, Tensor):
        return torch.where(stochastic, _at_random(x), x.to(dtype)), None
    if dtype not in LARGEST:
        return (_at_random(x) if stochastic and dtype == torch.bfloat16 else x.to(dtype)), None
    largest = LARGEST[dtype]
    scales = x.abs().amax(-1, keepdim=True) / largest
    y = torch.where(scales > 0, x / scales, 0.0)
    unit: Tensor | float = 1.0
    if dtype != torch.int8:  # three bits behind the leading one, or the smallest step there is
        unit = torch.ldexp(torch.ones_like(y), y.abs().clamp(min=2.0**-6).frexp().exponent - 4)
    shift: Tensor | float = 0.5
    if isinstance(stochastic, Tensor):
        shift = torch.where(stochastic, torch.rand_like(y), 0.5)
    elif stochastic:
        shift = torch.rand_like(y)
    rounded = ((y / unit + shift).floor() * unit).clamp(-largest, largest)
    return rounded.to(dtype), scales


def _at_random(x: Tensor) -> Tensor:
    """x in bfloat16: its bits, with random ones added below the last that is kept."""
    noise = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device)
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + noise) & -65536).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)


def _bytes(x: Tensor) -> Tensor:
    """float8 as bytes, which torch can index."""
    return x.view(torch.uint8) if x.element_size() == 1 else x
