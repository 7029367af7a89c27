"""States that are added to each other as a whole, as momentum is: the same chunk form, with a small matrix for the decay.

A group of n states takes S_t = A_t S_{t-1} + writes, where A_t is n x n with a scalar in each entry. Products of A over the
steps of a chunk take the place of exp(a_i - a_j). They are formed as they are, without logarithms, so any scalar will do.

    transition_mask    [i, j]  how much of a write of step j to one state a read of another sees at step i
    transition_in      [i]     ... of the state before the chunk
    transition_out     [j]     how much of a write of step j to one state is in another after the chunk
    transition_all             ... of the state before the chunk

The arguments are the entries of A; `positions` says where each stands, and (to, of) which product is meant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ...ir.evaluate import BEYOND, CHUNK_OPERATIONS, WHOLES, Arithmetic, aligned
from ...ir.expr import (
    COL,
    ONE,
    ROW,
    ZERO,
    Node,
    add,
    const,
    factors_of,
    leaf,
    make,
    mul,
    rebuild,
    split_constant,
    terms_of,
    total,
    walk,
)
from ..normal_form.form import StateForm

TRANSITIONS = frozenset(
    f"transition_{x}" for x in ("products", "mask", "in", "out", "all")
)  # operations: over steps of a chunk


def state_in(s: StateForm) -> Node:
    """The state that enters a chunk."""
    return leaf("state in", s.name, s.axes)


def is_coupled(group: tuple[StateForm, ...]) -> bool:
    return any(s.by_products for s in group)


def entries(group: tuple[StateForm, ...]) -> dict[tuple[int, int], Node]:
    """The entries of A that aren't zero, by (to, of), as step-level nodes."""
    order = [s.name for s in group]
    out: dict[tuple[int, int], Node] = {}
    for n, s in enumerate(group):
        own = ONE if s.decay is None else s.decay
        for m, c in ((n, own), *((order.index(name), c) for name, c in s.coupling)):
            if c is not ZERO:
                out[n, m] = c
    return out


class Transition:
    """The four kinds of products of a group's matrices, given how a step-level node becomes a stream."""

    def __init__(self, group: tuple[StateForm, ...], stream: Any) -> None:
        self.order = [s.name for s in group]
        table = entries(group)
        self.positions = tuple(table)
        self.streams = tuple(stream(x) for x in table.values())
        self.direction = group[0].direction
        self.reached = reached(self.positions, len(group))

    def _attrs(self, to: StateForm, of: StateForm) -> tuple[Any, ...]:
        return (self.positions, len(self.order), self.order.index(to.name), self.order.index(of.name))

    def mask(self, to: StateForm, of: StateForm, late: bool) -> Node:
        return self._product("transition_mask", to, of, (late,), (ROW, COL))

    def incoming(self, to: StateForm, of: StateForm, late: bool) -> Node:
        return self._product("transition_in", to, of, (late,), (ROW,))

    def outgoing(self, to: StateForm, of: StateForm) -> Node:
        return self._product("transition_out", to, of, (), (ROW,))

    def all(self, to: StateForm, of: StateForm) -> Node:
        return self._product("transition_all", to, of, (), ())

    def _product(self, op: str, to: StateForm, of: StateForm, late: tuple[bool, ...], axes: tuple[str, ...]) -> Node:
        """One of these; zero where nothing of a state ever gets into the other."""
        places = self.order.index(to.name), self.order.index(of.name)
        if places not in self.reached:
            return ZERO
        return make(op, self.streams, (*self._attrs(to, of), *late, self.direction), axes)


def reached(positions: tuple[tuple[int, int], ...], n: int) -> set[tuple[int, int]]:
    """(to, of) for each state `of` that gets into another, `to`, in some steps, or in none."""
    found = {(k, k) for k in range(n)}
    while more := {(to, of) for to, way in positions for by, of in found if by == way} - found:
        found |= more
    return found


@functools.lru_cache(maxsize=2**14)
def is_transition(x: Node) -> bool:
    """Is x a transition between states, or a sum of such, with numbers before them?"""
    terms = [split_constant(t)[1] for t in x.args] if x.op == "add" else [x]
    return all(t.op in TRANSITIONS for t in terms)


@functools.lru_cache(maxsize=2**14)
def factored(x: Node) -> Node:
    """x with terms that differ in a transition alone as one, with the sum of these: writes of the same to several states."""
    x = rebuild(x, map(factored, x.args)) if x.args else x
    place = 0
    while x.op == "add":
        split = [split_constant(t) for t in x.args]
        terms = [(c, core, _transitions_of(core)) for c, core in split]
        if all(len(found) <= place for _, _, found in terms):
            break
        groups: dict[Any, list[Node]] = {}
        first: dict[Any, tuple[Node, Node]] = {}
        for c, core, found in terms:
            if len(found) <= place:
                groups[core] = [mul(c, core)]
                continue
            w = found[place]
            key = _around(core, w), _kinds(w)
            first.setdefault(key, (core, w))
            groups.setdefault(key, []).append(mul(c, w))
        x = add(*(_instead(*first[k], add(*y)) if k in first else y[0] for k, y in groups.items()))
        place += 1
    return x


def _around(x: Node, w: Node) -> object:
    """What a term has around a transition that it is a product with, inside of sums or not: the same of two terms if they
    differ in the transition alone."""
    if x is w:
        return w.axes
    if x.op == "sum":
        return x.attrs, _around(x.args[0], w)
    inner = _factor_of(x, w)
    return frozenset(f for f in x.args if f is not inner), _around(inner, w)


