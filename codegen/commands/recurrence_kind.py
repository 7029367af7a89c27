"""What the commands do for a recurrence; `kinds.py` describes these functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from chunkform.spec.language import Recurrence

from ..checking.checked import DTYPES, Checked, Op
from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.emit import declared_hash, emit, spec_hash, stub
from ..recurrence.explain import derivation, explanation, latex_document, show
from ..recurrence.pipeline import compile_spec

if TYPE_CHECKING:
    from ..performance.compile_report import InspectRow
    from ..recurrence.situations import Subject

__all__ = [
    "check_one",
    "compile_spec",
    "conditions_of",
    "declared_hash",
    "derivation",
    "emit",
    "explanation",
    "inspect_one",
    "latex_document",
    "show",
    "spec_hash",
    "stub",
    "subject",
]


def check_one(r: Recurrence, c: Compiled, op: Op, seeds: int, steps: int, width: int, device: str) -> list[Checked]:
    """The largest errors of a recurrence's op."""
    from ..recurrence.check import check_op
    from ..recurrence.samples import Case

    found: list[Checked] = []
    for dtype in DTYPES[device]:
        worst: dict[str, Checked] = {}
        for seed in range(seeds):
            case = Case(steps=steps, width=width, dtype=dtype, device=device, seed=seed)
            for row in check_op(c, op, case):
                kind = str(dtype).removeprefix("torch.")
                made = Checked(r.name, row.quantity, kind, device, row.error, row.bound, row.allowed, row.ok, row.head)
                if row.quantity not in worst or made.badness > worst[row.quantity].badness:
                    worst[row.quantity] = made
        found += worst.values()
    return found


def subject(r: Recurrence, c: Compiled, op: Op, device: str) -> Subject:
    from ..recurrence.situations import Subject

    return Subject(r, c, op, device)


def conditions_of(r: Recurrence, c: Compiled, op: Op, device: str) -> list[Checked]:
    """None: a recurrence is defined for all numbers."""
    return []


def inspect_one(c: Compiled, arch: str, dtypes: Iterable[str], widths: Iterable[int]) -> Iterator[InspectRow]:
    from ..performance.compile_report import inspect_op

    return inspect_op(c, arch, tuple(dtypes), tuple(widths))
