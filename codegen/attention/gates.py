"""The gates: after each pass, both sides of it at random points, as for recurrences (see `random_points.py`).

The other side never shares code with what is checked: terms are evaluated as the user wrote them (`run_spec.py`), and derivatives
by dual numbers over the definition, which knows nothing of features.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import mpmath
import numpy as np
import sympy

from chunkform.errors import GateError, SpecError
from chunkform.spec.language import Matrix

from ..exact.random_points import Compared, GateResult, Point, compare
from ..exact.run_spec import SpecStep
from ..ir.evaluate import (
    Arithmetic,
    ArrayNumbers,
    Dual,
    Env,
    Pair,
    RandomNumbers,
    Reals,
    V,
    aligned,
    base_of,
    each,
    evaluate,
)
from ..ir.expr import Node, dim_of, leaf, leaves, replace, walk
from ..ir.step_program import StepProgram, Var
from .feature_maps import AVERAGED, Map, incoming
from .lower import KEY, QUERY, Lowered
from .operations import frequency_values, turned

if TYPE_CHECKING:
    from .compiled import CompiledAttention
    from .split import Split

QUERIES, KEYS = 3, 4  # how many of each a gate looks at; the last query stands at the last key


def gate_lower(p: Lowered) -> GateResult:
    """The nodes mean what the terms say, pair by pair."""

    def check(point: Point) -> Compared:
        m, given, sizes = setting(p, point)
        a = p.spec
        energy = _over_pairs(m, p, evaluate(p.energy, environment(p, given, m), m, sizes), p.energy.axes, sizes)
        for i in range(queries(p, sizes)):
            for j in range(KEYS):
                terms = _Terms(p, given, m, sizes, i, j)
                expected = m.mul(terms.number(a.beta), terms.number(a.energy.term))  # type: ignore[union-attr]
                yield f"the energy of the pair ({i}, {j})", energy[i, j], np.asarray(expected, dtype=object).item()

    return compared("lower", "nodes over pairs mean what the terms say", p, check)


def gate_split(s: Split) -> GateResult:
    """Features, put together in the tile, give the energy and what is averaged."""
    p = s.lowered

    def check(point: Point) -> Compared:
        m, given, sizes = setting(p, point)
        env = environment(p, given, m)
        expected = _over_pairs(m, p, evaluate(p.energy, env, m, sizes), p.energy.axes, sizes)
        features = feature_values(s, env, m, sizes)
        tile = _over_pairs(m, p, evaluate(s.tile, features, m, sizes), s.tile.axes, sizes)
        row = m.add(evaluate(s.row, env, m, sizes), m.const(Fraction(0)))
        row = np.broadcast_to(np.asarray(row, dtype=object), (queries(p, sizes),))
        yield "the energy", m.add(tile, row[:, None]), expected
        weight = drawn(m, point.rng, s.pair, sizes)
        for name, node in p.averages.items():
            axes = (p.query, KEY, *p.average_axes[name])
            whole = _spread(evaluate(node, env, m, sizes), node.axes, axes, sizes)
            w = weight.reshape(*weight.shape, *(1 for _ in axes[2:]))
            mean = m.sum(m.mul(whole, np.broadcast_to(w, whole.shape)), 1)
            got = _average(s, name, weight, env, m, sizes)
            yield f"the average of {name}", got, mean

    return compared("split", "features put together give the energy, and what is averaged", p, check)


def gate_gradients(c: CompiledAttention) -> GateResult:
    """<F'x, y> = <x, F'^T y>, with F' by dual numbers over the definition, and F'^T by the derived passes."""
    p = c.lowered

    def check(point: Point) -> Compared:
        m, given, sizes = setting(p, point)
        rng = point.rng
        outputs = {n: drawn(m, rng, x, sizes) for n, x in p.output_axes.items()}
        dlse = drawn(m, rng, (p.query,), sizes) if c.spec.normaliser == "softmax" else None
        values, gradients = run_derived(c, given, outputs, dlse, m, sizes)
        for name, value in run_definition(p, given, m, sizes).items():
            yield f"{name}", values[name], value
        for v in p.variables:
            if v.kind == "constant":
                continue
            tangent = m.random(rng, np.shape(given[v.name]))
            still = m.const(Fraction(0))
            moved = {n: Pair(x, tangent if n == v.name else m.mul(x, still)) for n, x in given.items()}
            change = run_definition(p, moved, _Dual(m), sizes)
            expected = m.const(Fraction(0))
            for n, y in outputs.items():
                expected = m.add(expected, _inner(m, change[n].tangent, y))
            if dlse is not None:
                expected = m.add(expected, _inner(m, change["lse"].tangent, dlse))
            yield f"the gradient of {v.name}", _inner(m, gradients[v.name], tangent), np.asarray(expected, dtype=object)

    return compared("gradients", "<F'x, y> = <x, F'^T y>, with F'x by dual numbers", p, check)


def compared(name: str, what: str, p: Lowered, check: Callable[[Point], Compared]) -> GateResult:
    """`compare`, where infinities of one sign are equal, as an energy of -inf masks a pair."""
    problems: list[Exception] = []

    def finite(point: Point) -> Compared:
        problems.clear()
        try:
            for quantity, got, expected in check(point):
                if isinstance(point.arithmetic, Reals):
                    got, expected = without_infinities(got, expected)
                yield quantity, got, expected
        except (ZeroDivisionError, ValueError, TypeError) as problem:
            problems.append(problem)
            raise

    try:
        return compare(name, what, program(p), finite)
    except GateError as error:
        if not problems:
            raise
        kind = {ZeroDivisionError: "a quotient by 0", TypeError: "what isn't real"}.get(type(problems[0]), problems[0])
        raise SpecError(
            f"{p.name} has no value at any of the points that were tried ({kind}): a term divides by 0, or takes a root or the "
            "logarithm of what isn't positive",
            p.spec.energy.where,  # type: ignore[union-attr]
        ) from error


def without_infinities(got: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with 0 where they are the same infinity. What is no number has no value."""
    got, expected = np.array(got, dtype=object), np.array(expected, dtype=object)
    if any(x != x for x in (*got.flat, *expected.flat)):
        raise ValueError("inf - inf, or 0 times it")
    if got.shape == expected.shape:
        same = np.array([mpmath.isinf(x) and x == y for x, y in zip(got.flat, expected.flat, strict=True)], dtype=bool)
        got, expected = (np.where(same.reshape(x.shape), mpmath.mpf(0), x) for x in (got, expected))
    return got, expected


