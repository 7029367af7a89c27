"""An attention with all names in letters of their own, for those who print code (see `codegen/ir/letters.py`)."""

from __future__ import annotations

import copy
import dataclasses

from chunkform.spec.language.attention import SIDES, Attention
from chunkform.spec.language.expression import Dim

from ..ir.letters import Alphabet, axes_of, relettered
from ..ir.step_program import Var
from .compiled import CompiledAttention
from .lower import Lowered
from .pipeline import compile_lowered


def attention_in_letters(c: CompiledAttention) -> tuple[CompiledAttention, Alphabet]:
    """The attention, whose passes do again what gates have seen them do, and the alphabet."""
    a, p = c.spec, c.lowered
    names = [a.name, *(d.name for d in a.dim_list), *(v.name for v in a.variables), *p.outputs]
    alphabet = Alphabet.of(names)
    return compile_lowered(_lettered(p, _spec(a, alphabet), alphabet)), alphabet


def _spec(a: Attention, alphabet: Alphabet) -> Attention:
    """What printers ask of the spec: its name, dims and variables."""
    write = alphabet.letters
    found = copy.copy(a)
    found.name = write[a.name]
    found.dim_list = [Dim(write[d.name]) for d in a.dim_list]
    found.nodes = None if a.nodes is None else Dim(write[a.nodes.name])
    found.variables = [
        dataclasses.replace(v, name=write[v.name], dims=tuple(Dim(write[d.name]) for d in v.dims)) for v in a.variables
    ]
    return found


def _lettered(p: Lowered, spec: Attention, alphabet: Alphabet) -> Lowered:
    write = alphabet.letters
    axes = axes_of(write)
    sides = {f"{own}{side}": f"{letters}{side}" for own, letters in write.items() for side in SIDES.values()}

    def name_of(kind: str, name: str) -> str:
        if kind in SIDES:
            return sides[name]
        return write.get(name, name) if kind in ("parameter", "constant") else name

    node = relettered(write, name_of)
    return Lowered(
        spec,
        axes((p.query,))[0],
        tuple(Var(name_of(v.kind, v.name), v.kind, axes(v.axes), v.default) for v in p.variables),
        node(p.energy),
        {n: node(x) for n, x in p.averages.items()},
        {n: axes(x) for n, x in p.average_axes.items()},
        {write[n]: node(x) for n, x in p.outputs.items()},
        {write[n]: axes(x) for n, x in p.output_axes.items()},
    )
