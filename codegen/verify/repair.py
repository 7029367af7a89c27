"""The nearest true formula: a search over small edits, each candidate proved before it is shown.

One edit first, then a missing term, then two edits. A candidate is true when it equals the other side in every world
and at every index at which the formula as stated has a value, so that no repair works by evading the point where the
formula is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, add, formula, negative, product, walk
from chunkform.spec.language.statements import Equal

from .arithmetic import FIELD, PRIME, Transcendental, Undefined
from .check import environments
from .edits import COSTS, Edit, Scope, edits, indices_of, scope_of
from .evaluate import Evaluator, Unknown
from .values import ShapeFault
from .world import OutOfRange

Faults = (ShapeFault, Undefined, Transcendental, Unknown, RecursionError)


EFFORT = 3000  # candidates tried for one formula under one reading
POOL_LIMIT = 15000  # products of quantities tried as a missing term
Pool = dict[Any, list[Formula]]  # terms by their fingerprint


@dataclass(frozen=True)
class Repair:
    """A true formula near the one that was stated, and the edits that lead there."""

    result: Formula
    edits: tuple[str, ...]
    cost: int


class Budget:
    """How many candidates may be tried; a count and not a time, so that the same claims always get the same
    verdicts."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spent(self) -> bool:
        self.left -= 1
        return self.left < 0


@dataclass
class Target:
    """What a candidate is compared with: a function from a candidate to whether it is true in one world, and in all."""

    quick: Callable[[Formula], bool]
    proved: Callable[[Formula], bool]

    def true(self, candidate: Formula) -> bool:
        return self.quick(candidate) and self.proved(candidate)


def search(
    stated: Formula,
    setting: Setting,
    names: tuple[str, ...],
    target: Target,
    residual: Residual | None = None,
    beside: tuple[Formula, ...] = (),
    head: bool = False,
    effort: int = EFFORT,
    depth: int = 3,
) -> list[Repair]:
    """Repairs of `stated`, nearest first; empty when none is found within two edits and the effort. `beside` are the
    other sides, whose indices may be used; `head`: the side is what the formula is for, so that only its symbol and
    indices are in doubt. `depth`: 1 for one edit,
    2 for two that move an index, a sign or a transpose, 3 for missing terms and any two edits."""
    budget = Budget(effort)
    scope = scope_of(stated, setting, names, beside)
    first = sorted(
        unique(itertools.chain(edits(stated, scope), nothing(stated)), stated),
        key=lambda e: (COSTS[e.kind], len(str(e.result))),
    )
    if head:
        first = [e for e in first if e.kind in ("symbol", "index", "transpose")]
    if depth == 1 or head:
        return ranked([Repair(e.result, (e.what,), COSTS[e.kind]) for e in first if target.true(e.result)])
    if depth == 2:
        return ranked(two_edits([e for e in first if COSTS[e.kind] == 1], scope, target, budget, cheap=True))
    found: list[Repair] = []
    if residual is not None:
        found = ranked(list(two_terms(stated, scope, residual, target)))
        if found:
            return found
        terms = term_pool(stated, setting, names, residual, scope, beside)
        found = list(with_missing_term(stated, (), 0, residual, terms, target))
        if not found:
            for e in first:
                found += with_missing_term(e.result, (e.what,), COSTS[e.kind], residual, terms, target)
                if budget.spent():
                    break
    found = ranked(found)
    if found and found[0].cost <= 3:
        return found
    found = ranked(found + two_edits(first, scope, target, budget))
    if not found and residual is not None:
        found = list(instead(residual, terms, target))
    return found


def two_edits(first: list[Edit], scope: Scope, target: Target, budget: Budget, cheap: bool = False) -> list[Repair]:
    """Pairs of edits; `cheap`: only those that move an index, a sign or a transpose."""
    found: list[Repair] = []
    seen: set[Formula] = set()
    for e in first:
        if found and COSTS[e.kind] > 1:
            break
        for other in edits(e.result, scope):
            if other.result in seen or (cheap and COSTS[other.kind] > 1):
                continue
            seen.add(other.result)
            if target.true(other.result):
                found.append(Repair(other.result, (e.what, other.what), COSTS[e.kind] + COSTS[other.kind]))
            if budget.spent():
                return found
    return found


