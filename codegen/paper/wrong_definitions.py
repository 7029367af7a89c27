"""Definitions that may be mistaken: a definition says what a symbol is, and can't be false; but where formulas with it fail that
would be true if it were one slip away (a bound, a diagonal, a comparison, a sign, an inverse, a transpose), its row says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from chunkform.codegen.claims.indices import shifted
from chunkform.codegen.claims.scope import used_names
from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language.formula import RANGED, Formula, add, negative, rebuild
from chunkform.spec.language.statements import Equal

from .paper import Paper
from .symbols import Symbols

WOULD = "would be true with"
MOST = 12  # formulas that are tried for a definition
FIRST = 3  # of which one has to be mended by a slip that isn't a bound
SLIPS = 60  # of a definition


def mark_wrong_definitions(paper: Paper, verdicts: Sequence[Verdict]) -> None:
    """Say in the rows of definitions how many of the formulas with them would be true if they were a step off."""
    for s in paper.parts:
        equal = [v for v in verdicts if v.claim.setting is s.setting and isinstance(v.claim.statement, Equal)]
        for name, e in s.defined.quantities.items():
            known = s.names.get(name, "")
            q = s.setting.quantities.get(known)
            if q is None or q.body is None or q.alternatives:
                continue
            about = [v for v in equal if known in used_names(v.claim.statement, s.setting)]
            wrong = [v for v in about if v.verdict == "fails"][:MOST]
            right = [v for v in about if v.verdict == "holds"][:MOST]
            near = nearby(q.body, partial(mended, wrong[:FIRST], s, known)) if len(wrong) > 1 else []
            found = [(mended(wrong, s, known, body), body) for body in near]
            found = [(n, body) for n, body in found if n > 1 and mended(right, s, known, body) == len(right)]
            if found:
                count, body = max(found, key=lambda x: x[0])
                for row in {
                    id(x.row): x.row for x in paper.document.equations if (x.head, x.side) == (e.head, e.side)
                }.values():
                    row.reason = f"of {len(wrong)} formulas with it that fail, {count} {WOULD} {body}"


def nearby(x: Formula, mends: Callable[[Formula], int]) -> list[Formula]:
    """What is one bound away from x, and what is one other slip away and mends some formula."""
    bounds = list(dict.fromkeys(one_step_off(x)))
    return bounds + [y for y in islice(dict.fromkeys(slips(x)), SLIPS) if y not in bounds and mends(y)]


def one_step_off(x: Formula) -> Iterator[Formula]:
    """x with one bound of a sum or a product in it one more, or one less."""
    if x.op in RANGED and not {x.args[0].op, x.args[1].op} & {"unknown", "infinity"}:
        low, high, body = x.args
        for k in (1, -1):
            yield Formula(x.op, (shifted(low, k), high, body), x.attrs)
            yield Formula(x.op, (low, shifted(high, k), body), x.attrs)
    for i, a in enumerate(x.args):
        for changed in one_step_off(a):
            yield rebuild(x, (*x.args[:i], changed, *x.args[i + 1 :]))


STRICT = {">=": ">", ">": ">=", "<=": "<", "<": "<="}


def slips(x: Formula) -> Iterator[Formula]:
    """x with one diagonal one more or one less, with a strict comparison for one that isn't, or the other way round, or with
    another sign, inverse or transpose."""
    if x.op == "tril":
        yield from (Formula("tril", x.args, (x.attrs[0] + k,)) for k in (1, -1))
    if x.op == "compare" and x.attrs[0] in STRICT:
        yield Formula("compare", x.args, (STRICT[x.attrs[0]], *x.attrs[1:]))
    if x.op == "inverse":
        yield x.args[0]
    if x.op == "add" and any(a.op == "eye" for a in x.args):
        yield Formula("inverse", (x,))
    for k, a in enumerate(x.args if x.op == "add" else ()):
        yield add(*x.args[:k], negative(a), *x.args[k + 1 :])
    if x.op == "product":
        for k, a in enumerate(x.args):
            if a.op in ("at", "transpose"):
                yield rebuild(x, (*x.args[:k], a.T, *x.args[k + 1 :]))
    for i, a in enumerate(x.args):
        for changed in slips(a):
            yield rebuild(x, (*x.args[:i], changed, *x.args[i + 1 :]))


def mended(about: Sequence[Verdict], s: Symbols, name: str, body: Formula) -> int:
    """How many of these claims are true under some reading if the quantity is this."""
    before = s.setting.quantities[name]
    s.setting.quantities[name] = replace(before, body=body)
    bare = Verifier(thorough=False)
    try:
        return sum(true(bare, v) for v in about)
    finally:
        s.setting.quantities[name] = before


def true(bare: Verifier, v: Verdict) -> bool:
    try:
        return any(
            bare.decided(statement, v.claim.setting, bodies).failure is None
            for _, bodies, statement in bare.readings(v.claim)
        )
    except Exception:  # what can't be judged isn't true
        return False
