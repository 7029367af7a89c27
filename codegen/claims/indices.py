"""What formulas say of steps: indices that are shifted, and names of decays."""

from __future__ import annotations

from fractions import Fraction

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, formula

from .arithmetic import DECAY_DOMAINS


def shifted(index: Formula, shift: int) -> Formula:
    """index + shift, with numbers added up: t+1-1 is t."""
    terms = index.args if index.op == "add" else (index,)
    total = Fraction(shift) + sum((a.attrs[0] for a in terms if a.op == "number"), Fraction(0))
    rest = [a for a in terms if a.op != "number"]
    if not rest:
        return formula(total)
    result = rest[0]
    for a in rest[1:]:
        result = result + a
    return result + formula(total) if total else result


def is_decay(setting: Setting, name: str) -> bool:
    """Whether a quantity is a decay: of the recurrence, or given as one."""
    q = setting.quantities.get(name)
    if q is not None and q.domain in DECAY_DOMAINS:
        return True
    r = setting.recurrence
    return r is not None and any(v.name == name and v.is_decay for v in r.variables)
