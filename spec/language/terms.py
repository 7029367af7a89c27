"""Taking terms apart: the summands and factors of a matrix, the names in a term, and renaming them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import sympy

from .expression import Atom, Contraction, Matrix, Term, matmul, scale
from .recurrence import Equation, atoms, kind_of, name_of


def names_in(term: Term) -> dict[str, str]:
    """The named quantities that a term mentions, each with its kind: a state as `S.prev` or `S.next`."""
    return {name_of(x): kind_of(x) or "" for x in atoms(term)}


def renamed(term: object, names: Mapping[str, str]) -> Any:
    """A term with quantities renamed."""
    if isinstance(term, Matrix):
        if term.op == "symbol":
            name, kind = term.args
            return Matrix("symbol", (names.get(name, name), kind), term.rows, term.cols, term.where)
        args = tuple(renamed(a, names) for a in term.args)
        return term if args == term.args else Matrix(term.op, args, term.rows, term.cols, term.where)
    if not isinstance(term, sympy.Basic):
        return term
    mapping: dict[Any, Any] = {}
    for s in term.free_symbols:
        if isinstance(s, Contraction):
            mapping[s] = Contraction(renamed(s.matrix, names))
        elif isinstance(s, Atom) and s.name in names:
            mapping[s] = Atom(names[s.name], s.kind)
    return term.xreplace(mapping) if mapping else term


def summands(m: Matrix, lets: Mapping[str, Equation]) -> list[Matrix]:
    """The terms that a matrix is the sum of. Matrices with names of their own are written out."""
    match m.op:
        case "add":
            return [x for a in m.args for x in summands(a, lets)]
        case "scale":
            return [m.args[0] * x for x in summands(m.args[1], lets)]
        case "transpose":
            return [flipped(x) for x in summands(m.args[0], lets)]
        case "symbol" if not m.is_vector and m.args[0] in lets:
            return summands(lets[m.args[0]].term, lets)
        case "matmul":  # X (A + B) X^T is X A X^T + X B X^T
            scalar, parts = symmetric_factors(m, lets)
            middle = len(parts) // 2
            inner = summands(parts[middle], lets) if len(parts) % 2 and middle else []
            if len(inner) > 1:
                products = [functools.reduce(matmul, [*parts[:middle], x, *parts[middle + 1 :]]) for x in inner]
                return [scale(scalar, x) for x in products]
    return [m]


def flipped(m: Matrix) -> Matrix:
    """The transpose, carried inwards where that is shorter."""
    match m.op:
        case "transpose":
            return m.args[0]
        case "diag" | "eye":
            return m
        case "scale":
            return m.args[0] * flipped(m.args[1])
        case "matmul":
            return Matrix("matmul", (flipped(m.args[1]), flipped(m.args[0])), m.cols, m.rows, m.where)
    return m.T


def factors(m: Matrix) -> tuple[sympy.Expr, list[Matrix]]:
    """A product as (scalar, matrices in order)."""
    if m.op == "scale":
        inner, found = factors(m.args[1])
        return m.args[0] * inner, found
    if m.op == "matmul":
        left, right = factors(m.args[0]), factors(m.args[1])
        return left[0] * right[0], [*left[1], *right[1]]
    if m.op == "transpose" and m.args[0].op in ("scale", "matmul", "diag", "eye", "transpose"):
        return factors(flipped(m.args[0]))
    return sympy.Integer(1), [m]


def symmetric_factors(m: Matrix, lets: Mapping[str, Equation]) -> tuple[sympy.Expr, list[Matrix]]:
    """A product as (scalar, matrices in order), of which the last is the first one's transpose, the last but one the second's,
    and so on, as far as that is so: what has a name of its own is written out where it takes that."""
    scalar, parts = factors(m)
    before: list[Matrix] = []
    after: list[Matrix] = []
    while len(parts) > 1:
        outer = product(_written_out(parts[0], 0, lets), _written_out(parts[-1], -1, lets))
        found = next(((x, y) for x, y in outer if flipped(y[1][-1]) == x[1][0]), None)
        if found is None:
            break
        (a, left), (b, right) = found
        scalar, before, after = scalar * a * b, [*before, left[0]], [right[-1], *after]
        parts = [*left[1:], *parts[1:-1], *right[:-1]]
    return scalar, [*before, *parts, *after]


def _written_out(m: Matrix, end: int, lets: Mapping[str, Equation]) -> Iterator[tuple[sympy.Expr, list[Matrix]]]:
    """A factor, and what it is in other words: at this end one name after the other is written out."""
    scalar, parts = sympy.Integer(1), [m]
    while True:
        yield scalar, parts
        bare = parts[end].args[0] if parts[end].op == "transpose" else parts[end]
        if bare.op != "symbol" or bare.args[0] not in lets:
            return
        term = lets[bare.args[0]].term
        more, inner = factors(term if bare is parts[end] else flipped(term))
        scalar, parts = scalar * more, [*inner, *parts[1:]] if end == 0 else [*parts[:-1], *inner]


def applied(m: Matrix, vector: Matrix, lets: Mapping[str, Equation]) -> Matrix:
    """The product of a matrix with a vector, term by term."""
    total: Any = None
    for term in summands(m, lets):
        scalar, parts = factors(term)
        value: Any = vector
        for part in reversed(parts):
            if part.op == "eye":
                continue
            if not isinstance(value, Matrix):  # u.T x, for the factor u of u u.T
                value = scale(value, part)
            elif part.op == "diag":
                value = Matrix("hadamard", (part.args[0], value), *value.shape)
            else:
                value = matmul(part, value)
        value = scalar * value
        total = value if total is None else total + value
    return total
