"""What the commands do for an attention; `codegen/commands/kinds.py` describes these functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..attention.emit import emit, spec_hash
from ..attention.explain import explanation, latex_document, show
from ..attention.pipeline import CompiledAttention
from ..attention.pipeline import compile_attention as compile_spec

if TYPE_CHECKING:
    from chunkform.spec.language.attention import Attention

    from ..attention.situations import AttentionSubject
    from ..performance.compile_report import InspectRow
    from .check import Checked

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


def check_one(a: Attention, seeds: int, steps: int, width: int, device: str) -> list[Checked]:
    from ..attention.check import check_one as check

    return check(a, seeds, steps, width, device)


def subject(a: Attention, c: CompiledAttention, op: Callable[..., Any], device: str) -> AttentionSubject:
    from ..attention.situations import AttentionSubject

    return AttentionSubject(a, c, op, device)


def inspect_one(c: CompiledAttention, arch: str, dtypes: Any, widths: Any) -> list[InspectRow]:
    from ..attention.inspect import inspect_attention

    return inspect_attention(c, arch, dtypes, widths)
