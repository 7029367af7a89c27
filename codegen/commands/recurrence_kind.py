"""What the commands do for a recurrence; `kinds.py` describes these functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chunkform.spec.language import Recurrence

from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.emit import emit, spec_hash
from ..recurrence.explain import explanation, latex_document, show
from ..recurrence.pipeline import compile_spec

if TYPE_CHECKING:
    from ..checking.checked import Checked
    from ..performance.compile_report import InspectRow
    from ..recurrence.situations import Subject

__all__ = [
    "check_one",
    "compile_spec",
    "emit",
    "explanation",
    "inspect_one",
    "latex_document",
    "show",
    "spec_hash",
    "subject",
]


def check_one(r: Recurrence, seeds: int, steps: int, width: int, device: str) -> list[Checked]:
    from .check import check_recurrence

    return check_recurrence(r, seeds, steps, width, device)


def subject(r: Recurrence, c: Compiled, op: Callable[..., Any], device: str) -> Subject:
    from ..recurrence.situations import Subject

    return Subject(r, c, op, device)


def inspect_one(c: Compiled, arch: str, dtypes: Any, widths: Any) -> list[InspectRow]:
    from ..performance.compile_report import inspect_op

    return inspect_op(c, arch, dtypes, widths)
