"""The nearest true formula: a search over small edits, each candidate proved before it is shown.

One edit first, then a missing term, then two edits. A candidate is true when it equals the other side in every instance
and at every index at which the formula as stated has a value, so that no repair works by evading the point where the
formula is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fractions import Fraction
from typing import Any

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, add, formula, negative, product, walk
from chunkform.spec.language.statements import Equal

from .candidate_terms import Pool, term_pool
from .edit_scope import Known, Scope, scope_of
from .effort import WORK, Effort
from .fingerprint import Residual
from .multiples import with_multiples
from .mutations import BROUGHT, COSTS, Edit, edits, moves

NOTHING = "nothing at all there"
TRIED = 24  # candidates with products of scalars: each has the right value at two indices
PLAIN_SIZE = 200  # nodes of a formula that is not long
MOVES = 60  # quantities of a formula of which pairs are moved, twice
MAKING = 4  # operations that a candidate takes before it is evaluated


@dataclass(frozen=True)
class Repair:
    """A true formula near the one that was stated, and the edits that lead there."""

    result: Formula
    edits: tuple[str, ...]
    cost: int


@dataclass
class Target:
    """What a candidate is compared with: whether it is true in one instance; in all, and says something; and, of one in the place
    of the whole, whether it is more than the recurrence's own equation."""

    quick: Callable[[Formula], bool]
    proved: Callable[[Formula], bool]
    new: Callable[[Formula], bool]
    before_the_end: Callable[[Formula], bool] = lambda x: False  # in that instance, at all steps but the last

    def true(self, candidate: Formula) -> bool:
        WORK.done += MAKING + burden(candidate)
        return self.quick(candidate) and self.proved(candidate)

    def true_before_the_end(self, candidate: Formula) -> bool:
        WORK.done += MAKING + burden(candidate)
        return self.before_the_end(candidate) and self.proved(candidate)


def search(
    stated: Formula,
    setting: Setting,
    names: tuple[str, ...],
    target: Target,
    residual: Residual | None = None,
    beside: tuple[Formula, ...] = (),
    head: bool = False,
    effort: Effort | None = None,
    depth: int = 3,
    known: Known | None = None,
    near: dict[Any, list[Edit]] | None = None,
    fits: bool = True,
) -> list[Repair]:
    """Repairs of `stated`, nearest first; empty when none is found within two edits and the effort. `beside` are the
    other sides, whose indices may be used; `head`: the side is what the formula is for, so that only its symbol and
    indices are in doubt. `near` keeps what is one edit away, for other depths. `depth`: 1 for one edit,
    2 for two that move an index, a sign or a transpose, 3 for missing terms and any two edits. `fits`: the shapes do."""
    effort = effort or Effort()
    scope = scope_of(stated, setting, names, beside, known, fits)
    first = near[stated, beside] if near is not None and (stated, beside) in near else None
    if first is None:
        first = sorted(
            made(
                unique(itertools.chain(edits(stated, replace(scope, factors=())), nothing(stated)), stated),
                stated,
                effort,
            ),
            key=lambda e: (COSTS[e.kind], len(str(e.result))),
        )
    if near is not None:
        near[stated, beside] = first
    WORK.done += len(first)
    if head:
        first = [e for e in first if e.kind in ("symbol", "index", "transpose")]
    if depth == 1 or head:
        true = [e for e in first if not effort.spent() and target.true(e.result)]
        return ranked([Repair(e.result, (e.what,), COSTS[e.kind]) for e in true], stated)
    if depth == 2:
        found = two_moves(stated, target, effort)
        slips = [e for e in first if COSTS[e.kind] == 1]
        return ranked(found or two_edits(slips, scope, target, effort, cheap=True), stated)
    found = ranked(list(with_missing_factor(stated, scope, target, effort.share(4))), stated)
    if found:
        return found
    first = [e for e in first if e.kind not in BROUGHT]
    if residual is not None:
        found = ranked(list(two_terms(stated, scope, residual, target, effort)), stated)
        if found:
            return found
        fitting = [Edit(stated, "", ""), *(e for e in first if e.what != NOTHING)]
        fitting = [e for e in fitting if not effort.spent() and residual(e.result)[0] is not None]
        terms = term_pool(stated, setting, names, residual, scope, beside, effort.share(3)) if fitting else {}
        for e in fitting:
            before = (e.what,) if e.what else ()
            found += with_missing_term(e.result, before, COSTS.get(e.kind, 0), residual, terms, target)
            if (found and not before) or effort.spent():
                break
    found = ranked(found, stated)
    if found and found[0].cost <= 3:
        return found
    pairs = effort.share(2) if residual is not None else effort
    found = ranked(found + two_edits(first, scope, target, pairs), stated)
    effort.ended |= pairs.ended
    if not found and residual is not None:
        more = with_multiples(stated, setting, names, residual, scope, effort, beside)
        found = [Repair(x, (what,), cost) for x, what, cost in itertools.islice(more, TRIED) if target.true(x)]
        found = ranked(found, stated) or list(instead(residual, terms, target))
    return found


def burden(x: Formula) -> int:
    """What a candidate costs beyond a plain one, as it is long."""
    return max(0, sum(1 for _ in walk(x)) - PLAIN_SIZE) // 10


def made(candidates: Iterator[Edit], stated: Formula, effort: Effort) -> Iterator[Edit]:
    """Edits of a formula; of a long one, as many as the effort makes."""
    cost = burden(stated)
    for e in candidates:
        yield e
        WORK.done += cost
        if cost and effort.spent():
            return


