"""Another variable for a state, in which its steps are affine: a mean of squares for its root, a logarithm for a power.

A state h whose entries go from step to step by a function of their own, h' = f(h), is kept as u = g(h) where g(f(h)) is affine in
u. The functions g are a short list; numbers decide which of them does, and both specs are run before one is proposed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import sympy

from chunkform.errors import SpecError
from chunkform.spec.language import Matrix, Recurrence, text
from chunkform.spec.language.expression import ONE, Atom, Contraction, entry, hadamard, scale
from chunkform.spec.language.functions import sigmoid_, softplus_
from chunkform.spec.language.recurrence import Equation, State, atoms, name_of, symbol_of
from chunkform.spec.language.terms import renamed

from .same import same

DIGITS = 30
POINTS = 3
U = sympy.Symbol("u_", positive=True)


class Change(NamedTuple):
    """u = of_state(h), and h = of_variable(u), whose step has to be `affine`, or is for the compiler to judge."""

    of_state: Callable[[sympy.Expr], sympy.Expr]
    of_variable: Callable[[sympy.Expr], sympy.Expr]
    affine: bool = True


def _changes(numbers: list[sympy.Expr]) -> Iterator[Change]:
    """Those that are tried; `numbers` are what the state is multiplied by somewhere."""
    for c in numbers:
        yield Change(functools.partial(operator.mul, c), functools.partial(operator.mul, 1 / c), affine=False)
    yield Change(lambda h: h**2, sympy.sqrt)
    yield Change(sympy.sqrt, lambda u: u**2)
    yield Change(sympy.log, sympy.exp)
    yield Change(lambda h: sympy.log(h / (1 - h)), lambda u: 1 / (1 + sympy.exp(-u)))
    yield Change(lambda h: 1 / h, lambda u: 1 / u)
    yield Change(lambda h: h / (1 - h), lambda u: u / (1 + u))
    for c in dict.fromkeys([sympy.Integer(1), *numbers]):
        yield _exponential(c)


def _exponential(c: sympy.Expr) -> Change:
    return Change(lambda h: sympy.exp(c * h), lambda u: sympy.log(u) / c)


def update_of(r: Recurrence, s: State) -> Equation:
    """The equation of a state."""
    return next(x for x in r.updates if x.name == s.name)


def in_another_variable(
    r: Recurrence, s: State, better: Callable[[Recurrence], bool], shown: Callable[[object], str]
) -> str | None:
    """The spec with another variable for a state, where that has a better form and gives the same. `shown` prints terms as an
    author writes them."""
    found = _entrywise(r, s, update_of(r, s).term)
    if found is None:
        return None
    step, given = found
    for change in _changes([x for x in step.atoms(sympy.Number) if x not in (0, 1, -1)]):
        made = change.of_state(step.xreplace({H: change.of_variable(U)}))
        changed = None
        if not change.affine or _is_affine(made, given):
            changed = _changed(r, s, change, _plain(made) if change.affine else sympy.expand(made, log=False), given)
        try:
            if changed is not None and same(r, changed).same and better(changed):
                return _sentence(s, change, changed, shown)
        except SpecError:
            continue
    return None


# --- the step of an entry -----------------------------------------------------------------------------------------------

H = sympy.Symbol("h_", positive=True)
Given = dict[sympy.Symbol, "Matrix | sympy.Expr"]


def _entrywise(r: Recurrence, s: State, term: Matrix | sympy.Expr) -> tuple[sympy.Expr, Given] | None:
    """(an entry of the next state as an expression of H and of symbols, what each symbol is an entry of); None where entries
    aren't each by itself."""
    lets: Mapping[str, Matrix | sympy.Expr] = {x.name: x.term for x in r.lets}
    given: Given = {}

    def reads(x: Matrix | sympy.Expr) -> bool:
        names = [name_of(y) for y in atoms(x)]
        return f"{s.name}.prev" in names or any(n in lets and reads(lets[n]) for n in names)

    def of(x: Matrix | sympy.Expr) -> sympy.Expr:
        if isinstance(x, Matrix) and (value := _constant(x)) is not None:
            return of(value)
        if not reads(x):
            return x if not isinstance(x, Matrix) and x.is_number else _named(given, x)
        if isinstance(x, Atom) or (isinstance(x, Matrix) and x.op == "symbol"):
            return H if name_of(x) == f"{s.name}.prev" else of(lets[name_of(x)])
        if isinstance(x, Contraction):
            raise _NotEntrywise
        if not isinstance(x, Matrix):
            return x.xreplace({y: of(y) for y in x.free_symbols})
        match x.op:
            case "add" | "hadamard" | "scale":
                a, b = map(of, x.args)
                return a + b if x.op == "add" else a * b
            case "full":
                return of(x.args[0])
            case "map":
                body, *args = x.args
                return body.xreplace({entry(i): of(y) for i, y in enumerate(args)})
        raise _NotEntrywise

    try:
        made = of(term)
    except _NotEntrywise:
        return None
    made = made.xreplace({x: sympy.nsimplify(x, rational=True) for x in made.atoms(sympy.Float)})
    made = made.replace(softplus_, lambda x: sympy.log(1 + sympy.exp(x))).replace(
        sigmoid_, lambda x: 1 / (1 + sympy.exp(-x))
    )
    return (made, given) if H in made.free_symbols else None


