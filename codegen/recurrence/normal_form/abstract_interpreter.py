"""Interpret a step program over matrix values: every contraction of a state with a vector becomes a read."""

from __future__ import annotations

from dataclasses import replace as dc_replace
from fractions import Fraction

from ...ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    canonical_axis,
    depends,
    factors_of,
    leaf,
    mul,
    rebuild,
    rename,
    total,
    walk,
)
from ...ir.functions import MAGNITUDE
from ...ir.step_program import DECAYS, StateVar
from .abstract_values import (
    MatrixValue,
    RawWrite,
    contracted,
    late_only,
    make_key,
    rank_one,
    renamed,
    renamed_value,
    scaled,
    split_scalars,
)
from .form import NotAffine


class Interpreter:
    """Interprets nodes over matrix values, and collects reads."""

    def __init__(self, states: dict[str, StateVar], kinds: dict[str, str]) -> None:
        self.states = states  # state name -> declaration
        self.kinds = kinds  # state name -> kind of its leaf (trajectory | state)
        self.by_leaf = {(kinds[n], n): n for n in states}
        self.memo: dict[Node, Node | MatrixValue] = {}
        self.touched: dict[Node, bool] = {}
        self.raw_reads: dict[Node, tuple[MatrixValue, str, Node]] = {}
        self.raw_state_adjoints: dict[Node, tuple[MatrixValue, MatrixValue]] = {}

    # --- values -----------------------------------------------------------------------------------------------------

    def form(self, x: Node) -> Node | MatrixValue:
        if x not in self.memo:
            self.memo[x] = self._form(x)
        return self.memo[x]

    def plain(self, x: Node) -> Node:
        """x over reads; a state that stands there whole is read entry by entry."""
        value = self.form(x)
        return self.whole(value, x) if isinstance(value, MatrixValue) else value

    def whole(self, m: MatrixValue, x: Node) -> Node:
        if m.row is not None and m.col is not None:
            raise NotAffine("the whole state is used, not a product of it with a vector", x)
        return self.read(m, "col" if m.col is None and m.row is not None else "row", ONE)

    def _form(self, x: Node) -> Node | MatrixValue:
        if x.op == "leaf":
            kind, name, order = x.attrs
            if (kind, name) not in self.by_leaf:
                return x
            flipped = dict(zip(self.states[name].axes, order, strict=True))
            row, col = (*(flipped[a] for a in self.states[name].axes), None, None)[:2]
            return MatrixValue(name, row, col)
        if not self._touches(x):
            return x
        match x.op:
            case "add":
                return self._add(x)
            case "mul":
                return self._mul(x)
            case "sum":
                return self._sum(x)
            case "expand":
                inner = self.form(x.args[0])
                if isinstance(inner, MatrixValue):
                    raise NotAffine("a state is repeated along another axis", x)
        inner_forms = [(a, self.form(a)) for a in x.args if len(a.axes) == 2]
        if any(isinstance(v, MatrixValue) and {v.row, v.col} >= set(a.axes) for a, v in inner_forms):
            raise NotAffine(f"{x.attrs[0] if x.op == 'fn' else x.op} of the state isn't affine in it", x)
        return rebuild(x, (self.plain(a) for a in x.args))

    def _touches(self, x: Node) -> bool:
        if x not in self.touched:
            self.touched[x] = (x.op == "leaf" and x.attrs[:2] in self.by_leaf) or any(self._touches(a) for a in x.args)
        return self.touched[x]

    def _add(self, x: Node) -> Node | MatrixValue:
        parts = [(a, self.form(a)) for a in x.args]
        matrices = [(a, v) for a, v in parts if isinstance(v, MatrixValue)]
        if not matrices:
            return add(*(v for _, v in parts if isinstance(v, Node)))
        first = matrices[0][1]
        if len({n for _, m in matrices for n in (m.state, *dict(m.others))}) > 1:
            if all(m.row is None or m.col is None for _, m in matrices):
                return add(*(self.plain(a) for a in x.args))
            if len(matrices) > 1:
                return self._coupled(x, parts, [m for _, m in matrices])
        if any((m.row, m.col) != (first.row, first.col) for _, m in matrices):
            raise NotAffine("a state is added to its transpose", x)
        base = first
        for _, m in matrices[1:]:
            if base.before or base.after or m.before or m.after:
                base, m = late_only(base), late_only(m)
            decay = add(base.decay or ONE, m.decay or ONE)
            base = dc_replace(base, decay=decay, after=(*base.after, *m.after))
        writes = []
        for _, v in parts:
            if isinstance(v, Node):
                writes += rank_one(v, base.row, base.col)
        if base.decay is None:
            return dc_replace(base, before=base.before + tuple(writes))
        return dc_replace(base, after=base.after + tuple(writes))

    def _coupled(
        self, x: Node, parts: list[tuple[Node, Node | MatrixValue]], matrices: list[MatrixValue]
    ) -> MatrixValue:
        """A sum of several states: one feeds another as a whole, as momentum does."""
        row, col = matrices[0].row, matrices[0].col
        if any((m.row, m.col) != (row, col) for m in matrices):
            raise NotAffine("a state is added to another's transpose", x)
        coefficients: dict[str, Node] = {}
        writes: list[RawWrite] = []
        for m in map(late_only, matrices):
            assert m.decay is not None
            for name, c in ((m.state, m.decay), *m.others):
                if c.axes:
                    raise NotAffine("states that are added to each other are scaled channel by channel", x)
                coefficients[name] = add(coefficients.get(name, ZERO), c)
            writes += m.after
        for _, v in parts:
            if isinstance(v, Node):
                writes += rank_one(v, row, col)
        name, *rest = sorted(coefficients, key=list(self.states).index)
        others = tuple((n, coefficients[n]) for n in rest)
        return MatrixValue(name, row, col, coefficients[name], (), tuple(writes), others)

    def _mul(self, x: Node) -> Node | MatrixValue:
        parts = [(a, self.form(a)) for a in x.args]
        matrices = [(a, v) for a, v in parts if isinstance(v, MatrixValue)]
        if not matrices:
            return mul(*(v for _, v in parts if isinstance(v, Node)))
        if len(matrices) > 1:
            if all(m.row is None or m.col is None for _, m in matrices):
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("a product of states: the update isn't affine in the state", x)
        node, m = matrices[0]
        others = [v for _, v in parts if isinstance(v, Node)]
        allowed = {a for a in (m.row, m.col) if a}
        if any(len(o.axes) > 1 or not set(o.axes) <= allowed for o in others):
            if m.row is None or m.col is None:
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("the decay runs over both axes of the state, entry by entry", mul(*others))
        factor = mul(*others)
        if m.state in self._reads(factor):
            if m.row is None or m.col is None:
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("the state is multiplied by something that depends on it", x)
        if (m.row is None or m.col is None) and not positive(factor):
            return mul(self.plain(node), factor)  # no decay: a vector state that is read as a whole, and fed back
        return scaled(m, factor)

    def _matrix_states(self, x: Node) -> set[str]:
        """The states that the terms of a sum hold as a whole."""
        if x.op == "leaf":
            return {x.attrs[1]} if x.attrs[:2] in self.by_leaf and len(x.axes) == 2 else set()
        if x.op in ("add", "mul") and len(x.axes) == 2 and self._touches(x):
            return set().union(*(self._matrix_states(a) for a in x.args))
        return set()

    def _is_sum_beside_state(self, f: Node, factors: tuple[Node, ...]) -> bool:
        """Is f a matrix that is a sum, of outer products perhaps, and no state, but the product is one with a state?"""
        return len(f.axes) == 2 and not self._matrix_states(f) and any(map(self._matrix_states, factors))

    def _reads(self, x: Node) -> set[str]:
        """The states that x reads."""
        names = {y.attrs[1] for y in walk(x) if y.op == "leaf" and y.attrs[0] == "raw"}
        return {m.state for raw, (m, _, _) in self.raw_reads.items() if raw.attrs[1] in names}

    def _sum(self, x: Node) -> Node:
        (b,) = x.attrs
        if (swapped := self._swapped(x)) is not None:
            return self.plain(swapped)
        factors = factors_of(x.args[0])
        for f in factors:  # a read of several states at once is the sum of its reads
            if (
                f.op == "add"
                and b in f.axes
                and (len(self._matrix_states(f)) > 1 or self._is_sum_beside_state(f, factors))
            ):
                return add(*(self.plain(total(mul(term, *(g for g in factors if g is not f)), b)) for term in f.args))
        values = [(f, self.form(f)) for f in factors]
        matrices = [(f, v) for f, v in values if isinstance(v, MatrixValue) and b in (v.row, v.col)]
        vectors = [f for f, v in matrices if v.row is None or v.col is None]
        if len(matrices) > 1 and vectors:  # vector states are read as a whole, so that none waits for another
            values = [(f, self.plain(f) if f in vectors else v) for f, v in values]
            matrices = [(f, v) for f, v in matrices if f not in vectors]
        if len(matrices) > 1:
            return self._pair(x, b, values, matrices)
        if not matrices:
            return self._summed([self.plain(f) for f in factors], b)
        _, m = matrices[0]
        others = [self.whole(v, f) if isinstance(v, MatrixValue) else v for f, v in values if v is not m]
        inside = [o for o in others if b in o.axes]
        if any(o.axes != (b,) for o in inside) and (m.row is None or m.col is None):
            return total(mul(*(self.plain(f) for f in factors)), b)
        if any(o.axes != (b,) for o in inside):
            raise NotAffine("the state is contracted with a full matrix", x)
        side = "row" if m.row == b else "col"
        kept = m.col if side == "row" else m.row
        if any(kept in o.axes for o in others) and kept is None:
            raise NotAffine("a broadcast of a state", x)
        return mul(self.read(m, side, mul(*inside)), *(o for o in others if b not in o.axes))

    def _summed(self, factors: list[Node], b: str) -> Node:
        """The sum over b of a product without states; a state-adjoint product that was summed over its first axis becomes a whole
        one."""
        inside = [f for f in factors if b in f.axes]
        if len(inside) == 1:
            (f,) = inside
            rest = [g for g in factors if g is not f]
            if f.op == "leaf" and f.attrs[0] == "raw state-adjoint product":
                whole = leaf("raw state-adjoint product", f"{f.attrs[1]}.{b}")
                self.raw_state_adjoints[whole] = next(
                    v for k, v in self.raw_state_adjoints.items() if k.attrs[1] == f.attrs[1]
                )
                return mul(whole, *rest)
            if f.op == "add" and depends(f, lambda y: y.op == "leaf" and y.attrs[0] == "raw state-adjoint product"):
                return add(*(self._summed([*rest, *factors_of(term)], b) for term in f.args))
        return total(mul(*factors), b)

    def _swapped(self, x: Node) -> Node | None:
        """sum_b sum_c w_c S dS as sum_c w_c sum_b S dS, which is a state-adjoint product over c with weights."""
        (b,), body = x.attrs, x.args[0]
        factors = factors_of(body)
        for f in factors:
            rest = [g for g in factors if g is not f]
            if f.op != "sum" or b not in f.axes or any(b in g.axes for g in rest):
                continue
            (c,), inner = f.attrs, factors_of(f.args[0])
            weights = [g for g in inner if g.axes == (c,)]
            if not weights or sum(bool(self._matrix_states(g)) for g in inner) != 2:
                continue
            fresh = {c: canonical_axis(c, {*body.axes, b})}
            pair = total(mul(*(rename(g, fresh) for g in inner if g not in weights)), b)
            return total(mul(*rest, *(rename(g, fresh) for g in weights), pair), fresh[c])
        return None

    def _pair(
        self, x: Node, b: str, values: list[tuple[Node, Node | MatrixValue]], matrices: list[tuple[Node, MatrixValue]]
    ) -> Node:
        """<S, dS> summed over one axis: what a decay's gradient needs of both states."""
        kinds = sorted((self.kinds[m.state], m.state) for _, m in matrices)
        others = [v for _, v in values if isinstance(v, Node)]
        if (
            [k for k, _ in kinds] != ["state", "trajectory"]
            or any(m.others for _, m in matrices)
            or len(matrices) + len(others) != len(values)
            or len({(m.row, m.col) for _, m in matrices}) != 1
            or any(b in o.axes and o.axes != (b,) for o in others)
        ):
            raise NotAffine("a product of states is summed: the term isn't affine in the state", x)
        pair = sorted((m for _, m in matrices), key=lambda m: self.kinds[m.state], reverse=True)
        pair[0] = scaled(pair[0], mul(*(o for o in others if b in o.axes)))  # what a decay of the other axis is
        others = [o for o in others if b not in o.axes]
        here = self._declared_axes(pair[0])
        first, second = (renamed_value(m, here, *self._row_and_col(m.state)) for m in pair)
        rest = tuple(a for a in (first.row, first.col) if a is not None and a != here[b])
        key = f"{first.state}.{make_key(first, '', ONE)}.{make_key(second, '', ONE)}.{here[b]}"
        node = leaf("raw state-adjoint product", key, rest)
        self.raw_state_adjoints[node] = (first, second)
        back = {there: a for a, there in here.items()}
        return mul(rename(node, {a: back[a] for a in rest}), *others)

    def _row_and_col(self, state: str) -> tuple[str | None, str | None]:
        row, col = (*self.states[state].axes, None, None)[:2]
        return row, col

    def _declared_axes(self, m: MatrixValue) -> dict[str, str]:
        """The axes of a matrix value, as the term at hand has them -> as the state declares them."""
        row, col = self._row_and_col(m.state)
        return {a: b for a, b in ((m.row, row), (m.col, col)) if a is not None and b is not None}

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, m: MatrixValue, side: str, vector: Node) -> Node:
        """The read of a matrix value, as a leaf of kind `raw`. Scalars are taken out of the vector."""
        if m.others:
            assert m.decay is not None
            parts = [
                mul(c, self.read(MatrixValue(n, m.row, m.col), side, vector))
                for n, c in ((m.state, m.decay), *m.others)
            ]
            return add(*parts, *(contracted(w, side, vector, m.row if side == "row" else m.col) for w in m.after))
        scalar, core = split_scalars(vector)
        row, col = self._row_and_col(m.state)
        here = self._declared_axes(m)
        canonical = renamed_value(m, here, row, col)
        core = renamed(core, here)
        out = (col if side == "row" else row,)
        axes = tuple(a for a in out if a is not None)
        key = make_key(canonical, side, core)
        raw = leaf("raw", key, axes)
        self.raw_reads[raw] = (canonical, side, core)
        back = {b: a for a, b in here.items()}
        return mul(scalar, rename(raw, {a: back[a] for a in axes}))


