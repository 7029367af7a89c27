"""Exponentials that are divided by their sum, as a softmax is, taken less the largest exponent: none of them overflows then.

`exp(x_i) / sum_j exp(x_j)` is the same with `x - c` for any c that all entries share. A term in which a factor of all
exponentials cancels like this is found by its degree in that factor, whatever it looks like, and c is the peak of x. As the term
doesn't depend on c, it has no gradient by it. And `log sum_j exp(x_j)` is `c + log sum_j exp(x_j - c)`; of few terms that are
written out, `log(exp(x) + exp(y))` is `x + softplus(y - x)`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...ir.expr import Node, add, dim_of, expand, factors_of, fn, leaf_names, mul, number, peak, rebuild, rename, walk
from ...ir.expr import replace as replaced
from ...ir.step_program import StepProgram


def stable(step: StepProgram) -> StepProgram:
    """The step with shifted exponents; the very same one where there is nothing to shift."""
    table = _written_out((*step.updates.values(), *step.outputs.values()))
    roots = tuple(replaced(x, table) for x in (*step.updates.values(), *step.outputs.values()))
    shifts: list[_Shift] = []

    def shifted(x: Node) -> Node:
        x = replaced(x, table)
        for shift in shifts:
            x = shift(x)
        return x

    for exponential, axis in _summed(roots):
        shifts.append(_Shift(shifted(exponential), axis))
    if not table and all(shifted(x) is x for x in roots):
        return step
    return replace(
        step,
        updates={n: shifted(x) for n, x in step.updates.items()},
        outputs={n: shifted(x) for n, x in step.outputs.items()},
        names={shifted(x): n for x, n in step.names.items()},
        origins={shifted(x): where for x, where in step.origins.items()},
    )


def _written_out(roots: tuple[Node, ...]) -> dict[Node, Node]:
    """The logarithms of sums whose terms are exponentials times positive numbers, and what they are instead."""
    table: dict[Node, Node] = {}
    for x in walk(*roots):
        if x.op == "fn" and x.attrs[0] == "log" and x.args[0].op == "add":
            exponents = [_exponent(t) for t in x.args[0].args]
            if None not in exponents:
                own = [replaced(y, table) for y in exponents if y is not None]
                # of states inside, as scans have it, and numbers outside: log(1 + exp(x)) is softplus(x)
                last, *rest = sorted(own, key=lambda y: (not _reads(y), y.op == "const", y))
                for y in rest:
                    last = add(y, fn("softplus", add(last, mul(-1, y))))
                table[x] = expand(last, x.axes)
    return table


def _reads(x: Node) -> bool:
    return any(kind == "state" for kind, _ in leaf_names(x))


def _exponent(x: Node) -> Node | None:
    """y where x = exp(y), or a positive number times that."""
    numbers = [f for f in factors_of(x) if f.op == "const"]
    rest = [f for f in factors_of(x) if f.op != "const"]
    if any(f.attrs[0] <= 0 for f in numbers) or any(f.op != "fn" or f.attrs[0] != "exp" for f in rest):
        return None
    logs = [number(f"log({f.attrs[0]})") for f in numbers if f.attrs[0] != 1]
    return expand(add(*logs, *(f.args[0] for f in rest)), x.axes)


def _summed(roots: tuple[Node, ...]) -> list[tuple[Node, str]]:
    """The exponentials that are summed over an axis of theirs, with that axis; inner ones first."""
    nodes = list(walk(*roots))
    found = {
        (y, x.attrs[0])
        for x in nodes
        if x.op == "sum"
        for y in walk(x.args[0])
        if y.op == "fn" and y.attrs[0] == "exp" and x.attrs[0] in y.axes
    }
    place = {x: n for n, x in enumerate(nodes)}
    return sorted(found, key=lambda f: (place[f[0]], f[1]))


class _Shift:
    """Rewrites terms with one exponential, whose exponents are taken less their peak along an axis. Along another axis of the
    same dim, as the columns of a square state have, it is the same one: its sum is."""

    def __init__(self, exponential: Node, axis: str) -> None:
        (exponent,) = exponential.args
        self.exponential, self.axis = exponential, axis
        self.peak = peak(exponent, axis)
        self.done: dict[Node, Node] = {}
        self.scaled: dict[Node, tuple[Node, Fraction] | None] = {}

    def __call__(self, x: Node) -> Node:
        """x, where factors of the exponential cancel; elsewhere what lies below."""
        for y in walk(x):
            if y not in self.done:
                found = self._scaled(y)
                whole = found is not None and not found[1]
                self.done[y] = found[0] if found and whole else rebuild(y, [self.done[a] for a in y.args])
        return self.done[x]

    def _scaled(self, x: Node) -> tuple[Node, Fraction] | None:
        """(y, n) where x is exp(n peak) y, and y has the new exponential; None where it's no such product."""
        if x not in self.scaled:
            self.scaled[x] = self._made(x)
        return self.scaled[x]

    def _made(self, x: Node) -> tuple[Node, Fraction] | None:
        if self._is_exponential(x):
            return fn("exp", add(x.args[0], mul(-1, self.peak))), Fraction(1)
        args = [self._scaled(a) for a in x.args]
        if any(a is None for a in args):
            return None
        nodes, degrees = [a[0] for a in args if a], [a[1] for a in args if a]
        n = sum(degrees, Fraction(0)) if x.op == "mul" else max(degrees, default=Fraction(0), key=abs)
        if x.op == "fn" and n and x.attrs[0] == "log":
            return add(mul(n, self.peak), fn("log", nodes[0])), Fraction(0)
        if x.op == "pow":
            n *= x.attrs[0]
        elif n and not self._keeps_degrees(x, degrees):
            return None
        return rebuild(x, nodes), n

    def _is_exponential(self, x: Node) -> bool:
        """Is x the exponential, along whichever axis of its dim?"""
        if x is self.exponential or x.op != "fn" or x.attrs[0] != "exp":
            return x is self.exponential
        others = set(x.axes) - set(self.exponential.axes)
        if len(others) != 1 or self.axis in x.axes or dim_of(min(others)) != dim_of(self.axis):
            return False
        return rename(self.exponential, {self.axis: min(others)}) is x

    def _keeps_degrees(self, x: Node, degrees: list[Fraction]) -> bool:
        """Does a factor of these arguments come out of x as one?"""
        if x.op == "sum":
            return x.attrs[0] not in self.peak.axes
        return x.op in ("mul", "expand") or (x.op == "add" and len(set(degrees)) == 1)


class Shifted:
    """Another arithmetic, in which a peak is any number."""

    def __init__(self, base: Any, rng: random.Random) -> None:
        self.base, self.rng = base, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def peak(self, a: Any, axis: int) -> Any:
        return self.base.random(self.rng, np.shape(np.sum(a, axis=axis)))
