"""Values of a gate as they lie in memory, with gaps and in any order of axes, and what kernels have left there."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chunkform.errors import GateError

from .launch_memory import Tensor
from .rationals import UNDEFINED, same


@dataclass(frozen=True)
class Laid:
    """A tensor of a shape, and its strides."""

    tensor: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def values(self) -> np.ndarray:
        """What is there now."""
        places = np.zeros(self.shape, dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            own = [1] * len(self.shape)
            own[axis] = size
            places = places + (np.arange(size) * stride).reshape(own)
        return np.asarray(self.tensor.cells[places], dtype=object)

    def filled(self, values: np.ndarray) -> Laid:
        """The same with values in it."""
        places = Laid(Tensor("", np.arange(len(self.tensor.cells))), self.shape, self.strides).values.astype(np.int64)
        self.tensor.cells[places] = values
        return self


def room(name: str, shape: tuple[int, ...], gap: int = 0, turned: int = 0) -> Laid:
    """Memory for a tensor, which ends with it: so many cells between rows, and so many of its last axes in the other order."""
    order = [*range(len(shape) - turned), *reversed(range(len(shape) - turned, len(shape)))]
    strides, size = [0] * len(shape), 1
    for n, axis in enumerate(reversed(order)):
        strides[axis] = size
        size *= shape[axis] + (gap if n == 0 else 0)
    size = 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True)) if size else 0
    return Laid(Tensor(name, np.full(size, UNDEFINED, dtype=object)), shape, tuple(strides))


def drawn(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of many bits: among few, some is a pole of what is computed."""
    out = np.empty(shape, dtype=object)
    out.ravel()[:] = [Fraction(rng.randrange(1, 2**60), 2**55) * rng.choice((1, -1)) for _ in range(out.size)]
    return out


def few(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Whole numbers whose products of two have an order as residues, too (`residues.py`)."""
    out = np.empty(shape, dtype=object)
    out.ravel()[:] = [Fraction(rng.randrange(-(2**18), 2**18)) for _ in range(out.size)]
    return out


def compare(kernel: str, what: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Raises GateError where a kernel has left something else, or has stored where it shouldn't: what is expected to be undefined
    is."""
    expected = np.broadcast_to(expected, found.shape)
    pairs = zip(np.ndindex(*found.shape), found.ravel(), expected.ravel(), strict=True)
    for place, a, b in pairs:
        if same(a, b):
            continue
        why = (
            "it is undefined"
            if a is UNDEFINED
            else "nothing is stored there"
            if b is UNDEFINED
            else "steps say otherwise"
        )
        raise GateError(f"{kernel}: {what} at {list(place)}: {why}")
