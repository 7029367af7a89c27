"""What a document says in one case only: inputs that are set to a number, and claims about functions that it doesn't define.
None of it says what a symbol is in other rows."""

from __future__ import annotations

from collections.abc import Sequence

from chunkform.spec.language.formula import Formula, walk

from .document import Equation
from .steps import core
from .symbols import Symbols


def special_case(s: Symbols, e: Equation) -> str:
    """Why an equation isn't judged that sets an input of the recurrence to a number, as in \\lambda_t = 1; nothing for others."""
    head = core(e.head)
    if s.recurrence is None or head.op != "at" or e.relation not in ("=", ":=") or not e.first:
        return ""
    name = head.attrs[0]
    if s.names.get(name) not in {v.name for v in s.recurrence.variables} or any(y.op == "at" for y in walk(e.side)):
        return ""
    return f"it is a special case: {name} is an input of the recurrence, and other rows don't take it so"


def says_nothing_of(s: Symbols, parameters: Sequence[Formula], side: Formula) -> bool:
    """Whether f(S_t) = 0 is a claim about S_t, and no definition of f."""
    said = set(walk(side))
    of_steps = {*s.steps.states, *s.steps.lets, *s.steps.outputs, *s.steps.given}
    constant = not any(y.op in ("at", "index") for y in said)
    known = [p for p in parameters if p.op == "at" and (p.attrs[0] in of_steps or (constant and p.args))]
    return any(p not in said for p in known)
