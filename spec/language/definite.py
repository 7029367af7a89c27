"""Is a matrix symmetric and positive definite by construction? An analysis of the terms that it is made of.

A state is, where its update adds up what keeps it so (a decay at least 0 times its previous value, c u u^T with c at least 0, a
diagonal that is at least 0) and something in it is positive: its initial value, or a diagonal. Signs follow from what a scalar
is: decays and exponentials are positive, squares are at least 0, and inputs are what the spec says of them (`sign=">= 0"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from chunkform.errors import SpecError

from .expression import Contraction, Matrix, entry
from .functions import sigmoid_, softplus_
from .recurrence import Recurrence
from .source import Source, caller
from .terms import flipped, summands, symmetric_factors

UNKNOWN, NONNEGATIVE, POSITIVE = 0, 1, 2
SIGNS = {">= 0": NONNEGATIVE, "> 0": POSITIVE}


def require_definite(r: Recurrence, signs: Mapping[str, int], matrix: Matrix, what: str) -> None:
    """Raises SpecError, naming the term, unless `matrix` is symmetric positive definite by construction."""
    if not isinstance(matrix, Matrix) or matrix.is_vector or matrix.rows != matrix.cols:
        raise SpecError(f"{what} takes a square matrix, such as H.next, got {matrix}", caller())
    analysis = _Analysis(r, signs, what)
    if not analysis.definite(matrix, caller()):
        raise SpecError(
            f"{what}: nothing in {matrix} makes it positive definite: give the state an initial value such as lam_0 * eye(d) "
            "with lam_0 > 0, or add a diagonal such as diag(lamb) with lamb > 0",
            caller(),
        )


class _Analysis:
    def __init__(self, r: Recurrence, signs: Mapping[str, int], what: str) -> None:
        self.r, self.signs, self.what = r, signs, what
        self.lets = {x.name: x for x in r.lets}
        self.assumed: dict[str, bool] = {}  # states that are being looked at: positive definite before the step?

    def definite(self, m: Matrix, where: Source) -> bool:
        """Is the sum positive definite? Refuses a summand that may be indefinite or isn't symmetric."""
        return any([self.summand(x, where) for x in summands(m, self.lets)])

    def summand(self, term: Matrix, where: Source) -> bool:
        scalar, parts = symmetric_factors(term, self.lets)
        sign = self.sign(scalar)
        if not sign:
            raise SpecError(
                f"{self.what}: the factor {scalar} of the term {term} isn't known to be at least 0; make it an exponential, a "
                'square or a sigmoid, or declare the sign: p.inputs("beta", sign=">= 0")',
                where,
            )
        inner = self.product(parts, term, where)
        return inner == POSITIVE and sign == POSITIVE

    def product(self, parts: list[Matrix], term: Matrix, where: Source) -> int:
        """X M X^T is definite where M is, and where X has an inverse."""
        if len(parts) == 1:
            return self.single(parts[0], term, where)
        if len(parts) == 0:
            return POSITIVE
        first, last = parts[0], parts[-1]
        if flipped(last) != first:
            raise SpecError(
                f"{self.what}: the term {term} isn't symmetric by construction: {last} isn't the transpose of {first}",
                where,
            )
        inner = self.product(parts[1:-1], term, where)
        outer = self.entries(first.args[0]) if first.op == "diag" else UNKNOWN
        return POSITIVE if inner == POSITIVE and outer == POSITIVE else NONNEGATIVE

    def single(self, m: Matrix, term: Matrix, where: Source) -> int:
        if m.op == "eye":
            return POSITIVE
        if m.op == "diag":
            sign = self.entries(m.args[0])
            if not sign:
                raise SpecError(
                    f"{self.what}: the diagonal {m.args[0]} of the term {term} isn't known to be at least 0; declare its sign: "
                    'p.parameters("lamb", d, sign="> 0")',
                    where,
                )
            return sign
        bare = m.args[0] if m.op == "transpose" else m
        if bare.op == "symbol" and bare.args[1] == "state":
            name, _, which = bare.args[0].partition(".")
            return POSITIVE if self.state(name, which, where) else NONNEGATIVE
        raise SpecError(
            f"{self.what}: the term {term} isn't symmetric positive semidefinite by construction; such are a state, c * u * u.T "
            "with c at least 0, eye(d), and diag(v) with v at least 0",
            where,
        )

    def state(self, name: str, which: str, where: Source) -> bool:
        """Is a state positive definite before (or after) each step? It is semidefinite, or refused."""
        if name in self.assumed:
            return self.assumed[name]
        state = next(s for s in self.r.states if s.name == name)
        update = next((u for u in self.r.updates if u.name == name), None)
        if update is None or not isinstance(update.term, Matrix):
            raise SpecError(f"{self.what}: the state {name} must be updated before it is solved for", where)
        start = state.initial is not None and state.initial != 0
        before = isinstance(state.initial, Matrix) and self.definite(state.initial, state.where) if start else False
        if start and not isinstance(state.initial, Matrix):
            raise SpecError(f"{self.what}: the initial value {state.initial} of {name} isn't a matrix", state.where)
        self.assumed[name] = before
        after = self.definite(update.term, update.where)
        del self.assumed[name]
        return after if which == "next" else before

    # --- signs ------------------------------------------------------------------------------------------------------

    def sign(self, x: Any, slots: Mapping[Any, int] | None = None) -> int:
        """What is known of a scalar's sign."""
        slots = slots or {}

        def go(y: object) -> int:
            return self.sign(y, slots)

        if x in slots:
            return slots[x]
        if x.is_number:
            return POSITIVE if x.is_positive else NONNEGATIVE if x.is_zero else UNKNOWN
        if isinstance(x, Contraction):
            return self.contraction(x)
        if x.is_Symbol:
            return self.named(x.name)
        if x.is_Add:
            found = [go(a) for a in x.args]
            if all(found):
                return max(found)
            return self.one_less(x)
        if x.is_Mul:
            return min(go(a) for a in x.args)
        if x.is_Pow:
            base = go(x.base)
            if base == POSITIVE:
                return POSITIVE
            if x.exp.is_integer and x.exp.is_even:
                return NONNEGATIVE if x.exp.is_positive else UNKNOWN
            return base if x.exp.is_positive else UNKNOWN
        if isinstance(x, sympy.exp | sigmoid_ | softplus_):
            return POSITIVE
        if isinstance(x, sympy.Abs):
            return NONNEGATIVE
        if isinstance(x, sympy.Max):
            return max(go(a) for a in x.args)
        return UNKNOWN

    def contraction(self, x: Contraction) -> int:
        """v.T * v, and no other product of vectors, is known not to be negative."""
        a, b = x.matrix.args
        if flipped(a) != b:
            return UNKNOWN
        return POSITIVE if b.op == "full" and self.sign(b.args[0]) == POSITIVE else NONNEGATIVE

    def one_less(self, x: Any) -> int:
        """1 - lam and the like: a number, less positive multiples of decays that don't add up to more."""
        number, rest = x.as_coeff_Add()
        for part in sympy.Add.make_args(rest):
            coefficient, core = part.as_coeff_Mul()
            at_most_one = core.is_Symbol and self.kind(core.name).startswith("decay")
            if coefficient.is_negative and (at_most_one or isinstance(core, sigmoid_)):
                number += coefficient
            elif not self.sign(part):
                return UNKNOWN
        return NONNEGATIVE if number.is_nonnegative else UNKNOWN

    def kind(self, name: str) -> str:
        return next((v.kind for v in self.r.variables if v.name == name), "")

    def named(self, name: str) -> int:
        if name in self.signs:
            return self.signs[name]
        if self.kind(name).startswith("decay"):
            return POSITIVE
        if name in self.lets and not isinstance(self.lets[name].term, Matrix):
            return self.sign(self.lets[name].term)
        return UNKNOWN

    def entries(self, v: Matrix) -> int:
        """What is known of the signs of a vector's entries."""
        match v.op:
            case "symbol":
                if v.args[0] in self.lets:
                    return self.entries(self.lets[v.args[0]].term)
                return self.named(v.args[0])
            case "full":
                return self.sign(v.args[0])
            case "add":
                found = [self.entries(a) for a in v.args]
                return max(found) if all(found) else UNKNOWN
            case "scale":
                return min(self.sign(v.args[0]), self.entries(v.args[1]))
            case "hadamard":
                a, b = v.args
                return (
                    max(NONNEGATIVE, min(self.entries(a), self.entries(b)))
                    if a == b
                    else min(map(self.entries, v.args))
                )
            case "map":
                body, *args = v.args
                return self.sign(body, {entry(i): self.entries(a) for i, a in enumerate(args)})
        return UNKNOWN
