"""Matrices of exact numbers with named shapes, and what may be done with them.

A shape is a pair of dim names: `d x e` and `e x d` don't fit even where d = e, so a mistake in a formula's shapes is
found whatever the sizes. `slope` holds derivatives, one matrix for each direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .arithmetic import CONTEXT, Arithmetic, Undefined


class ShapeFault(Exception):
    """A formula multiplies or adds what doesn't fit; the message shows both shapes."""


@dataclass(frozen=True)
class Value:
    """`a` is a rows x cols array. `log`: the value is the logarithm of `a`, kept unevaluated so that exp undoes it
    exactly."""

    rows: str
    cols: str
    a: np.ndarray
    slope: np.ndarray | None = None
    log: bool = False

    @property
    def shape(self) -> tuple[str, str]:
        return self.rows, self.cols

    @property
    def is_scalar(self) -> bool:
        return self.shape == ("1", "1")

    @property
    def shown(self) -> str:
        return "a scalar" if self.is_scalar else f"{self.rows} x {self.cols}"


class Algebra:
    """Operations on values over one arithmetic."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.reduce = arithmetic.reduce

    def scalar(self, x: object) -> Value:
        return Value("1", "1", np.array([[x]], dtype=object))

    def full(self, x: Any, rows: str, cols: str, r: int, c: int) -> Value:
        return Value(rows, cols, np.full((r, c), self.arithmetic.number(x), dtype=object))

    def eye(self, dim: str, size: int) -> Value:
        a = np.full((size, size), self.arithmetic.number(0), dtype=object)
        np.fill_diagonal(a, self.arithmetic.number(1))
        return Value(dim, dim, a)

    def map_slope(self, x: Value, f: Any) -> Any:
        return None if x.slope is None else f(x.slope)

    def plus(self, x: Value, y: Value, where: object) -> Value:
        if x.log and y.log:
            product = self.entrywise(Value(*x.shape, x.a, x.slope), Value(*y.shape, y.a, y.slope), where)
            return Value(*product.shape, product.a, product.slope, log=True)
        x, y = self.settled(x), self.settled(y)
        shape = self.broadcast(x, y, where, "add")
        slope = x.slope if y.slope is None else y.slope
        if x.slope is not None and y.slope is not None:
            slope = self.reduce(x.slope + y.slope)
        a = self.reduce(x.a + y.a)
        if slope is not None and slope.shape[1:] != a.shape:
            slope = np.broadcast_to(slope, (slope.shape[0], *a.shape))
        return Value(*shape, a, slope)

    def broadcast(self, x: Value, y: Value, where: object, verb: str) -> tuple[str, str]:
        """Equal shapes, or a vector and a scalar: 1 - lambda is taken entry by entry, for vectors only."""
        if x.shape == y.shape:
            return x.shape
        if x.is_scalar and "1" in y.shape:
            return y.shape
        if y.is_scalar and "1" in x.shape:
            return x.shape
        raise ShapeFault(f"can't {verb} {x.shown} and {y.shown} in {where}")

    def negative(self, x: Value) -> Value:
        if x.log:
            inverted = self.reciprocal(Value(*x.shape, x.a, x.slope))
            return Value(*x.shape, inverted.a, inverted.slope, log=True)
        return Value(*x.shape, self.reduce(-x.a), self.map_slope(x, lambda s: self.reduce(-s)))

    def settled(self, x: Value) -> Value:
        """x, with a logarithm evaluated."""
        return self.function("log", Value(*x.shape, x.a, x.slope)) if x.log else x

    def times(self, x: Value, y: Value, where: object) -> Value:
        x, y = self.settled(x), self.settled(y)
        if x.is_scalar or y.is_scalar:
            return self.entrywise(x, y, where)
        if x.cols != y.rows:
            raise ShapeFault(f"can't multiply {x.shown} by {y.shown} in {where}")
        slope = None
        if x.slope is not None:
            slope = x.slope @ y.a
        if y.slope is not None:
            slope = x.a @ y.slope if slope is None else slope + x.a @ y.slope
        return self.settle(x.rows, y.cols, x.a @ y.a, slope)

    def settle(self, rows: str, cols: str, a: np.ndarray, slope: object) -> Value:
        return Value(rows, cols, self.reduce(a), None if slope is None else self.reduce(slope))

    def entrywise(self, x: Value, y: Value, where: object) -> Value:
        """The product of entries; a scalar, a column or a row repeats along what it lacks."""
        rows: list[str] = []
        cols: list[str] = []
        for a, b, out in ((x.rows, y.rows, rows), (x.cols, y.cols, cols)):
            if a != b and "1" not in (a, b):
                raise ShapeFault(f"can't multiply entries of {x.shown} and {y.shown} in {where}")
            out.append(b if a == "1" else a)
        slope = None
        if x.slope is not None:
            slope = x.slope * y.a
        if y.slope is not None:
            slope = y.slope * x.a if slope is None else slope + y.slope * x.a
        return self.settle(rows[0], cols[0], x.a * y.a, slope)

    def reciprocal(self, x: Value) -> Value:
        """One over each entry."""
        a = np.array([[self.arithmetic.invert(v) for v in row] for row in x.a], dtype=object).reshape(x.a.shape)
        return self.settle(*x.shape, a, self.map_slope(x, lambda s: -s * self.reduce(a * a)))

    def transpose(self, x: Value) -> Value:
        return Value(x.cols, x.rows, x.a.T, self.map_slope(x, lambda s: s.transpose(0, 2, 1)), x.log)

    def inverse(self, x: Value, where: object) -> Value:
        if x.is_scalar:
            return self.reciprocal(x)
        if x.rows != x.cols:
            raise ShapeFault(f"can't invert {x.shown} in {where}")
        a = solve(self.arithmetic, x.a, self.eye(x.rows, len(x.a)).a)
        return self.settle(*x.shape, a, self.map_slope(x, lambda s: -(a @ self.reduce(s @ a))))

    def function(self, name: str, x: Value) -> Value:
        pairs = [[self.arithmetic.function(name, v) for v in row] for row in x.a]
        a = np.array([[p[0] for p in row] for row in pairs], dtype=object).reshape(x.a.shape)
        b = np.array([[p[1] for p in row] for row in pairs], dtype=object).reshape(x.a.shape)
        return self.settle(*x.shape, a, self.map_slope(x, lambda s: s * b))

    def sqrt(self, x: Value) -> Value:
        a = np.array([[self.arithmetic.sqrt(v) for v in row] for row in x.a], dtype=object).reshape(x.a.shape)
        if x.slope is None:
            return Value(*x.shape, a)
        half = self.arithmetic.number(1) * self.arithmetic.invert(self.arithmetic.number(2))
        factor = np.array([[half * self.arithmetic.invert(v) for v in row] for row in a], dtype=object).reshape(a.shape)
        return self.settle(*x.shape, a, x.slope * self.reduce(factor))

    def linear(self, x: Value, f: Any, rows: str, cols: str) -> Value:
        """A linear map of entries, `f` acting on the last two axes."""
        return self.settle(rows, cols, f(x.a), self.map_slope(x, f))

    def power(self, x: Value, exponent: int, where: object) -> Value:
        if exponent < 0:
            x, exponent = self.inverse(x, where), -exponent
        if not x.is_scalar and x.rows != x.cols:
            raise ShapeFault(f"can't take a power of {x.shown} in {where}")
        result = self.eye(x.rows, len(x.a))
        while exponent:
            if exponent & 1:
                result = self.times(result, x, where)
            exponent >>= 1
            if exponent:
                x = self.times(x, x, where)
        return result


def solve(arithmetic: Arithmetic, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """X with matrix X = right, by elimination; raises Undefined where the matrix is singular."""
    n = len(matrix)
    rows = [list(a) + list(b) for a, b in zip(matrix, right)]
    for i in range(n):
        if arithmetic.kind == "symbolic":
            best = next((k for k in range(i, n) if rows[k][i] != 0), i)
        else:
            best = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[best] = rows[best], rows[i]
        if rows[i][i] == 0 or (arithmetic.kind == "real" and abs(rows[i][i]) < CONTEXT.mpf(10) ** -40):
            raise Undefined("a singular matrix")
        factor = arithmetic.invert(rows[i][i])
        rows[i] = [arithmetic.reduce(x * factor) for x in rows[i]]
        for k in range(n):
            if k != i and rows[k][i] != 0:
                f = rows[k][i]
                rows[k] = [arithmetic.reduce(x - f * y) for x, y in zip(rows[k], rows[i])]
    return np.array([row[n:] for row in rows], dtype=object).reshape(right.shape)


def rank(arithmetic: Arithmetic, matrix: np.ndarray) -> int:
    rows = [list(r) for r in matrix]
    found = 0
    for col in range(matrix.shape[1]):
        pivot = next((k for k in range(found, len(rows)) if rows[k][col] != 0), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        factor = arithmetic.invert(rows[found][col])
        for k in range(found + 1, len(rows)):
            f = arithmetic.reduce(rows[k][col] * factor)
            rows[k] = [arithmetic.reduce(x - f * y) for x, y in zip(rows[k], rows[found])]
        found += 1
    return found
