"""Branches: which sides of maxima, absolute values and cases an instance was on; it notes each that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from chunkform.spec.language import Matrix
from chunkform.spec.language.expression import Atom, entry, text
from chunkform.spec.language.formula import Formula

SIGNED = ("abs", "sign", "relu")  # functions with a branch for negative and for positive arguments

Taken = dict[Any, set[int]]  # a branching node -> the branches taken
Around = tuple[tuple[str, tuple[Fraction, ...]], ...]  # constants by the name of what is drawn around them


@dataclass(frozen=True)
class Branching:
    """A node with branches: of the recurrence (with the `map` whose entries it is about), or of a formula."""

    node: Any
    inside: Matrix | None = None

    @property
    def branches(self) -> range:
        if isinstance(self.node, Formula):
            return range(len(self.node.args) // 2) if self.node.op == "cases" else range(2)
        return range(len(self.node.args)) if isinstance(self.node, sympy.Max | sympy.Min) else range(2)

    def when(self, branch: int) -> str:
        """When the branch is taken."""
        if isinstance(self.node, Formula):
            if self.node.op == "cases":
                condition = self.node.args[2 * branch]
                return str(condition) if condition.op == "compare" else f"no condition is true in {self.node}"
            return f"{self.node.args[0]} {'<>'[branch]} 0"
        args = [self.shown(a) for a in self.node.args]
        if len(args) == 1:
            return f"{args[0]} {'<>'[branch]} 0"
        return f"{args[branch]} is {self.shown(self.node)}"

    def shown(self, x: sympy.Expr) -> str:
        if self.inside is None:
            return str(x)
        return str(x.subs({entry(i): sympy.Symbol(text(a)) for i, a in enumerate(self.inside.args[1:])}))

    def impossible(self, branch: int, positive: Iterable[str]) -> bool:
        """Whether SymPy knows that the branch is never taken: a decay's square isn't negative."""
        if isinstance(self.node, Formula):
            return False
        known = {
            a: sympy.Symbol(a.name, real=True, positive=True if a.name in positive else None)
            for a in self.node.atoms(Atom)
        }
        args = [a.subs(known) for a in self.node.args]
        if len(args) == 1:
            return bool(args[0].is_nonnegative if branch == 0 else args[0].is_nonpositive)
        sign = -1 if isinstance(self.node, sympy.Min) else 1
        return any((sign * (a - args[branch])).is_nonnegative for i, a in enumerate(args) if i != branch)


def note(taken: Taken, branching: Branching, branch: int) -> None:
    taken.setdefault(branching, set()).add(branch)
