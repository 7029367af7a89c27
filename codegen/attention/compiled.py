"""What the passes made of an attention, as data."""

from __future__ import annotations

from dataclasses import dataclass

from chunkform.spec.language.attention import Attention

from ..exact.random_points import GateResult
from ..ir.expr import Node
from .feature_maps import Derivative, Map
from .lower import Lowered
from .normalisers import Normaliser
from .split import Split


@dataclass(frozen=True)
class CompiledAttention:
    """Everything that is known of an attention. `moved`: the same with a matrix of its key on the query's side."""

    spec: Attention
    lowered: Lowered
    split: Split
    features: Map
    outputs: Map
    derivatives: dict[Node, Derivative]
    normaliser: Normaliser
    gates: tuple[GateResult, ...] = ()
    moved: CompiledAttention | None = None
    family: str = "attention"

    @property
    def name(self) -> str:
        return self.spec.name
