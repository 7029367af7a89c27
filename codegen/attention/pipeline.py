"""The compiler of attentions, pass by pass: spec -> nodes over pairs -> split -> maps and derivatives. Gates follow each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkform.spec.language.attention import Attention

from ..exact.random_points import GateResult
from ..recurrence.compiler_fault import blaming
from .compiled import CompiledAttention
from .feature_maps import feature_map, output_map, tile_derivatives
from .gates import gate_gradients, gate_lower, gate_split
from .lower import Lowered, lower
from .normalisers import normalisers
from .split import moved, split


@blaming
def compile_attention(a: Attention) -> CompiledAttention:
    """Compile an attention. A gate after each pass refuses an error."""
    return compile_lowered(lower(a))


def compile_lowered(p: Lowered, prove: bool = True) -> CompiledAttention:
    """The passes that follow; without their gates where `prove` isn't set."""
    gates: list[GateResult] = []

    def proved(gate: Callable[[Any], GateResult], x: Any) -> None:
        if prove:
            gates.append(gate(x))

    proved(gate_lower, p)
    s = split(p)
    proved(gate_split, s)
    kind = normalisers(p.query)[p.spec.normaliser]
    c = CompiledAttention(p.spec, p, s, feature_map(s), output_map(s), tile_derivatives(s), kind)
    proved(gate_gradients, c)
    other = None
    if (m := moved(s)) is not None:
        other = replace(c, split=m, features=feature_map(m), derivatives=tile_derivatives(m))
        proved(gate_split, m)
        proved(gate_gradients, other)
    return replace(c, gates=tuple(gates), moved=other)