class _NotEntrywise(Exception):
    pass


def _named(given: Given, x: Matrix | sympy.Expr) -> sympy.Symbol:
    known = next((n for n, y in given.items() if isinstance(y, Matrix) == isinstance(x, Matrix) and y == x), None)
    name = known or sympy.Symbol(f"x{len(given)}_", real=True)
    given[name] = x
    return name


# --- is it affine? ------------------------------------------------------------------------------------------------------


def _is_affine(made: sympy.Expr, given: Given) -> bool:
    """Is the step of u affine in u, at random points?"""
    rng = random.Random(str(made))
    try:
        for _ in range(POINTS):
            at = {x: sympy.Rational(rng.randint(1, 60), 97) for x in given}
            u, by = sympy.Rational(rng.randint(10, 60), 97), sympy.Rational(rng.randint(10, 30), 97)
            a, b, c = (sympy.N(made.xreplace(at | {U: u + i * by}), DIGITS) for i in range(3))
            if not all(x.is_real for x in (a, b, c)) or abs(a - 2 * b + c) > 10 ** -(DIGITS - 8) * (1 + abs(b)):
                return False
    except (TypeError, ValueError, ZeroDivisionError):
        return False
    return True


def _plain(made: sympy.Expr) -> sympy.Expr:
    """A step that is affine, written as one: slope * u + the rest."""
    short = made.replace(sympy.log, lambda x: sympy.log(sympy.cancel(sympy.together(x))))
    tried = [
        z
        for y in (made, short)
        for z in (y, sympy.expand_log(y, force=True), sympy.expand_log(sympy.cancel(y), force=True))
    ]
    for x in (*tried, *(sympy.powdenest(sympy.expand(y, power_exp=True), force=True) for y in tried)):
        x = sympy.expand(x)
        slope = sympy.diff(x, U)
        if U not in slope.free_symbols:
            return sympy.factor_terms(slope) * U + (x - slope * U).expand()
    at = [made.xreplace({U: sympy.Integer(i)}) for i in (1, 2)]
    return (at[1] - at[0]) * U + 2 * at[0] - at[1]


# --- the changed spec ---------------------------------------------------------------------------------------------------


def _changed(r: Recurrence, s: State, change: Change, affine: sympy.Expr, given: Given) -> Recurrence | None:
    first = _first(s, change)
    if first is None:
        return None
    made = copy.copy(r)
    made.states = [dataclasses.replace(x, initial=first, domain=None) if x.name == s.name else x for x in r.states]
    before = symbol_of(f"{s.name}.prev", "state", s.dims, s.owner)
    update = _spelled(affine, {U: before} | given)

    def turned(x: Equation) -> Equation:
        return dataclasses.replace(x, term=update if x.name == s.name and x in r.updates else _read(x.term, s, change))

    made.lets, made.updates, made.outputs = ([turned(x) for x in y] for y in (r.lets, r.updates, r.outputs))
    return made


