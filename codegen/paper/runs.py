"""Products whose middle is left out: A_t A_{t-1} \\cdots A_{s+1}, from their first factors and their last."""

from __future__ import annotations

from collections.abc import Mapping

from chunkform.codegen.claims.indices import shifted
from chunkform.spec.language.formula import Formula, free_indices, product, substitute, walk

from .row import UNKNOWN, Fault

LETTERS = "rumplijs"
Limits = Mapping[str, tuple[Formula, Formula]]


def run_of(before: Formula, last: Formula, limits: Limits) -> Formula:
    """The product of what stands before the dots, of which the last one or two factors are the first of the run, and the run.
    `limits`: what the sums around it run over.

    Raises:
        Fault: the factors don't say which are left out.
    """
    factors = list(before.args) if before.op == "product" else [before]
    first = factors.pop()
    ends = moved(first, last)
    if ends is None:
        raise Fault("\\cdots stands between factors that differ in one index")
    start, step = ends[0], 0
    if factors and (pair := moved(factors[-1], first)) is not None:
        step = next((k for k in (1, -1) if str(shifted(pair[0], k)) == str(shifted(pair[1], 0))), 0)
        if step:
            first, start = factors.pop(), pair[0]
    step = step or direction(*ends, limits)
    if not step:
        raise Fault(
            "\\cdots stands between factors that don't say which of them comes first: write two factors before it"
        )
    used = {y.attrs[0] for x in (first, last) for y in walk(x) if y.op in ("index", "size")} | free_indices(first)
    letter = next(x for x in LETTERS if x not in used)
    body = substitute(first, {start: Formula("index", (), (letter,))})
    bounds = (start, ends[1]) if step > 0 else (ends[1], start)
    run = Formula("product over" if step > 0 else "product down", (*bounds, body), (letter,))
    return product(*factors, run) if factors else run


def moved(x: Formula, y: Formula) -> tuple[Formula, Formula] | None:
    """The one index of x that is another in y; None where they differ in more, or in nothing."""
    found: set[tuple[Formula, Formula]] = set()

    def compare(a: Formula, b: Formula) -> bool:
        if a == b:
            return True
        if a.op != b.op or a.attrs != b.attrs or len(a.args) != len(b.args):
            return False
        if a.op == "at":
            found.update((p, q) for p, q in zip(a.args, b.args) if p != q)
            return True
        return all(compare(p, q) for p, q in zip(a.args, b.args))

    return found.pop() if compare(x, y) and len(found) == 1 else None


def direction(start: Formula, end: Formula, limits: Limits) -> int:
    """1 where a run goes up, -1 where it goes down: as `told` says, and of t and j + 1, the one that is shifted up is where a run
    starts to count."""
    return told(start, end, limits) or shift_between(start, end)


def told(start: Formula, end: Formula, limits: Limits) -> int:
    """1 where a run goes up, -1 where it goes down, 0 where nothing tells. What ends at a number, or starts there, says so,
    and the number of steps; what a sum around it runs over does."""
    numbers = [x.op == "number" for x in (start, end)]
    if all(numbers):
        return 1 if start.attrs[0] < end.attrs[0] else -1
    if any(numbers):
        return -1 if numbers[1] else 1
    first, last = letter_and_shift(start), letter_and_shift(end)
    if first is None or last is None:
        return 0
    if first[0] == last[0]:
        return (first[1] < last[1]) - (first[1] > last[1])
    if "size" in (start_of := [leading(x).op for x in (start, end)]):
        return 1 if start_of[1] == "size" else -1
    for (one, _), (other, _), sign in ((first, last, 1), (last, first, -1)):
        low, high = (leading(x) for x in limits.get(one, (UNKNOWN, UNKNOWN)))
        if other in high.attrs[:1]:
            return sign
        if other in low.attrs[:1]:
            return -sign
    return 0


def shift_between(start: Formula, end: Formula) -> int:
    """1 where the start of a run is shifted up against its end, as in j + 1 .. t; -1 where its end is."""
    first, last = letter_and_shift(start), letter_and_shift(end)
    if first is None or last is None:
        return 0
    return (first[1] > last[1]) - (first[1] < last[1])


def leading(x: Formula) -> Formula:
    """t of t + 1."""
    return x.args[0] if x.op == "add" else x


def letter_and_shift(x: Formula) -> tuple[str, int] | None:
    """(t, 1) of t + 1."""
    shift = 0
    if x.op == "add" and len(x.args) == 2 and x.args[1].op == "number":
        x, shift = x.args[0], int(x.args[1].attrs[0])
    return (x.attrs[0], shift) if x.op in ("index", "size") else None
