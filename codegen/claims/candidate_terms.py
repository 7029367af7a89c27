"""Candidates for a missing term: products of the quantities in scope, by their fingerprint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, diag, hadamard, product, walk

from .arithmetic import Undefined
from .check import environments
from .edit_scope import Scope, indices_of
from .effort import WORK, Effort
from .evaluate import Evaluator
from .fingerprint import Faults, Residual
from .indices import is_decay
from .values import Value

POOL_LIMIT = 15000  # products tried
Bases = list[tuple[Formula, tuple[str, str]]]  # quantities with their shapes
Pool = dict[Any, list[Formula]]  # terms by their fingerprint


def term_pool(
    stated: Formula,
    setting: Setting,
    names: tuple[str, ...],
    residual: Residual,
    scope: Scope,
    beside: tuple[Formula, ...],
    effort: Effort,
) -> Pool:
    """Products of up to three quantities in scope, with a scalar factor, in the shape that is wanted; by
    fingerprint."""
    bases = base_quantities((stated, *beside), setting, names, residual.evaluate)
    wanted = residual.shape
    pool: Pool = {}
    if wanted is None:
        return pool
    bodies = list(itertools.islice(chains(bases, wanted), POOL_LIMIT))
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
            WORK.done += 1
            if effort.spent():
                return pool
    return pool


def base_quantities(there: tuple[Formula, ...], setting: Setting, names: tuple[str, ...], evaluate: Evaluator) -> Bases:
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
        bodies = [x for x in bodies if x.args or setting.quantities[x.attrs[0]].kind != "defined"]
    for x in dict.fromkeys(bodies):
        shape = shape_of(x, evaluate)
        if shape is None or shape == ("1", "1"):
            continue
        found.append((x, shape))
        found.append((x.T, (shape[1], shape[0])))
    return found + scaled_entries(found, setting) + scaled_channels(found, setting)


def scaled_channels(bases: Bases, setting: Setting) -> Bases:
    """What scales the rows of a state, or its columns: a decay for each channel, as a diagonal matrix."""
    columns = [(x, shape[0]) for x, shape in bases if x.op == "at" and shape[1] == "1"]
    return [(diag(x), (dim, dim)) for x, dim in columns if is_decay(setting, x.attrs[0])]


def scaled_entries(
    bases: list[tuple[Formula, tuple[str, str]]], setting: Setting
) -> list[tuple[Formula, tuple[str, str]]]:
    """Vectors, entry by entry, times a decay or a parameter of their shape."""
    found = []
    for p, shape in bases:
        fixed = p.op == "at" and not p.args and setting.quantities[p.attrs[0]].kind == "spec"
        if p.op != "at" or not (fixed or is_decay(setting, p.attrs[0])) or shape[1] != "1":
            continue
        for x, other in bases:
            if other == shape and x != p:
                both = hadamard(p, x)
                found += [(both, shape), (both.T, (shape[1], shape[0]))]
    return found


def shape_of(x: Formula, evaluate: Evaluator) -> tuple[str, str] | None:
    value = first_value(x, evaluate)
    return None if value is None else value.shape


def first_value(x: Formula, evaluate: Evaluator) -> Value | None:
    """x at the first indices at which it has a value."""
    for env in environments((x,), (), evaluate):
        try:
            return evaluate(x, env)
        except Undefined:
            continue
        except Faults:
            return None
    return None


def chains(bases: Bases, wanted: tuple[str, str]) -> Iterator[Formula]:
    """Products that have the wanted shape: single quantities, then pairs, then triples; inner products for scalars."""
    rows, cols = wanted
    by_rows: dict[str, list[tuple[Formula, tuple[str, str]]]] = {}
    for x, shape in bases:
        by_rows.setdefault(shape[0], []).append((x, shape))

    def ending(known: str) -> Iterator[Formula]:
        """Single quantities from an axis to the wanted columns."""
        return (x for x, (_, c) in by_rows.get(known, []) if c == cols)

    first = by_rows.get(rows, [])
    yield from ending(rows)
    for x, (_, inner) in first:
        yield from (x * y for y in ending(inner))
    if wanted == ("1", "1"):
        for i, (x, shape) in enumerate(bases):
            for y, other in bases[i + 1 :]:
                if shape == other and "1" not in shape and x.op != "transpose":
                    yield Formula("inner", (x, y))
    for x, (_, inner) in first:
        for y, (_, middle) in by_rows.get(inner, []):
            yield from (x * y * z for z in ending(middle))
