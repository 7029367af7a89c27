"""What a text takes from outside of its functions, as Python's own tables of names have it."""

from __future__ import annotations

import symtable


def names_from_outside(text: str) -> set[str]:
    """The names that a text takes from outside its functions."""
    tables = [symtable.symtable(text, "section", "exec")]
    found: set[str] = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outside = table.get_type() == "module"
        found |= {x.get_name() for x in table.get_symbols() if x.is_referenced() and (outside or x.is_global())}
    return found
