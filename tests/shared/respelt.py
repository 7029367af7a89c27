"""A spec in other words, made mechanically: what an author of the same mathematics could as well have written."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

from chunkform.spec.language import Matrix, Recurrence, diag, exp
from chunkform.spec.language.expression import ONE, Atom, Contraction, scale
from chunkform.spec.language.functions import sigmoid_, softplus_
from chunkform.spec.language.recurrence import Equation, Variable, symbol_of

Term = Any
Change = Callable[[Term], Term]


def mapped(term: Term, leaves: Change, nodes: Change = lambda x: x, scalars: Change = lambda x: x) -> Term:
    """A term with its named quantities, then what is made of these, and the formulas of its scalars, changed."""
    if isinstance(term, Matrix):
        if term.op == "symbol":
            return leaves(term)
        args = tuple(mapped(a, leaves, nodes, scalars) if isinstance(a, Matrix | sympy.Expr) else a for a in term.args)
        return nodes(term if args == term.args else Matrix(term.op, args, term.rows, term.cols))
    found = {x: mapped_atom(x, leaves, nodes, scalars) for x in term.free_symbols}
    return scalars(term.xreplace({x: y for x, y in found.items() if y is not x}))


def mapped_atom(x: sympy.Symbol, leaves: Change, nodes: Change, scalars: Change) -> sympy.Expr:
    """A scalar that has a name, or is a product of two vectors."""
    if isinstance(x, Contraction):
        inner = mapped(x.matrix, leaves, nodes, scalars)
        return x if inner == x.matrix else inner if isinstance(inner, sympy.Expr) else Contraction(inner)
    return leaves(x) if isinstance(x, Atom) else x


def changed(r: Recurrence, change: Change, of_lets: Change | None = None) -> Recurrence:
    """A recurrence with all its terms changed."""
    new = copy.copy(r)

    def all_of(equations: list[Equation], f: Change) -> list[Equation]:
        return [dataclasses.replace(x, term=f(x.term)) for x in equations]

    lets = all_of(r.lets, of_lets or change)
    vars(new).update(lets=lets, updates=all_of(r.updates, change), outputs=all_of(r.outputs, change))
    return new


def inlined(r: Recurrence) -> Recurrence:
    """Without auxiliary quantities."""
    known: dict[str, Term] = {}

    def spelled(term: Term) -> Term:
        return mapped(term, lambda x: known.get(x.args[0] if isinstance(x, Matrix) else x.name, x))

    for x in r.lets:
        known[x.name] = spelled(x.term)
    new = changed(r, spelled)
    vars(new)["lets"] = []
    return new


def transposed(r: Recurrence) -> Recurrence:
    """With the other axis of each matrix first."""
    turned = {s.name for s in r.states if len(s.dims) == 2}

    def leaf(x: Term) -> Term:
        name = x.args[0] if isinstance(x, Matrix) else x.name
        if name.partition(".")[0] in turned and "." in name:
            return Matrix("symbol", x.args, x.cols, x.rows).T
        return x

    new = changed(r, lambda term: mapped(term, leaf))
    states = [dataclasses.replace(s, dims=s.dims[::-1], initial=_turned(s.initial, s)) for s in r.states]
    updates = [dataclasses.replace(x, term=_turned(x.term, _state(r, x.name))) for x in new.updates]
    vars(new).update(states=states, updates=updates)
    return new


def _state(r: Recurrence, name: str) -> Any:
    return next(s for s in r.states if s.name == name)


def _turned(term: Term, s: Any) -> Term:
    return inwards(term.T) if isinstance(term, Matrix) and len(s.dims) == 2 else term


def inwards(m: Matrix) -> Matrix:
    """A term whose transposes stand at what has a name."""

    def node(x: Matrix) -> Matrix:
        return _flipped(x.args[0]) if x.op == "transpose" else x

    return mapped(m, lambda x: x, node)


def _flipped(m: Matrix) -> Matrix:
    match m.op:
        case "transpose":
            return m.args[0]
        case "diag" | "eye":
            return m
        case "add" | "hadamard":
            return Matrix(m.op, tuple(map(_flipped, m.args)), m.cols, m.rows)
        case "scale":
            return scale(m.args[0], _flipped(m.args[1]))
        case "matmul":
            return Matrix("matmul", (_flipped(m.args[1]), _flipped(m.args[0])), m.cols, m.rows)
        case "map":
            return Matrix("map", (m.args[0], *map(_flipped, m.args[1:])), m.cols, m.rows)
    return Matrix("transpose", (m,), m.cols, m.rows)


def multiplied_out(r: Recurrence) -> Recurrence:
    """With products of sums, and transposes of products, as sums of products."""

    def node(x: Matrix) -> Matrix:
        if x.op == "transpose":
            return _flipped(x.args[0])
        terms = [((), x)]
        if x.op == "matmul":
            terms = [(a, b) for a in _summands(x.args[0]) for b in _summands(x.args[1])]
            if len(terms) > 1:
                out = None
                for (f, a), (g, b) in terms:
                    made = scale(f * g, Matrix("matmul", (a, b), x.rows, x.cols))
                    out = made if out is None else out + made
                return out
        return x

    return changed(r, lambda term: mapped(term, lambda x: x, node))


def _summands(m: Matrix) -> list[tuple[sympy.Expr, Matrix]]:
    if m.op == "add":
        return [x for a in m.args for x in _summands(a)]
    if m.op == "scale":
        return [(m.args[0] * f, x) for f, x in _summands(m.args[1])]
    return [(sympy.Integer(1), m)]


def by_diagonals(r: Recurrence) -> Recurrence:
    """With diagonal matrices in the place of products of two vectors entry by entry."""

    def node(x: Matrix) -> Matrix:
        if x.op != "hadamard" or x.cols is not ONE or len(x.args) != 2:
            return x
        return diag(x.args[0]) * x.args[1]

    return changed(r, lambda term: mapped(term, lambda x: x, node))


def by_exponentials(r: Recurrence) -> Recurrence:
    """With sigmoid, softplus and tanh written by exp and log."""

    def scalar(x: sympy.Expr) -> sympy.Expr:
        x = x.replace(sigmoid_, lambda a: 1 / (1 + sympy.exp(-a)))
        x = x.replace(softplus_, lambda a: sympy.log(1 + sympy.exp(a)))
        return x.replace(sympy.tanh, lambda a: 1 - 2 / (sympy.exp(2 * a) + 1))

    return changed(r, lambda term: mapped(term, lambda x: x, scalars=scalar))


def by_logarithms(r: Recurrence) -> Recurrence:
    """With decays as exponentials of inputs and parameters that aren't positive."""
    decays = {v.name: v for v in r.variables if v.kind.startswith("decay")}

    def leaf(x: Term) -> Term:
        name = x.args[0] if isinstance(x, Matrix) else x.name
        return exp(symbol_of(f"{name}s", _kind(decays[name]), decays[name].dims, r.owner)) if name in decays else x

    new = changed(r, lambda term: mapped(term, leaf))
    vars(new)["variables"] = [
        dataclasses.replace(v, name=f"{v.name}s", kind=_kind(v), domain=(None, Fraction(0))) if v.name in decays else v
        for v in r.variables
    ]
    return new


def _kind(v: Variable) -> str:
    return "parameter" if v.kind == "decay parameter" else "input"


def named(r: Recurrence) -> Recurrence:
    """With a name for each vector that is read of a state."""
    new = copy.copy(r)
    vars(new).update(lets=list(r.lets), updates=[], outputs=[])
    known: dict[Matrix, Matrix] = {}

    def node(x: Matrix) -> Matrix:
        reads = x.op == "matmul" and x.cols is ONE and x.rows is not ONE
        if not reads or not any(".prev" in str(a) for a in x.args):
            return x
        if x not in known:
            name = f"read{len(known) + 1}"
            new.lets.append(Equation(name, x, r.where))
            known[x] = symbol_of(name, "let", (x.rows,), r.owner)
        return known[x]

    for x in sorted((*r.updates, *r.outputs), key=lambda x: x.order):
        changed_x = dataclasses.replace(x, term=mapped(x.term, lambda y: y, node))
        (new.updates if x in r.updates else new.outputs).append(changed_x)
    return new


SPELLINGS: dict[str, Callable[[Recurrence], Recurrence]] = {
    f.__name__: f for f in (inlined, transposed, multiplied_out, by_diagonals, by_exponentials, by_logarithms, named)
}