# --- the definition, over dual numbers too ----------------------------------------------------------------------------


def run_definition(
    p: Lowered, given: dict[str, V], m: Arithmetic[V], sizes: dict[str, int], causal: bool = False
) -> dict[str, V]:
    """Outputs, and the log-sum-exp, from all pairs at once; `causal`: of keys up to a query's own position."""
    env = environment(p, given, m, sizes.get(QUERY, QUERIES), sizes[KEY])
    pair = (p.query, KEY)
    zero = m.const(Fraction(0))
    node = still(p.energy, env, m, sizes) if isinstance(m, Dual) else p.energy
    energy = each(m.add(evaluate(node, env, m, sizes), zero), lambda a: _spread(a, node.axes, pair, sizes))
    kind = p.spec.normaliser
    weights = energy if kind == "linear" else m.fn("exp", energy)
    if causal:
        weights = m.mul(weights, _seen(m, sizes))
    mass = m.sum(weights, -1)
    results: dict[str, V] = {}
    if kind == "softmax":
        results["lse"] = m.fn("log", mass)
        inverse = each(m.pow(mass, Fraction(-1)), lambda a: np.asarray(a)[..., None])
        weights = m.mul(weights, inverse)
    for name, node in p.averages.items():
        axes = (*p.average_axes[name], *pair)
        value = each(
            m.add(evaluate(node, env, m, sizes), zero),
            partial(_spread, own=node.axes, axes=axes, sizes=sizes),
        )
        mean = m.sum(m.mul(weights, value), -1)  # own axes first, then the query's
        env["average", name] = each(mean, lambda a: np.moveaxis(a, -1, 0) if np.ndim(a) else a)
    for name, node in p.outputs.items():
        axes = p.output_axes[name]
        value = m.add(evaluate(node, env, m, sizes), zero)
        results[name] = each(value, partial(_spread, own=node.axes, axes=axes, sizes=sizes))
    return results


class _Dual(Dual):
    """`Dual` at the edge of where a power is defined: the derivative of x^(3/2) is 0 where x is."""

    base: ArrayNumbers

    def pow(self, a: Pair, n: Fraction) -> Pair:
        if n < 1 or n.denominator == 1 or self.base.exact:
            return super().pow(a, n)
        slope = self.base.mul(self.base.const(n), self.base.pow(a.value, n - 1))
        return Pair(self.base.pow(a.value, n), self.base.mul(slope, a.tangent))


