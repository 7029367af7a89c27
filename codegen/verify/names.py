"""Which quantities a statement speaks of."""

from __future__ import annotations

from chunkform.spec.language.claims import Setting, Statement
from chunkform.spec.language.formula import Formula, walk

from .evaluate import Unknown


def used_names(statement: Statement, setting: Setting) -> list[str]:
    """Quantities that a statement speaks of, directly or through definitions."""
    found: list[str] = []

    def visit(x: Formula) -> None:
        for y in walk(x):
            if y.op == "at" and y.attrs[0] not in found:
                q = setting.quantities.get(y.attrs[0])
                if q is None:
                    raise Unknown(f"{setting.name} has no quantity {y.attrs[0]}")
                found.append(q.name)
                for body in (q.body, *(b for _, b in q.alternatives), q.start[1] if q.start else None):
                    if body is not None:
                        visit(body)

    for x in formulas_of(statement):
        visit(x)
    return found


def formulas_of(statement: object) -> list[Formula]:
    found: list[Formula] = []
    for value in vars(statement).values():
        items = value if isinstance(value, tuple) else (value,)
        for item in items:
            if isinstance(item, Formula):
                found.append(item)
            elif isinstance(item, Statement):
                found += formulas_of(item)
            elif isinstance(item, tuple):
                found += [y for y in item if isinstance(y, Formula)]
    return found
