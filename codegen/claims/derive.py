"""Derives gradients of formulas, as formulas: reverse mode, one rule for each operation, with the chain rule through
sums.

What is derived here is shown only after it was proved against dual numbers, like any claim. `step_adjoint` derives
the adjoint of a recurrence from its spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.claims import Setting
from chunkform.spec.language.expression import Atom, Contraction, entry
from chunkform.spec.language.formula import (
    Formula,
    add,
    diag,
    entrywise,
    eye,
    formula,
    free_indices,
    hadamard,
    inner,
    negative,
    ones,
    product,
    substitute,
    sum_over,
    walk,
)

from .arithmetic import REAL
from .evaluate import Evaluator
from .instance import Instance, OutOfRange
from .trial_sizes import proof_sizes
from .values import Value

ZERO, UNIT = formula(0), formula(1)
Bound = tuple[tuple[str, Formula, Formula], ...]


class Underivable(Exception):
    """A formula with an operation that has no rule here."""


@dataclass
class Shapes:
    """Shapes of formulas, read off one instance."""

    evaluate: Evaluator

    def __call__(self, x: Formula) -> Value:
        names = sorted({y.attrs[0] for y in walk(x) if y.op == "index"})
        for value in (2, 1, 3):
            try:
                return self.evaluate(x, dict.fromkeys(names, value))
            except OutOfRange:
                continue
        raise Underivable(f"{x} has no value at the first steps")

    def scalar(self, x: Formula) -> bool:
        return self(x).is_scalar


def shapes_in(setting: Setting) -> Shapes:
    return Shapes(Evaluator(Instance(setting, proof_sizes(setting)[0], REAL)))


def derivative(of: Formula, by: Formula, shapes: Shapes, cotangent: Formula = UNIT) -> Formula:
    """The gradient of the scalar `of` (or of <cotangent, of>) by the quantity `by`, such as q(t) or Q."""
    terms = list(contributions(of, cotangent, by, shapes, ()))
    return tidy(add(*terms), shapes) if terms else ZERO


def contributions(x: Formula, g: Formula, by: Formula, shapes: Shapes, bound: Bound) -> Iterator[Formula]:
    """What each occurrence of `by` in x adds; g is the gradient by x."""
    if x.op == "at" and x.attrs == by.attrs:
        yield from at_leaf(x, g, by, bound)
        return
    if not mentions(x, by):
        return
    if x.op == "product":
        yield from of_product(x, g, by, shapes, bound)
    elif x.op == "sum":
        yield from of_sum(x, g, by, shapes, bound)
    else:
        for part, gradient in by_arguments(x, g, by, shapes):
            yield from contributions(part, gradient, by, shapes, bound)


def by_arguments(x: Formula, g: Formula, by: Formula, shapes: Shapes) -> Iterator[tuple[Formula, Formula]]:
    """What x is made of, each with the gradient by it; g is that by x."""
    match x.op:
        case "add":
            yield from ((a, g) for a in x.args)
        case "negative":
            yield x.args[0], negative(g)
        case "transpose":
            yield x.args[0], g.T
        case "named" | "call":
            yield x.args[0], g
        case "inverse":
            yield x.args[0], negative(times(times(x.T, g), x.T))
        case "hadamard":
            a, b = x.args
            yield a, reduced(hadamard(g, b), a, shapes)
            yield b, reduced(hadamard(g, a), b, shapes)
        case "divide":
            a, b = x.args
            yield a, g / b
            if mentions(b, by):
                down = times(g, x) if shapes.scalar(x) else inner(g, x)
                yield b, negative(down / b)
        case "exp":
            yield x.args[0], times(g, x)
        case "diag":
            yield x.args[0], Formula("diagonal", (g,))
        case "inner":
            a, b = x.args
            yield a, times(g, b)
            yield b, times(g, a)
        case _:
            raise Underivable(f"no rule for {x.op} in {x}")


def of_sum(x: Formula, g: Formula, by: Formula, shapes: Shapes, bound: Bound) -> Iterator[Formula]:
    """What a sum's body adds, for each value of its index, which is called otherwise where `by` has an index of its name."""
    low, high, body = x.args
    name = x.attrs[0]
    if name in {n for index in by.args for n in free_indices(index)} | {b[0] for b in bound}:
        fresh = next(n for n in "pqrslm" if n not in free_indices(body) | {b[0] for b in bound})
        body = substitute(body, {Formula("index", (), (name,)): Formula("index", (), (fresh,))})
        name = fresh
    yield from contributions(body, g, by, shapes, (*bound, (name, low, high)))


def at_leaf(x: Formula, g: Formula, by: Formula, bound: Bound) -> Iterator[Formula]:
    """An occurrence of the quantity: at the wanted index, or at one that a sum runs over and that meets it once."""
    rest = list(bound)
    meets: dict[Formula, Formula] = {}
    for mine, wanted in zip(x.args, by.args):
        if mine == wanted:
            continue
        over = next((b for b in rest if mine == Formula("index", (), (b[0],))), None)
        if over is None:
            return
        rest.remove(over)
        meets[mine] = wanted
    result = substitute(g, meets)
    for name, low, high in reversed(rest):
        result = sum_over(Formula("index", (), (name,)), low, high, result)
    yield result


