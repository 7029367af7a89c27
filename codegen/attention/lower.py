"""Pass 1: an attention's terms -> nodes over the axes `0i` of query positions and `0j` of key positions.

A quantity of position i is a leaf over `0i` and its own axes, one of position j over `0j`; a fixed set of queries has its own
dim in the place of `0i`. So which side of a pair a node belongs to shows in its axes, and a sum over positions is a sum like
any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy

from chunkform.spec.language import Matrix
from chunkform.spec.language.attention import Attention, energy_gradient_name
from chunkform.spec.language.expression import ONE as UNIT
from chunkform.spec.language.expression import Atom

from ..ir.expr import Node, expand, leaf, mul, size
from ..ir.step_program import Var, axes_of
from ..recurrence.step.lower import Lowering
from .operations import frequencies, half_turn

QUERY, KEY = "0i", "0j"  # digits sort before letters, so that positions come first


@dataclass(frozen=True)
class Lowered:
    """The terms of an attention as nodes. `energy` has the factor beta; averages and outputs are by name."""

    spec: Attention
    query: str  # the axis of query positions: QUERY, or the dim of fixed queries
    variables: tuple[Var, ...]
    energy: Node
    averages: dict[str, Node]
    average_axes: dict[str, tuple[str, ...]]
    outputs: dict[str, Node]
    output_axes: dict[str, tuple[str, ...]]
    origins: dict[Node, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.spec.dim_list)

    def side(self, x: Node) -> str:
        """query | key | both | neither."""
        i, j = self.query in x.axes, KEY in x.axes
        return "both" if i and j else "query" if i else "key" if j else "neither"


def lower(a: Attention) -> Lowered:
    """An attention's energy, averages and outputs as nodes."""
    return _AttentionLowering(a).lowered()


def variables_of(a: Attention, query: str) -> tuple[Var, ...]:
    """What nodes are given. A stream is two variables, one for each side."""
    found = []
    for v in a.variables:
        own = axes_of(v.dims)
        if v.kind in ("query", "stream"):
            found.append(Var(f"{v.name}_i", "query", (query, *own)))
        if v.kind in ("key", "stream"):
            found.append(Var(f"{v.name}_j", "key", (KEY, *own)))
        if v.kind == "fixed":
            found.append(Var(f"{v.name}_k", "fixed", own))
        if v.kind in ("parameter", "temperature"):
            found.append(Var(v.name, "parameter", own))
        if v.kind == "constant":
            found.append(Var(v.name, "constant", (), v.default))
    return tuple(found)


class _AttentionLowering(Lowering):
    """The recurrences' lowering of matrix terms, over an attention's symbols."""

    def __init__(self, a: Attention) -> None:
        self.a = a.validate()
        self.query = QUERY if a.nodes is None else a.nodes.name
        self.origins: dict[Node, Any] = {}
        self.memo: dict[Any, Node] = {}
        self.lets, self.updates = {}, {}
        self.where: Any = a.where
        self.vars = {v.name: v for v in variables_of(a, self.query)}

    def lowered(self) -> Lowered:
        a = self.a
        assert a.energy is not None
        self.where = a.energy.where
        energy = self.scalar(a.energy.term)
        beta = self.scalar(a.beta)
        scaled = mul(beta, energy)
        self.origins.setdefault(scaled, self.where)
        averages: dict[str, Node] = {}
        axes: dict[str, tuple[str, ...]] = {}
        self.bare_energy = energy
        for x in a.averages:
            self.where = x.where
            own: tuple[str, ...] = (x.term.rows.name,) if isinstance(x.term, Matrix) else ()
            node = self.term(x.term, own[0], None) if own else self.scalar(x.term)
            averages[x.name], axes[x.name] = expand(node, own), own
        outputs: dict[str, Node] = {}
        output_axes: dict[str, tuple[str, ...]] = {}
        for y in a.outputs:
            self.where = y.where
            own = axes_of(_dims(y.term))
            row, col = (*own, None, None)[:2]
            node = self.term(y.term, row, col) if isinstance(y.term, Matrix) else self.scalar(y.term)
            if self.query == QUERY:
                own = (QUERY, *own)
                node = expand(node, own)
            outputs[y.name], output_axes[y.name] = expand(node, own), own
        return Lowered(
            a, self.query, tuple(self.vars.values()), scaled, averages, axes, outputs, output_axes, self.origins
        )

    def matrix(self, m: Matrix, row: str | None, col: str | None) -> Node:
        match m.op:
            case "symbol":
                return self._known(m.args[0], m.args[1], tuple(a for a in (row, col) if a is not None))
            case "half_turn":
                axis = row if m.cols is UNIT else col
                assert axis is not None
                return half_turn(expand(self.term(m.args[0], row, col), (axis,)), axis)
            case "frequencies":
                axis = row if m.cols is UNIT else col
                assert axis is not None
                return frequencies(axis, Fraction(int(sympy.Rational(m.args[0]).p), int(sympy.Rational(m.args[0]).q)))
        return super().matrix(m, row, col)

    def _atom(self, x: object) -> Node | None:
        return self._known(x.name, x.kind, ()) if isinstance(x, Atom) else super()._atom(x)

    def _known(self, name: str, kind: str, axes: tuple[str, ...]) -> Node:
        match kind:
            case "query":
                return leaf("query", name, (self.query, *axes))
            case "key":
                return leaf("key", name, (KEY, *axes))
            case "fixed":
                return leaf("fixed", name, (self.query, *axes))
            case "position":
                return leaf("position", name, (QUERY,) if name == "i" else (KEY,))
            case "size":
                return size(name)
            case "average":
                return leaf("average", name, axes if self.query != QUERY else (QUERY, *axes))
            case "energy gradient":
                return self._energy_gradient(name, axes)
            case "constant":
                return leaf("constant", name)
        return leaf("parameter", name, axes)

    def _energy_gradient(self, name: str, axes: tuple[str, ...]) -> Node:
        """dE_ij / dx_i, each pair for itself."""
        from .gradients import pairwise_gradient

        by = next(v for v in self.vars.values() if energy_gradient_name(v.name) == name)
        return pairwise_gradient(self.bare_energy, (by.kind, by.name), (self.query, *axes), (self.query, KEY))


def _dims(term: object) -> tuple[Any, ...]:
    return tuple(x for x in term.shape if x is not UNIT) if isinstance(term, Matrix) else ()
