"""The kernel of several steps in one launch, with the state in registers: drafts, their commit, and packed short sequences.

It reads the state of each sequence from its row of a pool, whose strides may be any. What it does with states is the caller's:
`ends` writes the last one back, `keeps` writes the one after each step to a row of its own. Outputs are written where `yields`.
A state is rounded to the pool's dtype after each step. Outputs are sums over the states before a step (`outputs_first.py`): a
step is bound by its instructions, and drafts that keep no states make none of the last.
"""

from __future__ import annotations

from typing import Any

from ....ir.code import Binary, CastLike, Code, Group, Load, Name, RoundedLike, call, names_in, summed
from ....ir.expr import Node, leaves
from ....ir.kernel_ir import For, If, Let, Prefetch, Statement, let
from ....ir.step_program import StepProgram
from ...chunkwise.compiled import Compiled
from ..kernel import Kernel, Pointer, over
from ..names import tensors
from ..tiling import WHOLE
from .outputs_first import tiled_outputs
from .places import several_steps_kernel

PLACE = Name("entry"), Name("begin")
LAST = "nobody asks for the state after the last draft"


def several_steps(c: Compiled) -> dict[str, Any]:
    """The kernel. The arguments are in the order of `step_kernel`'s."""
    p = c.step
    k = Kernel(c, tiled_outputs(c))
    nodes: dict[str, Node] = {**p.updates, **{f"out {n}": x for n, x in k.tiling.outputs.items()}}
    read = {x.attrs[:2] for x in leaves(*nodes.values())}
    k.constants = [v for v in p.variables if v.kind == "constant" and (v.kind, v.name) in read]
    advances: list[Statement] = []
    once, loads = _given(k, p, read, advances)
    before: list[Statement] = []
    settled: list[Statement] = []
    kept: list[Statement] = []
    rounded: list[Statement] = []
    following: list[Statement] = []
    last: list[Statement] = []
    orders = {s.name: s.axes for s in p.states} | {f"out {n}": axes for n, axes in p.output_axes.items()}
    made, results = k.values(p, nodes, orders, set(p.updates))
    for s in p.states:
        x = k.strided(s.name, "states", s.name, (Name("row"), Name("head")), s.axes)
        y = k.strided(f"kept_{s.name}", "kept", s.name, (Name("kept_row"), Name("head")), s.axes)
        advances.append(k.advance(x))
        here, there = _offsets(x), _offsets(y)
        name, after = k.names.of("state", s.name), k.following[s.name]
        whole = k.tiling.dim is not None and k.kind(s.axes) == WHOLE
        if whole:  # each turn begins from what the row held before any
            held = k.names.fresh(f"{s.name}_before")
            before.append(let(held, k.load(Name(x.name), s.axes, here)))
            once.append(let(name, held))
        else:
            once.append(let(name, k.raw(Name(x.name), s.axes, here)))
            settled.append(let(name, k.value(Name(name))))
        if len(s.axes) > 1:
            rounded.append(let(after, RoundedLike(results[s.name], Name(x.name))))
            following.append(let(name, after))
        else:
            rounded.append(let(after, CastLike(Group(results[s.name]), Name(x.name))))
            following.append(let(name, Name(after).to("tl.float32")))
        kept_at = Name(y.name) + Name("kept_row") * y.strides[0] + Name("head") * y.strides[1]
        kept.append(k.store(kept_at, s.axes, Name(after), k.kind(s.axes), there))
        last.append(k.store(Name(x.name), s.axes, Name(name), k.kind(s.axes), here))
    stores: list[Statement] = []
    for n, axes in p.output_axes.items():
        x = k.strided(n, "outputs", n, (*PLACE, Name("head")), axes, own=False)
        advances.append(k.advance(x))
        at = Name(x.name) + Name("now") * x.strides[1]
        stores.append(k.store(at, axes, results[f"out {n}"], k.tiling.kinds[n]))
    asked = _needed(made, [results[f"out {n}"] for n in p.output_axes])
    updates = (
        *(x for x in made if x not in asked),
        *rounded,
        If(Name("keeps"), (_kept_row(), If(Name("kept_row") >= 0, tuple(kept)))),
        *following,
    )
    goes_on = Binary("or", Binary("or", Name("keeps"), Name("ends")), Name("now") + 1 < Name("count"))
    step = (
        let("now", call("tl.cast", "offset", "tl.int64")),
        let("then", call("tl.minimum", Name("now") + 1, Name("count") - 1)),
        *loads,
        *asked,
        If(Name("yields"), tuple(stores)),
        If(goes_on, updates, note=LAST),
    )
    body: list[Statement] = [
        *once,
        let("now", call("tl.cast", 0, "tl.int64")),
        *settled,
        For("offset", call("range", "count"), step, Prefetch(next=(("now", Name("then")),))),
        If(Name("ends"), tuple(last)),
    ]
    return k.launch(several_steps_kernel(k, advances, before, body))


def _given(
    k: Kernel, p: StepProgram, read: set[tuple[str, str]], advances: list[Statement]
) -> tuple[list[Statement], list[Statement]]:
    """What loads the tensors that are read: those of all steps, and those of each."""
    once: list[Statement] = []
    loads: list[Statement] = []
    for v in tensors(p):
        if (v.kind, v.name) not in read:
            continue
        head = k.head_of(v.name)
        x = k.strided(v.name, "given", v.name, (*PLACE, head) if v.per_step else (head,), v.axes)
        advances.append(k.advance(x))
        name = k.names.of(v.kind, v.name)
        if v.per_step:
            loads.append(k.step_load(name, x, v.is_decay))
        else:
            once.append(let(name, k.load_strided(x, v.is_decay)))
    return once, loads


def _needed(made: list[Let], results: list[Code]) -> list[Let]:
    """The statements that results are made of."""
    used, found = frozenset[str]().union(*map(names_in, results)), list[Let]()
    for x in reversed(made):
        if used.intersection(x.names):
            used |= names_in(x.value)
            found.insert(0, x)
    return found


def _kept_row() -> If:
    """The row of a pool that takes the state after a step."""
    each = Load(Name("each_at") + Name("batch") * "steps" + "now")
    given = (let("kept_row", call("tl.cast", each, "tl.int64")),)
    return If(Name("each_at").given, given, (let("kept_row", Name("batch") * "steps" + "now"),))


def _offsets(x: Pointer) -> Code | None:
    """Of a state's entries, with any strides: engines lay the two axes out in either order."""
    found = [at * s for at, s in zip(over(x.axes, "at_{}"), x.strides[2:], strict=True)]
    return summed(*found) if found else None
