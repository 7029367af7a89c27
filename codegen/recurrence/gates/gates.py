"""The gates: after each pass, both sides of it are evaluated at random points, exactly (see `random_points.py`).

A pass that changed the meaning of a program raises `GateError`, and nothing is printed.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from chunkform.spec.language import Recurrence

from ...exact.random_points import Compared, GateResult, Point, compare
from ...exact.run_spec import initial_value, run_spec
from ...ir.evaluate import ArrayNumbers, Env, evaluate, stacked
from ...ir.expr import ZERO, Node, dim_of, expand, leaf, maximum, walk
from ...ir.positive_terms import SMALLEST
from ...ir.step_program import StepProgram, Var
from ..chunkwise.plan import Plan, Sweep
from ..chunkwise.segment_maps import Affine, Pair, composed, feeds_back, linear_sweep, named, segment_map
from ..normal_form.form import NormalForm, Read, StateForm
from ..normal_form.substeps import Substeps, stream_name
from ..step.adjoint import Adjoint, adjoint, gradient_name
from ..step.stabilize import Shifted
from .run_form import run_form, state_adjoint_defects
from .run_plan import run_map, run_plan, run_sweep
from .run_steps import Far, Sequences, directional, inner, random_sequences, run_steps, shape_of, stored

# --- the gates, in the order of the passes ----------------------------------------------------------------------------


def gate_lower(r: Recurrence, step: StepProgram) -> GateResult:
    """The step program computes what the spec says."""

    def check(point: Point) -> Compared:
        m, sizes, rng = point.arithmetic, point.sizes, point.rng
        given, initial = random_sequences(step, m, sizes, point.steps, rng)
        expected, finals = run_spec(r, given, initial, m, sizes, point.steps)
        got, states, _ = run_steps(step, given, initial, m, sizes, point.steps)
        for name, node in step.outputs.items():
            for t, (a, b) in enumerate(zip(got[name], expected[name], strict=True)):
                value = stored(a, node.axes, step.output_axes[name])
                yield f"the output {name} of step {t + 1}", value, np.reshape(b, np.shape(value))
        for name, value in finals.items():
            yield f"the last state {name}", states[name], value
        for s in step.states:
            declared = next(x.initial for x in r.states if x.name == s.name)
            if s.initial is None:
                if declared is not None and declared != 0:
                    yield f"the initial value of {s.name}", "nothing", declared
                continue
            env = {(v.kind, v.name): given[v.name] for v in step.variables if not v.per_step}
            value = stored(evaluate(s.initial, env, m, sizes), s.initial.axes, s.axes)
            yield f"the initial value of {s.name}", value, initial_value(r, s.name, given, m, sizes)

    return compare("lower", "the step program computes what the spec says", step, check)


def gate_stable(step: StepProgram, shifted: StepProgram) -> GateResult:
    """The step with shifted exponents computes what it did, whatever they are shifted by: so nothing has a gradient by that."""

    def check(point: Point) -> Compared:
        m, sizes, rng = point.arithmetic, point.sizes, point.rng
        given, initial = random_sequences(step, m, sizes, point.steps, rng)
        expected, last, _ = run_steps(step, given, initial, m, sizes, point.steps)
        got, states, _ = run_steps(shifted, given, initial, Shifted(m, rng), sizes, point.steps)
        for name in step.outputs:
            for t, (a, b) in enumerate(zip(got[name], expected[name], strict=True)):
                yield f"the output {name} of step {t + 1}", a, b
        for s in step.states:
            yield f"the last state {s.name}", states[s.name], last[s.name]

    return compare("stable", "a step with exponents that are shifted by anything is that step", step, check)


def gate_decays(step: StepProgram, decayed: StepProgram, decays: dict[Node, Node]) -> GateResult:
    """A step over other forms of its decays computes what it did; and each is what it takes the place of, near 0 and near 1."""

    def check(point: Point) -> Compared:
        m, sizes, rng = point.arithmetic, point.sizes, point.rng
        given, initial = random_sequences(step, m, sizes, point.steps, rng)
        expected, last, _ = run_steps(step, given, initial, m, sizes, point.steps)
        got, states, _ = run_steps(decayed, given, initial, m, sizes, point.steps)
        for name in step.outputs:
            for t, (a, b) in enumerate(zip(got[name], expected[name], strict=True)):
                yield f"the output {name} of step {t + 1}", a, b
        for s in step.states:
            yield f"the last state {s.name}", states[s.name], last[s.name]
        if m.exact:
            return
        far = Far()
        env = {(v.kind, v.name): far.random_of(rng, shape_of(v, sizes, 1)[v.per_step :], v) for v in step.variables}
        for old, new in decays.items():
            least = maximum(old, SMALLEST) if any(y is SMALLEST for y in walk(new)) else old  # as float32 has it
            was, is_now = (evaluate(x, env, far, sizes) for x in (least, new))
            over = far.pow(np.where(was == 0, 1, was), Fraction(-1))  # beside a diagonal both are 0
            yield f"the decay {new!r} over {old!r}", far.mul(is_now, over), far.mul(was, over)

    return compare("decays", "decays in forms that lose nothing are what the step multiplies by", step, check)


def gate_adjoint(a: Adjoint) -> GateResult:
    """<F' x, y> = <x, F'^T y>, the left side by dual numbers, over several steps."""
    step = a.forward

    def check(point: Point) -> Compared:
        m, sizes, rng, steps = point.arithmetic, point.sizes, point.rng, point.steps
        given, initial = random_sequences(step, m, sizes, steps, rng)
        cotangents, last = random_cotangents(step, point, rng)
        got, states = run_adjoint(a, given, initial, cotangents, last, m, sizes, steps)
        tangents = {v.name: m.random(rng, np.shape(given[v.name])) for v in step.variables if v.kind != "constant"}
        tangents |= {s.name: point.array(rng, s.axes) for s in step.states}
        parts: dict[str, Any] = {}
        for v in step.variables:
            if v.kind == "constant":
                continue
            tangent = tangents[v.name]
            if v.is_decay:  # the adjoint yields the gradient of the decay's logarithm
                tangent = m.mul(tangent, m.pow(given[v.name], Fraction(-1)))
            name = gradient_name(v)
            axes = a.program.outputs[name].axes
            for t in range(steps):
                value = stored(got[name][t], axes, v.axes)
                part = inner(value, tangent[t] if v.per_step else tangent, m)
                parts[v.name] = m.add(parts[v.name], part) if v.name in parts else part
        for s in step.states:
            parts[s.name] = inner(states[f"d{s.name}"], tangents[s.name], m)
        names = {v.name: gradient_name(v) for v in step.variables} | {s.name: f"d{s.name}" for s in step.states}

        def forward(some: Sequences) -> np.ndarray:
            return directional(step, given, initial, some, {**cotangents, **last}, m, sizes, steps)

        whole = m.const(Fraction(0))
        for part in parts.values():
            whole = m.add(whole, part)
        change = forward(tangents)
        if not m.equal(whole, change):  # name the gradient that is wrong
            for name, part in parts.items():
                yield f"the gradient {names[name]}", part, forward({name: tangents[name]})
        yield "the sum of all gradients", whole, change

    return compare("adjoint", "<F'x, y> = <x, F'^T y>, with F'x by dual numbers", step, check)


def gate_form(a: Adjoint, form: NormalForm, backward: bool) -> GateResult:
    """One step of the read-write form, reads and writes by their definition, is one step of the program."""
    program = a.program if backward else a.forward

    def check(point: Point) -> Compared:
        m, sizes, rng = point.arithmetic, point.sizes, point.rng
        given, initial = random_sequences(a.forward, m, sizes, 1, rng)
        cotangents, last = random_cotangents(a.forward, replace(point, steps=1), rng)
        env: Env = {(v.kind, v.name): given[v.name][0] if v.per_step else given[v.name] for v in a.forward.variables}
        env |= {("state in", n): x for n, x in initial.items()}
        _, after, _ = run_steps(a.forward, given, initial, m, sizes, 1)
        expected = {s.name: after[s.name] for s in a.forward.states}
        outputs, _, _ = run_steps(a.forward, given, initial, m, sizes, 1)
        if backward:
            env |= {("cotangent", n): x[0] for n, x in cotangents.items()} | {
                ("state in", n): x for n, x in last.items()
            }
            outputs, states = run_adjoint(a, given, initial, cotangents, last, m, sizes, 1)
            expected |= states
        values, states = run_form(form, env, m, sizes)
        for name, node in form.values.items():
            wanted = program.outputs[name].axes
            yield f"{name}", _broadcast(values[name], node.axes, wanted, sizes), outputs[name][0]
        for name, value in states.items():
            axes = form.state(name).axes
            got = stored(_broadcast(value, tuple(sorted(axes)), tuple(sorted(axes)), sizes), tuple(sorted(axes)), axes)
            yield f"the state {name} after a step", got, expected[name]
        for name, (one, other) in state_adjoint_defects(form, env, m, sizes).items():
            yield f"the change of <{name}, d{name}> in a step", one, other

    name = "normalize adjoint" if backward else "normalize"
    return compare(name, f"the read-write form of {program.name} is one step of it", a.forward, check, steps=1)


def gate_plan(a: Adjoint, forward: Plan, backward: Plan | None = None, of_kernels: bool = False) -> GateResult:
    """The sweeps over chunks, for several ways to cut the sequence, compute what the step program does. `of_kernels`: they are as
    kernels sweep them."""

    def check(point: Point) -> Compared:
        m, sizes, rng, steps = point.arithmetic, point.sizes, point.rng, point.steps
        given, initial = random_sequences(a.forward, m, sizes, steps, rng)
        cotangents, last = random_cotangents(a.forward, point, rng)
        outputs, finals, _ = run_steps(a.forward, given, initial, m, sizes, steps)
        program = a.forward
        if backward is not None:
            outputs, finals = run_adjoint(a, given, initial, cotangents, last, m, sizes, steps)
            program = a.program
        env: Env = {(v.kind, v.name): given[v.name] for v in a.forward.variables}
        for lengths, beyond in chunkings(steps):
            values, states, computed = run_plan(forward, env, initial, m, sizes, lengths, beyond=beyond)
            if backward is not None:
                own = env | {("cotangent", n): x for n, x in cotangents.items()}
                own |= {(x.attrs[0], x.attrs[1]): computed[x.attrs[0], x.attrs[1]] for x in backward.saved}
                values, states, _ = run_plan(backward, own, {**initial, **last}, m, sizes, lengths, last, beyond)
            cut = f"(chunks of {lengths}, and {beyond} steps beyond the end)"
            for name, node in program.outputs.items():
                yield (
                    f"{name} {cut}",
                    _broadcast(values[name], (backward or forward).form.values[name].axes, node.axes, sizes, steps),
                    stacked(outputs[name]),
                )
            for name, value in finals.items():
                yield f"the last state {name} {cut}", states[name], value

    name, program = ("plan adjoint", a.program) if backward is not None else ("plan", a.forward)
    name = f"{name} of kernels" if of_kernels else name
    what = f"the sweeps of {program.name} over chunks of any length compute it"
    return compare(name, what, a.forward, check, steps=5)


def gate_segments(a: Adjoint, forward: Plan, backward: Plan) -> GateResult:
    """The derived map of a segment is what the sweep does from any state; maps compose; the adjoint's is the transpose."""

    def check(point: Point) -> Compared:
        m, sizes, rng, steps = point.arithmetic, point.sizes, point.rng, point.steps
        given, initial = random_sequences(a.forward, m, sizes, steps, rng)
        cotangents, last = random_cotangents(a.forward, point, rng)
        env: Env = {(v.kind, v.name): given[v.name] for v in a.forward.variables}
        _, _, first = run_plan(forward, env, initial, m, sizes, [steps])
        own = env | {("cotangent", n): x for n, x in cotangents.items()}
        own |= {(x.attrs[0], x.attrs[1]): first[x.attrs[0], x.attrs[1]] for x in backward.saved}
        _, _, second = run_plan(backward, own, {**initial, **last}, m, sizes, [steps], last)
        linear: dict[Pair, tuple[Affine, Any]] = {}
        for p, everything in ((forward, first), (backward, second)):
            for sweep in p.sweeps:
                if sweep.finals:
                    found = yield from _mapped(
                        sweep, p.form.reads, everything, _stepwise(a), {**initial, **last}, m, sizes, steps
                    )
                    linear |= {pair: (found[0], x) for pair, x in found[1].items()} if p is forward else {}
                    if p is backward and sweep.direction < 0:
                        yield from _dual(found, linear, sweep, m, sizes)

    return compare(
        "segments", "the affine maps of segments are those of the sweeps, and compose", a.forward, check, 1, 3
    )


