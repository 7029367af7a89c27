"""The compiler of attentions, pass by pass: spec -> nodes over pairs -> split -> maps and derivatives. Gates follow each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chunkform.spec.language.attention import Attention

from ..exact.random_points import GateResult
from ..ir.expr import Node
from ..printing.passes import Pass, run_passes, untold
from ..recurrence.compiler_fault import blaming
from .compiled import CompiledAttention
from .derivation import text
from .feature_maps import Derivative, Map, feature_map, output_map, tile_derivatives
from .gates import gate_gradients, gate_lower, gate_split
from .lower import Lowered, lower
from .normalisers import Normaliser, normalisers
from .split import Split, moved, split


class Known:
    """What is known of an attention: each pass adds what it makes."""

    lowered: Lowered
    split: Split
    features: Map
    outputs: Map
    normaliser: Normaliser
    derivatives: dict[Node, Derivative]
    moved: CompiledAttention | None

    def __init__(self, spec: Attention) -> None:
        self.spec = spec

    @property
    def compiled(self) -> CompiledAttention:
        """As the split has it, with nothing moved."""
        return CompiledAttention(
            self.spec, self.lowered, self.split, self.features, self.outputs, self.derivatives, self.normaliser
        )


# --- the passes, in order ---------------------------------------------------------------------------------------------


def _lower(k: Known) -> None:
    k.lowered = lower(k.spec)


def _split(k: Known) -> None:
    k.split = split(k.lowered)


def _features(k: Known) -> None:
    k.features = feature_map(k.split)


def _outputs(k: Known) -> None:
    k.outputs = output_map(k.split)


def _normaliser(k: Known) -> None:
    k.normaliser = normalisers(k.lowered.query)[k.spec.normaliser]


def _derivatives(k: Known) -> None:
    k.derivatives = tile_derivatives(k.split)


def _move(k: Known) -> None:
    m = moved(k.split)
    k.moved = None
    if m is not None:
        k.moved = replace(k.compiled, split=m, features=feature_map(m), derivatives=tile_derivatives(m))


def _gates_of_moved(k: Known) -> Iterator[GateResult]:
    if k.moved is not None:
        yield gate_split(k.moved.split)
        yield gate_gradients(k.moved)


PASSES: tuple[Pass[Known], ...] = (
    Pass("lower", "the spec's terms over pairs of positions", "lowered", _lower, lambda k: (gate_lower(k.lowered),)),
    Pass(
        "split",
        "what a tile of pairs computes, and of which features",
        "split",
        _split,
        lambda k: (gate_split(k.split),),
    ),
    Pass("features", "from what the op is given to features, and its adjoint", "features", _features),
    Pass("outputs", "from averages to outputs, and its adjoint", "outputs", _outputs),
    Pass("normaliser", "what weights are divided by, and what it does to gradients", "normaliser", _normaliser),
    Pass(
        "derivatives",
        "of the function of the tile",
        "derivatives",
        _derivatives,
        lambda k: (gate_gradients(k.compiled),),
    ),
    Pass("move", "the same with a matrix of the key on the query's side", "moved", _move, _gates_of_moved),
)


# --- running them -----------------------------------------------------------------------------------------------------


@blaming
def compile_attention(a: Attention) -> CompiledAttention:
    """Compile an attention. A gate after each pass refuses an error."""
    return _compile(Known(a))


def compile_lowered(p: Lowered) -> CompiledAttention:
    """What the passes make of an attention in other letters: they do again what gates have seen them do."""
    k = Known(p.spec)
    k.lowered = p
    with untold():
        return _compile(k, start=1, prove=False)


def _compile(k: Known, start: int = 0, prove: bool = True) -> CompiledAttention:
    done = run_passes(PASSES, k, k.spec.name, start=start, prove=prove, show=text)
    return replace(k.compiled, gates=done.gates, moved=k.moved)