def _first(s: State, change: Change) -> Matrix | sympy.Expr | None:
    """The first value of u; None where it isn't finite."""
    start = sympy.Integer(0) if s.initial is None else s.initial
    known = _constant(start) if isinstance(start, Matrix) else start
    value = sympy.nan if known is None else change.of_state(known)
    if not value.is_finite or not value.is_real:
        return None
    before = symbol_of(f"{s.name}.prev", "state", s.dims, s.owner)
    return value if value == 0 or not s.dims else Matrix("full", (value,), *before.shape)


def _constant(x: Matrix) -> sympy.Expr | None:
    """The number that all entries are; None where they differ."""
    inner = [_constant(y) if isinstance(y, Matrix) else y for y in x.args if isinstance(y, Matrix | sympy.Expr)]
    if any(y is None for y in inner) or x.op not in ("full", "scale", "transpose", "matmul"):
        return None
    if x.op == "matmul" and x.args[0].cols is not ONE:
        return None
    return sympy.prod(inner)


def _spelled(x: sympy.Expr, given: Mapping[sympy.Symbol, Matrix | sympy.Expr]) -> Matrix | sympy.Expr:
    """An expression of entries, as an author writes it of vectors and matrices."""
    whole = [y for y in x.free_symbols if isinstance(given[y], Matrix)]
    if not whole:
        return x.xreplace(dict(given))
    if x.is_Symbol:
        return given[x]
    if x.is_Add or x.is_Mul:
        parts = [_spelled(y, given) for y in x.args]
        matrices = [y for y in parts if isinstance(y, Matrix)]
        number = (sum if x.is_Add else sympy.prod)(y for y in parts if not isinstance(y, Matrix))
        if x.is_Mul:
            return scale(number, functools.reduce(hadamard, matrices))
        first = functools.reduce(operator.add, sorted(matrices, key=text))
        return first if number == 0 else first + Matrix("full", (number,), *first.shape)
    names: dict[sympy.Symbol, object] = {y: entry(i) for i, y in enumerate(sorted(whole, key=str))}
    names |= {y: given[y] for y in x.free_symbols if y not in names}
    args = [given[y] for y in sorted(whole, key=str)]
    return Matrix("map", (x.xreplace(names), *args), *args[0].shape)


def _read(term: Matrix | sympy.Expr, s: State, change: Change) -> Matrix | sympy.Expr:
    """A term that reads the state through u."""
    names = (f"{s.name}.prev", f"{s.name}.next")
    if not isinstance(term, Matrix):
        mapping = {}
        for x in term.free_symbols:
            if isinstance(x, Contraction):
                mapping[x] = Contraction(_read(x.matrix, s, change))
            elif isinstance(x, Atom) and x.name in names:
                mapping[x] = change.of_variable(x)
        return term.xreplace(mapping)
    if term.op == "symbol":
        if term.args[0] not in names:
            return term
        return Matrix("map", (change.of_variable(entry(0)), term), term.rows, term.cols)
    args = tuple(_read(x, s, change) if isinstance(x, Matrix | sympy.Expr) else x for x in term.args)
    return term if args == term.args else Matrix(term.op, args, term.rows, term.cols, term.where)


def _sentence(s: State, change: Change, changed: Recurrence, shown: Callable[[object], str]) -> str:
    u = next(x for x in ("u", "w", "y", "z", f"{s.name}u") if x not in changed._names())
    update = next(x.term for x in changed.updates if x.name == s.name)
    line = f"r.update({u}, {shown(renamed(update, {f'{s.name}.prev': f'{u}.prev'}))})"
    start = next(x.initial for x in changed.states if x.name == s.name)
    begins = f", with initial={shown(start)}" if start not in (None, 0) else ""
    kept, read = change.of_state(sympy.Symbol(s.name)), change.of_variable(sympy.Symbol(f"{u}.next"))
    return (
        f"{s.name} has a better form in another variable: keep {u} = {kept}{begins}, by {line}, and read "
        f"{read} for {s.name}.next. The outputs are the same from the spec's own first state on"
    )
