"""Evaluates formulas in an instance. Shapes are checked by the names of dims, so that a wrong shape is found at any
size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chunkform.spec.language.claims import Quantity
from chunkform.spec.language.formula import Formula, formula, free_indices, substitute

from .arithmetic import CONTEXT, Transcendental, Undefined
from .branches import SIGNED, Branching, note
from .effort import WORK
from .instance import LONGEST, Beyond, Instance, OutOfRange, TooMany, integer
from .values import Algebra, ShapeFault, Value, solve

Env = Mapping[str, int]
Place = tuple[str, tuple[int, ...]]  # a quantity at an index
SERIES_LIMIT = 700  # terms after which an infinite series counts as divergent


class Unknown(Exception):
    """A formula names a quantity that its setting doesn't have."""


class Evaluator:
    """Values of formulas in one instance; with `vary`, their derivatives by one quantity as well, past those that are `held`."""

    def __init__(
        self,
        instance: Instance,
        vary: Place | None = None,
        plain: Evaluator | None = None,
        held: frozenset[Place] = frozenset(),
    ) -> None:
        self.instance, self.vary, self.plain, self.held = instance, vary, plain, held
        if plain is None:
            instance.evaluate = self
        self.algebra = Algebra(instance.arithmetic)
        self.memo: dict[Any, Value | Exception] = {}
        self.free: dict[Formula, tuple[str, ...]] = {}
        self.meant: dict[int | None, Evaluator] = {}  # by step, where a claim is meant under a condition
        self.products: dict[tuple, list[Value]] = {}  # from one factor on, of one, two, ...

    def __call__(self, x: Formula, env: Env | None = None) -> Value:
        env = env or {}
        key = (x, tuple(env.get(i) for i in self.free_in(x)))
        known = self.memo.get(key)
        if known is None:
            try:
                known = self._evaluate(x, env)
            except (ShapeFault, Undefined, Transcendental) as fault:
                known = fault
            self.memo[key] = known
        if isinstance(known, Exception):
            raise known
        return known

    def free_in(self, x: Formula) -> tuple[str, ...]:
        found = self.free.get(x)
        if found is None:
            found = self.free[x] = tuple(sorted(free_indices(x)))
        return found

    def integer(self, x: Formula, env: Env) -> int:
        return integer(x, env, self.instance.sizes)

    def span(self, low: Formula, high: Formula, x: Formula, env: Env) -> tuple[int, int]:
        """The first and the last value of the index of a sum or a product."""
        first, last = self.integer(low, env), self.integer(high, env)
        if last - first >= LONGEST:
            raise TooMany(f"takes {x.attrs[0]} from {first} to {last}")
        return first, last

    def _evaluate(self, x: Formula, env: Env) -> Value:
        handler: Callable[[Formula, Env], Value] | None = getattr(self, "_" + x.op.replace(" ", "_"), None)
        if handler is None:
            raise Unknown(f"{x.op} can't be evaluated")
        value = handler(x, env)
        WORK.done += 1 + value.a.size // 16
        return value

    def _args(self, x: Formula, env: Env) -> list[Value]:
        return [self(a, env) for a in x.args]

    # --- numbers and quantities

    def _number(self, x: Formula, env: Env) -> Value:
        return self.algebra.scalar(self.instance.arithmetic.number(x.attrs[0]))

    def _index(self, x: Formula, env: Env) -> Value:
        return self.algebra.scalar(self.instance.arithmetic.number(self.integer(x, env)))

    _size = _index

    def _at(self, x: Formula, env: Env) -> Value:
        name = x.attrs[0]
        q = self.instance.setting.quantities.get(name)
        if q is None:
            raise Unknown(f"{self.instance.setting.name} has no quantity {name}")
        index = tuple(self.integer(a, env) for a in x.args)
        if q.kind == "defined":
            return self._defined(q, index)
        if q.kind == "given":
            a = self.instance.given(q, index)
        elif q.kind == "spec":
            a = self.instance.spec(q, index[0] if index else 0)
        else:
            a = self.instance.gradient(q, index[0] if index else 0)
        return self._nudged(name, index, Value(*q.dims, a))

    def _defined(self, q: Quantity, index: tuple[int, ...]) -> Value:
        key = (q.name, index)
        known = self.memo.get(key)
        if known is None and self.plain is not None and self.vary == key:
            return self._nudged(q.name, index, self.plain._defined(q, index))
        if known is None and self.plain is not None and key in self.held:
            return self.plain._defined(q, index)
        if known is None:
            inner = dict(zip(q.parameters, index))
            body = self.instance.bodies.get(q.name, q.body)
            assert body is not None
            if q.start is not None:
                first = self.integer(formula(q.start[0]), inner)
                if index[0] > first if q.backwards else index[0] < first:
                    raise OutOfRange(f"{q.name} has no value at {index[0]}")
                if index[0] == first:
                    body = self.instance.bodies.get(f"{q.name} start", q.start[1])
            self.memo[key] = ShapeFault(f"the value of {called(q, index)} is defined by itself")
            try:
                known = self._nudged(q.name, index, self(body, inner))
            except (ShapeFault, Undefined, Transcendental) as fault:
                known = fault
            self.memo[key] = known
        if isinstance(known, Exception):
            raise known
        return known

    def _nudged(self, name: str, index: tuple[int, ...], x: Value) -> Value:
        """x, with a derivative direction for each entry where it is what is varied."""
        if self.vary != (name, index):
            return x
        r, c = x.a.shape
        slope = np.full((r * c, r, c), self.instance.arithmetic.number(0), dtype=object)
        for k in range(r * c):
            slope[k, k // c, k % c] = self.instance.arithmetic.number(1)
        return Value(*x.shape, x.a, slope)

    def _named(self, x: Formula, env: Env) -> Value:
        return self(x.args[0], env)

    _call = _named

    # --- arithmetic

    def _add(self, x: Formula, env: Env) -> Value:
        values = self._args(x, env)
        result = values[0]
        for v in values[1:]:
            result = self.algebra.plus(result, v, x)
        return result

    def _negative(self, x: Formula, env: Env) -> Value:
        return self.algebra.negative(self(x.args[0], env))

    def _product(self, x: Formula, env: Env) -> Value:
        values = self._args(x, env)
        result = values[0]
        for v in values[1:]:
            result = self.algebra.times(result, v, x)
        return result

    def _transpose(self, x: Formula, env: Env) -> Value:
        return self.algebra.transpose(self(x.args[0], env))

    def _inverse(self, x: Formula, env: Env) -> Value:
        return self.algebra.inverse(self(x.args[0], env), x)

    def _hadamard(self, x: Formula, env: Env) -> Value:
        values = self._args(x, env)
        result = values[0]
        for v in values[1:]:
            result = self.algebra.entrywise(result, v, x)
        return result

    def _divide(self, x: Formula, env: Env) -> Value:
        above, below = self._args(x, env)
        if not below.is_scalar and "1" not in below.shape and above.shape != below.shape:
            raise ShapeFault(f"can't divide {above.shown} by {below.shown} in {x}")
        return self.algebra.entrywise(above, self.algebra.reciprocal(below), x)

    def _power(self, x: Formula, env: Env) -> Value:
        return self.algebra.power(self(x.args[0], env), self.integer(x.args[1], env), x)

    def _sqrt(self, x: Formula, env: Env) -> Value:
        return self.algebra.sqrt(self(x.args[0], env))

    def _exp(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        if value.log:
            return Value(*value.shape, value.a, value.slope)
        return self.algebra.function("exp", value)

    def _log(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        for entry in value.a.flat:
            if entry == 0 or (self.instance.arithmetic.kind in ("fraction", "real") and entry < 0):
                raise Undefined("the log of a number that isn't positive")
        return Value(*value.shape, value.a, value.slope, log=True)

    def _function(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        if x.attrs[0] in SIGNED and self.instance.arithmetic.kind == "real":
            for entry in value.a.flat:
                if entry != 0:
                    note(self.instance.taken, Branching(x), int(entry > 0))
        return self.algebra.function(x.attrs[0], value)

    def _softmax(self, x: Formula, env: Env) -> Value:
        """Computed as 1 / sum_j exp(x_j - x_i): another way than the quotient that documents display."""
        value = self(x.args[0], env)
        if value.cols != "1":
            return self._softmax_of_rows(value, x)
        ones = self.algebra.full(1, "1", value.rows, 1, len(value.a))
        rows = self.algebra.entrywise(ones, self.algebra.settled(value), x)
        difference = self.algebra.plus(self.algebra.transpose(rows), self.algebra.negative(rows), x)
        weights = self.algebra.function("exp", difference)
        return self.algebra.reciprocal(
            self.algebra.linear(weights, lambda a: a.sum(-1, keepdims=True), weights.rows, "1")
        )

    def _softmax_of_rows(self, value: Value, x: Formula) -> Value:
        weights = self.algebra.function("exp", self.algebra.settled(value))
        total = self.algebra.linear(weights, lambda a: a.sum(-1, keepdims=True), value.rows, "1")
        return self.algebra.entrywise(weights, self.algebra.reciprocal(total), x)

    # --- matrices

    def _eye(self, x: Formula, env: Env) -> Value:
        return self.algebra.eye(x.attrs[0], self.instance.size(x.attrs[0]))

    def _ones(self, x: Formula, env: Env) -> Value:
        return self.algebra.full(1, x.attrs[0], "1", self.instance.size(x.attrs[0]), 1)

    def _diag(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        if value.cols != "1":
            value = self.algebra.transpose(value)
        if value.cols != "1":
            raise ShapeFault(f"diag takes a vector, got {value.shown} in {x}")
        return self.algebra.entrywise(self.algebra.eye(value.rows, len(value.a)), value, x)

    def _diagonal(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        if value.rows != value.cols:
            raise ShapeFault(f"the diagonal is of a square matrix, got {value.shown} in {x}")
        return self.algebra.linear(value, lambda a: np.diagonal(a, axis1=-2, axis2=-1)[..., None], value.rows, "1")

    def _tril(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        if value.rows != value.cols:
            raise ShapeFault(f"tril takes a square matrix, got {value.shown} in {x}")
        return self.algebra.linear(value, lambda a: np.tril(a, x.attrs[0]), *value.shape)

    def _revcumsum(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        return self.algebra.linear(value, lambda a: np.flip(np.cumsum(np.flip(a, -2), -2), -2), *value.shape)

    def _cumsum(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        return self.algebra.linear(value, lambda a: np.cumsum(a, -2), *value.shape)

    def _colsum(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        return self.algebra.linear(value, lambda a: a.sum(-2, keepdims=True), "1", value.cols)

    def _rowsum(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        return self.algebra.linear(value, lambda a: a.sum(-1, keepdims=True), value.rows, "1")

    def _row(self, x: Formula, env: Env) -> Value:
        value = self(x.args[0], env)
        k = self.integer(x.args[1], env)
        if not 1 <= k <= len(value.a):
            raise OutOfRange(f"{x.args[0]} has no row {k}")
        return self.algebra.linear(value, lambda a: a[..., k - 1 : k, :], "1", value.cols)

    def _unit(self, x: Formula, env: Env) -> Value:
        dim = x.attrs[0]
        a = self.algebra.full(0, dim, "1", self.instance.size(dim), 1)
        k = self.integer(x.args[0], env)
        if not 1 <= k <= len(a.a):
            raise OutOfRange(f"there is no unit vector {k} over {dim}")
        a.a[k - 1, 0] = self.instance.arithmetic.number(1)
        return a

    def _constant(self, x: Formula, env: Env) -> Value:
        rows, cols, entries = x.attrs
        a = np.array([[self.instance.arithmetic.number(v) for v in r] for r in entries], dtype=object)
        return Value(rows, cols, a)

    def _inner(self, x: Formula, env: Env) -> Value:
        a, b = self._args(x, env)
        if a.shape != b.shape:
            raise ShapeFault(f"can't pair {a.shown} and {b.shown} in {x}")
        both = self.algebra.entrywise(a, b, x)
        return self.algebra.linear(both, lambda m: m.sum((-2, -1), keepdims=True), "1", "1")

    def _differences(self, x: Formula, env: Env) -> Value:
        """x[:, None] - y[None, :]."""
        a, b = self._args(x, env)
        if a.cols != "1" or b.cols != "1":
            raise ShapeFault(f"the difference of all pairs takes columns, got {a.shown} and {b.shown} in {x}")
        if a.log and b.log:
            below = self.algebra.reciprocal(self.algebra.transpose(Value(*b.shape, b.a, b.slope)))
            ratio = self.algebra.entrywise(Value(*a.shape, a.a, a.slope), below, x)
            return Value(*ratio.shape, ratio.a, ratio.slope, log=True)
        raise Transcendental("differences")

    def _beside(self, x: Formula, env: Env) -> Value:
        values = self._args(x, env)
        if len({v.rows for v in values}) > 1:
            raise ShapeFault(f"can't put {' and '.join(v.shown for v in values)} side by side in {x}")
        cols = "+".join(v.cols for v in values)
        return Value(values[0].rows, cols, np.concatenate([v.a for v in values], axis=1))

    # --- indexed

    def _sum(self, x: Formula, env: Env) -> Value:
        low, high, body = x.args
        (name,) = x.attrs
        if high.op == "infinity":
            return self._series(name, self.integer(low, env), body, env)
        first, last = self.span(low, high, x, env)
        if last < first:
            return self._empty_sum(x, env)
        terms, missing = [], None
        for i in range(first, last + 1):
            try:
                terms.append(self(body, {**env, name: i}))
            except OutOfRange as fault:
                missing = missing or (i, fault)
        if missing is not None:
            self.refuse(x, *missing, bool(terms))
        result = terms[0]
        for term in terms[1:]:
            result = self.algebra.plus(result, term, x)
        return result

    def refuse(self, x: Formula, at: int, fault: OutOfRange, others: bool) -> None:
        """A term of a sum or a product that has no value, where `others` have one: it is the index of the sum that is beyond."""
        if others and not isinstance(fault, Beyond):
            raise Beyond(f"{fault}, which {x} takes at {x.attrs[0]} = {at}", x) from None
        raise fault

    def _empty_sum(self, x: Formula, env: Env) -> Value:
        """Zero, in the shape of a term; where no term has a value, a sum over nothing has no shape and is undefined."""
        for i in range(1, 3):
            try:
                term = self(x.args[2], {**env, x.attrs[0]: i})
            except Undefined:
                continue
            return self.algebra.full(0, *term.shape, *term.a.shape)
        raise OutOfRange(f"the sum {x} is empty")

    def _series(self, name: str, first: int, body: Formula, env: Env) -> Value:
        if self.instance.arithmetic.kind != "real":
            raise Transcendental("an infinite series")
        result = self(body, {**env, name: first})
        for i in range(first + 1, first + SERIES_LIMIT):
            term = self(body, {**env, name: i})
            size = max(abs(v) for v in term.a.flat)
            result = self.algebra.plus(result, term, body)
            if size < CONTEXT.mpf(10) ** -45:
                return result
            if size > 10**30:
                break
        raise Undefined("the series diverges")

    def _product_over(self, x: Formula, env: Env) -> Value:
        low, high, body = x.args
        first, last = self.span(low, high, x, env)
        (name,) = x.attrs
        if last < first:
            return self._empty_product(x, env)
        key = (x.op, body, name, first, tuple(env.get(i) for i in self.free_in(body) if i != name))
        run = self.products.setdefault(key, [])
        for i in range(first + len(run), last + 1):
            try:
                factor = self(body, {**env, name: i})
            except OutOfRange as fault:
                self.refuse(x, i, fault, bool(run) or self.has_value(body, {**env, name: last}))
            run.append(self._multiplied(x, run[-1], factor) if run else factor)
        return run[last - first]

    _product_down = _hadamard_over = _product_over

    def has_value(self, x: Formula, env: Env) -> bool:
        try:
            self(x, env)
        except Undefined:
            return False
        return True

    def _multiplied(self, x: Formula, so_far: Value, factor: Value) -> Value:
        if x.op == "hadamard over":
            return self.algebra.entrywise(so_far, factor, x)
        pair = (factor, so_far) if x.op == "product down" else (so_far, factor)
        return self.algebra.times(*pair, x)

    def _empty_product(self, x: Formula, env: Env) -> Value:
        """1, in the shape of a factor: an identity for matrices; a number where no factor has a value."""
        for i in range(1, 3):
            try:
                factor = self(x.args[2], {**env, x.attrs[0]: i})
            except (Undefined, ShapeFault):
                continue
            if x.op == "hadamard over":
                return self.algebra.full(1, *factor.shape, *factor.a.shape)
            if not factor.is_scalar and factor.rows == factor.cols:
                return self.algebra.eye(factor.rows, len(factor.a))
        return self.algebra.scalar(self.instance.arithmetic.number(1))

    def _matrix(self, x: Formula, env: Env) -> Value:
        i, j, rows, cols = x.attrs
        size = self.instance.size(rows), self.instance.size(cols)
        entries = []
        for r in range(1, size[0] + 1):
            for c in range(1, size[1] + 1):
                entry = self(x.args[0], {**env, i: r, j: c})
                if not entry.is_scalar:
                    raise ShapeFault(f"an entry of a matrix must be a scalar, got {entry.shown} in {x}")
                entries.append(entry)
        return self._assembled(entries, rows, cols, size)

    def _stack(self, x: Formula, env: Env) -> Value:
        i, rows = x.attrs
        found = [self(x.args[0], {**env, i: r}) for r in range(1, self.instance.size(rows) + 1)]
        if any(v.rows != "1" for v in found):
            raise ShapeFault(f"a row must be 1 x m, got {found[0].shown} in {x}")
        return self._assembled(found, rows, found[0].cols, (len(found), found[0].a.shape[1]))

    def _assembled(self, parts: list[Value], rows: str, cols: str, size: tuple[int, int]) -> Value:
        a = np.concatenate([v.a.reshape(-1) for v in parts]).reshape(size)
        count = next((len(v.slope) for v in parts if v.slope is not None), 0)
        if not count:
            return Value(rows, cols, a)
        zero = self.instance.arithmetic.number(0)
        slopes = [
            np.full((count, v.a.size), zero, dtype=object) if v.slope is None else v.slope.reshape(count, -1)
            for v in parts
        ]
        return Value(rows, cols, a, np.concatenate(slopes, axis=1).reshape(count, *size))

    def _cases(self, x: Formula, env: Env) -> Value:
        for k, (condition, value) in enumerate(zip(x.args[::2], x.args[1::2])):
            if condition.op == "otherwise" or self.holds(condition, env):
                note(self.instance.taken, Branching(x), k)
                return self(value, env)
        raise Undefined(f"no case of {x} applies")

    def holds(self, condition: Formula, env: Env) -> bool:
        a, b = (self.integer(y, env) for y in condition.args)
        return {">=": a >= b, ">": a > b, "<=": a <= b, "<": a < b, "=": a == b}[condition.attrs[0]]

    # --- derivatives

    def _gradient(self, x: Formula, env: Env) -> Value:
        of, by, *holding = x.args
        held = frozenset((h.attrs[0], tuple(self.integer(a, env) for a in h.args)) for h in holding)
        if by.op != "at":
            return self._gradient_by_product(of, by, env)
        value, slope = self._varied(of, by, env, held)
        if not value.is_scalar:
            raise ShapeFault(f"a gradient is of a scalar, got {value.shown} in {of}")
        at = self(by, env)
        return Value(*at.shape, slope.reshape(at.a.shape))

    def _varied(
        self, of: Formula, by: Formula, env: Env, held: frozenset[Place] = frozenset()
    ) -> tuple[Value, np.ndarray]:
        index = tuple(self.integer(a, env) for a in by.args)
        if self.vary is not None:
            raise Undefined(f"a second derivative, of {of}")
        key = ("varied", by.attrs[0], index, held)
        inner = self.memo.get(key)
        if inner is None:
            inner = self.memo[key] = Evaluator(self.instance, (by.attrs[0], index), self, held)  # type: ignore[assignment]
        value = self.algebra.settled(inner(of, env))  # type: ignore[operator,misc]
        count = self(by, env).a.size
        zero = np.full((count, *value.a.shape), self.instance.arithmetic.number(0), dtype=object)
        return value, zero if value.slope is None else value.slope

    def _gradient_by_product(self, of: Formula, by: Formula, env: Env) -> Value:
        """The gradient by a linear expression such as K y: the g whose chain rule gives the gradient by y."""
        variable = by.args[-1]
        total = self(Formula("gradient", (of, variable)), env)
        at, slope = self._varied(by, variable, env)
        matrix = slope[:, :, 0]  # rows: entries of y, columns: entries of K y
        gram = self.algebra.reduce(matrix.T @ matrix)
        right = self.algebra.reduce(matrix.T @ total.a)
        found = solve(self.instance.arithmetic, gram, right)
        if not self.instance.arithmetic.equal(self.algebra.reduce(matrix @ found), total.a):
            raise Undefined(f"{of} is no function of {by}")
        return Value(*at.shape, found)

    def _jacobian(self, x: Formula, env: Env) -> Value:
        """`along` contracted with the derivative of `of` by `by`."""
        of, by, along = x.args
        target, weights = self(by, env), self(along, env)
        q = self.instance.setting.quantities
        if of.op == "at" and by.op == "at" and q[of.attrs[0]].kind == "spec":
            at, when = self.integer(of.args[0], env), self.integer(by.args[0], env)
            value = self(of, env)
            found = self.instance.response(q[of.attrs[0]], at, q[by.attrs[0]], when, weights.a)
        else:
            value, slope = self._varied(of, by, env)
            found = self.algebra.reduce((slope * weights.a).sum((1, 2))).reshape(target.a.shape)
        if value.shape != weights.shape:
            raise ShapeFault(f"can't pair {weights.shown} and {value.shown} in {x}")
        return Value(*target.shape, found)


def called(q: Quantity, index: tuple[int, ...]) -> str:
    return f"{q.name}({', '.join(map(str, index))})" if index else q.name


def open_names(x: Formula) -> Formula:
    """x with abbreviations replaced by what they stand for."""
    mapping = {y: y.args[0] for y in _named_nodes(x)}
    return open_names(substitute(x, mapping)) if mapping else x


def _named_nodes(x: Formula) -> list[Formula]:
    if x.op in ("named", "call"):
        return [x]
    return [y for a in x.args for y in _named_nodes(a)]
