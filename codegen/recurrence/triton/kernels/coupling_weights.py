"""Transition matrices of coupled states: an intra-chunk kernel makes them for all chunks, before the kernels that use them.

What one state takes of another over some steps is an entry of a product of small matrices, one for each step (see
`coupled_states.py`). A program makes all such products of a chunk, one step after the other; sweeps and their prologues load
them as matrices over the steps of a chunk, and as numbers of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

from ....ir.code import Code, Literal, Load, Name, call, shape, where, zeros
from ....ir.expr import COL, ROW, Node, in_keys, leaf, rebuild, split_constant, terms_of
from ....ir.kernel_ir import For, If, KernelFunction, Let, Parameter, Return, Statement, Store, added, let
from ...chunkwise.coupled_states import TRANSITIONS, reached
from ...chunkwise.plan import Plan, Sweep, Unroll
from ..plan_passes.roles import TRANSITION


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
    kinds = {(y.op, y.args, y.attrs[:2], y.attrs[4:], y.axes) for y in mixes if y.op in TRANSITIONS}
    if len(kinds) != 1 or not all(y.op in TRANSITIONS for y in mixes):
        return None
    ((op, args, (positions, count), (*late, direction), own),) = kinds
    entries = tuple(streams[a.attrs[1]] if a.op == "leaf" else a for a in args)
    key = positions, direction, entries
    transitions = found.setdefault(key, Transitions(dict(zip(positions, entries, strict=True)), count, direction))
    summed = tuple((c, y.attrs[2:4]) for c, y in terms)
    made = ("transition_in", summed, True) if op == "transition_all" else (op, summed, late == [True])
    kind, axes = ("matrix", (ROW, COL)) if op == "transition_mask" else (TRANSITION, (ROW,))
    said = [in_keys(made[0]), *(z for y in summed for z in y), made[2]]
    name = f"{stem}.{list(found).index(key)}." + ".".join(map(str, said))
    transitions.made.setdefault(leaf(kind, name, axes), made)
    return leaf(kind, name, own)


@dataclass(frozen=True)
class TransitionKernel:
    """A kernel of weights. `given` are the entries that it loads, by (to, of)."""

    function: KernelFunction
    transitions: Transitions
    given: tuple[tuple[int, int], ...]
    sweeps = False

    @property
    def name(self) -> str:
        return self.function.name


def transition_kernel(name: str, w: Transitions, name_of: Callable[[Node], str]) -> TransitionKernel:
    """The kernel that makes these. Beyond the last step there are zeros."""
    given = tuple(p for p, x in w.entries.items() if x.op != "const")
    parameters: list[tuple[Parameter, ...]] = []
    setup: list[Statement] = [
        Let(("b", "c", "h"), call("chunk_of", call("tl.program_id", 0), "H", "chunks")),
        let("bh", Name("b") * "H" + "h"),
        Let(("t0", "last"), call("place_of", "c", "T", "begins", "stops", "C")),
        If(Name("last") < 0, (Return(),)),
        let("j", call("tl.arange", 0, "C")),
        let("at", Name("bh") * "T" + "t0"),
        let("matrix", (Name("bh") * "chunks" + "c") * "C" * "C"),
    ]
    for to, of in given:
        x = _entry(to, of)
        parameters.append(tuple(Parameter(f"{x}_{y}") for y in "pbthg"))
        place = Name("b") * f"{x}_b" + Name("t0") * f"{x}_t" + Name("h") // f"{x}_g" * f"{x}_h"
        setup.append(added(f"{x}_p", place))
    pairs = sorted(reached(tuple(w.entries), w.count))
    for to, of in pairs:
        one = Literal(float(to == of))
        none = call("tl.full", shape(), one, "tl.float32")
        setup.append(let(f"p_{to}_{of}", zeros(shape("C")), note="from the step after each to here"))
        setup.append(let(f"g_{to}_{of}", none, note="from the chunk's start to here"))
    there = Name("there")
    loop: list[Statement] = [
        let("i", Name("n") if w.direction > 0 else Name("C") - 1 - "n"),
        let("there", Name("i") <= "last"),
    ]
    for to, of in given:
        x = _entry(to, of)
        load = Load(Name(f"{x}_p") + Name("i") * f"{x}_t", there, Literal(0.0))
        loop.append(let(x, load.to("tl.float32")))
    loop += _stores(w, False, name_of)
    after: list[Statement] = []
    for to, of in pairs:
        for kind in "pg":
            loop.append(let(f"{kind}_{to}_{of}_next", _next(w, to, of, kind, pairs)))
        own = where(Name("j").equals("i"), float(to == of), Name(f"p_{to}_{of}_next"))
        after.append(let(f"p_{to}_{of}", where(there, own, Name(f"p_{to}_{of}"))))
        after.append(let(f"g_{to}_{of}", where(there, Name(f"g_{to}_{of}_next"), Name(f"g_{to}_{of}"))))
    loop += after + _stores(w, True, name_of)
    end: list[Statement] = []
    for leaf_, (op, summed, _) in w.made.items():
        parameters.append((Parameter(f"{name_of(leaf_)}_out"),))
        if op == "transition_out":
            end.append(Store(Name(f"{name_of(leaf_)}_out") + "at" + "j", _sum("p", summed), Name("j") <= "last"))
    function = KernelFunction(
        name,
        tuple(parameters),
        ("T", "H", "chunks", "begins", "stops", "programs"),
        ("C",),
        "Weights between states that are added to each other.",
        (*setup, For("n", call("range", 0, "C"), tuple(loop)), *end),
        ("T", "chunks", "programs"),
    )
    return TransitionKernel(function, w, given)


def _next(w: Transitions, to: int, of: int, kind: str, pairs: list[tuple[int, int]]) -> Code:
    """An entry of a product with one more matrix."""
    terms: list[Code] = []
    for by in range(w.count):
        if (to, by) not in w.entries or (by, of) not in pairs:
            continue
        x, product = w.entries[to, by], Name(f"{kind}_{by}_{of}")
        if x.op != "const":
            terms.append(Name(_entry(to, by)) * product)
        else:
            terms.append(product if x.attrs[0] == 1 else Literal(float(x.attrs[0]), x.attrs[0]) * product)
    return reduce(add, terms) if terms else Literal(0.0) * Name(f"{kind}_{to}_{of}")


def _stores(w: Transitions, late: bool, name_of: Callable[[Node], str]) -> list[Statement]:
    """The stores of a step's weights, before its matrix or after it."""
    found: list[Statement] = []
    for x, (op, summed, after) in w.made.items():
        if after != late or op == "transition_out":
            continue
        out = Name(f"{name_of(x)}_out")
        if op == "transition_mask":
            seen = where(Name("there"), _sum("p", summed), 0.0)
            found.append(Store(out + "matrix" + Name("i") * "C" + "j", seen))
        else:
            found.append(Store(out + "at" + "i", _sum("g", summed), Name("there")))
    return found


def _sum(kind: str, summed: tuple[tuple[Fraction, tuple[int, int]], ...]) -> Code:
    terms: list[Code] = []
    for c, (to, of) in summed:
        entry = Name(f"{kind}_{to}_{of}")
        terms.append(entry if c == 1 else Literal(float(c), c) * entry)
    return reduce(add, terms)


def _entry(to: int, of: int) -> str:
    return f"a_{to}_{of}"
