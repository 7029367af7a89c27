"""The gates of programs: the graph computes what the equations say, and its adjoint graph yields its gradients."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ..exact.random_points import Compared, GateResult, Point, compare
from ..ir.evaluate import Dual, Pair
from ..ir.step_program import DECAYS, StepProgram
from ..recurrence.gates.run_steps import inner
from .adjoint_graph import AdjointGraph
from .graph import Graph
from .run_exact import Values, run_adjoint_graph, run_graph, run_program
from .states import solved_states

STEPS = 3


def gate_graph(g: Graph) -> GateResult:
    """The ops of the graph, one after the other, compute what the program says of each step."""

    def check(point: Point) -> Compared:
        m, sizes = point.arithmetic, point.sizes
        given, initial = _random(g, point)
        expected, finals = run_program(g.program, given, initial, m, sizes, point.steps)
        values, states = run_graph(g, given, initial, m, sizes, point.steps)
        for name, q in g.outputs.items():
            yield f"the output {name}", values[q], np.reshape(expected[name], np.shape(values[q]))
        for name, value in finals.items():
            yield f"the last state {name}", states[name], value

    return compare("partition", "the graph of ops computes what the program says", _whole(g), check, steps=STEPS)


def gate_adjoint_graph(a: AdjointGraph) -> GateResult:
    """<F' x, y> = <x, F'^T y> for the whole program, the left side by dual numbers through its graph."""
    g = a.forward

    def check(point: Point) -> Compared:
        m, sizes, steps = point.arithmetic, point.sizes, point.steps
        given, initial = _random(g, point)
        rng = point.rng
        tangents = {n: m.random(rng, np.shape(x)) for n, x in {**given, **initial}.items() if n not in _constants(g)}
        values, finals = run_graph(g, given, initial, m, sizes, steps)
        cotangents = {n: m.random(rng, np.shape(values[q])) for n, q in g.outputs.items()}
        last = {s: m.random(rng, np.shape(x)) for s, x in finals.items()}
        found, starts = run_adjoint_graph(a, given, initial, cotangents, last, m, sizes, steps)
        parts: dict[str, Any] = {}
        for v in g.program.step.variables:
            if v.name not in tangents:
                continue
            if v.name not in found:  # without a gradient it should have no influence
                parts[v.name] = m.const(Fraction(0))
                continue
            tangent = tangents[v.name]
            if v.kind in DECAYS:  # the gradient is that of its logarithm
                tangent = m.mul(tangent, m.pow(given[v.name], Fraction(-1)))
            parts[v.name] = inner(found[v.name], tangent, m)
        parts |= {s: inner(starts[s], tangents[s], m) if s in starts else m.const(Fraction(0)) for s in g.finals}

        def forward(names: set[str]) -> Any:
            return _directional(g, given, initial, {n: tangents[n] for n in names}, cotangents, last, point)

        whole = m.const(Fraction(0))
        for part in parts.values():
            whole = m.add(whole, part)
        change = forward(set(parts))
        if not m.equal(whole, change):  # name the gradient that is wrong
            for name, part in parts.items():
                yield f"the gradient of {name}", part, forward({name})
        yield "the sum of all gradients", whole, change

    return compare(
        "adjoint graph",
        "<F'x, y> = <x, F'^T y> for the whole program, with F'x by dual numbers",
        _whole(g),
        check,
        steps=STEPS,
    )


def _directional(
    g: Graph, given: Values, initial: Values, tangents: Values, cotangents: Values, last: Values, point: Point
) -> Any:
    base = point.arithmetic
    dual = Dual(base)

    def pair(name: str, value: Any) -> Pair:
        return Pair(value, tangents[name] if name in tangents else base.mul(value, dual.zero))

    values, finals = run_graph(
        g,
        {n: pair(n, x) for n, x in given.items()},
        {n: pair(n, x) for n, x in initial.items()},
        dual,
        point.sizes,
        point.steps,
    )
    change = dual.zero
    for name, q in g.outputs.items():
        change = base.add(change, inner(values[q].tangent, cotangents[name], base))
    for s, x in finals.items():
        change = base.add(change, inner(np.broadcast_to(x.tangent, np.shape(x.value)), last[s], base))
    return change


def _random(g: Graph, point: Point) -> tuple[Values, Values]:
    rng, m, steps = point.rng, point.arithmetic, point.steps
    sizes = point.sizes
    given = {}
    for v in g.program.step.variables:
        if v.kind != "solved":
            own = tuple(sizes[d.name] for d in v.dims)
            stepwise = v.kind in ("input", "decay")
            given[v.name] = m.random(rng, (steps, *own) if stepwise else own, decay=v.kind in DECAYS)
    initial = {s: m.random(rng, tuple(sizes[d] for d in g.dims[s])) for s in g.finals}
    for s in solved_states(g):  # so that an elimination finds no zero, and the inverse is symmetric
        x = initial[s]
        initial[s] = m.add(x, x.T)
    return given, initial


def _constants(g: Graph) -> set[str]:
    return {v.name for v in g.program.step.variables if v.kind == "constant"}


def _whole(g: Graph) -> StepProgram:
    """What the points' sizes and seeds follow from: all ops of the graph."""
    dims = tuple(d.name for d in g.program.step.dim_list)
    ops = [(op.name, n, x) for op in g.operations for n, x in op.compiled.step.outputs.items()]
    return StepProgram(g.program.name, dims, (), (), {}, {f"{op} {n}": x for op, n, x in ops})
