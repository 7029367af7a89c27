"""A proof in symbols: at tiny dims and two steps, SymPy finds the same from the steps, from one chunk, and by `diff`.

The gates (see `gates.py`) say more, at random points; this says it in a form that can be read. `explain` prints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice

import numpy as np
import sympy

from chunkform.spec.language.functions import sigmoid_

from ...ir.evaluate import Env, stacked
from ...ir.expr import dim_of
from ...ir.functions import TABLE
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .gates import run_adjoint
from .run_plan import run_plan
from .run_steps import run_steps, shape_of, stored

STEPS = 2
PATIENCE = 10_000  # operations, counted before anything is expanded: a second or two
READABLE = 200  # characters
TERMS = 2_000  # that a difference may have once it is expanded


def symbolic_proof(c: Compiled) -> list[str]:
    """Lines of a proof that chunks and gradients are right, for the first dim of size 2, all others 1, and two steps.

    What more than `PATIENCE` operations are needed for is said to be too long.
    """
    return _Proof(c).lines()


class _Proof:
    def __init__(self, c: Compiled) -> None:
        self.c, self.step, self.m = c, c.step, _Symbols()
        self.sizes = {d: 2 if n == 0 else 1 for n, d in enumerate(c.step.dims)}
        self.operations = 0
        self.given = {
            v.name: _named(v.name, shape_of(v, self.sizes, STEPS), v.per_step, positive=v.is_decay)
            for v in c.step.variables
        }
        self.initial = {s.name: _named(f"{s.name}_0", self.shape(s.axes), False) for s in c.step.states}
        self.cotangents = {
            f"d{n}": _named(f"d{n}", (STEPS, *self.shape(c.step.output_axes[n])), True) for n in c.step.outputs
        }
        self.last = {f"d{s.name}": _named(f"d{s.name}_{STEPS}", self.shape(s.axes), False) for s in c.step.states}
        self.outputs, self.finals, _ = run_steps(self.step, self.given, self.initial, self.m, self.sizes, STEPS)

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.sizes[dim_of(a)] for a in axes)

    def lines(self) -> list[str]:
        sizes = ", ".join(f"{n} = {k}" for n, k in self.sizes.items())
        out = [f"In symbols, for {sizes} and {STEPS} steps:"]
        for name in self.outputs:
            for t in (STEPS, 1):  # the last step where that can be read, else the first
                entry = np.ravel(np.asarray(self.outputs[name][t - 1], dtype=object))[0]
                if is_larger(entry, TERMS):
                    continue
                shown = re.sub(r"\b1/10(0+)\b", lambda m: f"1e-{len(m[1]) + 1}", str(sympy.factor_terms(entry)))
                if len(shown) <= READABLE:
                    out.append(f"  {name}_{t}{'[1]' if self.step.output_axes[name] else ''} = {shown}")
                    break
        if self.c.forward is not None:
            out += self.chunks()
        return out + self.gradients()

    def chunks(self) -> list[str]:
        """The same from one chunk."""
        assert self.c.forward is not None
        env: Env = {(v.kind, v.name): self.given[v.name] for v in self.step.variables}
        values, states, _ = run_plan(self.c.forward, env, self.initial, self.m, self.sizes, [STEPS])
        out = []
        for name in self.step.outputs:
            out.append(
                self.verdict(name, "from one chunk less step by step", values[name], stacked(self.outputs[name]))
            )
        for name, value in self.finals.items():
            out.append(self.verdict(f"{name}_{STEPS}", "from one chunk less step by step", states[name], value))
        return out

    def gradients(self) -> list[str]:
        """Each gradient by the adjoint, less SymPy's derivative of L = sum <do, o> + <dS_n, S_n>."""
        step, m = self.step, self.m
        got, first = run_adjoint(
            self.c.adjoint, self.given, self.initial, self.cotangents, self.last, m, self.sizes, STEPS
        )
        loss = sympy.Integer(0)
        for name, node in step.outputs.items():
            for t in range(STEPS):
                value = stored(self.outputs[name][t], node.axes, step.output_axes[name])
                loss += _dot(value, self.cotangents[f"d{name}"][t])
        for s in step.states:
            loss += _dot(self.finals[s.name], self.last[f"d{s.name}"])
        what = "by the adjoint less SymPy's derivative"
        out = []
        for v in step.variables:
            if v.kind == "constant":
                continue
            name = gradient_name(v)
            axes = self.c.adjoint.program.outputs[name].axes
            parts = [stored(x, axes, v.axes) for x in got[name]]
            mine = stacked(parts) if v.per_step else np.sum(stacked(parts), axis=0)
            out.append(self.verdict(name, what, mine, self.derivative(loss, self.given[v.name], v.is_decay)))
        for s in step.states:
            out.append(
                self.verdict(f"d{s.name}_0", what, first[f"d{s.name}"], self.derivative(loss, self.initial[s.name]))
            )
        return out

    def derivative(self, loss: object, symbols: object, of_log: bool = False) -> np.ndarray | None:
        """None where that takes more operations than there is patience for."""
        if self.operations > PATIENCE or is_larger(loss, PATIENCE):
            return None
        symbols = np.asarray(symbols, dtype=object)
        flat = [sympy.diff(loss, x) * (x if of_log else 1) for x in symbols.ravel()]
        return _filled(flat, symbols.shape)

    def verdict(self, name: str, what: str, one: object, other: object) -> str:
        left = f"  {name} {what}: too long for SymPy; the gates decide it"
        if self.operations > PATIENCE or other is None:
            return left
        one, other = (np.ravel(np.asarray(x, dtype=object)) for x in (one, other))
        for a, b in zip(one, other, strict=True):
            self.operations += PATIENCE + 1 if is_larger(a - b, PATIENCE) else sympy.count_ops(a - b)
            if self.operations > PATIENCE:
                return left
            difference = simplified(a - b)
            if difference is None:
                return left
            if difference != 0:
                shown = str(difference)
                shown = shown if len(shown) <= READABLE else "the difference"
                return f"  {name} {what}: SymPy doesn't simplify {shown} to 0, and leaves it to the gates"
        return f"  {name} {what} = 0"