def positive(x: Node) -> bool:
    """Is x > 0 whatever the inputs, as decays have been written that are seen to be so (`step/decays.py`)?"""
    match x.op:
        case "leaf":
            return x.attrs[0] in DECAYS
        case "const":
            return x.attrs[0] > 0
        case "mul":
            return all(positive(a) for a in x.args)
        case "add":
            return below_one(x) is not None
        case "pow" | "expand":
            return positive(x.args[0])
        case "fn":
            return x.attrs[0] in ("exp", "sigmoid")
    return False


def at_least_zero(x: Node) -> bool:
    """Is x >= 0 whatever the inputs?"""
    match x.op:
        case "const":
            return x.attrs[0] >= 0
        case "mul" | "add" | "sum" | "expand":
            return all(map(at_least_zero, x.args))
        case "max":
            return any(map(at_least_zero, x.args))
        case "pow":
            n = Fraction(x.attrs[0])
            return (n.denominator == 1 and n.numerator % 2 == 0) or at_least_zero(x.args[0])
        case "fn" if x.attrs[0] in ("relu", "abs", MAGNITUDE):
            return True
    return positive(x)


def below_one(x: Node) -> Node | None:
    """y where x = 1 - sigmoid(y), which is sigmoid(-y)."""
    rest = add(1, mul(-1, x))
    return rest.args[0] if rest.op == "fn" and rest.attrs[0] == "sigmoid" else None
