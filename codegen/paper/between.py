r"""Rows that speak of two steps, as S_t = A_t \cdots A_{s+1} S_s + \sum_{i=s+1}^t .., and don't say which comes first: they mean
the steps between whose indices their sums and products run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language.claims import LENGTH, Claim
from chunkform.spec.language.formula import RANGED, Formula, add, formula, free_indices, walk
from chunkform.spec.language.statements import Equal

from .paper import Paper
from .runs import letter_and_shift
from .symbols import size


def limit_to_ranges(paper: Paper) -> None:
    """Judge rows that are false for all indices, and true where no sum or product of theirs runs backwards, there."""
    bare = Verifier(thorough=False)
    for k, claim in enumerate(paper.claims):
        for low, high, other in limited(claim):
            with contextlib.suppress(Exception):  # what can't be judged tells nothing
                if bare.judge(claim).verdict == "fails" and bare.judge(other).verdict == "holds":
                    row = paper.of_row[claim.id]
                    row.claims = [other if c is claim else c for c in row.claims]
                    paper.claims[k] = other
                    paper.symbols.guess(f"line {row.line} is meant for {low} <= {high}")
                    break


def limited(claim: Claim) -> Iterator[tuple[Formula, Formula, Claim]]:
    """The claim where a range between two of its indices has steps, or none: (low - 1, high, the claim for them)."""
    statement = claim.statement
    if not isinstance(statement, Equal) or statement.over:
        return
    letters = sorted({i for x in statement.sides for i in free_indices(x)})
    seen: set[tuple[str, str]] = set()
    for y in (y for x in statement.sides for y in walk(x) if y.op in RANGED):
        low, high = letter_and_shift(y.args[0]), letter_and_shift(y.args[1])
        if low is None or high is None or (low[0], high[0]) in seen or not {low[0], high[0]} <= set(letters):
            continue
        seen.add((low[0], high[0]))
        first = add(Formula("index", (), (low[0],)), formula(low[1] - high[1] - 1)) if low[1] - high[1] != 1 else None
        first = first or Formula("index", (), (low[0],))
        rest = [x for x in letters if x != high[0]]
        over = tuple((x, formula(1), size(LENGTH)) for x in rest) + ((high[0], first, size(LENGTH)),)
        yield first, Formula("index", (), (high[0],)), replace(claim, statement=replace(statement, over=over))
