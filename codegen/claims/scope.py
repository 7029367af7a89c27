"""What a statement speaks of: its parts, its formulas, its quantities, and what must not vanish in it."""

from __future__ import annotations

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import RANGED, Formula, walk
from chunkform.spec.language.statements import Statement, Together

from .evaluate import Unknown
from .indices import is_decay


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


def ranges_of(statement: Statement) -> list[Formula]:
    """The bounds of the ranges that a statement states, of its parts too."""
    own = [bound for _, low, high in statement.over for bound in (low, high)]
    parts = statement.parts if isinstance(statement, Together) else ()
    return own + [bound for part in parts for bound in ranges_of(part)]


def parts_of(statement: Statement) -> list[Statement]:
    if isinstance(statement, Together):
        return [p for part in statement.parts for p in parts_of(part)]
    return [statement]


def denominators(statement: Statement, setting: Setting) -> list[str]:
    """What must not vanish for the formula to have a value, where it can."""
    found = []
    for x in formulas_of(statement):
        for y in walk(x):
            if y.op == "divide" and not always_positive(y.args[1], setting):
                found.append(str(y.args[1]))
            elif y.op == "inverse" and not always_positive(y.args[0], setting):
                found.append(f"the determinant of {y.args[0]}")
    return list(dict.fromkeys(found))


def always_positive(x: Formula, setting: Setting) -> bool:
    """Whether x is made of positive numbers and decays only, by products, quotients, sums and roots."""
    if x.op == "number":
        return x.attrs[0] > 0
    if x.op == "at":
        q = setting.quantities[x.attrs[0]]
        if q.domain == "positive" or is_decay(setting, q.name):
            return True
        return q.body is not None and q.start is None and always_positive(q.body, setting)
    if x.op == "exp":
        return True
    if x.op in ("product", "hadamard", "divide", "sqrt", "add"):
        return all(always_positive(a, setting) for a in x.args)
    if x.op == "power":
        return always_positive(x.args[0], setting)
    return x.op in (*RANGED, "stack") and always_positive(x.args[-1], setting)
