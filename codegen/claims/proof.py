"""A second proof of what holds, by SymPy: at tiny dims, with every number a symbol, both sides are expanded and
compared."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Equal, Statement, Together

from .arithmetic import SYMBOLIC, Transcendental, Undefined
from .check import environments
from .evaluate import Evaluator
from .instance import Instance, OutOfRange
from .trial_sizes import tiny_sizes

LARGEST = 160  # operations in an entry, above which SymPy is not asked


def symbolic_proof(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> str:
    """The proof as one line, or nothing where there is none: a function that isn't rational, or expressions too
    large."""
    if isinstance(statement, Together):
        proofs = [symbolic_proof(p, setting, bodies) for p in statement.parts]
        return "; ".join(proofs) if all(proofs) else ""
    if not isinstance(statement, Equal):
        return ""
    instance = Instance(setting, tiny_sizes(setting), SYMBOLIC, 0, bodies)
    evaluate = Evaluator(instance)
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
                    shown = longer(shown, sympy.expand(a))
    except (Undefined, Transcendental):
        return ""
    sizes = ", ".join(f"{k} = {v}" for k, v in instance.sizes.items())
    return f"{sizes}: {entries} entries agree, among them {shown}" if entries else ""


def vanishes(x: object) -> bool:
    return sympy.expand(x) == 0 or sympy.cancel(sympy.together(x)) == 0


def longer(shown: str, x: object) -> str:
    """The longest entry that still fits on a line."""
    text = str(x)
    return text if len(shown) < len(text) <= 110 or not shown else shown
