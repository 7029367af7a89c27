"""Run a plan exactly, chunk by chunk: what the gate after each pass compares with the step program."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from chunkform.errors import GateError

from .evaluate import Env, evaluate, evaluate_all
from .ir import ROW, Node, dim_of, leaf
from .plan import Accumulate, Map, Plan, Sweep, Unroll
from .run_steps import stored


def run_plan(
    p: Plan,
    env: Env,
    initial: dict[str, Any],
    arithmetic: Any,
    sizes: dict[str, int],
    lengths: list[int],
    finals_dot: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any], Env]:
    """(values, last states, everything computed). `env` holds sequences with a leading time axis; chunks have `lengths`.

    `finals_dot` holds the incoming gradient of each last state, which a pairing starts from.
    """
    env = dict(env)
    finals: dict[str, Any] = {}
    values: dict[str, Any] = {}
    steps = sum(lengths)
    for stage in p.stages:
        match stage:
            case Sweep():
                run_sweep(stage, env, initial, finals, arithmetic, sizes, lengths)
            case Accumulate():
                _accumulate(stage, env, finals, finals_dot or {}, p, arithmetic, sizes, steps)
                if stage.direct is not None:
                    summed = env["pairing", stage.pairing.leaf.attrs[1]]
                    _unroll(stage.direct, env, arithmetic, sizes, lengths)
                    if not arithmetic.equal(env["pairing", stage.pairing.leaf.attrs[1]], summed):
                        raise GateError(
                            f"pass plan: the pairing of {stage.pairing.state}, summed and unrolled, differs"
                        )
            case Unroll():
                _unroll(stage, env, arithmetic, sizes, lengths)
            case Map():
                for name, node in stage.values.items():
                    values[name] = _sequence(node, env, arithmetic, sizes, steps)
    return values, finals, env


def _sequence(node: Node, env: Env, m: Any, sizes: dict[str, int], steps: int) -> Any:
    """A step-level node over all steps."""
    value = evaluate(node, env, m, sizes)
    shape = (steps, *(sizes[dim_of(a)] for a in node.axes))
    return np.broadcast_to(np.asarray(value, dtype=object), shape)


def run_sweep(
    sweep: Sweep,
    env: Env,
    initial: dict[str, Any],
    finals: dict[str, Any],
    m: Any,
    sizes: dict[str, int],
    lengths: list[int],
) -> None:
    chunk, steps = sweep.chunk, sum(lengths)
    streams = {x: _sequence(node, env, m, sizes, steps) for x, node in chunk.streams.items()}
    states = {s: initial[s] for s in sweep.states}
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = range(len(lengths)) if sweep.direction > 0 else range(len(lengths) - 1, -1, -1)
    edges: dict[str, list[Any]] = {s: [None] * len(lengths) for s in states}
    pieces: dict[Node, list[Any]] = {x: [None] * len(lengths) for x in chunk.outputs}
    for n in order:
        own = {**sizes, ROW: lengths[n]}
        local: Env = {("state in", s): states[s] for s in states}
        for name, state in states.items():
            edges[name][n] = state
        for x, value in streams.items():
            local["stream", x.attrs[1]] = value[starts[n] : starts[n + 1]]
        for x, node in chunk.definitions.items():
            local["inner", x.attrs[1]] = _whole(evaluate(node, local, m, own), node, own)
        names = list(chunk.outputs)
        results = evaluate_all([*(chunk.outputs[x] for x in names), *chunk.states.values()], local, m, own)
        for x, value in zip(names, results, strict=False):
            node = chunk.outputs[x]
            full = tuple(sorted({ROW, *x.axes}))
            shape = tuple(own[a] if a == ROW else sizes[dim_of(a)] for a in full)
            assert set(node.axes) <= set(full)
            from .evaluate import aligned

            pieces[x][n] = np.broadcast_to(np.asarray(aligned(value, node.axes, full), dtype=object), shape)
        for name, value in zip(chunk.states, results[len(names) :], strict=True):
            axes = tuple(sorted(chunk.state_axes[name]))
            shape = tuple(sizes[dim_of(a)] for a in axes)
            states[name] = stored(np.broadcast_to(np.asarray(value, dtype=object), shape), axes, chunk.state_axes[name])
    for x, parts in pieces.items():
        env[x.attrs[0], x.attrs[1]] = np.concatenate(parts) if parts else np.empty((0,), dtype=object)
    finals.update(states)
    env.update({("edges", name): values for name, values in edges.items()})


def _unroll(stage: Unroll, env: Env, m: Any, sizes: dict[str, int], lengths: list[int]) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    streams = {x: _sequence(node, env, m, sizes, sum(lengths)) for x, node in stage.streams.items()}
    pieces: dict[Node, list[Any]] = {x: [] for x in stage.outputs}
    for n, length in enumerate(lengths):
        local: Env = {("state in", s.name): env["edges", s.name][n] for s in (*stage.forward, *stage.backward)}
        local |= {("stream", x.attrs[1]): value[starts[n] : starts[n + 1]] for x, value in streams.items()}
        own = {**sizes, ROW: length}
        for x, value in zip(stage.outputs, evaluate_all(stage.outputs.values(), local, m, own), strict=True):
            pieces[x].append(np.broadcast_to(np.asarray(value, dtype=object), (length,)))
    for x, parts in pieces.items():
        env["pairing", x.attrs[1]] = np.concatenate(parts)


def _whole(value: Any, node: Node, own: dict[str, int]) -> Any:
    shape = tuple(own[ROW] if a.startswith("%") else own[dim_of(a)] for a in node.axes)
    return np.broadcast_to(np.asarray(value, dtype=object), shape)


def _accumulate(
    stage: Accumulate,
    env: Env,
    finals: dict[str, Any],
    finals_dot: dict[str, Any],
    p: Plan,
    m: Any,
    sizes: dict[str, int],
    steps: int,
) -> None:
    pairing = stage.pairing
    axes = pairing.leaf.axes
    shape = tuple(sizes[dim_of(a)] for a in axes)
    late = _over(pairing.late, axes, env, m, sizes, steps)
    early = _over(pairing.early, axes, env, m, sizes, steps)
    s = p.form.state(pairing.state)
    name = pairing.state
    order = tuple(sorted(s.axes))
    running = np.broadcast_to(m.const(Fraction(0)), shape)
    if name in finals and f"d{name}" in finals_dot:
        node = leaf("state", name, s.axes) * leaf("state", f"d{name}", s.axes)
        from .ir import total

        node = total(node, *(set(order) - set(axes)))
        running = evaluate(
            node, {("state", name): finals[name], ("state", f"d{name}"): finals_dot[f"d{name}"]}, m, sizes
        )
    out: list[Any] = [None] * steps
    for t in range(steps - 1, -1, -1):
        running = m.add(running, late[t])
        out[t] = np.asarray(running, dtype=object)
        running = m.add(running, early[t])
    env["pairing", pairing.leaf.attrs[1]] = np.stack(out)


def _over(node: Node, axes: tuple[str, ...], env: Env, m: Any, sizes: dict[str, int], steps: int) -> Any:
    from .ir import expand

    return _sequence(expand(node, axes), env, m, sizes, steps)
