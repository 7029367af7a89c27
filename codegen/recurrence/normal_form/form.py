"""The read-write form of a step program, as data: states, what is written to them and read from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ...ir.expr import Node, factors_of, mul, terms_of, walk


class NotAffine(Exception):
    """Why a step program has no read-write form: `term` is the node, `reason` a sentence about it, `equation` what it is part of,
    where that is known."""

    def __init__(self, reason: str, term: Node, equation: Node | None = None) -> None:
        self.reason, self.term, self.equation = reason, term, equation
        super().__init__(f"{reason}: {term!r}")


@dataclass(frozen=True)
class Read:
    """`leaf` = the state at `snapshot` contracted with `vector` over its rows (side `row`: S^T x) or columns (`col`: S x)."""

    leaf: Node
    state: str
    side: str
    vector: Node
    snapshot: str


@dataclass(frozen=True)
class Write:
    """left right^T, added after the decay (`late`) or before it. `leaf` names the value of `right` where reads feed it."""

    state: str
    left: Node
    right: Node
    late: bool
    leaf: Node | None = None

    @property
    def value(self) -> Node:
        return self.leaf if self.leaf is not None else self.right


@dataclass(frozen=True)
class StateForm:
    """One state in read-write form: decay * S + sum of mix + writes. `row` is the axis that feedback contracts.

    `decay` is None where there is none.
    """

    name: str
    row: str | None
    col: str | None
    decay: Node | None
    writes: tuple[Write, ...]
    direction: int
    axes: tuple[str, ...]
    coupling: tuple[
        tuple[str, Node], ...
    ] = ()  # previous states of the group that are added as a whole: (name, scalar)
    signed: bool = False  # the decay is a scalar that may be zero or negative, and so has no logarithm
    forgets: bool = (
        False  # the decay is one for each channel that may be exactly zero: its gradient isn't divided by it
    )

    @property
    def by_products(self) -> bool:
        """Are products over several steps formed of the scalars as they are, as those between coupled states?"""
        return bool(self.coupling) or self.signed

    @property
    def decays(self) -> tuple[Node, ...]:
        """The factors of the decay by axis: two where rows and columns both decay."""
        return () if self.decay is None else by_axis(self.decay)

    @property
    def decay_axes(self) -> tuple[str, ...]:
        return self.decay.axes if self.decay is not None else ()


def by_axis(decay: Node) -> tuple[Node, ...]:
    """A decay as factors of at most one axis each; numbers go with the first of two axes. One that is no such product stays
    whole."""
    if len(decay.axes) < 2 or any(len(f.axes) > 1 for f in factors_of(decay)):
        return (decay,)
    first = decay.axes[0]
    of_first = [f for f in factors_of(decay) if f.axes in ((), (first,))]
    return mul(*of_first), mul(*(f for f in factors_of(decay) if f not in of_first))


@dataclass(frozen=True)
class StateAdjointProduct:
    """`leaf` = D_t <S_{t-1}, dS_t> over an axis of the decay, or none, at each step, with what both write before their decay.

    Writes and reads change <S, dS> by what they contribute, and a decay keeps it. So it is a sum over the steps that follow:
    of `late` at t and later, of `early` after t, and of <S_n, dS_n>. (d log lambda of the documents: a reverse cumulative sum
    of <q, dq> - <k, dk>.)
    """

    leaf: Node
    state: str
    late: Node
    early: Node


@dataclass(frozen=True)
class Cross:
    """`leaf` = <S_{t-1}, dT_t> for states S and T of one coupled group, dT_t before the step's own reads of T."""

    leaf: Node
    state: str
    gradient: str


@dataclass(frozen=True)
class NormalForm:
    """States in an order in which they can be computed (`groups`: states that feed one another), and all reads."""

    groups: tuple[tuple[StateForm, ...], ...]
    reads: dict[Node, Read]
    values: dict[str, Node]  # what was asked for, over inputs, reads, state-adjoint products and write leaves
    state_adjoints: tuple[StateAdjointProduct, ...] = ()
    crosses: tuple[Cross, ...] = ()

    def state(self, name: str) -> StateForm:
        return next(s for group in self.groups for s in group if s.name == name)

    @cached_property
    def _leaves(self) -> dict[tuple[str, str], Node]:
        named = (
            *self.reads,
            *self.write_leaves(),
            *(p.leaf for p in self.state_adjoints),
            *(c.leaf for c in self.crosses),
        )
        return {x.attrs[:2]: x for x in named}

    def parts(self, x: Node) -> Iterator[Node]:
        """The reads, solved writes and state-adjoint products in a node, whatever their axes are called there (d or d' of a
        square state)."""
        for y in walk(x):
            if y.op == "leaf" and y.attrs[:2] in self._leaves:
                yield self._leaves[y.attrs[:2]]

    def write_leaves(self) -> dict[Node, tuple[StateForm, Write]]:
        return {w.leaf: (s, w) for group in self.groups for s in group for w in s.writes if w.leaf is not None}


def affine_terms(x: Node, is_read: object) -> list[tuple[Node, Node, Node | None]]:
    """x as a list of (term, coefficient, read): the term is coefficient * read, or has no read at its top level.

    A coefficient is a scalar, or scales the read entry by entry.
    """
    out: list[tuple[Node, Node, Node | None]] = []
    for term in terms_of(x):
        factors = factors_of(term)
        reads = [f for f in factors if is_read(f)]  # type: ignore[operator]
        sums = [f for f in factors if f.op == "add" and any(is_read(y) for y in walk(f))]  # type: ignore[operator]
        if len(reads) == 1 and not sums:
            out.append((term, mul(*(f for f in factors if f is not reads[0])), reads[0]))
        elif len(sums) == 1 and not reads:
            rest = mul(*(f for f in factors if f is not sums[0]))
            out += [(mul(rest, t), mul(rest, c), r) for t, c, r in affine_terms(sums[0], is_read)]
        else:
            out.append((term, term, None))
    return out
