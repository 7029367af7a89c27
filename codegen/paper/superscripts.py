r"""Steps that stand above: in a document with S^{(t)} and nothing like k_t, S^{(t)} is S at step t."""

from __future__ import annotations

from itertools import pairwise

from chunkform.spec.language.formula import Formula, walk

from .parser import read_row
from .reader import Source
from .row import Fault, Notation


def steps_above(source: Source, notation: Notation) -> frozenset[str]:
    """The names, as they are read with an index above, that have this index alone, and that letters count; S^{(1)}, S^{(2)} alone
    are matrices of several layers."""
    pairs = (pair for r in source.rows for pair in pairwise([t.text for t in r.tokens if t.text not in "{"]))
    if not any(a == "^" and b in ("(", "[") for a, b in pairs):
        return frozenset()
    found: dict[str, list[Formula]] = {}
    several: set[str] = set()
    for r in source.rows:
        try:
            items = read_row(r.tokens, notation).items
        except Fault:
            continue
        for y in (y for item in items for x in item.sides for y in walk(x) if y.op in ("at", "apply")):
            name = y.attrs[0]
            if y.op == "apply":
                several |= {name, f"{name.removesuffix('^')}^"}
            elif name.endswith("^") and len(y.args) == 1 and not name.endswith("[]^"):
                found.setdefault(name, []).append(y.args[0])
            elif any(z.op == "index" for x in y.args for z in walk(x)):
                return frozenset()  # steps stand below, and something else is counted above
    counted = {n for n, at in found.items() if any(z.op == "index" for x in at for z in walk(x))}
    return frozenset(counted - several)
