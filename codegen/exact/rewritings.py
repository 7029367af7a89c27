"""What else could be written for a recurrence that has no form over chunks: each is proved before it is proposed.

A state that is the inverse of another, which only decays and takes a write of rank one: it is found by trying the vectors and
numbers of its update, in exact arithmetic. A state that is transposed in each step and stays symmetric: the spec without the
transposition gives the same outputs. A state whose steps are affine in another variable (`other_variables.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import sympy

from chunkform.errors import SpecError
from chunkform.spec.language import Matrix, Recurrence, text
from chunkform.spec.language.expression import Atom
from chunkform.spec.language.recurrence import State, atoms, matrices

from ..ir.evaluate import Field
from .other_variables import in_another_variable, update_of
from .run_spec import NoExactMeaning, SpecStep, Values
from .same import same

SIZE = 3  # of dims
SIZES_OF_TERMS = 12  # vectors and numbers of an update that are tried


def proposals(r: Recurrence, better: Callable[[Recurrence], bool], shown: Callable[[object], str] = str) -> list[str]:
    """Sentences, each of a rewriting that is proved. `better`: has a spec a better form than this one? `shown` prints terms as
    an author writes them."""
    found = []
    for s in r.states:
        if len(s.dims) == 2 and s.dims[0] == s.dims[1]:
            found += [x for x in (_inverse(r, s), _symmetric(r, s, better)) if x is not None]
        if (other := in_another_variable(r, s, better, shown)) is not None:
            found.append(other)
    return found


# --- the inverse of a state that decays ---------------------------------------------------------------------------------


def _inverse(r: Recurrence, s: State) -> str | None:
    """Where 1 / S_t = a / S_{t-1} + c u u^T: a recurrence of the inverse, whose products are solves."""
    terms = _terms(r, s)
    vectors = [x for x in terms if isinstance(x, Matrix) and x.is_vector and s.dims[0] in x.shape]
    numbers = [x for x in terms if not isinstance(x, Matrix)]
    scales: list[sympy.Expr] = [sympy.Integer(1), *numbers]
    try:
        points = [_point(r, s, seed, [*vectors, *numbers]) for seed in range(2)]
    except (NoExactMeaning, ZeroDivisionError, NotImplementedError):
        return None
    m = Field()
    for u, a, c in itertools.product(vectors, scales, scales):
        if all(_is(m, after, before, values, u, a, c) for before, after, values in points):
            H = "H" if s.name != "H" else "G"
            weight = "" if c == 1 else f"{text(c)} * "
            decay = "" if a == 1 else f"{text(a)} * "
            vector = text(u)
            return (
                f"{s.name} is the inverse of a matrix that has a form over chunks: {H}.next = {decay}{H}.prev + "
                f"{weight}{vector} * {vector}.T. Write that in a Program, with p.solve(..) for products with {s.name}.next"
            )
    return None


def _terms(r: Recurrence, s: State) -> list[Matrix | sympy.Expr]:
    """Vectors and numbers of an update that no state is in, as they stand there."""
    lets = {x.name: x.term for x in r.lets}
    found: dict[Matrix | sympy.Expr, None] = {}
    todo: list[Matrix | sympy.Expr] = [update_of(r, s).term]
    while todo:
        term = todo.pop(0)
        for x in (*matrices(term), *atoms(term)):
            name = x.args[0] if isinstance(x, Matrix) and x.op == "symbol" else getattr(x, "name", None)
            if name in lets:
                todo.append(lets.pop(name))
            if isinstance(x, Matrix) and x.is_vector and x.cols != s.dims[0] and not _has_state(x, r):
                found[x] = None
            if isinstance(x, Atom) and not _has_state(x, r):
                found[x] = None
            scalar = x.args[0] if isinstance(x, Matrix) and x.op == "scale" else None
            for y in sympy.preorder_traversal(scalar) if scalar is not None else ():
                if isinstance(y, sympy.Function) and not _has_state(y, r):
                    found[y] = None
    return list(found)[:SIZES_OF_TERMS]


def _has_state(x: Matrix | sympy.Expr, r: Recurrence) -> bool:
    lets = {y.name: y.term for y in r.lets}
    for y in atoms(x):
        name, kind = y.args if isinstance(y, Matrix) else (y.name, y.kind)
        if kind == "state" or (name in lets and _has_state(lets[name], r)):
            return True
    return False


def _point(
    r: Recurrence, s: State, seed: int, terms: list[Matrix | sympy.Expr]
) -> tuple[np.ndarray, np.ndarray, dict[Matrix | sympy.Expr, np.ndarray]]:
    """(1 / S before a step, 1 / S after it, the values of terms), from a symmetric state."""
    m, rng = Field(), random.Random(f"{r.name}/{seed}")
    sizes = {d.name: SIZE for d in r.dim_list}
    given: Values = {v.name: m.random(rng, (SIZE,) * len(v.dims)) for v in r.variables}
    states: Values = {x.name: m.random(rng, (SIZE,) * len(x.dims)) for x in r.states}
    states[s.name] = m.add(states[s.name], states[s.name].T)
    step = SpecStep(r, given, states, m, sizes)
    after = step.shaped(step.equation(update_of(r, s)), s.dims)
    values = {x: np.asarray(step.term(x), dtype=object).reshape(-1) for x in terms}
    return inverse_of(states[s.name], m), inverse_of(after, m), values


def _is(
    m: Field,
    after: np.ndarray,
    before: np.ndarray,
    values: dict[Matrix | sympy.Expr, np.ndarray],
    u: Matrix,
    a: sympy.Expr,
    c: sympy.Expr,
) -> bool:
    decay, weight = (m.const(Fraction(1)) if x == 1 else values[x] for x in (a, c))
    write = m.mul(m.mul(values[u][:, None], values[u][None, :]), weight)
    return m.equal(after, m.add(m.mul(before, decay), write))


def inverse_of(a: np.ndarray, m: Field) -> np.ndarray:
    """By elimination, without a search for pivots: at random points none is 0."""
    n = len(a)
    one, zero = (int(m.const(Fraction(x)).item()) for x in (1, 0))
    unit = np.array([[one if i == j else zero for j in range(n)] for i in range(n)], dtype=object)
    rows = np.concatenate([a, unit], 1)
    for k in range(n):
        rows[k] = m.mul(rows[k], m.pow(rows[k : k + 1, k], Fraction(-1)))
        for i in range(n):
            if i != k:
                rows[i] = m.add(rows[i], m.mul(m.const(Fraction(-1)), m.mul(rows[i, k : k + 1], rows[k])))
    return rows[:, n:]


# --- a state that stays symmetric -----------------------------------------------------------------------------------------


def _symmetric(r: Recurrence, s: State, better: Callable[[Recurrence], bool]) -> str | None:
    """The spec with S.prev in the place of S.prev.T, where that has a form over chunks and gives the same."""
    changed = copy.copy(r)
    changed.lets = [dataclasses.replace(x, term=_upright(x.term, s.name)) for x in r.lets]
    changed.updates = [dataclasses.replace(x, term=_upright(x.term, s.name)) for x in r.updates]
    if changed.updates == r.updates and changed.lets == r.lets:
        return None
    try:
        if not same(r, changed).same or not better(changed):
            return None
    except SpecError:
        return None
    return (
        f"{s.name} stays symmetric from the spec's own first state on: with {s.name}.prev for {s.name}.prev.T the outputs are "
        "the same, and there is a form over chunks"
    )


def _upright(term: Matrix | sympy.Expr, name: str) -> Matrix | sympy.Expr:
    """A term with the state before the step in the place of its transpose."""
    if not isinstance(term, Matrix) or term.op == "symbol":
        return term
    if term.op == "transpose" and term.args[0].op == "symbol" and term.args[0].args[0] == f"{name}.prev":
        return term.args[0]
    args = tuple(_upright(x, name) if isinstance(x, Matrix) else x for x in term.args)
    return term if args == term.args else Matrix(term.op, args, term.rows, term.cols, term.where)