def gate_substeps(a: Adjoint, parts: Substeps) -> GateResult:
    """Several substeps, with the streams that are made of a step, are the step; and so backwards."""
    program, around = parts.step, parts.streams
    back = adjoint(program)
    reverse = StepProgram(
        f"{around.name}_adjoint",
        around.dims,
        (*around.variables, *(Var(f"d{n}", "cotangent", axes) for n, axes in around.output_axes.items())),
        (),
        {},
        parts.gradients,
    )

    def check(point: Point) -> Compared:
        m, sizes, rng, steps = point.arithmetic, point.sizes, point.rng, point.steps
        given, initial = random_sequences(a.forward, m, sizes, steps, rng)
        cotangents, last = random_cotangents(a.forward, point, rng)
        expected, finals, _ = run_steps(a.forward, given, initial, m, sizes, steps)
        gradients, starts = run_adjoint(a, given, initial, cotangents, last, m, sizes, steps)
        made, _, _ = run_steps(around, given, {}, m, sizes, steps)
        streams = {}
        for v in program.variables:
            values = [made[stream_name(v.name, n)][t] for t in range(steps) for n in range(parts.count)]
            streams[v.name] = stacked(values)
        got, states, _ = run_steps(program, streams, initial, m, sizes, steps * parts.count)
        for name, last_one in parts.outputs.items():
            for t, value in enumerate(expected[name]):
                yield f"the output {name} of step {t + 1}", got[last_one][parts.count * (t + 1) - 1], value
        for name, value in finals.items():
            yield f"the last state {name}", states[name], value
        incoming = {}
        for name, last_one in parts.outputs.items():
            zero = m.mul(cotangents[f"d{name}"][0], m.const(Fraction(0)))
            values = [x if n == parts.count - 1 else zero for x in cotangents[f"d{name}"] for n in range(parts.count)]
            incoming[f"d{last_one}"] = stacked(values)
        own, first = run_adjoint(back, streams, initial, incoming, last, m, sizes, steps * parts.count)
        each = {
            f"d{stream_name(v.name, n)}": stacked(own[gradient_name(v)][n :: parts.count])
            for v in program.variables
            for n in range(parts.count)
        }
        whole, _, _ = run_steps(reverse, {**given, **each}, {}, m, sizes, steps)
        for name, values in gradients.items():
            for t, value in enumerate(values):
                yield f"the gradient {name} of step {t + 1}", whole[name][t], value
        for name, value in starts.items():
            yield f"the gradient of the first state, {name}", first[name], value

    what = f"{parts.count} steps of one correction each are a step of {a.forward.name}, forwards and backwards"
    return compare("substeps", what, a.forward, check, steps=2)