def two_terms(stated: Formula, scope: Scope, residual: Residual, target: Target) -> Iterator[Repair]:
    """One edit in each of two terms of a sum: for every edit of one term, the other's is looked up by what it must
    be."""
    if stated.op != "add":
        return
    known = residual.all_known()
    vectors = [residual.vector(x, False) for x in stated.args]
    if None in vectors:
        return
    variants: list[list[tuple[Edit, tuple]]] = []
    for x in stated.args:
        mine = [(e, residual.vector(e.result, False)) for e in unique(edits(x, scope), x)]
        variants.append([(e, v) for e, v in mine if v is not None and None not in v])
    for i, j in itertools.combinations(range(len(stated.args)), 2):
        rest = [v for k, v in enumerate(vectors) if k not in (i, j) and v is not None]
        wanted = tuple((a - sum(v[m] for v in rest)) % PRIME for m, a in enumerate(known))
        table: dict[tuple, Edit] = {}
        for e, v in sorted(variants[j], key=lambda pair: -COSTS[pair[0].kind]):
            table[v] = e
        for e, v in variants[i]:
            other = table.get(tuple((a - b) % PRIME for a, b in zip(wanted, v)))
            if other is not None:
                args = list(stated.args)
                args[i], args[j] = e.result, other.result
                result = add(*args)
                if target.true(result):
                    yield Repair(result, (e.what, other.what), COSTS[e.kind] + COSTS[other.kind])


def nothing(stated: Formula) -> Iterator[Edit]:
    yield Edit(product(formula(0), stated), "drop", "nothing at all there")


def unique(candidates: Iterator[Edit], stated: Formula) -> Iterator[Edit]:
    seen = {stated}
    for e in candidates:
        if e.result not in seen:
            seen.add(e.result)
            yield e


def ranked(found: list[Repair]) -> list[Repair]:
    """Cheapest and shortest first, without repairs that print alike."""
    best: dict[str, Repair] = {}
    for r in sorted(found, key=lambda r: (r.cost, len(str(r.result)), str(r.result))):
        best.setdefault(str(r.result), r)
    return list(best.values())


def with_missing_term(
    stated: Formula,
    before: tuple[str, ...],
    cost: int,
    residual: Residual,
    terms: Pool,
    target: Target,
) -> Iterator[Repair]:
    """`stated` with one term more, read off from what is left over."""
    key, scale = residual(stated)
    if key not in terms:
        return
    own = stated.args if stated.op == "add" else (stated,)
    if any(residual.key_of(x) == key and residual.ratio(scale, x) for x in own):
        return
    for term in terms[key]:
        ratio = residual.ratio(scale, term)
        if ratio is not None:
            added = scaled(abs(ratio), term)
            result = add(stated, negative(added) if ratio < 0 else added)
            if target.proved(result):
                yield Repair(result, (*before, f"the missing term {'-' if ratio < 0 else ''}{added}"), cost + 3)
                return


def instead(residual: Residual, terms: Pool, target: Target) -> Iterator[Repair]:
    """A product of quantities in scope that is the whole other side."""
    key, scale = residual.normalised(residual.all_known())
    for term in terms.get(key, ()):
        ratio = residual.ratio(scale, term)
        if ratio is not None:
            result = negative(scaled(-ratio, term)) if ratio < 0 else scaled(ratio, term)
            if target.true(result):
                yield Repair(result, (f"{result} in place of the whole",), 6)
                return


def scaled(ratio: Fraction, term: Formula) -> Formula:
    return term if ratio == 1 else product(formula(ratio), term)


def small_ratio(x: int) -> Fraction | None:
    for below in (1, 2, 3, 4):
        for above in (1, 2, 3, 4):
            ratio = FIELD.number(Fraction(above, below))
            if x == ratio:
                return Fraction(above, below)
            if x == PRIME - ratio:
                return Fraction(-above, below)
    return None


class Residual:
    """What `known` minus a candidate leaves, at two indices in the middle of one world, as a vector up to scale."""

    def __init__(self, statement: Equal, known: Formula, stated: Formula, evaluate: Evaluator) -> None:
        self.evaluate = evaluate
        self.envs = []
        self.known = []
        for env in environments(statement.sides, statement.over, evaluate):
            if not has_value(stated, env, evaluate):
                continue
            try:
                self.known.append(evaluate(known, env))
                self.envs.append(env)
            except Faults:
                continue
        middle = len(self.envs) // 2
        keep = slice(max(0, middle - 1), middle + 1)
        self.envs, self.known = self.envs[keep], self.known[keep]

    @property
    def shape(self) -> tuple[str, str] | None:
        return self.known[0].shape if self.known else None

    def vector(self, x: Formula, minus: bool) -> tuple | None:
        entries: list[int] = []
        for env, known in zip(self.envs, self.known):
            try:
                value = self.evaluate(x, env)
            except Faults:
                entries += [None] * known.a.size  # type: ignore[list-item]
                continue
            if value.shape != known.shape or value.log:
                return None
            a = (known.a - value.a) % PRIME if minus else value.a
            entries += [int(v) for v in a.flat]
        return tuple(entries)

    def normalised(self, entries: tuple | None) -> tuple[Any, int]:
        if entries is None:
            return None, 0
        lead = next((v for v in entries if v), None)
        if lead is None:
            return None, 0
        scale = pow(lead, -1, PRIME)
        return tuple(None if v is None else v * scale % PRIME for v in entries), lead

    def __call__(self, candidate: Formula) -> tuple[Any, int]:
        return self.normalised(self.vector(candidate, True))

    def all_known(self) -> tuple:
        return tuple(int(v) for known in self.known for v in known.a.flat)

    def key_of(self, term: Formula) -> Any:
        return self.normalised(self.vector(term, False))[0]

    def ratio(self, scale: int, term: Formula) -> Fraction | None:
        """What a term must be multiplied with to have this scale, if that is a small fraction."""
        own = self.normalised(self.vector(term, False))[1]
        return small_ratio(scale * pow(own, -1, PRIME) % PRIME) if own else None