class _Symbols:
    """SymPy's arithmetic on numpy arrays of expressions."""

    exact: bool = True

    def const(self, value: Fraction) -> np.ndarray:
        return _filled([sympy.Rational(value.numerator, value.denominator)], ())

    def number(self, text: str) -> np.ndarray:
        return _filled([sympy.sympify(text)], ())

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        return np.asarray(a, dtype=object) ** sympy.Rational(n.numerator, n.denominator)

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        a = np.asarray(a, dtype=object)
        return _filled([TABLE[name].sympy(x) for x in a.ravel()], a.shape)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(np.asarray(a, dtype=object), np.asarray(b, dtype=object))
        return _filled([sympy.Max(x, y) for x, y in zip(a.ravel(), b.ravel(), strict=True)], a.shape)

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(a.sum(axis=axis), dtype=object)

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return 0 * self.sum(a, axis)  # nothing depends on it

    def equal(self, a: object, b: object) -> bool:
        """Are they the same expressions, as they are written?"""
        return bool(np.all(np.asarray(a, dtype=object) == np.asarray(b, dtype=object)))


def _named(name: str, shape: tuple[int, ...], per_step: bool, positive: bool = False) -> np.ndarray:
    """Symbols such as k_2[1]: the step, where there is one, then the entry."""
    flat = []
    for index in np.ndindex(*shape):
        step, entry = (f"_{index[0] + 1}", index[1:]) if per_step else ("", index)
        own = ",".join(str(i + 1) for i in entry)
        assumption = {"positive": True} if positive else {"real": True}
        flat.append(sympy.Symbol(f"{name}{step}{f'[{own}]' if own else ''}", **assumption))
    return _filled(flat, shape)


def _filled(flat: Sequence[object], shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, dtype=object)
    out.ravel()[:] = flat
    return out


def _dot(a: np.ndarray, b: np.ndarray) -> sympy.Expr:
    return sum((x * y for x, y in zip(np.ravel(a), np.ravel(b), strict=True)), sympy.Integer(0))


def simplified(x: sympy.Expr) -> sympy.Expr | None:
    """0 where expanding the numerator shows it; else what is left, or None where that has too many terms."""
    x = x.replace(lambda y: isinstance(y, sigmoid_ | sympy.tanh), _in_one_sigmoid)
    if count_of_terms(x) > TERMS:
        return None
    if sympy.expand(_with_named_bases(x, {})) == 0:
        return sympy.Integer(0)
    x = sympy.expand(x)
    if x == 0:
        return x
    terms = sympy.Add.make_args(x)
    quotients = {p for term in terms for p in sympy.fraction(term)[1].as_powers_dict() if not p.is_number}
    if len(terms) * len(quotients) > TERMS // 4:
        return None
    x = sympy.fraction(sympy.together(x))[0]
    return sympy.expand(x) if count_of_terms(x) <= TERMS else None


def _in_one_sigmoid(x: sympy.Expr) -> sympy.Expr:
    """Of x and -x, the sigmoid of one alone: adjoints write its slope by both, and that of tanh as well."""
    (argument,) = x.args
    if isinstance(x, sympy.tanh):
        return 2 * _in_one_sigmoid(sigmoid_(2 * argument)) - 1
    argument = sympy.expand(argument)
    return 1 - sigmoid_(-argument) if argument.could_extract_minus_sign() else sigmoid_(argument)


def _with_named_bases(x: sympy.Expr, names: dict[sympy.Expr, sympy.Symbol]) -> sympy.Expr:
    """x with a symbol for each sum under a root or a quotient: these are expanded once, and not wherever they stand."""
    if not x.args:
        return x
    parts = [_with_named_bases(a, names) for a in x.args]
    if x.is_Pow and parts[0].is_Add and not (x.exp.is_Integer and x.exp > 0):
        parts[0] = names.setdefault(sympy.expand(parts[0]), sympy.Dummy())
    return x.func(*parts)


def is_larger(x: object, operations: int) -> bool:
    """Is x certainly made by more operations? An addition of a product with -1 has five nodes, of which no more are looked at
    than that takes."""
    nodes = sympy.preorder_traversal(x)
    return next(islice(nodes, 5 * operations + 1, None), None) is not None


def count_of_terms(x: sympy.Expr) -> int:
    """At most so many terms has x once it is expanded."""
    if x.is_Add:
        return sum(map(count_of_terms, x.args))
    if x.is_Mul:
        return math.prod(map(count_of_terms, x.args))
    if x.is_Pow and x.exp.is_Integer and x.exp > 1:
        return int(count_of_terms(x.base) ** x.exp)
    return 1