def still(node: Node, env: Env, m: Dual, sizes: dict[str, int]) -> Node:
    """The node with functions of positions and constants as values of their own, in `env`: they have no derivative, where that
    of a root or a logarithm would be infinite at 0."""
    kinds = ("position", "constant")
    plain = {key: x.value for key, x in env.items() if key[0] in kinds}
    made = {}
    for y in walk(node):
        if y.op in ("fn", "pow") and all(x.attrs[0] in kinds for x in leaves(y)):
            made[y] = leaf("still", y.key, y.axes)
            env["still", y.key] = Pair(evaluate(y, plain, m.base, sizes), m.zero)
    return replace(node, made)


# --- the derived passes -----------------------------------------------------------------------------------------------


def run_derived(
    c: CompiledAttention,
    given: dict[str, np.ndarray],
    cotangents: dict[str, np.ndarray],
    dlse: np.ndarray | None,
    m: RandomNumbers,
    sizes: dict[str, int],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(outputs and log-sum-exp, gradients), through features, tile, normaliser and maps, as the op computes them."""
    p, s = c.lowered, c.split
    env = environment(p, given, m)
    features = feature_values(s, env, m, sizes)
    energy = _over_pairs(m, p, evaluate(s.tile, features, m, sizes), s.tile.axes, sizes)
    values: dict[str, np.ndarray] = {}
    inner: Env = {("pair", "energy"): energy}
    if c.normaliser.shifted:
        lse = m.fn("log", m.sum(m.fn("exp", energy), 1))
        inner["pair", "lse"] = lse
        row = _spread(evaluate(s.row, env, m, sizes), s.row.axes, (p.query,), sizes)
        values["lse"] = m.add(lse, row)
    weight = _over_pairs(m, p, evaluate(c.normaliser.weight, inner, m, sizes), c.normaliser.weight.axes, sizes)
    mass = m.sum(weight, 1)
    averaged = {n: _averaged(weight, node, axes, env, m, sizes) for n, (node, axes) in s.values.items()}
    post = env | {(AVERAGED, n): x for n, x in averaged.items()} | {("mass", "mass"): mass}
    for n, node in c.outputs.results.items():
        values[n] = _stored(m, node, c.outputs.axes[n], post, sizes)
    # backwards
    post |= {("cotangent", f"d{n}"): y for n, y in cotangents.items()}
    gradients = {n: _stored(m, g, _axes(c.outputs, n), post, sizes) for n, g in c.outputs.gradients.items()}
    zero = m.const(Fraction(0))
    G: np.ndarray = m.mul(weight, zero)
    D: np.ndarray = m.mul(mass, zero)
    for n, (node, axes) in s.values.items():
        if n not in gradients:
            continue
        d = gradients[n].reshape(gradients[n].shape[0], -1)
        value = _spread(evaluate(node, env, m, sizes), node.axes, (KEY, *axes), sizes).reshape(KEYS, -1)
        G = m.add(G, m.sum(m.mul(d[:, None, :], value[None, :, :]), 2))
        if c.normaliser.shifted:
            D = m.add(D, m.sum(m.mul(d, averaged[n].reshape(d.shape)), 1))
        features["cotangent", f"d{n}"] = m.sum(m.mul(weight[:, :, None], d[:, None, :]), 0).reshape(
            KEYS, *averaged[n].shape[1:]
        )
    if c.normaliser.shifted:
        assert dlse is not None
        D = m.add(D, m.mul(dlse, m.const(Fraction(-1))))
        features["cotangent", "drow"] = dlse
    elif "mass" in gradients:
        D = m.mul(gradients["mass"], m.const(Fraction(-1)))
    inner = {("pair", "weight"): weight, ("pair", "G"): G, ("pair", "D"): D}
    dE = evaluate(c.normaliser.gradient, inner, m, sizes)
    features["gradient", "dE"] = _over_pairs(m, p, dE, c.normaliser.gradient.axes, sizes)
    _tile_cotangents(c, features, env, m, sizes)
    env |= {key: x for key, x in features.items() if key[0] == "cotangent"}
    for name in c.features.results:
        if ("cotangent", f"d{name}") not in env:
            env["cotangent", f"d{name}"] = m.mul(point_zero(c, name, m, sizes), zero)
    for n, g in c.features.gradients.items():
        more = _stored(m, g, _axes(c.features, n), env, sizes)
        gradients[n] = m.add(gradients[n], more) if n in gradients else more
    for v in p.variables:
        gradients.setdefault(v.name, m.mul(given[v.name], zero))
    return values, gradients


def point_zero(c: CompiledAttention, name: str, m: RandomNumbers, sizes: dict[str, int]) -> np.ndarray:
    shape = tuple(sizes[dim_of(a)] for a in c.features.axes[name])
    return np.broadcast_to(np.asarray(m.const(Fraction(0)), dtype=object), shape)


def _tile_cotangents(c: CompiledAttention, features: Env, env: Env, m: RandomNumbers, sizes: dict[str, int]) -> None:
    """From dE of each pair to the cotangent of each feature."""
    s, p = c.split, c.lowered
    for x, derivative in c.derivatives.items():
        kind, name, _ = x.attrs
        g = m.mul(
            _over_pairs(m, p, evaluate(derivative.inner, features, m, sizes), derivative.inner.axes, sizes),
            evaluate(derivative.factor, features, m, sizes),
        )
        if kind == "score":
            n = s.numbered[name].n
            for k, part in enumerate(s.scores[name], 1):
                q, key = (
                    _spread(evaluate(f, env, m, sizes), f.axes, (axis, *part.axes), sizes)
                    for f, axis in ((part.query, p.query), (part.key, KEY))
                )
                wide = g.reshape(*g.shape, *(1 for _ in part.axes))
                features["cotangent", f"dquery{n}_{k}"] = m.sum(m.mul(wide, key[None]), 1)
                features["cotangent", f"dkey{n}_{k}"] = m.sum(m.mul(wide, q[:, None]), 0)
        else:
            for axis in {"row": (1,), "column": (0,), "scalar": (1, 0)}[kind]:
                g = m.sum(g, axis)
            features["cotangent", f"d{name}"] = g


# --- values -----------------------------------------------------------------------------------------------------------


def setting(p: Lowered, point: Point) -> tuple[RandomNumbers, dict[str, np.ndarray], dict[str, int]]:
    """Random values for all that an attention is given, and the sizes; dims that are turned by halves are even."""
    m, sizes = point.arithmetic, dict(point.sizes)
    if p.query == QUERY:
        sizes[QUERY] = QUERIES
    sizes[KEY] = KEYS
    for x in walk(p.energy, *p.averages.values(), *p.outputs.values()):
        if x.op == "half_turn":  # of an even dim
            axis = dim_of(x.attrs[0][0])
            sizes[axis] = 2 * point.sizes[axis]
    given = {}
    for v in p.variables:
        given[v.name] = m.random(_rng(point, v.name), tuple(sizes[dim_of(a)] for a in v.axes))
    return m, given, sizes


def drawn(m: RandomNumbers, rng: random.Random, axes: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    return m.random(rng, tuple(sizes[dim_of(a)] for a in axes))


def _rng(point: Point, name: str) -> random.Random:
    """Both sides of a stream are the same values at the same positions in no gate: each variable has its own."""
    return random.Random(f"{point.seed}/{point.attempt}/{name}")


def environment(p: Lowered, given: dict[str, V], m: Arithmetic[V], queries: int = QUERIES, keys: int = KEYS) -> Env:
    env: Env = {(v.kind, v.name): given[v.name] for v in p.variables}
    env["position", "i"] = _positions(m, keys - queries, queries)
    env["position", "j"] = _positions(m, 0, keys)
    return env


def _seen(m: Arithmetic[V], sizes: dict[str, int]) -> V:
    """1 where a query sees a key, 0 elsewhere."""
    base, late = base_of(m), sizes[KEY] - sizes[QUERY]
    zero, one = (np.asarray(base.const(Fraction(n)), dtype=object).item() for n in (0, 1))
    rows = [[one if j <= i + late else zero for j in range(sizes[KEY])] for i in range(sizes[QUERY])]
    seen = np.array(rows, dtype=object)
    return cast(V, Pair(seen, m.zero) if isinstance(m, Dual) else seen)


def _positions(m: Arithmetic[V], first: int, count: int) -> V:
    base = base_of(m)
    values = np.array(
        [np.asarray(base.const(Fraction(first + n)), dtype=object).item() for n in range(count)] + [None], dtype=object
    )[:-1]
    return cast(V, Pair(values, m.zero) if isinstance(m, Dual) else values)


def queries(p: Lowered, sizes: dict[str, int]) -> int:
    return sizes[p.query]


def feature_values(s: Split, env: Env, m: RandomNumbers, sizes: dict[str, int]) -> Env:
    """The leaves of the tile, from features."""
    p = s.lowered
    out: Env = {key: x for key, x in env.items() if key[0] == "position"}
    for name, blocks in s.scores.items():
        whole = None
        for part in blocks:
            q = _spread(evaluate(part.query, env, m, sizes), part.query.axes, (p.query, *part.axes), sizes)
            k = _spread(evaluate(part.key, env, m, sizes), part.key.axes, (KEY, *part.axes), sizes)
            q, k = q.reshape(q.shape[0], -1), k.reshape(k.shape[0], -1)
            here = m.sum(m.mul(q[:, None, :], k[None, :, :]), 2)
            whole = here if whole is None else m.add(whole, here)
        out["score", name] = whole
    for kind, table in (("row", s.rows), ("column", s.columns), ("scalar", s.scalars)):
        for name, node in table.items():
            out[kind, name] = evaluate(node, env, m, sizes)
    return out


def _average(s: Split, name: str, weight: np.ndarray, env: Env, m: RandomNumbers, sizes: dict[str, int]) -> np.ndarray:
    """The average by the split: over features, put together afterwards."""
    p = s.lowered
    own = dict(env)
    for n, (node, axes) in s.values.items():
        own[AVERAGED, n] = _averaged(weight, node, axes, env, m, sizes)
    own["mass", "mass"] = m.sum(weight, 1)
    node = s.averages[name]
    axes = (p.query, *p.average_axes[name])
    return _stored(m, node, axes, own, sizes)


def _averaged(
    weight: np.ndarray, node: Node, axes: tuple[str, ...], env: Env, m: RandomNumbers, sizes: dict[str, int]
) -> np.ndarray:
    value = _spread(evaluate(node, env, m, sizes), node.axes, (KEY, *axes), sizes)
    flat = value.reshape(KEYS, -1)
    mean = m.sum(m.mul(weight[:, :, None], flat[None]), 1)
    return mean.reshape(weight.shape[0], *value.shape[1:])


def program(p: Lowered) -> StepProgram:
    """What points are drawn for: the sizes of dims, and whether functions matter."""
    outputs = {"energy": p.energy, **p.averages, **p.outputs}
    if p.spec.normaliser == "softmax":
        from ..ir.expr import fn

        outputs["weight"] = fn("exp", p.energy)
    return StepProgram(p.name, p.dims, p.variables, (), {}, outputs)


def _axes(made: Map, name: str) -> tuple[str, ...]:
    v: Var = next(v for v in made.variables if v.name == name)
    return v.axes


def _stored(m: RandomNumbers, node: Node, axes: tuple[str, ...], env: Env, sizes: dict[str, int]) -> np.ndarray:
    return _spread(evaluate(node, env, m, sizes), node.axes, axes, sizes)


def _spread(value: np.ndarray, own: tuple[str, ...], axes: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    """A value over `own` axes (sorted), repeated and permuted to be over `axes`."""
    order = tuple(sorted(axes))
    value = aligned(np.asarray(value, dtype=object), own, order)
    if np.ndim(value) < len(order):  # a zero without axes
        value = np.asarray(value, dtype=object)
    value = np.broadcast_to(value, tuple(sizes[dim_of(a)] for a in order))
    return value.transpose([order.index(a) for a in axes])


def _over_pairs(
    m: RandomNumbers, p: Lowered, value: np.ndarray, own: tuple[str, ...], sizes: dict[str, int]
) -> np.ndarray:
    return _spread(value, own, (p.query, KEY), sizes)


def _inner(m: RandomNumbers, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    shape = np.broadcast_shapes(a.shape, b.shape)
    total = np.asarray(m.mul(np.broadcast_to(a, shape), np.broadcast_to(b, shape)), dtype=object).reshape(-1)
    return m.sum(total, 0) if total.size else m.const(Fraction(0))


class _Terms(SpecStep):
    """The terms of one pair, as the user wrote them."""

    def __init__(
        self, p: Lowered, given: dict[str, np.ndarray], m: RandomNumbers, sizes: dict[str, int], i: int, j: int
    ) -> None:
        here = {}
        for v in p.variables:
            at = {"query": i, "fixed": i, "key": j}.get(v.kind)
            here[v.name] = given[v.name] if at is None else given[v.name][at]
        here["i"] = _positions(m, KEYS - QUERIES + i, 1)[0]
        here["j"] = _positions(m, j, 1)[0]
        here |= {d: np.asarray(m.const(Fraction(sizes[d])), dtype=object) for d in p.dims if d not in here}
        super().__init__(SimpleNamespace(lets=[], updates=[]), here, {}, m, sizes)  # type: ignore[arg-type]

    def number(self, x: sympy.Expr) -> np.ndarray:
        return self.scalar(x, {})

    def matrix(self, x: Matrix) -> np.ndarray:
        match x.op:
            case "half_turn":
                return turned(np.array(self.term(x.args[0])), 0, self.m)
            case "frequencies":
                base = Fraction(int(x.args[0].p), int(x.args[0].q))
                return frequency_values(self.size(x.rows), base, self.m).reshape(-1, 1)
        return super().matrix(x)


__all__ = ["gate_gradients", "gate_lower", "gate_split", "incoming", "leaf", "run_definition"]
