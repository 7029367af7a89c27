"""Repairs that bring in products of scalars: a term that a product rule gives, such as (v.T do) (u.T q) k; a factor such as
q.T k; or a part of a factor, such as what is read in v - S.T k.

A body's value at an index must have the wanted one as a multiple; the multiples at all indices are looked up among scalars,
and products of two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, add, formula, negative, product
from chunkform.spec.language.formula import inner as inner_product

from .candidate_terms import Bases, base_quantities, chains, shape_of
from .edit_scope import Scope
from .effort import Effort
from .fingerprint import Faults, Residual, small_ratio
from .indices import shifted

Found = tuple[Formula, str, int]  # a candidate, what it brings in, and the cost of that


def with_multiples(
    stated: Formula,
    setting: Setting,
    names: tuple[str, ...],
    residual: Residual,
    scope: Scope,
    effort: Effort,
    beside: tuple[Formula, ...] = (),
) -> Iterator[Found]:
    """Candidates with one term, one factor or one part of a factor more."""
    if residual.shape is None:
        return
    bases = base_quantities((stated, *beside), setting, names, residual.evaluate)
    bases += before(bases, setting)
    scalars = Scalars(residual, bases, scope)
    known, own = residual.all_known(), residual.vector(stated)
    if own is None or None in own:
        return
    missing = tuple(residual.arithmetic.reduce(a - b) for a, b in zip(known, own))
    terms = stated.args if stated.op == "add" else (stated,)
    for i, x in enumerate(terms):
        value = residual.vector(x)
        if value is not None and None not in value:
            wanted = tuple(residual.arithmetic.reduce(a + b) for a, b in zip(missing, value))
            for factor in scalars.multiples(wanted, x):
                yield add(*terms[:i], scaled(factor, x), *terms[i + 1 :]), f"the factor {factor} on {x}", 3
    for body in short(bases, residual.shape):
        if effort.spent():
            return
        for factor in scalars.multiples(missing, body):
            more = scaled(factor, body)
            yield add(stated, more), f"the missing term {more}", 4
    for i, x in enumerate(terms):
        sign, core = (negative, x.args[0]) if x.op == "negative" else (same, x)
        for k, f in enumerate(core.args if core.op == "product" else ()):
            shape = shape_of(f, residual.evaluate)
            for part in short(bases, shape) if shape is not None else ():
                if effort.spent():
                    return
                body = sign(product(*core.args[:k], part, *core.args[k + 1 :]))
                for factor in scalars.multiples(missing, body):
                    more = scaled(factor, part)
                    new = sign(product(*core.args[:k], add(f, more), *core.args[k + 1 :]))
                    yield add(*terms[:i], new, *terms[i + 1 :]), f"the missing part {more} beside {f}", 5


def short(bases: Bases, shape: tuple[str, str]) -> Iterator[Formula]:
    """Quantities, and products of two, of that shape."""
    return itertools.takewhile(lambda x: x.op != "product" or len(x.args) < 3, chains(bases, shape))


def before(bases: Bases, setting: Setting) -> Bases:
    """The states that are there, one step earlier, as a step reads them."""
    states = {s.name for s in setting.recurrence.states} if setting.recurrence is not None else set()
    found: Bases = []
    for x, shape in bases:
        if x.op == "at" and x.attrs[0] in states:
            earlier = Formula("at", (shifted(x.args[0], -1),), x.attrs)
            found += [(earlier, shape), (earlier.T, (shape[1], shape[0]))]
    there = {x for x, _ in bases}
    return [(x, shape) for x, shape in found if x not in there]


class Scalars:
    """The scalars in scope, inner products among them, and products of two, by their values at a residual's indices."""

    def __init__(self, residual: Residual, bases: Bases, scope: Scope) -> None:
        self.residual = residual
        self.arithmetic = residual.arithmetic
        vectors = [(x, shape) for x, shape in bases if shape[1] == "1"]
        inner = [x.T * y for (x, a), (y, b) in itertools.combinations_with_replacement(vectors, 2) if a == b]
        matrices = [(x, shape) for x, shape in bases if "1" not in shape and x.op != "transpose"]
        inner += [inner_product(x, y) for (x, a), (y, b) in itertools.combinations(matrices, 2) if a == b]
        self.values: list[tuple[Formula, tuple]] = []
        self.table: dict[Any, tuple[Formula, Any]] = {}
        for x in (formula(1), *scope.scalars, *inner):
            value = self.at_indices(x)
            key, lead = residual.normalised(value)
            if value is not None and key is not None and not any(map(residual.zero, value)):
                self.values.append((x, value))
                self.table.setdefault(key, (x, lead))

    def at_indices(self, x: Formula) -> tuple | None:
        try:
            values = [self.residual.value(x, env) for env in self.residual.envs]
        except Faults:
            return None
        return tuple(v.a[0, 0] for v in values) if all(v.is_scalar and not v.log for v in values) else None

    def multiples(self, wanted: tuple, body: Formula) -> Iterator[Formula]:
        """The scalars whose product with the body is what is wanted."""
        multiple = self.multiple(wanted, body)
        if multiple is None:
            return
        several = self.residual.shape != ("1", "1")  # else the body is a scalar itself
        for one, value in self.values if several else self.values[:1]:
            rest = tuple(self.arithmetic.reduce(a * self.arithmetic.invert(b)) for a, b in zip(multiple, value))
            key, lead = self.residual.normalised(rest)
            other, own = self.table.get(key, (None, None))
            if other is None:
                continue
            ratio = small_ratio(self.arithmetic.reduce(lead * self.arithmetic.invert(own)), self.arithmetic)
            if ratio is not None:
                parts = [x for x in (one, other) if x != formula(1)]
                whole = product(*parts) if parts else formula(1)
                size = whole if abs(ratio) == 1 else scaled(formula(abs(ratio)), whole)
                yield negative(size) if ratio < 0 else size

    def multiple(self, wanted: tuple, body: Formula) -> tuple | None:
        """By what the body must be multiplied at each index, where one number does for all of its entries."""
        value = self.residual.vector(body)
        if value is None or None in value:
            return None
        found = []
        start = 0
        for known in self.residual.known:
            pairs = list(zip(wanted[start : start + known.a.size], value[start : start + known.a.size]))
            start += known.a.size
            lead = next(((a, b) for a, b in pairs if not self.residual.zero(b)), None)
            if lead is None:
                return None
            ratio = self.arithmetic.reduce(lead[0] * self.arithmetic.invert(lead[1]))
            if not all(self.residual.zero(self.arithmetic.reduce(a - ratio * b)) for a, b in pairs):
                return None
            found.append(ratio)
        return None if all(map(self.residual.zero, found)) else tuple(found)


def scaled(factor: Formula, x: Formula) -> Formula:
    """factor x, without a factor of 1, and with its sign in front."""
    if factor.op == "negative":
        return negative(scaled(factor.args[0], x))
    if factor.op == "number" and abs(factor.attrs[0]) == 1:
        return negative(x) if factor.attrs[0] < 0 else x
    return product(factor, x)


def same(x: Formula) -> Formula:
    return x
