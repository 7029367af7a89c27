"""Exact evaluation: the interpreter of the expression graph, which every gate uses.

`Field` computes modulo the prime 2^61 - 1: two rational programs that agree at random points there are equal, up to an error
probability of degree / 2^61. Other functions (exp, sigmoid, roots) are uninterpreted there: the same argument gives the same
random value. `Reals` computes with 50 digits. `Dual` adds a tangent to either; its rules for scalar functions come from SymPy,
so it doesn't depend on the compiler's derivative table.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, lru_cache, reduce
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import mpmath
import numpy as np
import numpy.typing as npt
import sympy

from .expr import Node, dim_of, leaf, walk
from .functions import FINITE_EXP, RECIPROCAL, SAME, TABLE
from .lower_terms import scalar_node

if TYPE_CHECKING:
    import torch

PRIME = 2**61 - 1
Entries: TypeAlias = "np.ndarray | torch.Tensor"
Env = dict[tuple[str, str], Any]  # (kind, name) of a leaf -> its value, axes in storage order


V = TypeVar("V")  # the values of an arithmetic: arrays whose last axes are the node's axes, or pairs of these


class Arithmetic(Protocol[V]):
    """What the evaluator needs of numbers."""

    def const(self, value: Fraction) -> V: ...
    def number(self, text: str) -> V: ...
    def add(self, a: V, b: V) -> V: ...
    def mul(self, a: V, b: V) -> V: ...
    def pow(self, a: V, n: Fraction) -> V: ...
    def fn(self, name: str, a: V) -> V: ...
    def maximum(self, a: V, b: V) -> V: ...
    def sum(self, a: V, axis: int) -> V: ...
    def peak(self, a: V, axis: int) -> V: ...


class ArrayNumbers(Arithmetic[np.ndarray], Protocol):
    """Numbers in arrays, which can be compared. What numpy makes of arrays without axes is a bare number."""

    @property
    def exact(self) -> bool: ...
    def equal(self, a: np.ndarray, b: np.ndarray) -> bool: ...


class RandomNumbers(ArrayNumbers, Protocol):
    """Numbers that can be drawn at random as well."""

    def random(self, rng: random.Random, shape: tuple[int, ...], decay: bool = False) -> np.ndarray: ...


class Field:
    """Arithmetic modulo a prime, on numpy arrays of Python integers."""

    exact: bool = True

    def __init__(self, prime: int = PRIME) -> None:
        self.p = prime

    def const(self, value: Fraction) -> np.ndarray:
        return _residue(value, self.p)

    def number(self, text: str) -> np.ndarray:
        return _array(self._hash("number", text))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a + b) % self.p

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b) % self.p

    def fold(self, combine: Callable[[np.ndarray, np.ndarray], np.ndarray], values: list[np.ndarray]) -> np.ndarray:
        """A sum or product of several values, of which the residue is taken once."""
        return reduce(combine, values) % self.p if len(values) > 1 else values[0]

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        if n.denominator != 1:
            a = self._map(lambda x: self._hash(f"root{n.denominator}", x), a)
        if n < 0 and np.any(a == 0):
            raise ZeroDivisionError
        return self._map(lambda x: pow(int(x), n.numerator, self.p), a)

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        if name == RECIPROCAL:
            return self.pow(a, Fraction(-1))
        if name in SAME:
            return a
        name = "exp" if name == FINITE_EXP else name
        if name == "sign":  # an odd function, as in derivatives of maxima, whose terms may come in another order
            return self._map(lambda x: self._odd(name, x), a)
        if name == "sigmoid":  # sigmoid(-x) is 1 - sigmoid(x)
            half = pow(2, -1, self.p)
            return self._map(lambda x: (half + self._odd(name, x)) % self.p, a)
        if name == "tanh":  # 2 sigmoid(2x) - 1
            return (2 * self.fn("sigmoid", 2 * a % self.p) - 1) % self.p
        return self._map(lambda x: self._hash(name, x), a)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """(a + b + |a - b|) / 2, of which the even function alone is not interpreted."""
        apart = self._map(lambda x: self._hash("apart", min(x, self.p - x)) if x else 0, (a - b) % self.p)
        return (a + b + apart) * pow(2, -1, self.p) % self.p

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        found = np.add.reduce(a, axis) % self.p
        return found if isinstance(found, np.ndarray) else _array(found)

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return _along(lambda x: self._hash("peak", sorted(x)), a, axis)

    def random(self, rng: random.Random, shape: tuple[int, ...], decay: bool = False) -> np.ndarray:
        return _fill(shape, lambda: rng.randrange(1, self.p))

    def equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        return bool(np.all(np.asarray(a) == np.asarray(b)))

    def _map(self, f: Callable[[int], int], a: np.ndarray) -> np.ndarray:
        a = np.asarray(a, dtype=object)
        return _array([f(x) for x in a.ravel()], a.shape)

    def _odd(self, name: str, x: int) -> int:
        if x == 0:
            return 0
        return self._hash(name, x) if x <= self.p // 2 else self.p - self._hash(name, self.p - x)

    def _hash(self, name: str, x: object) -> int:
        digest = hashlib.blake2b(f"{name}:{x}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.p


class Reals:
    """50-digit arithmetic, on numpy arrays of mpmath numbers."""

    exact: bool = False

    def __init__(self, digits: int = 50) -> None:
        self.context = mpmath.mp.clone()
        self.context.dps = digits
        self.tolerance = mpmath.mpf(10) ** (15 - digits)

    def const(self, value: Fraction) -> np.ndarray:
        return _array(self.context.mpf(value.numerator) / value.denominator)

    def number(self, text: str) -> np.ndarray:
        return _array(self.context.mpf(str(sympy.N(sympy.sympify(text), self.context.dps + 5))))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return cast(
            np.ndarray, np.add(a, b, dtype=object)
        )  # a number in the place of an array asks first whether b is one

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return cast(np.ndarray, np.multiply(a, b, dtype=object))

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        if n.denominator == 1:
            return self._map(lambda x: x**n.numerator, a)
        exponent = self.context.mpf(n.numerator) / n.denominator
        return self._map(lambda x: self.context.power(x, exponent), a)

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        with mpmath.workdps(self.context.dps):
            return self._map(lambda x: self.context.mpf(TABLE[name].mpmath(x)), a)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _array(np.maximum(np.asarray(a, dtype=object), np.asarray(b, dtype=object)))

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        return _array(a.sum(axis=axis))

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return _along(max, a, axis)

    def random(self, rng: random.Random, shape: tuple[int, ...], decay: bool = False) -> np.ndarray:
        if decay:
            return _fill(shape, lambda: self.context.mpf(rng.uniform(0.3, 1.0)))
        return _fill(shape, lambda: self.context.mpf(rng.uniform(-1.0, 1.0)))

    def equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        a, b = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
        difference = np.asarray(abs(a - b), dtype=object).ravel()
        bound = self.tolerance * (1 + max(np.asarray(abs(b), dtype=object).ravel(), default=0))
        return bool(all(x <= bound for x in difference))

    def _map(self, f: Callable[[mpmath.mpf], mpmath.mpf], a: np.ndarray) -> np.ndarray:
        a = np.asarray(a, dtype=object)
        return _array([f(x) for x in a.ravel()], a.shape)


class Pair:
    """A value and its tangent."""

    __slots__ = ("tangent", "value")

    def __init__(self, value: np.ndarray, tangent: np.ndarray) -> None:
        self.value, self.tangent = value, tangent


class Dual:
    """Forward-mode differentiation over another arithmetic."""

    def __init__(self, base: Arithmetic[np.ndarray]) -> None:
        self.base = base
        self.zero = base.const(Fraction(0))

    def const(self, value: Fraction) -> Pair:
        return Pair(self.base.const(value), self.zero)

    def number(self, text: str) -> Pair:
        return Pair(self.base.number(text), self.zero)

    def add(self, a: Pair, b: Pair) -> Pair:
        return Pair(self.base.add(a.value, b.value), self.base.add(a.tangent, b.tangent))

    def mul(self, a: Pair, b: Pair) -> Pair:
        m = self.base.mul
        return Pair(m(a.value, b.value), self.base.add(m(a.tangent, b.value), m(a.value, b.tangent)))

    def pow(self, a: Pair, n: Fraction) -> Pair:
        m, value = self.base.mul, self.base.pow(a.value, n)
        if n == 1:
            return a
        slope = m(self.base.const(n), self.base.pow(a.value, n - 1))
        if n.denominator != 1:  # n a^n / a, so that an uninterpreted root is used once only
            slope = m(self.base.const(n), m(value, self.base.pow(a.value, Fraction(-1))))
        return Pair(value, m(slope, a.tangent))

    def fn(self, name: str, a: Pair) -> Pair:
        slope = evaluate(_sympy_derivative(name), {("input", "x"): a.value}, self.base, {})
        return Pair(self.base.fn(name, a.value), self.base.mul(slope, a.tangent))

    def maximum(self, a: Pair, b: Pair) -> Pair:
        """Half of the tangent is each side's at a tie."""
        m, minus, half = self.base, self.base.const(Fraction(-1)), self.base.const(Fraction(1, 2))
        larger = m.fn("sign", m.add(a.value, m.mul(minus, b.value)))
        apart = m.mul(larger, m.add(a.tangent, m.mul(minus, b.tangent)))
        return Pair(m.maximum(a.value, b.value), m.mul(half, m.add(m.add(a.tangent, b.tangent), apart)))

    def sum(self, a: Pair, axis: int) -> Pair:
        shape = np.broadcast_shapes(np.shape(a.value), np.shape(a.tangent))
        return Pair(
            self.base.sum(np.broadcast_to(a.value, shape), axis), self.base.sum(np.broadcast_to(a.tangent, shape), axis)
        )

    def peak(self, a: Pair, axis: int) -> Pair:
        return Pair(self.base.peak(a.value, axis), self.zero)


