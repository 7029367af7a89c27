r"""Products and sums that are written from their last index down to their first, as in \prod_{i=t}^{j+1}: authors of ordered
products of matrices mean A_t .. A_{j+1}, though nothing is between such bounds.

What tells that the bound below is the larger one: a number, the number of steps, what sums around run over, the row's conditions.
Where only a shift tells, as in t and j + 1, a product is read so, and may be meant the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chunkform.spec.language.formula import RANGED, Formula, rebuild, walk

from .row import UNKNOWN, Item, Row
from .runs import Limits, letter_and_shift, shift_between, told
from .words import INDICES

PRODUCTS = ("product over", "hadamard over")
ORDERED = ("sum", *PRODUCTS)  # those whose bounds say where they start
SAYS_ORDER = re.compile(
    r"arrow|cdots|\\prod(?:\\(?:no)?limits)?_\{[^{}]*(?:>|\\ge|\\gt)"
)  # of factors, in a row's text
SMALLER = {"<": 1, "<=": 1, ">": -1, ">=": -1}


def directed(row: Row) -> Row:
    """The row with what runs down as such."""
    if any(y.op in ORDERED for item in row.items for x in item.sides for y in walk(x)):
        limits = limits_in(row.items)
        for item in row.items:
            item.sides = [with_directions(x, limits) for x in item.sides]
    return row


def limits_in(items: Iterable[Item]) -> Limits:
    """What the conditions of a row say of how its indices lie: j < t."""
    found: dict[str, tuple[Formula, Formula]] = {}
    for item in items:
        for a, relation, b in zip(item.sides, item.relations, item.sides[1:]):
            small, large = (a, b) if SMALLER.get(relation, 0) > 0 else (b, a)
            ends = letter_and_shift(bare(small)), letter_and_shift(bare(large))
            if relation in SMALLER and ends[0] is not None and ends[1] is not None:
                found[ends[0][0]] = found.get(ends[0][0], (UNKNOWN, UNKNOWN))[0], bare(large)
    return found


def bare(x: Formula) -> Formula:
    """x with a letter that counts as an index."""
    if x.op == "add":
        return rebuild(x, tuple(bare(a) for a in x.args))
    counts = (x.op == "at" and not x.args) or (x.op == "size" and x.attrs[0] in INDICES)
    return Formula("index", (), x.attrs) if counts else x


def with_directions(x: Formula, limits: Limits, turn: bool = False) -> Formula:
    """x with what runs down as such; with `turn`, products of which only a shift tells run the other way."""
    if x.op not in RANGED:
        return rebuild(x, tuple(with_directions(a, limits, turn) for a in x.args))
    low, high, body = x.args
    ends = (bare(low), bare(high)) if UNKNOWN not in (low, high) else (low, high)
    inside = {**limits, x.attrs[0]: ends}
    if x.op == "product down":
        if turn and open_direction(high, low, limits):
            return Formula("product over", (high, low, with_directions(body, inside, turn)), x.attrs)
        return rebuild(x, (low, high, with_directions(body, inside, turn)))
    if turn:
        down = x.op in PRODUCTS and open_direction(*ends, limits)
    else:
        down = runs_down(x.op, *ends, limits)
    if down:
        inside[x.attrs[0]] = ends[::-1]
    made = with_directions(body, inside, turn)
    if not down:
        return rebuild(x, (low, high, made))
    return Formula("product down" if x.op == "product over" else x.op, (high, low, made), x.attrs)


def runs_down(op: str, low: Formula, high: Formula, limits: Limits) -> bool:
    """Whether a sum or a product is written from its last index down."""
    if nothing_between(low, high):
        return False
    certain = told(low, high, limits)
    return certain < 0 or (certain == 0 and op in PRODUCTS and by_shift(low, high))


def open_direction(low: Formula, high: Formula, limits: Limits) -> bool:
    """Whether nothing but a shift tells which way a product runs, or nothing at all."""
    return UNKNOWN not in (low, high) and not nothing_between(low, high) and told(low, high, limits) == 0


def by_shift(low: Formula, high: Formula) -> bool:
    """Whether t and j + 1 say that a product starts at t: of two letters, authors give the larger index the later one."""
    ends = letter_and_shift(low), letter_and_shift(high)
    return shift_between(low, high) < 0 and ends[0] is not None and ends[1] is not None and ends[0][0] > ends[1][0]


def nothing_between(low: Formula, high: Formula) -> bool:
    """Whether a range is empty as it is written: from t + 1 to t, or from 1 to 0."""
    if low.op == high.op == "number":
        return True
    ends = letter_and_shift(low), letter_and_shift(high)
    return ends[0] is not None and ends[1] is not None and ends[0][0] == ends[1][0] and ends[0][1] == ends[1][1] + 1


def turned_about(x: Formula, limits: Limits, tex: str) -> Formula:
    """x with products of which nothing but a shift tells which way they run, running the other way."""
    return x if SAYS_ORDER.search(tex) else with_directions(x, limits, True)


def may_turn(x: Formula, limits: Limits, tex: str) -> bool:
    """Whether a definition has a product that may be meant the other way round: a shift says that it runs down."""
    if SAYS_ORDER.search(tex):
        return False
    ends = [
        y.args[1::-1] if y.op == "product down" else y.args[:2] for y in walk(x) if y.op in RANGED and y.op != "sum"
    ]
    return any(open_direction(low, high, limits) and shift_between(bare(low), bare(high)) < 0 for low, high in ends)
