"""Names for long terms that several formulas share, so that a derivation can be read."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.expr import Node, leaf, split_constant, walk
from ...ir.notation import Notation

WORTH = 60  # characters that a name has to save
LETTERS = "mnhrgyzfx"


def shared_terms(
    roots: Iterable[Node], names: dict[Node, Node], notation: Notation, taken: set[str], letters: str = LETTERS
) -> dict[Node, Node]:
    """Symbols for scalars and vectors that occur often enough below `roots`; what `names` knows is left as it is."""
    found: dict[Node, Node] = {}
    letter = next((x for x in letters if x not in taken), None)
    roots = list(roots)
    while letter is not None:
        best = _best(roots, names | found, notation)
        if best is None:
            break
        found[best] = leaf("let", f"{letter}{len(found) + 1}", best.axes)
        roots.append(best)
        notation = Notation(notation.tex, names | found, order=notation.order)
    found = {x: leaf("let", f"{letter}{n}", x.axes) for n, x in enumerate(_in_order([*found]), 1)}
    if len(found) == 1:  # no number where there is no second
        ((node, symbol),) = found.items()
        found = {node: leaf("let", str(letter), symbol.attrs[2])}
    return found


UNNAMED = ("leaf", "const", "size", "number", "pow", "expand", "peak")


def _in_order(terms: list[Node]) -> list[Node]:
    """The terms, each after those that it is made of."""
    ordered: list[Node] = []
    while terms:
        first = next(x for x in terms if not (set(walk(x)) & set(terms)) - {x})
        ordered.append(first)
        terms.remove(first)
    return ordered


def _best(roots: list[Node], names: dict[Node, Node], notation: Notation) -> Node | None:
    """The term whose name would save most."""
    saved: dict[Node, int] = {}
    for x, count in _occurrences(roots, names).items():
        nameable = split_constant(x)[1].op not in UNNAMED and len(x.axes) <= 1
        if count > 1 and nameable and x not in names:
            saved[x] = (count - 1) * len(notation.text(x))
    best = max(saved, key=lambda x: (saved[x], x.key), default=None)
    return best if best is not None and saved[best] >= WORTH else None


def _occurrences(roots: list[Node], names: dict[Node, Node]) -> dict[Node, int]:
    """How often each node is printed, where what has a name is printed once."""
    count = dict.fromkeys(walk(*roots), 0)
    for x in roots:
        count[x] += 1
    for x in reversed(list(count)):
        times = min(count[x], 1) if x in names else count[x]
        for a in x.args if x not in names or x in roots else ():
            count[a] += times
    return count
