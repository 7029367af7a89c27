"""Statements that are not equations: bounds, eigenvalues, integrals, maxima, limits, existence, stability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch

from chunkform.spec.language.claims import Setting, Statement
from chunkform.spec.language.formula import Formula

from .check import Failure
from .repair import Repair
from .verdict import Condition, Counterexample


@dataclass(frozen=True)
class Finding:
    """What was found under one reading. `mixed`: true under some conditions only; `exact`: decided world by world."""

    failure: Failure | None
    how: str
    conditions: tuple[Condition, ...] = ()
    mixed: bool = False
    exact: bool = False
    counterexample: Counterexample | None = None
    repairs: tuple[Repair, ...] = ()


@singledispatch
def decide(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> Finding:
    raise TypeError(f"no decision for {type(statement).__name__}")