def mentions(x: Formula, by: Formula) -> bool:
    return any(y.op == "at" and y.attrs == by.attrs for y in walk(x))


def of_product(x: Formula, g: Formula, by: Formula, shapes: Shapes, bound: Bound) -> Iterator[Formula]:
    """The product from left to right: (a b) by a is g b^T, by b is a^T g; with scalars, an inner product."""
    a, b = product(*x.args[:-1]), x.args[-1]
    scalar_a, scalar_b = shapes.scalar(a), shapes.scalar(b)
    if mentions(a, by):
        if scalar_a and not scalar_b:
            down = inner(g, b)
        else:
            down = times(g, b if scalar_b else b.T)
        yield from contributions(a, down, by, shapes, bound)
    if mentions(b, by):
        if scalar_b and not scalar_a:
            down = inner(g, a)
        else:
            down = times(a if scalar_a else a.T, g)
        yield from contributions(b, down, by, shapes, bound)


def times(a: Formula, b: Formula) -> Formula:
    """a b, without factors of 1, and with signs in front."""
    if a == UNIT:
        return b
    if b == UNIT:
        return a
    if a.op == "negative":
        return negative(times(a.args[0], b))
    if b.op == "negative":
        return negative(times(a, b.args[0]))
    return product(a, b)


def reduced(g: Formula, like: Formula, shapes: Shapes) -> Formula:
    """g summed over what `like` repeats along in an entrywise product."""
    have, want = shapes(g).shape, shapes(like).shape
    if have == want:
        return g
    if want[1] == "1" and have[0] == want[0]:
        return Formula("rowsum", (g,))
    if want[0] == "1" and have[1] == want[1]:
        return Formula("rowsum", (g.T,)).T
    return inner(g, ones(have[0]) * ones(have[1]).T)


def tidy(x: Formula, shapes: Shapes) -> Formula:
    """x as one would write it: scalars in front, no 1s, no double signs, transposes taken inside products."""
    if x.op not in TIDIED:
        return x
    args = tuple(tidy(a, shapes) for a in x.args)
    match x.op:
        case "transpose":
            return tidy_transpose(args[0], shapes)
        case "negative":
            return negative(args[0])
        case "add":
            return collected(args)
        case "inner" if shapes(args[0]).cols == "1":
            return tidy(product(args[0].T, args[1]), shapes)
        case "inner" if any(a.op == "negative" for a in args):
            signs = sum(a.op == "negative" for a in args)
            plain = inner(*(a.args[0] if a.op == "negative" else a for a in args))
            return negative(plain) if signs % 2 else plain
        case "product":
            return tidy_product(args, shapes)
    return Formula(x.op, args, x.attrs)


TIDIED = ("transpose", "negative", "add", "inner", "product", "sum", "hadamard", "rowsum", "divide")


def collected(terms: tuple[Formula, ...]) -> Formula:
    """The sum, with terms that differ by a number taken together."""
    found: dict[Formula, Fraction] = {}
    for x in terms:
        sign = -1 if x.op == "negative" else 1
        core = x.args[0] if x.op == "negative" else x
        number = Fraction(1)
        if core.op == "product" and core.args[0].op == "number":
            number, core = core.args[0].attrs[0], product(*core.args[1:])
        found[core] = found.get(core, Fraction(0)) + sign * number
    parts = []
    for core, number in found.items():
        whole = core if abs(number) == 1 else product(formula(abs(number)), core)
        if number:
            parts.append(negative(whole) if number < 0 else whole)
    return add(*parts) if parts else ZERO


def tidy_transpose(x: Formula, shapes: Shapes) -> Formula:
    if shapes.scalar(x):
        return x
    if x.op == "product":
        return tidy_product(tuple(tidy_transpose(a, shapes) for a in reversed(x.args)), shapes)
    if x.op == "negative":
        return negative(tidy_transpose(x.args[0], shapes))
    if x.op == "add":
        return add(*(tidy_transpose(a, shapes) for a in x.args))
    return x.T


def tidy_product(factors: tuple[Formula, ...], shapes: Shapes) -> Formula:
    flat: list[Formula] = []
    sign = False
    for f in factors:
        if f.op == "negative":
            sign, f = not sign, f.args[0]
        parts = f.args if f.op == "product" and not shapes.scalar(f) else (f,)
        flat += parts
    scalars = [f for f in flat if shapes.scalar(f)]
    rest = [f for f in flat if f not in scalars]
    number = formula(1)
    for f in [f for f in scalars if f.op == "number"]:
        number = formula(number.attrs[0] * f.attrs[0])
        scalars.remove(f)
    if number.attrs[0] < 0:
        sign, number = not sign, formula(-number.attrs[0])
    whole = [*([] if number == UNIT else [number]), *scalars, *rest]
    result = product(*whole) if len(whole) > 1 else (whole[0] if whole else UNIT)
    return negative(result) if sign else result


# --- the adjoint of a recurrence ------------------------------------------------------------------------------------


