"""Pass 1, lower: spec -> step program. SymPy ends here; from now on there are nodes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.expression import ONE as UNIT
from chunkform.spec.language.expression import Atom, Contraction, entry
from chunkform.spec.language.terms import flipped

from ...ir.expr import Node, add, canonical_axis, expand, eye, leaf, mul, rename, total
from ...ir.lower_terms import scalar_node
from ...ir.step_program import StateVar, StepProgram, Var, axes_of


def lower(r: Recurrence) -> StepProgram:
    """The step program of a recurrence."""
    return Lowering(r).program()


class Lowering:
    def __init__(self, r: Recurrence) -> None:
        self.r = r.validate()
        self.origins: dict[Node, Any] = {}
        self.memo: dict[Any, Node] = {}
        self.lets = {x.name: x for x in r.lets}
        self.updates = {x.name: x for x in r.updates}
        self.kinds = {v.name: v.kind for v in r.variables}
        self.where: Any = r.where

    def program(self) -> StepProgram:
        r = self.r
        names: dict[Node, str] = {}
        for x in r.lets:
            names.setdefault(self.equation(x, axes_of(_dims(x.term))), x.name)
        states = []
        for s in r.states:
            axes = axes_of(s.dims)
            initial = None
            if s.initial is not None and s.initial != 0:
                self.where = s.where
                initial = expand(self.term(s.initial, *_pair(axes)), axes)
            states.append(StateVar(s.name, axes, initial, s.domain))
        updates = {s.name: expand(self.equation(self.updates[s.name], s.axes), s.axes) for s in states}
        output_axes = {x.name: axes_of(_dims(x.term)) for x in r.outputs}
        outputs = {x.name: expand(self.equation(x, output_axes[x.name]), output_axes[x.name]) for x in r.outputs}
        variables = tuple(Var(v.name, v.kind, axes_of(v.dims), v.default, v.domain) for v in r.variables)
        return StepProgram(
            r.name,
            tuple(d.name for d in r.dim_list),
            variables,
            tuple(states),
            updates,
            outputs,
            names=names,
            origins=self.origins,
            output_axes=output_axes,
            handed=r.wide,
        )

    def equation(self, x: Any, axes: tuple[str, ...]) -> Node:
        before, self.where = self.where, x.where
        row, col = _pair(axes)
        if isinstance(x.term, Matrix) and x.term.rows is UNIT:
            row, col = None, row
        node = self.term(x.term, row, col)
        self.where = before
        return node

    def term(self, m: object, row: str | None, col: str | None) -> Node:
        key = (m, row, col)
        if key not in self.memo:
            node = self.matrix(m, row, col) if isinstance(m, Matrix) else self.scalar(m)
            self.memo[key] = node
            self.origins.setdefault(node, self.where)
        return self.memo[key]

    def matrix(self, m: Matrix, row: str | None, col: str | None) -> Node:
        match m.op:
            case "symbol":
                return self._symbol(m.args[0], tuple(a for a in (row, col) if a is not None))
            case "add":
                return add(*(self.term(a, row, col) for a in m.args))
            case "scale":
                return mul(self.scalar(m.args[0]), self.term(m.args[1], row, col))
            case "transpose":
                return self.term(m.args[0], col, row)
            case "hadamard":
                return mul(*(self.term(a, row, col) for a in m.args))
            case "matmul":
                a, b = m.args
                return self._matmul(a, b, row, col)
            case "diag":
                assert row and col
                return mul(eye(row, col), self.term(m.args[0], row, None))
            case "eye":
                assert row and col
                return eye(row, col)
            case "full":
                return self.scalar(m.args[0])
            case "map":
                body, *args = m.args
                return self.scalar(body, {entry(i): self.term(a, row, col) for i, a in enumerate(args)})
        raise AssertionError(m.op)

    def _matmul(self, a: Matrix, b: Matrix, row: str | None, col: str | None) -> Node:
        """The product of two matrices; term by term where one is a sum by which states are multiplied."""
        for i, parts in enumerate((self._by_state(a), self._by_state(b))):
            if len(parts) == 1:
                parts = self._multiplied_out(a, b) if i == 0 else self._multiplied_out(b, a)
            if len(parts) > 1:
                pairs = [(x, b) if i == 0 else (a, x) for x in parts]
                return add(*(self._product(x, y, row, col) for x, y in pairs))
        for i, (x, other) in enumerate(((self._inside_out(a), b), (self._inside_out(b), a))):
            one_by_one = (other.is_vector and not x.is_vector) or self._multiplies(x, other)
            if x.op == "matmul" and x.args[0].cols is not UNIT and one_by_one:
                y, z = x.args  # a product of matrices, by which the other is multiplied one after the other
                if i == 0:
                    return self._product(y, Matrix("matmul", (z, b), z.rows, b.cols), row, col)
                return self._product(Matrix("matmul", (a, y), a.rows, y.cols), z, row, col)
        if a.cols is UNIT:
            return mul(self.term(a, row, None), self.term(b, None, col))
        inner = canonical_axis(a.cols.name, {x for x in (row, col) if x})
        return total(mul(self.term(a, row, inner), self.term(b, inner, col)), inner)

    def _product(self, a: Matrix, b: Matrix, row: str | None, col: str | None) -> Node:
        return self.term(Matrix("matmul", (a, b), a.rows, b.cols), row, col)

    def _multiplied_out(self, m: Matrix, state: Matrix) -> list[Matrix]:
        """The terms of a matrix by which a state is multiplied, such as I - k k^T: only term by term is it seen what they are."""
        return self._terms(m, lambda _: True) if self._multiplies(m, state) else [m]

    def _multiplies(self, m: Matrix, state: Matrix) -> bool:
        """Is m a matrix in which no state stands whole, and is there one in what it is a product with?"""
        return not m.is_vector and not self._whole_states(m) and self._states_in(state)

    def _terms(self, m: Matrix, further: Callable[[Matrix], bool]) -> list[Matrix]:
        """The terms of a sum, and of those terms that are to be taken `further` apart."""
        if not further(m):
            return [m]
        m = self._spelled(m)
        match m.op:
            case "add":
                return [x for a in m.args for x in self._terms(a, further)]
            case "scale":
                return [Matrix("scale", (m.args[0], x), m.rows, m.cols) for x in self._terms(m.args[1], further)]
            case "transpose":
                return [x.T for x in self._terms(m.args[0], further)]
        return [m]

    def _spelled(self, m: Matrix) -> Matrix:
        """What a matrix that has a name of its own is."""
        return self._spelled(self.lets[m.args[0]].term) if m.op == "symbol" and m.args[0] in self.lets else m

    def _states_in(self, m: object) -> bool:
        """Is a state, or the product of one with something, in a matrix or vector?"""
        if not isinstance(m, Matrix):
            return False
        if m.op == "symbol":
            name = m.args[0]
            if name in self.lets:
                return self._states_in(self.lets[name].term)
            return name.partition(".")[0] in self.updates
        return any(self._states_in(a) for a in m.args)

    def _inside_out(self, m: Matrix) -> Matrix:
        """What a matrix that has a name of its own is; a product's transpose as a product."""
        m = self._spelled(m)
        inner = self._spelled(m.args[0]) if m.op == "transpose" else m
        return flipped(inner) if inner is not m and inner.op == "matmul" else m

    def _by_state(self, m: Matrix) -> list[Matrix]:
        """A sum of states, or of a state and what isn't written to one, as its terms: a product with it is the sum of theirs."""
        terms = self._terms(m, lambda x: len(self._whole_states(x)) > 1)
        if len(terms) > 1:
            return terms
        terms = self._terms(m, lambda x: bool(self._whole_states(x)))
        beside = [x for x in terms if not self._whole_states(x)]
        return [m] if len(terms) - len(beside) < 2 and all(map(self._is_outer, beside)) else terms

    def _is_outer(self, m: Matrix) -> bool:
        """Is m an outer product, times a number?"""
        m = self._spelled(m)
        if m.op in ("scale", "transpose"):
            return self._is_outer(m.args[-1])
        return m.op == "matmul" and m.args[0].cols is UNIT

    def _whole_states(self, m: object) -> frozenset[str]:
        """The states that a matrix is a sum of."""
        if not isinstance(m, Matrix) or m.is_vector:
            return frozenset()
        if m.op == "symbol":
            name = m.args[0]
            return (
                self._whole_states(self.lets[name].term)
                if name in self.lets
                else frozenset({name.partition(".")[0]} & self.updates.keys())
            )
        return frozenset().union(*(self._whole_states(a) for a in m.args))

    def _symbol(self, name: str, axes: tuple[str, ...]) -> Node:
        base, _, which = name.partition(".")
        if which == "prev":
            return leaf("state", base, axes)
        if which == "next":
            return self._renamed(self.updates[base], axes)
        if name in self.lets:
            return self._renamed(self.lets[name], axes)
        return leaf(self.kinds[name], name, axes)

    def _renamed(self, equation: Any, axes: tuple[str, ...]) -> Node:
        """An equation's value over `axes`. Primed stand-ins keep a swap of two axes from colliding."""
        own = axes_of(_dims(equation.term)) if equation.name in self.lets else self._state_axes(equation.name)
        return rename(self.equation(equation, own), dict(zip(own, axes, strict=True)))

    def _state_axes(self, name: str) -> tuple[str, ...]:
        return axes_of(next(s.dims for s in self.r.states if s.name == name))

    def scalar(self, x: Any, env: dict[Any, Node] | None = None) -> Node:
        return scalar_node(x, env or {}, self._atom, self.where)

    def _atom(self, x: object) -> Node | None:
        if isinstance(x, Contraction):
            return self.term(x.matrix, None, None)
        return self._symbol(x.name, ()) if isinstance(x, Atom) else None


def _dims(term: object) -> tuple[Any, ...]:
    return tuple(x for x in term.shape if x is not UNIT) if isinstance(term, Matrix) else ()


def _pair(axes: tuple[str, ...]) -> tuple[str | None, str | None]:
    row, col = (*axes, None, None)[:2]
    return row, col