def with_missing_factor(stated: Formula, scope: Scope, target: Target, effort: Effort) -> Iterator[Repair]:
    """`stated` with a vector or matrix more in one of its products."""
    every = made(edits(stated, scope), stated, effort)
    for e in unique((e for e in every if e.kind == "factor of a product"), stated):
        if effort.spent():
            return
        if target.true(e.result):
            yield Repair(e.result, (e.what,), COSTS[e.kind])


def two_moves(stated: Formula, target: Target, effort: Effort) -> list[Repair]:
    """One or two quantities, each a step earlier or later: the commonest pair, and few. What is a step later has no value at the
    last one."""
    pairs: dict[Formula, Repair] = {}
    near = list(moves(stated))
    for e in near if len(near) <= MOVES else ():
        pairs.setdefault(e.result, Repair(e.result, (e.what,), COSTS[e.kind]))
        for other in moves(e.result):
            repair = Repair(other.result, (e.what, other.what), COSTS[e.kind] + COSTS[other.kind])
            pairs.setdefault(other.result, repair)
    pairs.pop(stated, None)
    found = [r for r in pairs.values() if not effort.spent() and target.true(r.result)]
    return found or [r for r in pairs.values() if not effort.spent() and target.true_before_the_end(r.result)]


def two_edits(first: list[Edit], scope: Scope, target: Target, effort: Effort, cheap: bool = False) -> list[Repair]:
    """Pairs of edits; `cheap`: only those that move an index, a sign or a transpose."""
    found: list[Repair] = []
    seen: set[Formula] = set()
    for e in first:
        if found and COSTS[e.kind] > 1:
            break
        for other in edits(e.result, scope.near()):
            if other.result in seen or (cheap and COSTS[other.kind] > 1):
                continue
            seen.add(other.result)
            if target.true(other.result):
                found.append(Repair(other.result, (e.what, other.what), COSTS[e.kind] + COSTS[other.kind]))
            if effort.spent():
                return found
    return found


def two_terms(stated: Formula, scope: Scope, residual: Residual, target: Target, effort: Effort) -> Iterator[Repair]:
    """One edit in each of two terms of a sum: for every edit of one term, the other's is looked up by what it must
    be."""
    if stated.op != "add":
        return
    known = residual.all_known()
    vectors = [residual.vector(x) for x in stated.args]
    if None in vectors:
        return
    variants: list[list[tuple[Edit, tuple]]] = []
    for x in stated.args:
        if effort.spent():
            return
        mine = [(e, residual.vector(e.result)) for e in unique(edits(x, scope.near()), x)]
        WORK.done += MAKING * len(mine)
        variants.append([(e, v) for e, v in mine if v is not None and None not in v])
    for i, j in itertools.combinations(range(len(stated.args)), 2):
        rest = [v for k, v in enumerate(vectors) if k not in (i, j) and v is not None]
        if any(None in v for v in rest):  # a third term is at fault
            continue
        reduce = residual.arithmetic.reduce
        wanted = tuple(reduce(a - sum(v[m] for v in rest)) for m, a in enumerate(known))
        table: dict[tuple, Edit] = {}
        for e, v in sorted(variants[j], key=lambda pair: -COSTS[pair[0].kind]):
            table[residual.key(v)] = e
        for e, v in variants[i]:
            other = table.get(residual.key(tuple(reduce(a - b) for a, b in zip(wanted, v))))
            if other is not None:
                args = list(stated.args)
                args[i], args[j] = e.result, other.result
                result = add(*args)
                if target.true(result):
                    yield Repair(result, (e.what, other.what), COSTS[e.kind] + COSTS[other.kind])


def nothing(stated: Formula) -> Iterator[Edit]:
    yield Edit(product(formula(0), stated), "drop", NOTHING)


def unique(candidates: Iterator[Edit], stated: Formula) -> Iterator[Edit]:
    seen = {stated}
    for e in candidates:
        if e.result not in seen:
            seen.add(e.result)
            yield e


def ranked(found: list[Repair], stated: Formula | None = None) -> list[Repair]:
    """Cheapest and shortest first, then what is most like the formula as stated, without repairs that print alike."""
    best: dict[str, Repair] = {}

    def likeness(r: Repair) -> float:
        return SequenceMatcher(None, str(stated), str(r.result), False).ratio() if stated is not None else 0

    for r in sorted(found, key=lambda r: (r.cost, len(str(r.result)), -likeness(r), str(r.result))):
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
    if key not in terms or (before and not any(residual.vector(stated) or ())):
        return  # an edit that leaves nothing, and all of it as a term
    own = stated.args if stated.op == "add" else (stated,)
    if any(residual.key_of(x) == key and residual.ratio(scale, x) for x in own):
        return
    for term in terms[key]:
        ratio = residual.ratio(scale, term)
        if ratio is not None:
            added = scaled(abs(ratio), term)
            result = add(stated, negative(added) if ratio < 0 else added)
            if target.true(result):
                yield Repair(result, (*before, f"the missing term {'-' if ratio < 0 else ''}{added}"), cost + 3)
                return


def instead(residual: Residual, terms: Pool, target: Target) -> Iterator[Repair]:
    """A product of quantities in scope that is the whole other side."""
    key, scale = residual.normalised(residual.all_known())
    for term in terms.get(key, ()):
        ratio = residual.ratio(scale, term)
        if ratio is not None:
            result = negative(scaled(-ratio, term)) if ratio < 0 else scaled(ratio, term)
            if target.new(result) and target.true(result):
                yield Repair(result, (f"{result} in place of the whole",), 6)
                return


def scaled(ratio: Fraction, term: Formula) -> Formula:
    return term if ratio == 1 else product(formula(ratio), term)


def edited(statement: Equal, position: int, side: Formula) -> Equal:
    sides = (*statement.sides[:position], side, *statement.sides[position + 1 :])
    return replace(statement, sides=sides)
