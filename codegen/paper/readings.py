"""Which reading of a document is meant, where one explains more than the others.

An ambiguous symbol is tried under each of its readings. Where all that is true under the others is true under one as well, and
more, that one is what the author means, and the document is judged under it; else each claim depends on the reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chunkform.codegen.claims.scope import used_names
from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.statements import Equal

from .paper import Paper
from .symbols import Symbols


def adopted(paper: Paper, judge: Callable[[list[Claim]], list[Verdict]]) -> tuple[list[Claim], list[Verdict]]:
    """The claims and their verdicts, under the reading that is meant where there is such a one."""
    for symbols in paper.parts:
        adopt(paper, symbols)
    return paper.claims, judge(paper.claims)


def adopt(paper: Paper, symbols: Symbols) -> None:
    """Give ambiguous quantities of a part the reading that is meant."""
    setting = symbols.setting
    groups: dict[tuple[str, ...], list[str]] = {}
    for q in setting.quantities.values():
        if q.alternatives:
            groups.setdefault(tuple(label for label, _ in q.alternatives), []).append(q.name)
    for labels, names in groups.items():
        about = [
            c
            for c in paper.claims
            if c.setting is setting
            and set(names) & set(used_names(c.statement, setting))
            and isinstance(c.statement, Equal)
        ]
        if len(about) < 2:
            continue
        true = [under(about, setting, names, k) for k in range(len(labels))]
        best = next(
            (k for k, mine in enumerate(true) if all(mine > other for m, other in enumerate(true) if m != k)), None
        )
        if best is None:
            continue
        for name in names:
            q = setting.quantities[name]
            setting.quantities[name] = replace(q, body=q.alternatives[best][1], alternatives=())
        symbols.guess(
            f"{labels[best]}: so {len(true[best])} of the claims about it are true, and no other reading makes more of them true"
        )


def under(claims: Sequence[Claim], setting: Setting, names: Sequence[str], k: int) -> set[str]:
    """Which claims are true under reading k of some quantities."""
    bodies = {n: setting.quantities[n].alternatives[k][1] for n in names}
    bare = Verifier(thorough=False)
    found = set()
    for c in claims:
        others = [b for _, b, _ in bare.readings(c)]
        try:
            if any(bare.decided(c.statement, setting, {**b, **bodies}).failure is None for b in others):
                found.add(c.id)
        except Exception:  # a claim that can't be judged tells nothing of readings
            continue
    return found
