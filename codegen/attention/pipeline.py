"""The compiler of attentions, pass by pass: spec -> nodes over pairs -> split -> maps and derivatives. Gates follow each."""

from __future__ import annotations

from dataclasses import dataclass

from chunkform.spec.language.attention import Attention

from ..ir import Node
from ..points import GateResult
from .gates import gate_gradients, gate_lower, gate_split
from .lower import Lowered, lower
from .maps import Derivative, Map, feature_map, output_map, tile_derivatives
from .normalisers import Normaliser, normalisers
from .split import Split, split


@dataclass(frozen=True)
class CompiledAttention:
    """Everything that is known of an attention."""

    spec: Attention
    lowered: Lowered
    split: Split
    features: Map
    outputs: Map
    derivatives: dict[Node, Derivative]
    normaliser: Normaliser
    gates: tuple[GateResult, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name


def compile_attention(a: Attention) -> CompiledAttention:
    """Compile an attention. A gate after each pass refuses an error."""
    p = lower(a)
    gates = [gate_lower(p)]
    s = split(p)
    gates.append(gate_split(s))
    c = CompiledAttention(
        a, p, s, feature_map(s), output_map(s), tile_derivatives(s), normalisers(p.query)[a.normaliser], tuple(gates)
    )
    return CompiledAttention(**{**vars(c), "gates": (*gates, gate_gradients(c))})
