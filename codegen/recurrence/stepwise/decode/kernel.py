"""The step kernel: one program for each batch entry and head, or for each tile of its state where a dim can be cut.

A dim is cut where nothing sums over it, neither an update nor an output: then the tiles never need each other, and one launch
does all. A state without that dim is read by every tile. Where it is updated in place, the tiles of a head take turns in one
program (`shared`), so that none reads what another has written. Where states are small numbers (`small.py`), a program has the
whole of a head's.
"""

from __future__ import annotations

from typing import Any

from ....ir.code import Code, Name, names_in
from ....ir.expr import Node, dim_of, leaves
from ....ir.kernel_ir import Barrier, If, Statement, assigned, let
from ....ir.step_program import Var
from ...chunkwise.compiled import Compiled
from ..kernel import Kernel, Pointer
from ..names import tensors
from ..rows import RowStatements, row_plan
from ..rows_form import over_rows, rows_kernel, rows_launch, rows_step
from ..tiling import OWN, WHOLE, tiling
from .places import later_row, later_states, one_step
from .small import SmallStates


def step_kernel(c: Compiled) -> dict[str, Any]:
    """The kernel, and what the launcher needs."""
    p = c.step
    k = Kernel(c, tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states], parts_allowed=False))
    nodes: dict[str, Node] = {**p.updates, **{f"out {n}": x for n, x in k.tiling.outputs.items()}}
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    reads, inputs, states, outputs = _pointers(k, read)
    small = SmallStates(k)
    early: list[Statement] = []
    loads: list[Statement] = []
    settled: list[Statement] = []
    for s in p.states:
        name = k.names.of("state", s.name)
        whole = k.tiling.dim is not None and k.kind(s.axes) == WHOLE
        (early if whole else loads).append(let(name, k.raw(Name(states[s.name][0].name), s.axes)))
        settled += [let(name, k.value(Name(name))), *small.widened(s.name, name)]
    for v, x in zip(reads, inputs, strict=True):
        name = k.names.of(v.kind, v.name)
        loads.append(let(name, k.raw_strided(x)))
        settled.append(let(name, k.value(Name(name), v.is_decay)))
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    made, results = k.values(p, nodes, orders, set(p.updates))
    body: list[Statement] = [*made]
    for s in p.states:
        value = results[s.name]
        stored = k.store(Name(states[s.name][1].name), s.axes, value, k.kind(s.axes))
        body.insert(_known(body, value), small.stored(s.name, stored))
    body += [
        k.store(Name(x.name), axes, results[f"out {n}"], k.tiling.kinds[n])
        for (n, axes), x in zip(p.output_axes.items(), outputs, strict=True)
    ]
    # everything is on its way before the first thing is waited for; states first, as they take longest
    later = later_states(k, {n: old for n, (old, _) in states.items()})
    body = [*loads, *small.loads(), Barrier(), *later, *settled, *body]
    moves = [*_moves(k, inputs, states, outputs), *small.moves(), *([later_row()] if later else [])]
    f = one_step(k, moves, early, body, small=small.pointers)
    return k.launch(f) | {
        "reads": [v.name for v in reads],
        "scaled": list(small.axes),
        "shared": k.tiling.dim is not None and any(k.kind(s.axes) == WHOLE for s in p.states),
        "held": [tuple(dim_of(a) for a in axes) for axes in _matrices(c)],
    }


def step_rows(c: Compiled) -> dict[str, Any] | None:
    """The kernel for states that are too wide to be held whole and can't be cut: over blocks of their rows."""
    p = c.step
    plan = row_plan(p.updates, p.outputs, {s.name: s.axes for s in p.states})
    if plan is None:
        return None
    k = rows_kernel(c, dict.fromkeys(p.outputs, OWN), p.outputs)
    reads, inputs, states, outputs = _pointers(
        k, {x.attrs[:2] for x in leaves(*p.updates.values(), *p.outputs.values())}
    )
    pointers = {v.name: x for v, x in zip(reads, inputs, strict=True)}
    rows = RowStatements(k, p, plan, k.contiguous("scratch", "scratch", "", ()), pointers, place=Name("index"))
    loads = [let(k.names.of(v.kind, v.name), k.load_strided(pointers[v.name], v.is_decay)) for v in reads]
    small = [s for s in p.states if len(s.axes) < 2]
    loads += [let(k.names.of("state", s.name), k.load(Name(states[s.name][0].name), s.axes)) for s in small]
    read = {n: Name(old.name) for n, (old, _) in states.items()}
    made, results = rows_step(k, p, rows, dict(read), {n: Name(new.name) for n, (_, new) in states.items()})
    stores = [k.store(Name(states[s.name][1].name), s.axes, results[s.name]) for s in small]
    stores += [
        k.store(Name(x.name), axes, results[f"out {n}"])
        for (n, axes), x in zip(p.output_axes.items(), outputs, strict=True)
    ]
    index = let("index", Name("batch") * "heads" + "head")
    over = over_rows(rows)
    body = [index, *loads, Barrier(), *made, *stores]
    return rows_launch(k, one_step(k, _moves(k, inputs, states, outputs), [], body, over), over)


def _pointers(
    k: Kernel, read: set[tuple[str, str]]
) -> tuple[list[Var], list[Pointer], dict[str, tuple[Pointer, Pointer]], list[Pointer]]:
    """The arguments that are read, with their pointers; those of each state and of the next; those of outputs."""
    p = k.c.step
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    batch, head = Name("batch"), Name("head")
    reads = [v for v in tensors(p) if (v.kind, v.name) in read]
    inputs = []
    for v in reads:
        own = k.head_of(v.name)
        inputs.append(k.strided(v.name, "given", v.name, (batch, own) if v.per_step else (own,), v.axes))
    states = {
        s.name: (
            k.strided(s.name, "states", s.name, (Name("row"), head), s.axes, own=False),
            k.strided(f"next_{s.name}", "following", s.name, (batch, head), s.axes, own=False),
        )
        for s in p.states
    }
    outputs = [k.strided(n, "outputs", n, (batch, head), axes, own=False) for n, axes in p.output_axes.items()]
    return reads, inputs, states, outputs


def _moves(
    k: Kernel, inputs: list[Pointer], states: dict[str, tuple[Pointer, Pointer]], outputs: list[Pointer]
) -> list[Statement]:
    """Statements that move pointers to a program's batch entry and head; in place, the next states' are the states'."""
    same = tuple(let(new.name, old.name) for old, new in states.values())
    apart = tuple(k.advance(new) for _, new in states.values())
    advances = [k.advance(x) for x in (*inputs, *(old for old, _ in states.values()), *outputs)]
    return [*advances, If(Name("inplace"), same, apart)]


def _known(body: list[Statement], value: Code) -> int:
    """The place after the last statement that a value needs: a state is on its way while outputs are still worked out."""
    used = names_in(value)
    return max((i + 1 for i, x in enumerate(body) if assigned(x) & used), default=0)


def _matrices(c: Compiled) -> list[tuple[str, ...]]:
    """The axes of what fills a program's registers: its states, and whatever else has two axes."""
    return [s.axes for s in c.step.states] + [v.axes for v in tensors(c.step) if len(v.axes) > 1]