def step_adjoint(r: Recurrence, setting: Setting) -> dict[str, Formula]:
    """The gradient by every input at step t, and by every state, from the spec's equations: of
    <dS_t, the update of S> + <dy_t, the output y>, where S_t stands for the next state in the outputs."""
    shapes = shapes_in(setting)
    t = Formula("index", (), ("t",))
    terms = Terms(r)
    whole: list[Formula] = []
    for u in r.updates:
        whole.append(inner(at(f"d{u.name}", t), terms(u.term)))
    outputs = [inner(at(f"d{x.name}", t), terms(x.term)) for x in r.outputs]
    names = [*(x.name for x in r.states), *(x.name for x in r.variables), *(x.name for x in r.outputs)]
    for name in names:
        setting.lookup(name)
        setting.lookup(f"d{name}")
    found: dict[str, Formula] = {}
    for v in r.variables:
        if v.kind in ("input", "decay"):
            parts = [derivative(x, at(v.name, t), shapes) for x in (*whole, *outputs)]
            found[f"d{v.name}"] = summed(parts)
            if v.kind == "decay":
                scale = at(v.name, t)
                log = hadamard(scale, found[f"d{v.name}"]) if v.dims else product(scale, found[f"d{v.name}"])
                found[f"dlog_{v.name}"] = log
    for s in r.states:
        here = [derivative(x, at(s.name, t), shapes) for x in outputs]
        later = [derivative(x, at(s.name, t - 1), shapes) for x in (*whole, *outputs)]
        following = substitute(summed(later), {t: t + 1})
        found[f"d{s.name}"] = moved(summed([*here, following]))
        found[f"d{s.name} initial"] = moved(substitute(summed(later), {t: UNIT}))
    return found


def summed(parts: list[Formula]) -> Formula:
    kept = [x for x in parts if x != ZERO]
    return add(*kept) if kept else ZERO


def moved(x: Formula) -> Formula:
    """Indices with their numbers added up: t + 1 - 1 is t."""
    from .indices import shifted

    if x.op == "at":
        return Formula("at", tuple(shifted(i, 0) for i in x.args), x.attrs)
    return Formula(x.op, tuple(moved(a) for a in x.args), x.attrs) if x.args else x


def at(name: str, *index: Formula) -> Formula:
    return Formula("at", index, (name,))


def functions_of(r: Recurrence) -> list[Formula]:
    """The scalar functions in a spec's equations, at step t."""
    terms = Terms(r)
    found: list[Formula] = []
    for x in (*r.updates, *r.lets, *r.outputs):
        try:
            found += [y for y in walk(terms(x.term)) if y.op in ("function", "exp")]
        except Underivable:
            continue
    return list(dict.fromkeys(found))


class Terms:
    """The spec's terms as formulas at step t."""

    def __init__(self, r: Recurrence) -> None:
        self.r = r
        self.lets = {x.name: x.term for x in r.lets}
        self.t = Formula("index", (), ("t",))
        self.fixed = {v.name for v in r.variables if v.is_timeless}

    def name(self, name: str) -> Formula:
        base, _, which = name.partition(".")
        if base in self.lets:
            return self(self.lets[base])
        if base in self.fixed:
            return at(base)
        return at(base, self.t - 1 if which == "prev" else self.t)

    def __call__(self, m: object) -> Formula:
        if not isinstance(m, Matrix):
            return self.scalar(m, {})
        match m.op:
            case "symbol":
                return self.name(m.args[0])
            case "add":
                return self(m.args[0]) + self(m.args[1])
            case "matmul":
                return self(m.args[0]) * self(m.args[1])
            case "scale":
                value = self.scalar(m.args[0], {})
                return negative(self(m.args[1])) if value == formula(-1) else value * self(m.args[1])
            case "transpose":
                return self(m.args[0]).T
            case "hadamard":
                return hadamard(self(m.args[0]), self(m.args[1]))
            case "diag":
                return diag(self(m.args[0]))
            case "eye":
                return eye(m.rows)
            case "map":
                body, *args = m.args
                return self.scalar(body, {entry(i): self(a) for i, a in enumerate(args)})
        raise Underivable(m.op)

    def scalar(self, x: Any, slots: Mapping[Any, Formula]) -> Formula:
        if x in slots:
            return slots[x]
        if isinstance(x, Contraction):
            return self(x.matrix)
        if isinstance(x, Atom):
            return self.name(x.name)
        if x.is_Rational:
            return formula(x)
        if x.is_Add:
            first, *rest = sorted(x.args, key=lambda a: (not a.is_number, str(a)))
            return add(self.scalar(first, slots), *(self.scalar(a, slots) for a in rest))
        if x.is_Mul:
            factors = [self.scalar(a, slots) for a in x.args]
            signs = [f for f in factors if f == formula(-1)]
            whole = product(*(f for f in factors if f != formula(-1)))
            return negative(whole) if len(signs) % 2 else whole
        if x.is_Function and len(x.args) == 1:
            return entrywise(x.func.__name__.strip("_").lower(), self.scalar(x.args[0], slots))
        if x.is_Pow and x.args[1] == sympy.Integer(-1):
            return 1 / self.scalar(x.args[0], slots)
        raise Underivable(str(x))
