"""Run a plan exactly, chunk by chunk: what the gate after each pass compares with the step program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from chunkform.errors import GateError

from ...ir.evaluate import BEYOND, ArrayNumbers, Env, evaluate, evaluate_all, stacked
from ...ir.expr import ROW, ZERO, Node, add, dim_of, expand, is_of_steps, leaf, total, walk
from ..chunkwise.plan import Accumulate, BoundarySums, Map, Plan, Sweep, Unroll
from ..chunkwise.segment_maps import Pair, SegmentMap
from .run_steps import stored


@dataclass
class Chunks:
    """What the stages of one run have found out: sequences of streams, and over each chunk the values of leaves and of nodes."""

    sequences: dict[Node, np.ndarray] = field(default_factory=dict)
    values: dict[int, tuple[Env, dict[Node, np.ndarray]]] = field(default_factory=dict)

    def over(
        self, n: int, given: Env, equal: Callable[[np.ndarray, np.ndarray], bool]
    ) -> tuple[Env, dict[Node, np.ndarray]]:
        """Leaves and nodes that are known over chunk n, to add to, where the states that earlier stages were given are those that
        this one is given, so that the same node has the same value; else none but what is given. What streams are named by says
        what they are."""
        env, done = self.values.setdefault(n, ({}, {}))
        if all(equal(env[x], value) for x, value in given.items() if x[0] == "state in" and x in env):
            env.update(given)
            return env, done
        return given, {}

    def sequence(
        self, x: Node, node: Node, env: Env, m: ArrayNumbers, sizes: dict[str, int], steps: int, beyond: int
    ) -> np.ndarray:
        """A stream over all steps, and zeros beyond the end."""
        if x not in self.sequences:
            self.sequences[x] = _padded(_sequence(node, env, m, sizes, steps), beyond, m)
        return self.sequences[x]


KINDS = ("own", "in", "out")
SUMS = tuple(f"{kind}.{slot}" for kind in KINDS for slot in ("late", "early"))


def run_plan(
    p: Plan,
    env: Env,
    initial: dict[str, np.ndarray],
    arithmetic: ArrayNumbers,
    sizes: dict[str, int],
    lengths: list[int],
    finals_dot: dict[str, np.ndarray] | None = None,
    beyond: int = 0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Env]:
    """(values, last states, everything computed). `env` holds sequences with a leading time axis; chunks have `lengths`, and
    the last one `beyond` rows more, beyond the sequence's end.

    A value that a sweep takes is computed in the prologue of it. `finals_dot` holds the incoming gradient of each last state,
    which a state-adjoint product starts from.

    Raises:
        GateError: a state-adjoint product isn't the same in all its ways; the message names it.
    """
    env = dict(env)
    finals: dict[str, Any] = {}
    values: dict[str, Any] = {}
    steps = sum(lengths)
    known = Chunks()
    nodes = {name: node for stage in p.stages if isinstance(stage, Map) for name, node in stage.values.items()}
    for stage in p.stages:
        match stage:
            case Sweep():
                for x in walk(*stage.given.values()):
                    if x.op == "leaf" and x.attrs[0] == "stored" and x.attrs[:2] not in env and x.attrs[1] in nodes:
                        env[x.attrs[:2]] = _sequence(nodes[x.attrs[1]], env, arithmetic, sizes, steps)
                run_sweep(stage, env, initial, finals, arithmetic, sizes, lengths, beyond, known)
            case Accumulate():
                _accumulate(stage, env, finals, finals_dot or {}, p, arithmetic, sizes, steps)
                if stage.at_boundaries:
                    _check_boundaries(stage, env, finals, finals_dot or {}, p, arithmetic, sizes, lengths)
                    _from_states(stage, env, p, arithmetic, sizes, lengths)
                summed = env["state-adjoint product", stage.state_adjoint.leaf.attrs[1]]
                _unroll(stage.direct, env, arithmetic, sizes, lengths, beyond, known)
                if not arithmetic.equal(env["state-adjoint product", stage.state_adjoint.leaf.attrs[1]], summed):
                    raise GateError(f"the state-adjoint product of {stage.state_adjoint.state}, summed and unrolled")
            case Unroll():
                _unroll(stage, env, arithmetic, sizes, lengths, beyond, known)
            case Map():
                for name, node in stage.values.items():
                    values[name] = _sequence(node, env, arithmetic, sizes, steps)
    return values, finals, env


def _sequence(node: Node, env: Env, m: ArrayNumbers, sizes: dict[str, int], steps: int) -> np.ndarray:
    """A step-level node over all steps."""
    value = evaluate(node, env, m, sizes)
    shape = (steps, *(sizes[dim_of(a)] for a in node.axes))
    return np.broadcast_to(np.asarray(value, dtype=object), shape)


def run_sweep(
    sweep: Sweep,
    env: Env,
    initial: dict[str, np.ndarray],
    finals: dict[str, np.ndarray],
    m: ArrayNumbers,
    sizes: dict[str, int],
    lengths: list[int],
    beyond: int = 0,
    known: Chunks | None = None,
) -> None:
    known = known or Chunks()
    chunk, steps = sweep.chunk, sum(lengths)
    streams = {x: known.sequence(x, node, env, m, sizes, steps, beyond) for x, node in sweep.given.items()}
    states = {s: initial[s] for s in sweep.states}
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = range(len(lengths)) if sweep.direction > 0 else range(len(lengths) - 1, -1, -1)
    edges: dict[str, list[Any]] = {s: [None] * len(lengths) for s in states}
    pieces: dict[Node, list[Any]] = {x: [None] * len(lengths) for x in chunk.outputs}
    sums: dict[tuple[str, str], list[Any]] = {}
    for n in order:
        more = beyond if n == len(lengths) - 1 else 0
        own = {**sizes, ROW: lengths[n] + more, BEYOND: more}
        local: Env = {("state in", s): states[s] for s in states}
        for name, state in states.items():
            edges[name][n] = state
        for x, value in streams.items():
            local["stream", x.attrs[1]] = value[starts[n] : starts[n + 1] + more]
        local, done = known.over(n, local, m.equal)
        for x, node in chunk.definitions.items():
            local["inner", x.attrs[1]] = _whole(evaluate(node, local, m, own, done), node, own)
        for boundary in sweep.boundary_sums:
            for slot, value in boundary_values(boundary, local, m, own, done).items():
                sums.setdefault((boundary.state, slot), [None] * len(lengths))[n] = _inside(value, boundary, lengths[n])
        names = list(chunk.outputs)
        results = evaluate_all([*(chunk.outputs[x] for x in names), *chunk.states.values()], local, m, own, done)
        for x, value in zip(names, results, strict=False):
            node = chunk.outputs[x]
            full = tuple(sorted({ROW, *x.axes}))
            shape = tuple(own[a] if a == ROW else sizes[dim_of(a)] for a in full)
            assert set(node.axes) <= set(full)
            from ...ir.evaluate import aligned

            whole = np.broadcast_to(np.asarray(aligned(value, node.axes, full), dtype=object), shape)
            pieces[x][n] = whole.take(range(lengths[n]), full.index(ROW))
        for name, value in zip(chunk.states, results[len(names) :], strict=True):
            axes = tuple(sorted(chunk.state_axes[name]))
            shape = tuple(sizes[dim_of(a)] for a in axes)
            states[name] = stored(np.broadcast_to(np.asarray(value, dtype=object), shape), axes, chunk.state_axes[name])
    for x, parts in pieces.items():
        env[x.attrs[0], x.attrs[1]] = np.concatenate(parts) if parts else np.empty((0,), dtype=object)
    finals.update(states)
    env.update({("edges", name): values for name, values in edges.items()})
    env.update({("sums", f"{state}.{slot}"): values for (state, slot), values in sums.items()})


def _padded(value: np.ndarray, beyond: int, m: ArrayNumbers) -> np.ndarray:
    """A sequence with zeros for steps beyond its end."""
    zero = m.const(Fraction(0)).item()
    return np.concatenate([value, np.full((beyond, *value.shape[1:]), zero, dtype=object)]) if beyond else value


def _inside(value: np.ndarray, boundary: BoundarySums, length: int) -> np.ndarray:
    """Sums of one chunk at its steps, without those beyond the sequence's end."""
    return value if boundary.totals else value[:length]


