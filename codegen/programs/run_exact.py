"""Run a graph, its adjoint graph and a program's own equations exactly: what the gates compare.

Solves are done by elimination, in whatever arithmetic it is; those whose gradient is that of an iteration, by the iteration.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np

from chunkform.spec.language.attention import Attention
from chunkform.spec.language.methods import neumann
from chunkform.spec.language.program import Program

from ..attention.lower import lower as lower_attention
from ..exact.run_spec import SpecStep
from ..ir.evaluate import Arithmetic, ArrayNumbers, Pair, V, each, stacked
from ..recurrence.gates.gates import run_adjoint
from ..recurrence.gates.run_steps import run_steps, stored
from ..recurrence.step.adjoint import gradient_name
from .adjoint_graph import AdjointGraph, AdjointNode
from .attending import PER_POSITION, AttentionOperation, attention_adjoint, defined_attention, run_attention
from .graph import Graph, Node, OpNode, SolveNode

Values = dict[str, Any]  # by the names of quantities; a leading time axis where they are of a step


# --- linear algebra ---------------------------------------------------------------------------------------------------


def at(a: V, *index: int) -> V:
    """One entry of an array, or of a pair of arrays."""
    return each(_paired(a), lambda x: _scalar(x[index]))


def _paired(x: V) -> V:
    """The tangent of a pair with the axes of its value."""
    if not isinstance(x, Pair):
        return x
    value = np.asarray(x.value, dtype=object)
    return cast(V, Pair(value, np.broadcast_to(np.asarray(x.tangent, dtype=object), value.shape)))


def _scalar(x: object) -> np.ndarray:
    out = np.empty((), dtype=object)
    out[()] = x.item() if isinstance(x, np.ndarray) else x
    return out


def stack(parts: list[V]) -> V:
    """Arrays, or pairs of them, along a new first axis."""
    if isinstance(parts[0], Pair):
        pairs = [_paired(x) for x in parts if isinstance(x, Pair)]
        return cast(V, Pair(np.stack([x.value for x in pairs]), np.stack([x.tangent for x in pairs])))
    return cast(V, stacked(cast("list[np.ndarray]", parts)))


def solve(matrix: V, right: V, m: Arithmetic[V]) -> V:
    """matrix^-1 right for one vector, by elimination without a search for pivots (a zero one raises ZeroDivisionError)."""
    n = len(_value(right))
    a = [[at(matrix, i, j) for j in range(n)] for i in range(n)]
    b = [at(right, i) for i in range(n)]
    minus = m.const(Fraction(-1))
    for k in range(n):
        inverse = m.pow(a[k][k], Fraction(-1))
        for i in range(k + 1, n):
            factor = m.mul(minus, m.mul(a[i][k], inverse))
            a[i] = [*a[i][: k + 1], *(m.add(a[i][j], m.mul(factor, a[k][j])) for j in range(k + 1, n))]
            b[i] = m.add(b[i], m.mul(factor, b[k]))
    x: dict[int, V] = {}
    for i in range(n - 1, -1, -1):
        total = b[i]
        for j in range(i + 1, n):
            total = m.add(total, m.mul(minus, m.mul(a[i][j], x[j])))
        x[i] = m.mul(total, m.pow(a[i][i], Fraction(-1)))
    return stack([x[i] for i in range(n)])


def inverse(matrix: V, m: Arithmetic[V]) -> V:
    """The inverse of a matrix; its columns by `solve`."""
    n = len(_value(matrix))
    one, zero = m.const(Fraction(1)), m.const(Fraction(0))
    columns = [solve(matrix, stack([one if i == j else zero for i in range(n)]), m) for j in range(n)]
    return stack([stack([at(columns[j], i) for j in range(n)]) for i in range(n)])


def times(matrix: V, x: V, m: Arithmetic[V]) -> V:
    """A matrix times a vector."""
    n = len(_value(x))
    rows = []
    for i in range(n):
        total = m.const(Fraction(0))
        for j in range(n):
            total = m.add(total, m.mul(at(matrix, i, j), at(x, j)))
        rows.append(total)
    return stack(rows)


def scaled(factor: V, x: V, m: Arithmetic[V]) -> V:
    return stack([m.mul(factor, at(x, i)) for i in range(len(_value(x)))])


def plus(a: V, b: V, m: Arithmetic[V]) -> V:
    return stack([m.add(at(a, i), at(b, i)) for i in range(len(_value(a)))])


def _value(x: V) -> np.ndarray:
    return x.value if isinstance(x, Pair) else cast(np.ndarray, x)


def iterates(matrix: V, right: V, step: V, method: neumann, m: Arithmetic[V]) -> list[V]:
    """x_0 .. x_k of the Neumann iteration."""
    zero = m.const(Fraction(0))
    found = [right if method.start == "right side" else stack([zero] * len(_value(right)))]
    minus = m.const(Fraction(-1))
    for _ in range(method.steps):
        residual = plus(right, scaled(minus, times(matrix, found[-1], m), m), m)
        found.append(plus(found[-1], scaled(step, residual, m), m))
    return found


# --- the graph --------------------------------------------------------------------------------------------------------


def run_graph(
    g: Graph, given: Values, initial: Values, m: Arithmetic[V], sizes: dict[str, int], steps: int
) -> tuple[Values, Values]:
    """(every quantity, last states), node by node."""
    values = dict(given)
    finals: Values = {}
    for n in g.nodes:
        if isinstance(n, OpNode):
            outputs, last = _run_op(n, values, initial, m, sizes, steps)
            values |= outputs
        else:
            matrices, last = matrices_of(n, values, initial, m, sizes, steps)
            xs = [_solved(n, matrices[t], _time(values[n.right], t), _step(n, values, t, m), m) for t in range(steps)]
            values[n.name] = stack(xs)
        finals |= {s: x for s, x in last.items() if g.finals[s] == n.name}
    return values, finals


def _step(n: SolveNode, values: Values, t: int, m: Arithmetic[V]) -> V:
    if isinstance(n.step, str):
        return _time(values[n.step], t)
    return m.const(Fraction(str(n.step)) if n.step is not None else Fraction(1))


def _solved(n: SolveNode, matrix: V, right: V, step: V, m: Arithmetic[V]) -> V:
    if n.unrolled:
        assert isinstance(n.method, neumann)
        return iterates(matrix, right, step, n.method, m)[-1]
    return solve(matrix, right, m)


def _time(x: V, t: int) -> V:
    return each(_paired(x), lambda a: np.asarray(a[t], dtype=object))


def own_sizes(n: Node, sizes: dict[str, int]) -> dict[str, int]:
    return {own: sizes[d] for own, d in n.dims.items()}


def _given(n: Node, values: Values) -> Values:
    return {own: values[q] for own, q in n.inputs.items()}


def _start(n: Node, initial: Values, m: Arithmetic[V]) -> Values:
    inverted = n.inverted if isinstance(n, OpNode) else frozenset()
    return {own: inverse(initial[s], m) if own in inverted else initial[s] for own, s in n.states.items()}


def _run_op(
    n: OpNode, values: Values, initial: Values, m: Arithmetic[V], sizes: dict[str, int], steps: int
) -> tuple[Values, Values]:
    if isinstance(n.op, AttentionOperation):
        found = run_attention(n.op, _given(n, values), m, own_sizes(n, sizes), steps)
        return {q: _whole(found[own]) for own, q in n.outputs.items()}, {}
    p = n.op.compiled.step
    outputs, last, _ = run_steps(p, _given(n, values), _start(n, initial, m), m, own_sizes(n, sizes), steps)
    made = {
        q: stack([_whole(stored(x, p.outputs[own].axes, p.output_axes[own])) for x in outputs[own]])
        for own, q in n.outputs.items()
    }
    return made, {s: inverse(last[own], m) if own in n.inverted else last[own] for own, s in n.states.items()}


def _whole(x: V) -> V:
    if isinstance(x, Pair):
        return cast(V, Pair(np.asarray(x.value, dtype=object), x.tangent))
    return cast(V, np.asarray(x, dtype=object))


def matrices_of(
    n: SolveNode, values: Values, initial: Values, m: Arithmetic[V], sizes: dict[str, int], steps: int
) -> tuple[list[V], Values]:
    """(the matrix of each step, last states): its columns are its products with unit vectors."""
    p = n.op.compiled.step
    vector = n.op.vector
    assert vector is not None
    own = own_sizes(n, sizes)
    d = own[p.variable(vector).axes[0].rstrip("'")]
    columns = []
    last: Values = {}
    for j in range(d):
        unit = _unit(d, j, steps, m)
        outputs, last, _ = run_steps(p, {**_given(n, values), vector: unit}, _start(n, initial, m), m, own, steps)
        columns.append(outputs[n.op.product])
    matrices = [stack([stack([at(columns[j][t], i) for j in range(d)]) for i in range(d)]) for t in range(steps)]
    return matrices, {s: last[name] for name, s in n.states.items()}


def _unit(d: int, j: int, steps: int, m: Arithmetic[V]) -> V:
    one, zero = m.const(Fraction(1)), m.const(Fraction(0))
    row = stack([one if i == j else zero for i in range(d)])
    return stack([row] * steps)


# --- the adjoint graph --------------------------------------------------------------------------------------------------


def run_adjoint_graph(
    a: AdjointGraph,
    given: Values,
    initial: Values,
    cotangents: Values,
    last: Values,
    m: ArrayNumbers,
    sizes: dict[str, int],
    steps: int,
) -> tuple[Values, Values]:
    """(gradients of quantities, those of initial states). `cotangents` by outputs, `last` by states; of a decay, that of its
    logarithm."""
    g = a.forward
    values, _ = run_graph(g, given, initial, m, sizes, steps)
    found: Values = {}
    starts: Values = {}

    def add(q: str, x: np.ndarray) -> None:
        found[q] = m.add(found[q], x) if q in found else x

    for name, q in g.outputs.items():
        add(q, cotangents[name])
    for n in a.nodes:
        incoming = {own: found.get(q) for own, q in n.takes.items()}
        lasts = {own: last[s] for own, s in n.of.states.items() if g.finals[s] == n.of.name}
        if isinstance(n.of, OpNode):
            inner, first = _op_adjoint(n.of, values, initial, incoming, lasts, m, sizes, steps)
        else:
            dx = incoming["x"] if incoming["x"] is not None else _zeros(np.shape(values[n.of.name]), m)
            inner, first = _solve_adjoint(n, values, initial, dx, lasts, m, sizes, steps)
        for own, q in n.gives.items():
            add(q, inner[own])
        for own, s in n.of.states.items():
            starts[s] = m.add(starts[s], first[own]) if s in starts else first[own]
    return found, starts


def _zeros(shape: tuple[int, ...], m: ArrayNumbers) -> np.ndarray:
    return np.broadcast_to(m.const(Fraction(0)), shape)


def _op_adjoint(
    n: Node, values: Values, initial: Values, incoming: Values, lasts: Values, m: ArrayNumbers, sizes: dict[str, int], steps: int,
    extra: Values | None = None,
) -> tuple[Values, Values]:  # fmt: skip
    if isinstance(n.op, AttentionOperation):
        return attention_adjoint(n.op, _given(n, values), incoming, m, own_sizes(n, sizes), steps), {}
    c = n.op.compiled
    own = own_sizes(n, sizes)
    p = c.step
    inverted = n.inverted if isinstance(n, OpNode) else frozenset()
    start = _start(n, initial, m)
    cotangents = {}
    for name, axes in p.output_axes.items():
        x = incoming.get(name)
        cotangents[f"d{name}"] = x if x is not None else _zeros((steps, *(own[b.rstrip("'")] for b in axes)), m)
    given = {**_given(n, values), **(extra or {})}
    lasts = {**lasts}
    if inverted:
        _, ends, _ = run_steps(p, given, start, m, own, steps)
    last = {}
    for s in p.states:
        x = lasts.get(s.name)
        x = x if x is not None else _zeros(tuple(own[b.rstrip("'")] for b in s.axes), m)
        if s.name in inverted:  # of the inverse P of H: dP = -H dH H
            x = _sandwich(inverse(ends[s.name], m), x, m)
        last[f"d{s.name}"] = x
    gradients, firsts = run_adjoint(c.adjoint, given, start, cotangents, last, m, own, steps)
    out: Values = {}
    for v in p.variables:
        if v.kind == "constant":
            continue
        name = gradient_name(v)
        parts = [
            stored(np.asarray(x, dtype=object), c.adjoint.program.outputs[name].axes, v.axes) for x in gradients[name]
        ]
        whole = np.stack(parts)
        if not v.per_step:
            total = parts[0]
            for x in parts[1:]:
                total = m.add(total, x)
            whole = total
        out[v.name] = whole
    first = {}
    for s in p.states:
        x = firsts[f"d{s.name}"]
        first[s.name] = _sandwich(start[s.name], x, m) if s.name in inverted else x  # dH = -P dP P
    return out, first


def _sandwich(matrix: np.ndarray, x: np.ndarray, m: ArrayNumbers) -> np.ndarray:
    """-M^T X M^T."""
    t = np.asarray(matrix, dtype=object).T
    minus = m.const(Fraction(-1))
    first = m.sum(m.mul(t[:, :, None], np.asarray(x, dtype=object)[None, :, :]), 1)
    return m.mul(minus, m.sum(m.mul(first[:, :, None], t[None, :, :]), 1))


def _solve_adjoint(
    n: AdjointNode,
    values: Values,
    initial: Values,
    dx: np.ndarray,
    lasts: Values,
    m: ArrayNumbers,
    sizes: dict[str, int],
    steps: int,
) -> tuple[Values, Values]:
    node = n.of
    assert isinstance(node, SolveNode) and node.op.vector is not None
    matrices, _ = matrices_of(node, values, initial, m, sizes, steps)
    sign = m.const(Fraction(n.sign))
    if not node.unrolled:
        w = stack([solve(matrices[t], _time(dx, t), m) for t in range(steps)])
        inner, first = _op_adjoint(
            node,
            values,
            initial,
            {node.op.product: m.mul(sign, w)},
            lasts,
            m,
            sizes,
            steps,
            {node.op.vector: values[node.name]},
        )
        return inner | {"right side": w}, first
    assert isinstance(node.method, neumann)
    etas = [_step(node, values, t, m) for t in range(steps)]
    paths = [iterates(matrices[t], _time(values[node.right], t), etas[t], node.method, m) for t in range(steps)]
    right: Any = None
    deta: Any = None
    total: Values = {}
    starts: Values = {}
    for i in range(node.method.steps, 0, -1):
        weighted = stack([scaled(etas[t], _time(dx, t), m) for t in range(steps)])
        before = stack([paths[t][i - 1] for t in range(steps)])
        inner, start = _op_adjoint(
            node, values, initial, {node.op.product: m.mul(sign, weighted)}, lasts if i == 1 else {}, m, sizes, steps,
            {node.op.vector: before},
        )  # fmt: skip
        total = {k: m.add(total[k], x) if k in total else x for k, x in inner.items()}
        starts = {k: m.add(starts[k], x) if k in starts else x for k, x in start.items()}
        right = weighted if right is None else m.add(right, weighted)
        change = []
        for t in range(steps):
            rest = plus(
                _time(values[node.right], t),
                scaled(m.const(Fraction(-1)), times(matrices[t], paths[t][i - 1], m), m),
                m,
            )
            change.append(_inner(_time(dx, t), rest, m))
        deta = stack(change) if deta is None else m.add(deta, stack(change))
        dx = stack(
            [plus(_time(dx, t), scaled(sign, times(matrices[t], _time(weighted, t), m), m), m) for t in range(steps)]
        )
    if node.method.start == "right side":
        right = m.add(right, dx)
    return total | {"right side": right, "step": deta}, starts


def _inner(a: V, b: V, m: Arithmetic[V]) -> V:
    total = m.const(Fraction(0))
    for i in range(len(_value(a))):
        total = m.add(total, m.mul(at(a, i), at(b, i)))
    return total


# --- the program's own equations ------------------------------------------------------------------------------------------


def run_program(
    p: Program, given: Values, initial: Values, m: ArrayNumbers, sizes: dict[str, int], steps: int
) -> tuple[Values, Values]:
    """(outputs of each step, last states), step by step, from the terms that the user wrote. No recurrence may be applied."""
    r = p.step
    stepwise = {v.name for v in r.variables if v.kind in ("input", "decay")}
    states = dict(initial)
    outputs: dict[str, list[Any]] = {x.name: [] for x in r.outputs}
    seen: list[list[Values]] = [[] for _ in p.applied]
    for t in range(steps):
        now = {n: v[t] if n in stepwise else v for n, v in given.items()}
        step = _ProgramStep(p, now, states, m, sizes, seen)
        for a in range(len(p.applied)):  # what they see of this step, also where no output needs it
            step.attend(a)
        for x in r.outputs:
            outputs[x.name].append(step.flat(step.equation(x)))
        states = {
            x.name: step.shaped(step.equation(x), next(s.dims for s in r.states if s.name == x.name)) for x in r.updates
        }
    return {n: np.stack(x) for n, x in outputs.items()}, states


def _column(x: np.ndarray, axes: int) -> np.ndarray:
    """A vector or number without axes of length 1 that it has as a matrix."""
    return x.reshape(-1) if axes == 1 else x.reshape(()) if axes == 0 else x


class _ProgramStep(SpecStep):
    """One step of a program: what is solved for is found when it is asked for."""

    def __init__(
        self,
        p: Program,
        given: Values,
        states: Values,
        m: ArrayNumbers,
        sizes: dict[str, int],
        seen: list[list[Values]],
    ) -> None:
        super().__init__(p.step, given, states, m, sizes)
        self.solves = {s.name: s for s in p.solves}
        self.applied, self.seen = p.applied, seen
        self.made = {q: k for k, a in enumerate(p.applied) for q in a.outputs.values()}

    def attend(self, k: int) -> None:
        """The outputs of an applied attention, over what it has seen of the steps up to this one."""
        a = self.applied[k]
        if all(q in self.given for q in a.outputs.values()):
            return
        assert isinstance(a.op, Attention)
        values = {own: np.asarray(self.named(q), dtype=object) for own, q in a.inputs.items()}
        kinds = {v.name: v.kind for v in a.op.variables}
        values = {
            own: _column(x, len(v.dims)) for v in a.op.variables if (own := v.name) in values for x in (values[own],)
        }
        self.seen[k].append(values)
        steps = len(self.seen[k])
        given = {
            own: np.stack([x[own] for x in self.seen[k]]) if kinds[own] in PER_POSITION else x
            for own, x in values.items()
        }
        sizes = {
            d.name: np.shape(values[v.name])[i]
            for v in a.op.variables
            if v.name in values
            for i, d in enumerate(v.dims)
        }
        found = defined_attention(lower_attention(a.op), given, dict(a.numbers), self.m, sizes, steps)
        for own, q in a.outputs.items():
            self.given[q] = np.asarray(found[own], dtype=object)[-1]

    def named(self, name: str) -> np.ndarray:
        if name in self.made:
            self.attend(self.made[name])
            return np.asarray(self.given[name], dtype=object)
        if name not in self.solves:
            return super().named(name)
        if name not in self.given:
            s = self.solves[name]
            matrix, right = self.term(s.matrix), self.term(s.right).reshape(-1)
            if isinstance(s.method, neumann) and s.method.backward == "unrolled":
                eta = (
                    _scalar(np.asarray(self.scalar(s.step, {}), dtype=object))
                    if s.step is not None
                    else self.m.const(Fraction(1))
                )
                self.given[name] = iterates(matrix, right, eta, s.method, self.m)[-1]
            else:
                self.given[name] = solve(matrix, right, self.m)
        return np.asarray(self.given[name], dtype=object)