# --- what they share --------------------------------------------------------------------------------------------------


def random_cotangents(step: StepProgram, point: Point, rng: random.Random) -> tuple[Sequences, Sequences]:
    """Incoming gradients of the outputs, and of the last states."""
    outputs = {f"d{n}": point.array(rng, step.output_axes[n], point.steps) for n in step.outputs}
    return outputs, {f"d{s.name}": point.array(rng, s.axes) for s in step.states}


def run_adjoint(
    a: Adjoint,
    given: Sequences,
    initial: Sequences,
    cotangents: Sequences,
    last: Sequences,
    m: ArrayNumbers,
    sizes: dict[str, int],
    steps: int,
) -> tuple[dict[str, list[np.ndarray]], dict[str, np.ndarray]]:
    """(gradients of each step, gradients of the initial states) by the adjoint program."""
    _, _, before = run_steps(a.forward, given, initial, m, sizes, steps)
    trajectory = {n: stacked(x) for n, x in before.items()}
    gradients, states, _ = run_steps(a.program, {**given, **trajectory, **cotangents}, last, m, sizes, steps)
    return gradients, states


def chunkings(steps: int) -> list[tuple[list[int], int]]:
    """One step a chunk, one chunk, mixed lengths, and a last one that goes on beyond the sequence's end, by so many steps."""
    return [([1] * steps, 0), ([steps], 0), ([2, 1, steps - 3], 0), ([3, steps - 3], 2)]