@lru_cache(maxsize=2**10)
def _residue(value: Fraction, prime: int) -> np.ndarray:
    """A fraction modulo a prime, as an array that stays as it is."""
    made = _array(value.numerator * pow(value.denominator, -1, prime) % prime)
    made.flags.writeable = False
    return made


@cache
def _sympy_derivative(name: str) -> Node:
    x = sympy.Symbol("x", real=True)
    slope = sympy.diff(TABLE[name].sympy(x), x)
    return scalar_node(slope, {x: leaf("input", "x")}, lambda _: None, name, differentiable=False)


def _array(value: npt.ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    out = np.empty(np.shape(value) if shape is None else shape, dtype=object)
    flat = np.asarray(value, dtype=object).ravel() if shape is None else value
    out.ravel()[:] = flat
    return out


def _along(f: Callable[[list[int]], int], a: np.ndarray, axis: int) -> np.ndarray:
    rows = np.moveaxis(np.asarray(a, dtype=object), axis, -1)
    return _array([f(list(x)) for x in rows.reshape(-1, rows.shape[-1])], rows.shape[:-1])


def stacked(values: Iterable[npt.ArrayLike], axis: int = 0) -> np.ndarray:
    """Values, as of each step, as one array of Python numbers: machine integers would overflow."""
    return np.stack([np.asarray(x, dtype=object) for x in values], axis)


def _fill(shape: tuple[int, ...], draw: Callable[[], int | mpmath.mpf]) -> np.ndarray:
    count = int(np.prod(shape)) if shape else 1
    return _array([draw() for _ in range(count)], shape)


# --- the interpreter ------------------------------------------------------------------------------------------------


def evaluate(
    node: Node, env: Env, arithmetic: Arithmetic[V], sizes: dict[str, int], done: dict[Node, V] | None = None
) -> V:
    return evaluate_all([node], env, arithmetic, sizes, done)[0]


def evaluate_all(
    nodes: Iterable[Node], env: Env, arithmetic: Arithmetic[V], sizes: dict[str, int], done: dict[Node, V] | None = None
) -> list[V]:
    """The values of nodes, their axes sorted as in `node.axes`. `sizes` gives the size of each dim.

    `done` holds the values that are known under this `env`, and takes the new ones: what several calls share is evaluated once.
    Between such calls leaves may be added to `env`; none may change.
    """
    nodes = tuple(nodes)
    done = {} if done is None else done
    for x in _in_order(nodes):
        if x not in done:
            done[x] = applied(x, done, env, arithmetic, sizes)
    return [done[x] for x in nodes]


@lru_cache(maxsize=2**10)
def _in_order(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """What nodes are made of, arguments first; a gate evaluates the same nodes at each step, chunk and point."""
    return tuple(walk(*nodes))


def applied(x: Node, done: dict[Node, V], env: Env, m: Arithmetic[V], sizes: dict[str, int]) -> V:
    if x.op in COMBINED:  # most of all nodes
        return _combined(x, done, m)
    match x.op:
        case "leaf":
            kind, name, order = x.attrs
            value = env[kind, name]
            return value if order == x.axes else each(value, lambda a: _transpose(a, order, x.axes))
        case "sum":
            body = x.args[0]
            return m.sum(done[body], body.axes.index(x.attrs[0]) - len(body.axes))
        case "const":
            return m.const(x.attrs[0])
        case "number":
            return m.number(x.attrs[0])
        case "size":
            return m.const(Fraction(sizes[x.attrs[0]]))
        case "eye":
            n = sizes[dim_of(x.axes[0])]
            grid = np.eye(n, dtype=int)
            return _from_mask(grid, m)
        case "pow":
            return m.pow(done[x.args[0]], x.attrs[0])
        case "fn":
            return m.fn(x.attrs[0], done[x.args[0]])
        case "peak":
            body = x.args[0]
            return m.peak(done[body], body.axes.index(x.attrs[0]) - len(body.axes))
        case "expand":
            value = aligned(done[x.args[0]], x.args[0].axes, x.axes)
            shape = tuple(sizes[dim_of(a)] for a in x.axes)
            return each(value, lambda a: _broadcast(a, (*a.shape[: a.ndim - len(shape)], *shape)))
    if x.op in WHOLES:
        whole = WHOLES[x.op](x)
        if whole not in done:
            done[whole] = CHUNK_OPERATIONS[whole.op](whole, [done[a] for a in x.args], m, sizes)
        return CHUNK_OPERATIONS[x.op](x, [done[whole]], m, sizes)
    return CHUNK_OPERATIONS[x.op](x, [done[a] for a in x.args], m, sizes)


COMBINED = frozenset(("add", "mul", "max"))


def _combined(x: Node, done: dict[Node, V], m: Arithmetic[V]) -> V:
    """The values of a node's arguments, entry by entry."""
    values = [done[a] if a.axes == x.axes else aligned(done[a], a.axes, x.axes) for a in x.args]
    if isinstance(m, Field) and x.op != "max":
        return cast(V, m.fold(operator.mul if x.op == "mul" else operator.add, cast("list[np.ndarray]", values)))
    return reduce({"add": m.add, "mul": m.mul, "max": m.maximum}[x.op], values)


BEYOND = "beyond"  # in sizes: how many of a chunk's last rows are beyond the sequence's end, where decays are one
CHUNK_OPERATIONS: dict[str, Any] = {}  # filled by chunk_program.py with the exact meaning of its operations
WHOLES: dict[str, Callable[[Node], Node]] = {}  # by operations that take parts of a whole: the node of that, made once


def _from_mask(grid: np.ndarray, m: Arithmetic[V]) -> V:
    if isinstance(m, Dual):
        ones = _from_mask(grid, m.base)
        return cast(V, Pair(ones, m.base.mul(ones, m.zero)))
    one, zero = cast("Entries", m.const(Fraction(1))), cast("Entries", m.const(Fraction(0)))
    if isinstance(one, np.ndarray):
        return cast(V, _array([one.item() if g else zero.item() for g in grid.ravel()], grid.shape))
    return cast(V, one * one.new_tensor(grid.tolist()))


def each(value: V, f: Callable[[Entries], Entries]) -> V:
    """f of an array, or of both arrays of a pair."""
    return cast(V, Pair(f(value.value), f(value.tangent)) if isinstance(value, Pair) else f(cast("Entries", value)))


def base_of(m: Arithmetic[V]) -> Arithmetic[np.ndarray]:
    """The arithmetic of the arrays that values are made of."""
    return m.base if isinstance(m, Dual) else cast("Arithmetic[np.ndarray]", m)


def _broadcast(a: Entries, shape: tuple[int, ...]) -> Entries:
    return np.broadcast_to(a, shape) if isinstance(a, np.ndarray) else a.expand(shape)


def _transpose(a: Entries, order: tuple[str, ...], axes: tuple[str, ...]) -> Entries:
    if order == axes:
        return a
    lead = a.ndim - len(order)
    permutation = [*range(lead), *(lead + order.index(x) for x in axes)]
    return a.transpose(permutation) if isinstance(a, np.ndarray) else a.permute(permutation)


def aligned(value: V, own: tuple[str, ...], axes: tuple[str, ...]) -> V:
    """value, over `own` axes, with length-1 axes inserted so that it broadcasts over `axes`."""

    def inserted(x: Entries) -> Entries:
        a = x if hasattr(x, "ndim") else np.asarray(x, dtype=object)
        return a if a.ndim < len(own) else a[_inserted(own, axes)]  # the former: a zero tangent without axes

    if own == axes:
        return value
    if isinstance(value, np.ndarray) and value.ndim >= len(own):
        return cast(V, value[_inserted(own, axes)])
    return each(value, inserted)


@cache
def _inserted(own: tuple[str, ...], axes: tuple[str, ...]) -> tuple[EllipsisType | slice | None, ...]:
    """The index that inserts axes; both are in the same order."""
    return (..., *(slice(None) if a in own else None for a in axes))