def boundary_values(
    boundary: BoundarySums, local: Env, m: ArrayNumbers, own: dict[str, int], done: dict[Node, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The sums of one sweep over one chunk: in.late, in.early, out.late, out.early, own.late, own.early."""
    out: dict[str, np.ndarray] = {}

    def put(slot: str, value: np.ndarray) -> None:
        out[slot] = m.add(out[slot], value) if slot in out else value

    if boundary.totals:
        node = total(add(*boundary.reads.values()), ROW)
        return {boundary.kind: np.asarray(evaluate(node, local, m, own, done), dtype=object)}
    for slot, node in boundary.reads.items():
        whole = total(node, *(set(node.axes) - {ROW}))
        put(
            f"{boundary.kind}.{slot}",
            np.broadcast_to(np.asarray(evaluate(whole, local, m, own, done), dtype=object), (own[ROW],)),
        )
    minus = m.const(Fraction(-1))
    for node, row_slot, column_slot in boundary.own:
        weights = _whole(evaluate(node, local, m, own, done), node, own)
        rows, columns = ([functools.reduce(m.add, x) for x in w] for w in (weights, weights.T))
        put(f"own.{row_slot}", np.array(rows, dtype=object))
        put(f"own.{column_slot}", m.mul(minus, np.array(columns, dtype=object)))
    return out


def run_map(
    segment: SegmentMap, env: Env, m: ArrayNumbers, sizes: dict[str, int], steps: int
) -> tuple[dict[Pair, np.ndarray], dict[str, np.ndarray]]:
    """(blocks, local parts) of the map of a segment of `steps`; blocks over their axes, sorted, local parts as stored."""
    own = {**sizes, ROW: steps}
    local: Env = {("stream", x.attrs[1]): _sequence(node, env, m, sizes, steps) for x, node in segment.streams.items()}
    done: dict[Node, Any] = {}
    for x, node in segment.definitions.items():
        local["inner", x.attrs[1]] = _whole(evaluate(node, local, m, own, done), node, own)
    affine = segment.affine
    blocks = {
        p: evaluate(expand(affine.linear.get(p, ZERO), axes), local, m, own, done) for p, axes in affine.shape.items()
    }
    parts = {}
    for s in affine.group:
        value = evaluate(expand(affine.local[s.name], s.axes), local, m, own, done)
        parts[s.name] = stored(value, tuple(sorted(s.axes)), s.axes)
    return blocks, parts


def _unroll(
    stage: Unroll, env: Env, m: ArrayNumbers, sizes: dict[str, int], lengths: list[int], beyond: int, known: Chunks
) -> None:
    starts, steps = np.concatenate([[0], np.cumsum(lengths)]), sum(lengths)
    streams = {x: known.sequence(x, node, env, m, sizes, steps, beyond) for x, node in stage.streams.items()}
    pieces: dict[Node, list[Any]] = {x: [] for x in stage.outputs}
    for n, length in enumerate(lengths):
        local: Env = {("state in", s.name): env["edges", s.name][n] for s in (*stage.forward, *stage.backward)}
        more = beyond if n == len(lengths) - 1 else 0
        local |= {("stream", x.attrs[1]): value[starts[n] : starts[n + 1] + more] for x, value in streams.items()}
        own = {**sizes, ROW: length + more, BEYOND: more}
        local, done = known.over(n, local, m.equal)
        for x, node in stage.definitions.items():
            local["inner", x.attrs[1]] = _whole(evaluate(node, local, m, own, done), node, own)
        for x, value in zip(stage.outputs, evaluate_all(stage.outputs.values(), local, m, own, done), strict=True):
            shape = (length + more, *(sizes[dim_of(a)] for a in x.axes))
            pieces[x].append(np.broadcast_to(np.asarray(value, dtype=object), shape)[:length])
    for x, parts in pieces.items():
        env["state-adjoint product", x.attrs[1]] = np.concatenate(parts)


def _whole(value: object, node: Node, own: dict[str, int]) -> np.ndarray:
    shape = tuple(own[ROW] if is_of_steps(a) else own[dim_of(a)] for a in node.axes)
    return np.broadcast_to(np.asarray(value, dtype=object), shape)


def _accumulate(
    stage: Accumulate,
    env: Env,
    finals: Mapping[str, object],
    finals_dot: Mapping[str, object],
    p: Plan,
    m: ArrayNumbers,
    sizes: dict[str, int],
    steps: int,
) -> None:
    state_adjoint = stage.state_adjoint
    axes = state_adjoint.leaf.axes
    shape = tuple(sizes[dim_of(a)] for a in axes)
    late = _over(state_adjoint.late, axes, env, m, sizes, steps)
    early = _over(state_adjoint.early, axes, env, m, sizes, steps)
    running = np.broadcast_to(_at_the_end(state_adjoint.state, p, finals, finals_dot, m, sizes, axes), shape)
    out: list[Any] = [None] * steps
    for t in range(steps - 1, -1, -1):
        running = m.add(running, late[t])
        out[t] = np.asarray(running, dtype=object)
        running = m.add(running, early[t])
    env["state-adjoint product", state_adjoint.leaf.attrs[1]] = stacked(out)


def _at_the_end(
    name: str,
    p: Plan,
    finals: Mapping[str, object],
    finals_dot: Mapping[str, object],
    m: ArrayNumbers,
    sizes: dict[str, int],
    axes: tuple[str, ...],
) -> np.ndarray:
    """<S_n, dS_n> over `axes`."""
    if name not in finals or f"d{name}" not in finals_dot:
        return m.const(Fraction(0))
    s = p.form.state(name)
    node = leaf("state", name, s.axes) * leaf("state", f"d{name}", s.axes)
    last = {("state", name): finals[name], ("state", f"d{name}"): finals_dot[f"d{name}"]}
    return evaluate(total(node, *(set(s.axes) - set(axes))), last, m, sizes)


def _check_boundaries(
    stage: Accumulate,
    env: Env,
    finals: dict[str, np.ndarray],
    finals_dot: dict[str, np.ndarray],
    p: Plan,
    m: ArrayNumbers,
    sizes: dict[str, int],
    lengths: list[int],
) -> None:
    """Compare the sums at the boundaries with the sum over all later steps, which `env` has."""
    name, zero = stage.state_adjoint.state, m.const(Fraction(0))
    axes = stage.state_adjoint.leaf.axes
    running = _at_the_end(name, p, finals, finals_dot, m, sizes, axes)
    if axes:
        starts = np.cumsum([0, *lengths])
        early = _over(stage.state_adjoint.early, axes, env, m, sizes, sum(lengths))
        for n in range(len(lengths) - 1, -1, -1):
            for kind in ("out", "in"):
                running = m.add(running, env["sums", f"{name}.{kind}"][n])
            summed = m.add(env["state-adjoint product", stage.state_adjoint.leaf.attrs[1]][starts[n]], early[starts[n]])
            if not m.equal(np.asarray(running, dtype=object), summed):
                raise GateError(f"the state-adjoint product of {name}, summed and from chunk boundaries")
        return
    pieces: list[Any] = []
    for n in range(len(lengths) - 1, -1, -1):
        found = {x: env["sums", f"{name}.{x}"][n] for x in SUMS if ("sums", f"{name}.{x}") in env}
        zeros = np.broadcast_to(zero, (lengths[n],))
        late, early = (
            functools.reduce(m.add, (found.get(f"{k}.{slot}", zeros) for k in KINDS)) for slot in ("late", "early")
        )
        values = []
        for t in range(lengths[n] - 1, -1, -1):
            running = m.add(running, late[t])
            values.append(np.asarray(running, dtype=object).item())
            running = m.add(running, early[t])
        pieces.append(np.array(values[::-1], dtype=object))
    if not m.equal(np.concatenate(pieces[::-1]), env["state-adjoint product", stage.state_adjoint.leaf.attrs[1]]):
        raise GateError(f"the state-adjoint product of {name}, summed and from chunk boundaries")


def _from_states(
    stage: Accumulate, env: Env, p: Plan, m: ArrayNumbers, sizes: dict[str, int], lengths: list[int]
) -> None:
    """Compare what is summed inside chunks, and their decays times <S before them, dS after them>, with the same."""
    name, axes, steps = stage.state_adjoint.state, stage.state_adjoint.leaf.axes, sum(lengths)
    s = p.form.state(name)
    assert s.decay is not None
    decays = _over(s.decay, axes, env, m, sizes, steps)
    node = leaf("state", name, s.axes) * leaf("state", f"d{name}", s.axes)
    node = total(node, *(set(s.axes) - set(axes)))
    starts = np.cumsum([0, *lengths])
    late, early = (_over(x, axes, env, m, sizes, steps) for x in (stage.state_adjoint.late, stage.state_adjoint.early))
    minus = m.const(Fraction(-1))
    ahead: list[Any] = []
    for n, length in enumerate(lengths):
        states = {("state", x): env["edges", x][n] for x in (name, f"d{name}")}
        boundary = np.asarray(evaluate(node, states, m, sizes), dtype=object)
        for t in range(starts[n], starts[n] + length):
            boundary = m.mul(boundary, decays[t])
        if axes:
            own_late, own_early = (x[starts[n] : starts[n + 1]] for x in (late, early))
            boundary = m.add(boundary, m.mul(minus, env["sums", f"{name}.out"][n]))
        else:
            zeros = np.broadcast_to(m.const(Fraction(0)), (length,))
            found = {x: env["sums", f"{name}.{x}"][n] if ("sums", f"{name}.{x}") in env else zeros for x in SUMS}
            own_late, own_early = (m.add(found[f"in.{slot}"], found[f"own.{slot}"]) for slot in ("late", "early"))
            ahead = [found["out.late"], found["out.early"]]
        for t in range(length):
            value = boundary
            if not axes:  # writes before t
                for slot, before in enumerate(ahead):
                    for x in before[: t + slot]:
                        value = m.add(value, m.mul(minus, x))
            for x in (*own_late[t:], *own_early[t + 1 :]):
                value = m.add(value, x)
            whole = env["state-adjoint product", stage.state_adjoint.leaf.attrs[1]][starts[n] + t]
            if not m.equal(np.asarray(value, dtype=object), np.asarray(whole, dtype=object)):
                raise GateError(f"the state-adjoint product of {name}, summed and from checkpointed states")


def _over(
    node: Node, axes: tuple[str, ...], env: Env, m: ArrayNumbers, sizes: dict[str, int], steps: int
) -> np.ndarray:
    from ...ir.expr import expand

    return _sequence(expand(node, axes), env, m, sizes, steps)