def _broadcast(
    value: object, axes: tuple[str, ...], wanted: tuple[str, ...], sizes: dict[str, int], *lead: int
) -> np.ndarray:
    """A value over `axes` (sorted), repeated over the sorted axes `wanted`."""
    value = np.asarray(value, dtype=object)
    own = dict(zip(axes, value.shape[value.ndim - len(axes) :], strict=True))
    value = value.reshape((*value.shape[: value.ndim - len(axes)], *(own.get(x, 1) for x in wanted)))
    return np.broadcast_to(value, (*lead, *(sizes[dim_of(x)] for x in wanted)))


def _stepwise(a: Adjoint) -> set[tuple[str, str]]:
    """Leaves that have one value for the whole sequence."""
    return {(v.kind, v.name) for v in a.forward.variables if not v.per_step}


def _segments(env: Env, constant: set[tuple[str, str]], steps: int, cut: int) -> list[Env]:
    parts: list[Env] = []
    for part in (slice(0, cut), slice(cut, steps)):
        parts.append({key: x if key in constant else x[part] for key, x in env.items()})
    return parts


def _mapped(
    sweep: Sweep,
    table: dict[Node, Read],
    env: Env,
    constant: set[tuple[str, str]],
    states: Sequences,
    m: ArrayNumbers,
    sizes: dict[str, int],
    steps: int,
) -> Generator[tuple[str, np.ndarray, np.ndarray], None, tuple[Affine, dict[Pair, np.ndarray]]]:
    """The map of the whole sweep against a run of the sweep, and against the maps of two segments; yields (map, blocks)."""
    segment = segment_map(sweep.group, sweep.solve, table)
    affine, names = segment.affine, ", ".join(sweep.states)
    linear, local = run_map(segment, env, m, sizes, steps)
    finals: dict[str, Any] = {}
    run_sweep(sweep, dict(env), states, finals, m, sizes, [steps])
    whole = _put(affine, "map", linear, local) | {("state in", n): states[n] for n in sweep.states}
    entering = {s.name: leaf("state in", s.name, s.axes) for s in sweep.group}
    for name, node in named(affine, "map").applied(entering).items():
        yield f"the last state {name} of a segment", _stored(node, affine, name, whole, m, sizes), finals[name]
    parts = [
        run_map(segment, part, m, sizes, n)
        for part, n in zip(_segments(env, constant, steps, 2), (2, steps - 2), strict=True)
    ]
    earlier, later = parts if sweep.direction > 0 else parts[::-1]
    both = _put(affine, "earlier", *earlier) | _put(affine, "later", *later)
    law = composed(affine)
    for (to, of), axes in affine.shape.items():
        value = evaluate(expand(law.linear.get((to, of), ZERO), axes), both, m, sizes)
        yield f"what two segments make of {of} in {to}", value, linear[to, of]
    for name, node in law.local.items():
        yield f"the local part of {name} over two segments", _stored(node, affine, name, both, m, sizes), local[name]
    if feeds_back(sweep.group, sweep.solve) and (alone := linear_sweep(sweep.group, table)) is not None:
        for source in sweep.group:
            start = {s.name: _identity(s, s is source, affine, m, sizes) for s in sweep.group}
            ends: dict[str, Any] = {}
            run_sweep(alone, dict(env), start, ends, m, sizes, [steps])
            for s in alone.group:
                axes = affine.shape.get((s.name, source.name), ())
                value = linear.get((s.name, source.name), m.const(Fraction(0)))
                expected = np.broadcast_to(
                    _broadcast(value, axes, tuple(sorted(s.axes)), sizes), np.shape(ends[s.name])
                )
                yield f"the sweep of {names} from the identity of {source.name}", ends[s.name], expected
    return affine, linear


