"""What training steps of a recurrence took on a GPU, at the shapes that were measured.

The model (`recurrence/predict.py`) counts bytes and products, and knows no kernel. Of a recurrence that was measured it only has
to say how much longer another shape takes than the nearest one measured.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.emit import spec_hash
from ..recurrence.predict import H200, Machine, Prediction, predict

TABLE = Path(__file__).parent / "tables" / "times.json"
WIDTH = 4  # a doubling of the width changes kernels more than one of the length does: as so many doublings

Shape = tuple[int, int, int, int]  # (B, T, H, D)


@dataclass(frozen=True)
class Measured:
    """Forward and backward at a shape, in bfloat16."""

    shape: Shape
    seconds: float


Row = tuple[int, int, int, int, float]


class Of(TypedDict):
    """A recurrence: its name, and B, T, H, D and milliseconds of each row; `lasting` with decays that forget little, of which
    kernels can leave nothing out."""

    name: str
    rows: list[Row]
    lasting: list[Row]


class Table(TypedDict):
    """`about` the machine and versions; `times` by the hash of what a spec says."""

    about: dict[str, str]
    times: dict[str, Of]


@cache
def measured_times() -> Table:
    found: Table = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def nearest(
    c: Compiled, shape: Shape, machine: Machine = H200, element: int = 2, lasting: bool = False
) -> Measured | None:
    """The measured shape that is most like this one; None where this recurrence wasn't measured there."""
    table = measured_times()
    of = table["times"].get(spec_hash(c))
    if of is None or element != 2 or machine.name != table["about"]["gpu"]:
        return None
    rows = (of["lasting"] if lasting else None) or of["rows"]
    found = [Measured((b, t, h, d), 1e-3 * both) for b, t, h, d, both in rows]
    return min(found, key=lambda x: _apart(x.shape, shape), default=None)


def corrected(
    c: Compiled,
    predicted: Prediction,
    shape: Shape,
    machine: Machine = H200,
    element: int = 2,
    lasting: bool = False,
) -> tuple[float, Measured | None]:
    """Seconds of both passes, and the measured shape that they follow from; the model's own, and None, where there is none."""
    seconds = _both(predicted)
    like = nearest(c, shape, machine, element, lasting)
    there = None if like is None else predict(c, like.shape, machine, element=element)
    if like is None or there is None:
        return seconds, None
    return seconds * like.seconds / _both(there), like


def _both(p: Prediction) -> float:
    return p.forward.seconds + p.backward.seconds


def _apart(x: Shape, y: Shape) -> float:
    """In doublings of the length, of sequences and heads together, and of the width."""

    def doublings(a: int, b: int) -> float:
        return abs(math.log2(a / b))

    return doublings(x[1], y[1]) + doublings(x[0] * x[2], y[0] * y[2]) + WIDTH * doublings(x[3], y[3])
