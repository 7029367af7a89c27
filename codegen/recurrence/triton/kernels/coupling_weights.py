"""Transition matrices of coupled states: an intra-chunk kernel makes them for all chunks, before the kernels that use them.

What one state takes of another over some steps is an entry of a product of small matrices, one for each step (see
`coupled_states.py`). A program makes all such products of a chunk, one step after the other; sweeps and their prologues load
them as matrices over the steps of a chunk, and as numbers of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ....ir.expr import COL, ROW, Node, leaf, rebuild, split_constant, terms_of
from ...chunkwise.coupled_states import reached
from ...chunkwise.plan import Plan, Sweep, Unroll
from ..plan_passes.roles import WEIGHT
from .sweep_kernels import Kernel


@dataclass
class Transitions:
    """Products of one matrix of each step, of `count` states: `entries` by (to, of), as step-level nodes.

    `made` are the leaves of those that some sweep uses: the operation of the chunk program, what it sums, (number, (to, of)), and
    whether that comes after its step's matrix.
    """

    entries: dict[tuple[int, int], Node]
    count: int
    direction: int
    made: dict[Node, tuple[str, tuple[tuple[Fraction, tuple[int, int]], ...], bool]] = field(default_factory=dict)


def with_transitions(plan: Plan) -> tuple[Plan, list[Transitions]]:
    """A plan with leaves in the place of weights, and what these are."""
    found: dict[Any, Transitions] = {}
    stages = [_with_transitions(s, found) if isinstance(s, Sweep) else s for s in plan.stages]
    return replace(plan, stages=tuple(stages)), list(found.values())


def unroll_with_transitions(stage: Unroll) -> tuple[Unroll, list[Transitions]]:
    """The same of products of states and gradients at each step, over blocks of steps."""
    found: dict[Any, Transitions] = {}
    new = _replacing(stage.streams, found, "block weight")
    return replace(stage, outputs={x: new(node) for x, node in stage.outputs.items()}), list(found.values())


def _with_transitions(sweep: Sweep, found: dict[Any, Transitions]) -> Sweep:
    chunk, new = sweep.chunk, _replacing(sweep.chunk.streams, found, "weight")
    definitions, outputs = ({k: new(x) for k, x in nodes.items()} for nodes in (chunk.definitions, chunk.outputs))
    states = {n: new(x) for n, x in chunk.states.items()}
    return replace(sweep, chunk=replace(chunk, definitions=definitions, outputs=outputs, states=states))


def _replacing(streams: dict[Node, Node], found: dict[Any, Transitions], stem: str) -> Callable[[Node], Node]:
    """What puts leaves, whose names begin so, in the place of weights, and notes these."""
    entries = {x.attrs[1]: node for x, node in streams.items()}
    done: dict[Node, Node] = {}

    def new(x: Node) -> Node:
        if x not in done:
            done[x] = _leaf_of(x, entries, found, stem) or (rebuild(x, map(new, x.args)) if x.args else x)
        return done[x]

    return new


def _leaf_of(x: Node, streams: dict[str, Node], found: dict[Any, Transitions], stem: str) -> Node | None:
    """The leaf for a weight, over whatever its axes are called, or for a sum of weights of one kind; None for other nodes. Of a
    state that enters a chunk as much is left after it as its last step has."""
    terms = [split_constant(t) for t in terms_of(x)]
    mixes = [y for _, y in terms]
    kinds = {(y.op, y.args, y.attrs[:2], y.attrs[4:], y.axes) for y in mixes if y.op.startswith("mix_")}
    if len(kinds) != 1 or not all(y.op.startswith("mix_") for y in mixes):
        return None
    ((op, args, (positions, count), (*late, direction), own),) = kinds
    entries = tuple(streams[a.attrs[1]] if a.op == "leaf" else a for a in args)
    key = positions, direction, entries
    transitions = found.setdefault(key, Transitions(dict(zip(positions, entries, strict=True)), count, direction))
    summed = tuple((c, y.attrs[2:4]) for c, y in terms)
    made = ("mix_in", summed, True) if op == "mix_all" else (op, summed, late == [True])
    kind, axes = ("matrix", (ROW, COL)) if op == "mix_mask" else (WEIGHT, (ROW,))
    name = f"{stem}.{list(found).index(key)}." + ".".join(map(str, [made[0], *(z for y in summed for z in y), made[2]]))
    transitions.made.setdefault(leaf(kind, name, axes), made)
    return leaf(kind, name, own)


@dataclass(frozen=True)
class TransitionKernel(Kernel):
    """A printed kernel of weights. `given` are the entries that it loads, by (to, of)."""

    parameters: tuple[str, ...] = ()
    given: tuple[tuple[int, int], ...] = ()

    def signature(self) -> list[str]:
        return [*self.parameters, "T, H, chunks, begins, stops, programs,", "C: tl.constexpr,"]


def transition_kernel(name: str, w: Transitions, name_of: Callable[[Node], str]) -> TransitionKernel:
    """The kernel that makes these. Beyond the last step there are zeros."""
    given = tuple(p for p, x in w.entries.items() if x.op != "const")
    parameters: list[str] = []
    setup = [
        "b, c, h = chunk_of(tl.program_id(0), H, chunks)",
        "bh = b * H + h",
        "t0, last = place_of(c, T, begins, stops, C)",
        "if last < 0:",
        "    return",
        "j = tl.arange(0, C)",
        "at = bh * T + t0",
        "matrix = (bh * chunks + c) * C * C",
    ]
    for to, of in given:
        base = _entry(to, of)
        parameters.append(f"{base}_p, {base}_b, {base}_t, {base}_h, {base}_g,")
        setup.append(f"{base}_p += b * {base}_b + t0 * {base}_t + h // {base}_g * {base}_h")
    pairs = sorted(reached(tuple(w.entries), w.count))
    for to, of in pairs:
        setup.append(f"p_{to}_{of} = tl.zeros([C], tl.float32)  # from the step after each to here")
        setup.append(f"g_{to}_{of} = tl.full([], {float(to == of)}, tl.float32)  # from the chunk's start to here")
    loop = ["i = n" if w.direction > 0 else "i = C - 1 - n", "there = i <= last"]
    for to, of in given:
        base = _entry(to, of)
        loop.append(f"{base} = tl.load({base}_p + i * {base}_t, mask=there, other=0.0).to(tl.float32)")
    loop += _stores(w, False, name_of)
    after: list[str] = []
    for to, of in pairs:
        for kind in "pg":
            terms = [
                f"{_text(w, to, by)}{kind}_{by}_{of}"
                for by in range(w.count)
                if (to, by) in w.entries and (by, of) in pairs
            ]
            loop.append(f"{kind}_{to}_{of}_next = {' + '.join(terms) or f'0.0 * {kind}_{to}_{of}'}")
        after.append(
            f"p_{to}_{of} = tl.where(there, tl.where(j == i, {float(to == of)}, p_{to}_{of}_next), p_{to}_{of})"
        )
        after.append(f"g_{to}_{of} = tl.where(there, g_{to}_{of}_next, g_{to}_{of})")
    loop += after + _stores(w, True, name_of)
    setup += ["for n in range(0, C):", *(f"    {x}" for x in loop)]
    for x, (op, summed, _) in w.made.items():
        parameters.append(f"{name_of(x)}_out,")
        if op == "mix_out":
            setup.append(f"tl.store({name_of(x)}_out + at + j, {_sum('p', summed)}, mask=j <= last)")
    doc = "Weights between states that are added to each other."
    lines = {"setup": setup, "loop": [], "after": []}
    return TransitionKernel(name, lines, doc, (), (), None, False, parameters=tuple(parameters), given=given)


def _stores(w: Transitions, late: bool, name_of: Callable[[Node], str]) -> list[str]:
    """The stores of a step's weights, before its matrix or after it."""
    lines = []
    for x, (op, summed, after) in w.made.items():
        if after != late or op == "mix_out":
            continue
        if op == "mix_mask":
            seen = f"tl.where(there, {_sum('p', summed)}, 0.0)"
            lines.append(f"tl.store({name_of(x)}_out + matrix + i * C + j, {seen})")
        else:
            lines.append(f"tl.store({name_of(x)}_out + at + i, {_sum('g', summed)}, mask=there)")
    return lines


def _sum(kind: str, summed: tuple[tuple[Fraction, tuple[int, int]], ...]) -> str:
    terms = (f"{'' if c == 1 else f'{float(c)!r} * '}{kind}_{to}_{of}" for c, (to, of) in summed)
    return " + ".join(terms)


def _entry(to: int, of: int) -> str:
    return f"a_{to}_{of}"


def _text(w: Transitions, to: int, of: int) -> str:
    x = w.entries[to, of]
    return f"{_entry(to, of)} * " if x.op != "const" else "" if x.attrs[0] == 1 else f"{float(x.attrs[0])!r} * "