def term_pool(
    stated: Formula,
    setting: Setting,
    names: tuple[str, ...],
    residual: Residual,
    scope: Scope,
    beside: tuple[Formula, ...] = (),
    limit: int = POOL_LIMIT,
) -> Pool:
    """Products of up to three quantities in scope, with a scalar factor, in the shape that is wanted; by
    fingerprint."""
    bases = base_quantities((stated, *beside), setting, names, residual.evaluate)
    wanted = residual.shape
    pool: Pool = {}
    if wanted is None:
        return pool
    budget = Budget(limit)
    bodies = list(chains(bases, wanted))
    short = [x for x in bodies if x.op != "product" or len(x.args) < 3]
    long = [x for x in bodies if x.op == "product" and len(x.args) > 2]
    pairs = [product(a, b) for a, b in itertools.combinations(scope.scalars, 2)]
    for group, factors in (
        (short, (None, *scope.scalars)),
        (long, (None, *scope.scalars)),
        (short, pairs),
        (long, pairs),
    ):
        for s, body in itertools.product(factors, group):
            term = body if s is None else product(s, body)
            key = residual.key_of(term)
            if key is not None and len(pool.setdefault(key, [])) < 12:
                pool[key].append(term)
            if budget.spent():
                return pool
    return pool


def base_quantities(
    there: tuple[Formula, ...], setting: Setting, names: tuple[str, ...], evaluate: Evaluator
) -> list[tuple[Formula, tuple[str, str]]]:
    """Quantities at the indices that the formula uses, and their transposes, with shapes."""
    used = [y for x in there for y in walk(x) if y.op in ("at", "named")]
    indices = indices_of(there, setting)
    found = []
    bodies = [
        Formula("at", args, (name,))
        for name in names
        for args in indices.get(len(setting.quantities[name].parameters), [])
    ]
    bodies += [y for y in used if y.op == "named"]
    unindexed = any(y.op == "at" and not y.args for y in used)
    if not unindexed:
        bodies = [x for x in bodies if x.args]
    for x in dict.fromkeys(bodies):
        shape = shape_of(x, evaluate)
        if shape is None or shape == ("1", "1"):
            continue
        found.append((x, shape))
        found.append((x.T, (shape[1], shape[0])))
    return found


def shape_of(x: Formula, evaluate: Evaluator) -> tuple[str, str] | None:
    for env in environments((x,), (), evaluate):
        try:
            return evaluate(x, env).shape
        except Undefined:
            continue
        except Faults:
            return None
    return None


def chains(bases: list[tuple[Formula, tuple[str, str]]], wanted: tuple[str, str]) -> Iterator[Formula]:
    """Products that have the wanted shape: single quantities, then pairs, then triples; inner products for scalars."""
    rows, cols = wanted
    for x, shape in bases:
        if shape == wanted:
            yield x
    by_rows: dict[str, list[tuple[Formula, tuple[str, str]]]] = {}
    for x, shape in bases:
        by_rows.setdefault(shape[0], []).append((x, shape))
    for x, (r, inner) in bases:
        if r == rows:
            for y, (_, c) in by_rows.get(inner, []):
                if c == cols:
                    yield x * y
    if wanted == ("1", "1"):
        for i, (x, shape) in enumerate(bases):
            for y, other in bases[i + 1 :]:
                if shape == other and "1" not in shape and x.op != "transpose":
                    yield Formula("inner", (x, y))
    for x, (r, inner) in bases:
        if r == rows:
            for y, (_, middle) in by_rows.get(inner, []):
                for z, (_, c) in by_rows.get(middle, []):
                    if c == cols:
                        yield x * y * z


def has_value(x: Formula, env: Mapping[str, int], evaluate: Evaluator) -> bool:
    """Whether every quantity in x exists at these indices; a wrong shape counts as existing."""
    try:
        evaluate(x, env)
    except OutOfRange:
        return False
    except (Undefined, ShapeFault, Transcendental):
        return True
    return True


def edited(statement: Equal, position: int, side: Formula) -> Equal:
    sides = (*statement.sides[:position], side, *statement.sides[position + 1 :])
    return replace(statement, sides=sides)
