"""A second proof of what holds, by SymPy: at tiny dims, with every number a symbol, both sides are expanded and
compared."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Equal, Statement, Together

from .arithmetic import SYMBOLIC, Transcendental, Undefined
from .check import environments
from .evaluate import Env, Evaluator
from .instance import Instance, OutOfRange
from .trial_sizes import tiny_sizes
from .values import Value

LARGEST = 160  # operations in an entry, above which SymPy is not asked
TERMS = 20_000  # of a numerator, above which it isn't written out
BETWEEN = 4 * LARGEST  # and in one on the way there, above which it isn't gone on with


class TooLarge(Exception):
    """An entry has more operations than an entry may have."""


class Bounded(Evaluator):
    """Evaluates formulas with symbols as long as expressions stay small: an inverse of an inverse doesn't."""

    def _evaluate(self, x: Formula, env: Env) -> Value:
        value = super()._evaluate(x, env)
        if any(sympy.count_ops(entry) > BETWEEN for entry in value.a.flat):
            raise TooLarge
        return value


def symbolic_proof(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> str:
    """The proof as one line, or nothing where there is none: a function that isn't rational, or expressions too
    large."""
    if isinstance(statement, Together):
        proofs = [symbolic_proof(p, setting, bodies) for p in statement.parts]
        return "; ".join(proofs) if all(proofs) else ""
    if not isinstance(statement, Equal):
        return ""
    instance = Instance(setting, tiny_sizes(setting), SYMBOLIC, 0, bodies)
    evaluate = Bounded(instance)
    entries, shown = 0, ""
    try:
        for env in environments(statement.sides, statement.over, evaluate):
            try:
                values = [evaluate(side, env) for side in statement.sides]
            except OutOfRange:
                continue
            for value in values[1:]:
                for a, b in zip(values[0].a.flat, value.a.flat, strict=True):
                    if value.log or sympy.count_ops(a) + sympy.count_ops(b) > LARGEST or not vanishes(a - b):
                        return ""
                    entries += 1
                    shown = longer(shown, a)
    except (Undefined, Transcendental, TooLarge):
        return ""
    sizes = ", ".join(f"{k} = {v}" for k, v in instance.sizes.items())
    return f"{sizes}: {entries} entries agree, among them {shown}" if entries else ""


def vanishes(x: sympy.Expr) -> bool:
    """Whether x is zero: its numerator, written out, has no term left. One of too many terms isn't written out."""
    above, _ = sympy.fraction(sympy.together(x))
    return terms(above) <= TERMS and sympy.expand(above) == 0


def terms(x: sympy.Expr) -> int:
    """How many terms x has at most, written out."""
    if isinstance(x, sympy.Add):
        return sum(terms(a) for a in x.args)
    if isinstance(x, sympy.Mul):
        return math.prod(terms(a) for a in x.args)
    if isinstance(x, sympy.Pow) and x.exp.is_Integer and x.exp > 1:
        return terms(x.base) ** int(x.exp) if x.exp < 60 else TERMS + 1
    return 1


def longer(shown: str, x: sympy.Expr) -> str:
    """The longest entry that still fits on a line."""
    text = str(sympy.expand(x)) if sympy.count_ops(x) < 40 else ""
    return text if text and (len(shown) < len(text) <= 110 or not shown) else shown
