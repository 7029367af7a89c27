"""Weights between states that are added to each other: a kernel makes them for all chunks, ahead of those that use them.

What one state takes of another over some steps is an entry of a product of small matrices, one for each step (see `mixing.py`). A
program makes all such products of a chunk, step by step; walks, and what is ahead of them, load them as matrices over the steps
of a chunk, and as numbers of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir import COL, ROW, Node, leaf, rebuild, walk
from ..mixing import reached
from ..stages import Plan, Sweep
from .kernels import Kernel
from .tile import WEIGHT


@dataclass
class Weights:
    """Products of one matrix of each step, of `count` states: `entries` by (to, of), as step-level nodes; `made` are the leaves of those that some
    sweep uses, with the operation of the chunk program, what it is of (to, of), and whether it comes after its step's matrix."""

    entries: dict[tuple[int, int], Node]
    count: int
    direction: int
    made: dict[Node, tuple[str, tuple[int, int], bool]] = field(default_factory=dict)


def weighted(plan: Plan) -> tuple[Plan, list[Weights]]:
    """A plan with leaves in the place of weights, and what these are."""
    found: dict[Any, Weights] = {}
    stages = [_weighted(s, found) if isinstance(s, Sweep) else s for s in plan.stages]
    return replace(plan, stages=tuple(stages)), list(found.values())


def _weighted(sweep: Sweep, found: dict[Any, Weights]) -> Sweep:
    chunk = sweep.chunk
    leaves: dict[Node, Node] = {}

    def new(nodes: dict[Any, Node]) -> dict[Any, Node]:
        for x in walk(*nodes.values()):
            if x.op.startswith("mix_"):
                leaves.setdefault(x, _leaf_of(x, chunk.streams, found))
        return {n: _replaced(x, leaves) for n, x in nodes.items()}

    made = {n: new(getattr(chunk, n)) for n in ("definitions", "outputs", "states")}
    return replace(sweep, chunk=replace(chunk, **made))


def _replaced(x: Node, leaves: dict[Node, Node]) -> Node:
    return leaves.get(x) or (rebuild(x, (_replaced(a, leaves) for a in x.args)) if x.args else x)


def _leaf_of(x: Node, streams: dict[Node, Node], found: dict[Any, Weights]) -> Node:
    """The leaf for a weight, over whatever its axes are called. What is left of a state after a chunk is what its last step has."""
    positions, count, to, of = x.attrs[:4]
    direction = x.attrs[-1]
    by_name = {s.attrs[1]: node for s, node in streams.items()}
    entries = tuple(by_name[a.attrs[1]] if a.op == "leaf" else a for a in x.args)
    key = positions, direction, entries
    weights = found.setdefault(key, Weights(dict(zip(positions, entries, strict=True)), count, direction))
    op, late = ("mix_in", True) if x.op == "mix_all" else (x.op, x.op != "mix_out" and x.attrs[4])
    number = list(found).index(key)
    name = f"{op}.{number}.{to}.{of}.{late}"
    kind, axes = ("matrix", (ROW, COL)) if op == "mix_mask" else (WEIGHT, (ROW,))
    weights.made.setdefault(leaf(kind, name, axes), (op, (to, of), late))
    return leaf(kind, name, x.axes)


@dataclass(frozen=True)
class WeightKernel(Kernel):
    """A printed kernel of weights. `given` are the entries that it loads, by (to, of)."""

    parameters: tuple[str, ...] = ()
    given: tuple[tuple[int, int], ...] = ()

    def signature(self) -> list[str]:
        return [*self.parameters, "T, H, chunks, begins, stops, programs,", "C: tl.constexpr,"]


def weight_kernel(name: str, w: Weights, name_of: Callable[[Node], str]) -> WeightKernel:
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
                f"{_text(w, to, by)}{kind}_{by}_{of}" for by in range(w.count) if (to, by) in w.entries and (by, of) in pairs
            ]
            loop.append(f"{kind}_{to}_{of}_next = {' + '.join(terms) or f'0.0 * {kind}_{to}_{of}'}")
        after.append(
            f"p_{to}_{of} = tl.where(there, tl.where(j == i, {float(to == of)}, p_{to}_{of}_next), p_{to}_{of})"
        )
        after.append(f"g_{to}_{of} = tl.where(there, g_{to}_{of}_next, g_{to}_{of})")
    loop += after + _stores(w, True, name_of)
    setup += ["for n in range(0, C):", *(f"    {x}" for x in loop)]
    for x, (op, (to, of), _) in w.made.items():
        parameters.append(f"{name_of(x)}_out,")
        if op == "mix_out":
            setup.append(f"tl.store({name_of(x)}_out + at + j, p_{to}_{of}, mask=j <= last)")
    doc = "Weights between states that are added to each other."
    lines = {"setup": setup, "loop": [], "after": []}
    return WeightKernel(name, lines, doc, (), (), None, False, parameters=tuple(parameters), given=given)


def _stores(w: Weights, late: bool, name_of: Callable[[Node], str]) -> list[str]:
    """The stores of a step's weights, before its matrix or after it."""
    lines = []
    for x, (op, (to, of), after) in w.made.items():
        if after != late or op == "mix_out":
            continue
        if op == "mix_mask":
            lines.append(f"tl.store({name_of(x)}_out + matrix + i * C + j, tl.where(there, p_{to}_{of}, 0.0))")
        else:
            lines.append(f"tl.store({name_of(x)}_out + at + i, g_{to}_{of}, mask=there)")
    return lines


def _entry(to: int, of: int) -> str:
    return f"a_{to}_{of}"


def _text(w: Weights, to: int, of: int) -> str:
    x = w.entries[to, of]
    return f"{_entry(to, of)} * " if x.op != "const" else "" if x.attrs[0] == 1 else f"{float(x.attrs[0])!r} * "