def _instead(x: Node, w: Node, other: Node) -> Node:
    """The term with another transition."""
    if x is w:
        return other
    inner = x.args[0] if x.op == "sum" else _factor_of(x, w)
    return rebuild(x, (_instead(inner, w, other), *(f for f in x.args if f is not inner)))


def _factor_of(x: Node, w: Node) -> Node:
    """The factor of a product that is a transition, or a product with it."""
    return next(f for f in x.args if w in _transitions_of(f))


@functools.lru_cache(maxsize=2**12)
def _kinds(w: Node) -> frozenset[tuple[Any, ...]]:
    """What transitions a sum of such is made of, but for the states that these lead from and to."""
    return frozenset((y.op, y.attrs[4:], y.args) for y in walk(w) if y.op in TRANSITIONS)


def gathered(x: Node) -> Node:
    """x, a sum, with terms that differ in what the same transitions are times as one: products with these of a sum."""
    groups: dict[Any, list[tuple[Node, Callable[[Node], Node]]]] = {}
    for term in terms_of(x):
        key, core, around = _opened(term)
        groups.setdefault(key, []).append((core, around))
    return add(*(found[0][1](add(*(core for core, _ in found))) for found in groups.values()))


def _opened(x: Node) -> tuple[Any, Node, Callable[[Node], Node]]:
    """(what a term is around its core, the core, the term of another core) of sums with transitions, in one another. What else a
    sum is times is in the core."""
    number, x = split_constant(x)
    factors = factors_of(x)
    sums = [f for f in factors if f.op == "sum" and any(map(is_transition, walk(f)))]
    transitions = [f for f in factors if is_transition(f)]
    rest = mul(const(number), *(f for f in factors if f not in transitions and f not in sums))
    if len(sums) == 1:
        inner, core, around = _opened(sums[0].args[0])
        key = ("sum", sums[0].attrs, frozenset(transitions), inner)
        return key, mul(rest, core), lambda y: mul(*transitions, total(around(y), *sums[0].attrs))
    return ("transitions", frozenset(transitions)), mul(rest, *sums), lambda y: mul(*transitions, y)


@functools.lru_cache(maxsize=2**14)
def _transitions_of(x: Node) -> tuple[Node, ...]:
    """The transitions that a term is a product with, inside of sums or not; none where it is so with one twice."""
    if is_transition(x):
        return (x,)
    inside = x.args if x.op == "mul" else x.args[:1] if x.op == "sum" else ()
    found = tuple(w for y in inside for w in _transitions_of(y))
    return found if len(set(found)) == len(found) else ()


# --- exact meaning, for gates -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2**12)
def _products_of(x: Node) -> Node:
    """What all transitions between the states of a group are entries of."""
    return make("transition_products", x.args, (*x.attrs[:2], x.attrs[-1]))


def _products(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    """[i, j, to, of] -> the product of the matrices A of the steps from j up to i, without i, the last of them leftmost; steps
    are counted in the order of the sweep. A is the identity for the steps beyond the sequence's end. Axes of chunks come last."""
    positions, n, direction = x.attrs
    count, beyond = sizes[ROW], sizes.get(BEYOND, 0)
    one, zero = m.const(Fraction(1)).item(), m.const(Fraction(0)).item()
    values = [np.asarray(aligned(a, y.axes, (ROW,)), dtype=object) for a, y in zip(args, x.args, strict=True)]
    many = np.broadcast_shapes(*(a.shape[:-1] for a in values))
    entries = [np.moveaxis(np.broadcast_to(a, (*many, count)), -1, 0) for a in values]
    out = np.full((count + 1, count + 1, n, n, *many), zero, dtype=object)
    for i in range(count + 1):
        for k in range(n):
            out[i, i, k, k] = one
    for i in range(count):
        at = i if direction > 0 else count - 1 - i
        before, after = out[i, : i + 1], out[i + 1, : i + 1]  # the latter is a view, to be filled
        if at >= count - beyond:
            after[...] = before
            continue
        rows: dict[int, Any] = {}
        for (row, col), entry in zip(positions, entries, strict=True):
            part = m.mul(entry[at], before[:, col])
            rows[row] = m.add(rows[row], part) if row in rows else part
        for row, value in rows.items():
            after[:, row] = value
    return out


def _in_chunk(x: Node, args: list[Any], m: Any, sizes: dict[str, int]) -> Any:
    made = np.asarray(_transition(x, args, m, sizes), dtype=object)
    steps = len(x.axes)
    return np.moveaxis(made, range(steps, made.ndim), range(made.ndim - steps)) if made.ndim > steps else made


def _transition(x: Node, args: list[Any], m: Any, sizes: dict[str, int]) -> Any:
    (products,), count, direction = args, sizes[ROW], x.attrs[-1]
    products = products[:, :, x.attrs[2], x.attrs[3]]
    late = int(x.attrs[4]) if x.op in ("transition_mask", "transition_in") else 0
    order = slice(None) if direction > 0 else slice(None, None, -1)
    match x.op:
        case "transition_all":
            return products[count, 0]
        case "transition_in":
            return products[late : count + late, 0][order]
        case "transition_out":
            return products[count, 1:][order]
    out = np.full((count, count, *products.shape[2:]), m.const(Fraction(0)).item(), dtype=object)
    for i in range(count):
        out[i, : i + late] = products[i + late, 1 : i + late + 1]
    return out[order, order]


CHUNK_OPERATIONS.update(
    transition_products=_products,
    transition_mask=_in_chunk,
    transition_in=_in_chunk,
    transition_out=_in_chunk,
    transition_all=_in_chunk,
)
WHOLES.update(dict.fromkeys(("transition_mask", "transition_in", "transition_out", "transition_all"), _products_of))
