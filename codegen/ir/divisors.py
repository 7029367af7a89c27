"""Sums that something is divided by, and that may cancel: what rounds them by a little moves the quotient by much."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from .expr import Node, factors_of, walk

LOADED = ("input", "parameter")  # leaves that a kernel has as they were given


def cancelling_divisors(nodes: Iterable[Node]) -> set[Node]:
    """The sums over an axis of products of inputs, such as q.k, that any of the nodes is divided by, alone or beside other terms,
    and whose terms aren't all squares."""
    found: set[Node] = set()
    for x in walk(*nodes):
        if x.op == "pow" and x.attrs[0] < 0:
            todo = list(x.args)
            while todo:
                y = todo.pop()
                if y.op in ("add", "expand"):
                    todo += y.args
                elif y.op == "mul":
                    todo += [f for f in y.args if f.op == "sum"]
                elif y.op == "sum" and _cancels(y.args[0]):
                    found.add(y)
    return found


def _cancels(body: Node) -> bool:
    powers = [
        (f, Fraction(1)) if f.op != "pow" else (f.args[0], f.attrs[0]) for f in factors_of(body) if f.op != "const"
    ]
    return all(f.op == "leaf" and f.attrs[0] in LOADED for f, _ in powers) and any(n % 2 for _, n in powers)
