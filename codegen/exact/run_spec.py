"""Run a spec over a sequence, matrix by matrix, from the terms that the user wrote.

The meaning that lowering must keep. It shares no code with `lower.py` and knows nothing of nodes.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import sympy

from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.expression import Atom, Contraction, Dim, entry
from chunkform.spec.language.recurrence import Equation, State

from ..ir.evaluate import ArrayNumbers

Values = dict[str, np.ndarray]  # by name
_FUNCTIONS = {"Abs": "abs", "sigmoid_": "sigmoid", "softplus_": "softplus"}


class NoExactMeaning(Exception):
    """The term has a value over the real numbers only (a maximum)."""


def run_spec(
    r: Recurrence, given: Values, initial: Values, arithmetic: ArrayNumbers, sizes: dict[str, int], steps: int
) -> tuple[dict[str, list[np.ndarray]], Values]:
    """(outputs of each step, final states), each with the dims in the order in which the spec has them."""
    stepwise = {v.name for v in r.variables if v.kind in ("input", "decay")}
    states = dict(initial)
    outputs: dict[str, list[np.ndarray]] = {x.name: [] for x in r.outputs}
    for t in range(steps):
        now = {n: v[t] if n in stepwise else v for n, v in given.items()}
        step = SpecStep(r, now, states, arithmetic, sizes)
        for x in r.outputs:
            outputs[x.name].append(step.flat(step.equation(x)))
        states = {x.name: step.shaped(step.equation(x), _state(r, x.name).dims) for x in r.updates}
    return outputs, states


def initial_value(
    r: Recurrence, name: str, given: Values, arithmetic: ArrayNumbers, sizes: dict[str, int]
) -> np.ndarray:
    """The initial value that the spec gives to a state."""
    state = _state(r, name)
    step = SpecStep(r, given, {}, arithmetic, sizes)
    return step.shaped(step.term(state.initial), state.dims)


def _state(r: Recurrence, name: str) -> State:
    return next(s for s in r.states if s.name == name)


class SpecStep:
    """One step: `given` and `states` by name. A matrix is an array (rows, cols), a vector one with a length of 1."""

    def __init__(self, r: Recurrence, given: Values, states: Values, m: ArrayNumbers, sizes: dict[str, int]):
        self.r, self.given, self.states, self.m, self.sizes = r, given, states, m, sizes
        self.equations = {x.name: x for x in r.lets}
        self.updates = {x.name: x for x in r.updates}
        self.done: dict[Equation | Matrix, np.ndarray] = {}

    def equation(self, x: Equation) -> np.ndarray:
        if x not in self.done:
            self.done[x] = self.term(x.term)
        return self.done[x]

    def size(self, dim: Dim) -> int:
        return self.sizes.get(dim.name, 1)

    def shaped(self, value: npt.ArrayLike, dims: tuple[Dim, ...]) -> np.ndarray:
        """A value without its axes of length 1; a number is repeated."""
        shape = tuple(self.size(x) for x in dims)
        value = np.asarray(value, dtype=object)
        return value.reshape(shape) if value.ndim else np.broadcast_to(value, shape)

    def flat(self, value: npt.ArrayLike) -> np.ndarray:
        return np.asarray(value, dtype=object)

    # --- matrices ---------------------------------------------------------------------------------------------------

    def term(self, x: Matrix | sympy.Expr) -> np.ndarray:
        if not isinstance(x, Matrix):
            return self.scalar(sympy.sympify(x), {})
        if x not in self.done:
            value = np.asarray(self.matrix(x), dtype=object)
            self.done[x] = np.broadcast_to(value, (self.size(x.rows), self.size(x.cols)))
        return self.done[x]

    def matrix(self, x: Matrix) -> np.ndarray:
        m = self.m
        match x.op:
            case "symbol":
                value = self.named(x.args[0])
                return value.reshape(self.size(x.rows), self.size(x.cols)) if value.ndim else value
            case "add":
                return m.add(self.term(x.args[0]), self.term(x.args[1]))
            case "scale":
                return m.mul(self.scalar(x.args[0], {}), self.term(x.args[1]))
            case "transpose":
                return self.term(x.args[0]).T
            case "hadamard":
                return m.mul(self.term(x.args[0]), self.term(x.args[1]))
            case "matmul":
                a, b = (self.term(y) for y in x.args)
                return m.sum(m.mul(a[:, :, None], b[None, :, :]), 1)
            case "diag":
                return m.mul(self.identity(x.rows), self.term(x.args[0]))
            case "eye":
                return self.identity(x.rows)
            case "full":
                return self.scalar(x.args[0], {})
            case "map":
                body, *args = x.args
                return self.scalar(body, {entry(i): self.term(y) for i, y in enumerate(args)})
        raise NotImplementedError(f"the term {x.op} has no meaning here")

    def identity(self, dim: Dim) -> np.ndarray:
        one, zero = (np.asarray(self.m.const(x), dtype=object).item() for x in (Fraction(1), Fraction(0)))
        n = self.size(dim)
        return np.array([[one if i == j else zero for j in range(n)] for i in range(n)], dtype=object)

    def named(self, name: str) -> np.ndarray:
        base, _, which = name.partition(".")
        if which == "prev":
            return np.asarray(self.states[base], dtype=object)
        if which == "next":
            return np.asarray(self.equation(self.updates[base]), dtype=object)
        if name in self.equations:
            return np.asarray(self.equation(self.equations[name]), dtype=object)
        return np.asarray(self.given[name], dtype=object)

    # --- scalars ----------------------------------------------------------------------------------------------------

    def scalar(self, x: sympy.Expr, env: dict[sympy.Expr, np.ndarray]) -> np.ndarray:
        """A SymPy expression; `env` gives arrays for the entries that a `map` runs over."""
        m = self.m
        if x in env:
            return env[x]
        if isinstance(x, Contraction):
            return self.term(x.matrix)[0, 0]
        if isinstance(x, Atom):
            return self.named(x.name)
        if x.is_Rational or x.is_Float:
            return m.const(_fraction(x))
        if x.is_number:
            return m.number(str(x))
        args = [self.scalar(a, env) for a in x.args]
        if x.is_Add or x.is_Mul:
            value = args[0]
            for other in args[1:]:
                value = m.add(value, other) if x.is_Add else m.mul(value, other)
            return value
        if x.is_Pow:
            if x.exp.is_Rational or x.exp.is_Float:
                return m.pow(args[0], _fraction(x.exp))
            return m.fn("exp", m.mul(args[1], m.fn("log", args[0])))
        if isinstance(x, sympy.Max | sympy.Min):
            if m.exact:
                raise NoExactMeaning
            pick = np.maximum if isinstance(x, sympy.Max) else np.minimum
            value = np.asarray(args[0], dtype=object)
            for other in args[1:]:
                value = pick(value, np.asarray(other, dtype=object))
            if (sides := getattr(m, "sides", None)) is not None:  # whoever wants to know which of them it was
                met = sides.setdefault(x, set())
                met |= {i for i, y in enumerate(args) if np.any(np.asarray(y, dtype=object) == value)}
            return value
        if isinstance(x, sympy.sinh | sympy.cosh | sympy.tan):
            inner = x.args[0]
            return self.scalar(
                x.rewrite(sympy.exp) if x.func is not sympy.tan else sympy.sin(inner) / sympy.cos(inner), env
            )
        return m.fn(_FUNCTIONS.get(x.func.__name__, x.func.__name__), args[0])


def _fraction(x: sympy.Number) -> Fraction:
    return Fraction(int(x.p), int(x.q)) if x.is_Rational else Fraction(str(x))
