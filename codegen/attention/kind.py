"""What the commands do for an attention; `codegen/kinds.py` describes these functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .emit import emit, spec_hash
from .explain import explanation, latex_document, show
from .pipeline import CompiledAttention
from .pipeline import compile_attention as compile_spec

if TYPE_CHECKING:
    from chunkform.spec.language.attention import Attention

    from ..checks import Checked
    from ..inspect import InspectRow
    from .situations import AttentionSubject

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
    from .check import check_one as check

    return check(a, seeds, steps, width, device)


def subject(a: Attention, c: CompiledAttention, op: Callable[..., Any], device: str) -> AttentionSubject:
    from .situations import AttentionSubject

    return AttentionSubject(a, c, op, device)


def inspect_one(c: CompiledAttention, arch: str, dtypes: Any, widths: Any) -> list[InspectRow]:
    from .inspect import inspect_attention

    return inspect_attention(c, arch, dtypes, widths)
