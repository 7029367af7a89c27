"""What the commands do for an attention; `codegen/commands/kinds.py` describes these functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from chunkform.spec.language.attention import Attention

from ..attention.compiled import CompiledAttention
from ..attention.emit import declared_hash, emit, spec_hash, stub
from ..attention.explain import derivation, explanation, latex_document, show
from ..attention.pipeline import compile_attention as compile_spec
from ..checking.checked import DTYPES, Checked, Op

if TYPE_CHECKING:
    from ..attention.situations import AttentionSubject
    from ..performance.compile_report import InspectRow

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


def check_one(
    a: Attention, c: CompiledAttention, op: Op, seeds: int, steps: int, width: int, device: str
) -> list[Checked]:
    """The largest errors of an attention's op: full, causal, and with one head of keys for all of queries."""
    from ..attention.check import Case, check_op, grouped

    found: list[Checked] = []
    kinds = [Case(), Case(causal=True)] if a.nodes is None else [Case()]
    if any(v.kind in grouped(a) for v in a.variables):
        kinds.append(dataclasses.replace(kinds[-1], key_heads=(1,)))
    for dtype in DTYPES[device]:
        worst: dict[str, Checked] = {}
        for seed in range(seeds):
            for kind in kinds:
                case = dataclasses.replace(
                    kind, steps=steps, width=width + width % 2, dtype=dtype, device=device, seed=seed
                )
                for r in check_op(c, op, case):
                    kind_, j = str(dtype).removeprefix("torch."), r.judged
                    made = Checked(a.name, r.quantity, kind_, device, j.error, j.bound, j.allowed, j.ok, j.head)
                    if r.quantity not in worst or made.badness > worst[r.quantity].badness:
                        worst[r.quantity] = made
        found += worst.values()
    return found


def subject(a: Attention, c: CompiledAttention, op: Op, device: str) -> AttentionSubject:
    from ..attention.situations import AttentionSubject

    return AttentionSubject(a, c, op, device)


def conditions_of(a: Attention, c: CompiledAttention, op: Op, device: str) -> list[Checked]:
    """None: an attention is defined for all numbers."""
    return []


def inspect_one(c: CompiledAttention, arch: str, dtypes: Iterable[str], widths: Iterable[int]) -> Iterator[InspectRow]:
    from ..attention.inspect import inspect_attention

    return inspect_attention(c, arch, tuple(dtypes), tuple(widths))