def _put(affine: Affine, kind: str, linear: Mapping[Pair, object], local: Mapping[str, object]) -> Env:
    """Values for the leaves of a named map."""
    env: Env = {(kind, f"{to}<-{of}"): x for (to, of), x in linear.items()}
    return env | {(kind, n): x for n, x in local.items()}


def _stored(node: Node, affine: Affine, name: str, env: Env, m: ArrayNumbers, sizes: dict[str, int]) -> np.ndarray:
    axes = next(s.axes for s in affine.group if s.name == name)
    return stored(evaluate(expand(node, axes), env, m, sizes), tuple(sorted(axes)), axes)


def _identity(s: StateForm, own: bool, affine: Affine, m: ArrayNumbers, sizes: dict[str, int]) -> np.ndarray:
    """What a state of a linear sweep starts from."""
    assert s.row is not None
    n = sizes[dim_of(s.row)]
    one, zero = (np.asarray(m.const(Fraction(x)), dtype=object).item() for x in (1, 0))
    return np.array([[one if own and i == j else zero for j in range(n)] for i in range(n)], dtype=object)


def _dual(
    found: tuple[Affine, Mapping[Pair, object]],
    forward: Mapping[Pair, tuple[Affine, object]],
    sweep: Sweep,
    m: ArrayNumbers,
    sizes: dict[str, int],
) -> Compared:
    """Going backwards, a state's gradient meets the transpose of what the state met."""
    affine, linear = found
    for (to, of), value in linear.items():
        if (of[1:], to[1:]) not in forward:
            continue
        origin, block = forward[of[1:], to[1:]]
        node = named(origin, "map").transposed(sweep.group)[to, of]
        turned = evaluate(expand(node, affine.shape[to, of]), {("map", f"{of[1:]}<-{to[1:]}"): block}, m, sizes)
        yield f"what a segment makes of {of} in {to}, from the forward sweep", turned, value
