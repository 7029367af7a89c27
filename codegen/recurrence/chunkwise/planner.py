"""Pass 5, plan: which sweeps compute what, in an order in which each finds what it needs.

A plan is a list of stages over whole sequences:

    Sweep       sweeps the sequence in chunks, once, with the states of one group; yields solved writes, reads, last states
    Accumulate  a decay's gradient from the reads (see `StateAdjointProduct`)
    Map         quantities of each step alone, such as outputs made of reads

Reads that contract a state's rows and those that contract its columns go to different sweeps: either kind then needs only a
tile of the state, and no sweep has to keep a whole one.
"""

from __future__ import annotations

from ...ir.expr import Node
from ..normal_form.form import Cross, NormalForm, StateAdjointProduct, StateForm
from .chunk_program import chunk_program
from .decay_gradient_direct import crossing, left_out, scaled, unrolled
from .decay_gradient_sums import with_boundary_sums
from .plan import Accumulate, Map, Plan, Stage, Sweep, Unroll


def plan(form: NormalForm, finals: tuple[str, ...], saved: tuple[Node, ...] = ()) -> Plan:
    """Sweeps for all values of `form`, and the last value of the states in `finals`."""
    solved = form.write_leaves()
    needed = _needed(form, finals, saved)
    known: set[Node] = set(saved)
    pending_finals = list(finals)
    stages: list[Stage] = []

    def ready(*nodes: Node) -> bool:
        return all(x in known for node in nodes for x in form.parts(node))

    def sweepable(s: StateForm, solving: bool) -> bool:
        values = [w.value for w in s.writes if w.leaf is None or not solving]
        return ready(*(w.left for w in s.writes), *values, *scales(s))

    todo = {x for x in needed if x not in known}
    patient = True  # a sweep waits until it can make all its reads, as long as something else can be done
    while todo or pending_finals:
        before = len(todo) + len(pending_finals)
        for group in form.groups:
            names = [s.name for s in group]
            unknown = [w.leaf for s in group for w in s.writes if w.leaf is not None and w.leaf not in known]
            solve = bool(unknown)
            wants = [x for x in todo if x in form.reads and form.reads[x].state in names]
            if solve and not (set(unknown) & todo) and not wants and not set(pending_finals) & set(names):
                continue
            if not all(sweepable(s, solve) for s in group):
                continue
            if solve and not _solvable(form, group, known, solved):
                continue
            batch = [form.reads[x] for x in wants if ready(form.reads[x].vector)]
            for side in ("row", "col"):
                reads = tuple(sorted((r for r in batch if r.side == side), key=lambda r: r.leaf.attrs[1]))
                last = tuple(n for n in names if n in pending_finals)
                solving = solve and side == "row"
                waiting = sum(form.reads[x].side == side for x in wants) > len(reads)
                if not solving and ((patient and waiting) or (not reads and (wants or not last or side == "row"))):
                    continue
                chunk = chunk_program(group, reads, solving, form.reads)
                stages.append(Sweep(group, solving, side, reads, last, chunk))
                pending_finals = [n for n in pending_finals if n not in last]
                known |= {r.leaf for r in reads}
                if solving:
                    known |= set(unknown)
        for p in form.state_adjoints:
            ended = p.state not in pending_finals  # the sum starts from the last state
            if p.leaf in todo and ended and ready(p.late, p.early):
                stages.append(Accumulate(p, _direct(form, p)))
                known.add(p.leaf)
        crosses = tuple(x for x in form.crosses if x.leaf in todo)
        if crosses and not any(
            _group_of(form, n) & set(pending_finals) for n in (crosses[0].state, crosses[0].gradient)
        ):
            together = _unrolled(form, crosses)
            stages.append(together)
            known |= set(together.outputs)
        todo -= known
        progress = len(todo) + len(pending_finals) < before
        if not progress and not patient:
            raise AssertionError(f"no order for {sorted(str(x) for x in todo)}")
        patient = progress
    stages.append(Map(form.values))
    return Plan(form, tuple(with_boundary_sums(stages, form, saved)), saved)


def scales(s: StateForm) -> tuple[Node, ...]:
    """What a state is scaled by at each step, and what other states are that are added to it."""
    return (*(() if s.decay is None else (s.decay,)), *(c for _, c in s.coupling))


def _group_of(form: NormalForm, name: str) -> set[str]:
    return next({s.name for s in g} for g in form.groups if any(s.name == name for s in g))


def _unrolled(form: NormalForm, crosses: tuple[Cross, ...]) -> Unroll:
    """The stage for the crosses of the first one's groups."""
    first = crosses[0]
    if first.leaf.axes:
        s, g = form.state(first.state), form.state(first.gradient)
        streams, product = left_out(s, g, *first.leaf.axes)
        return Unroll((s,), (g,), streams, {first.leaf: product})
    names = _group_of(form, crosses[0].state), _group_of(form, crosses[0].gradient)
    forward, backward = (tuple(form.state(s.name) for g in form.groups for s in g if s.name in own) for own in names)
    same = tuple(x for x in crosses if x.state in names[0] and x.gradient in names[1])
    return Unroll(forward, backward, *unrolled(same, forward, backward))


def _direct(form: NormalForm, p: StateAdjointProduct) -> Unroll:
    """The state-adjoint product of a decay, without sums over the steps of later chunks."""
    s, g = form.state(p.state), form.state(f"d{p.state}")
    assert s.decay is not None
    if s.decay.axes:
        streams, definitions, product = crossing(s, g, *p.leaf.axes)
        return Unroll((s,), (g,), streams, {p.leaf: product}, definitions)
    streams, products = unrolled((Cross(p.leaf, s.name, g.name),), (s,), (g,))
    product = scaled(products[p.leaf], s.decay, streams)
    return Unroll((s,), (g,), streams, {p.leaf: product})


def _solvable(form: NormalForm, group: tuple[StateForm, ...], known: set[Node], solved: dict) -> bool:
    """Is everything that the solve needs, beyond its own reads, known?"""
    names = {s.name for s in group}
    for s in group:
        for w in s.writes:
            if w.leaf is None:
                continue
            for x in form.parts(w.right):
                if x in form.reads and form.reads[x].state in names:
                    if not all(y in known for y in form.parts(form.reads[x].vector)):
                        return False
                elif x not in known and not (x in solved and solved[x][0].name in names):
                    return False
    return True


def _needed(form: NormalForm, finals: tuple[str, ...], saved: tuple[Node, ...]) -> set[Node]:
    """Reads, solved writes and state-adjoint products that the values and the last states need, directly or not."""
    solved = form.write_leaves()
    state_adjoints = {p.leaf: p for p in form.state_adjoints}
    crosses = {x.leaf: x for x in form.crosses}
    seen: set[Node] = set()
    stack: list[Node] = list(form.values.values())
    for s in map(form.state, finals):
        stack += _made_of(s)
    while stack:
        for x in form.parts(stack.pop()):
            if x in seen:
                continue
            seen.add(x)
            if x in saved:
                continue
            if x in state_adjoints:
                stack += [state_adjoints[x].late, state_adjoints[x].early]
                continue
            states = [form.state(form.reads[x].state)] if x in form.reads else []
            if x in form.reads:
                stack.append(form.reads[x].vector)
                states = [
                    s
                    for g in form.groups
                    if states[0] in g
                    for s in g
                    if s is states[0] or s.by_products or states[0].by_products
                ]
            elif x in crosses:
                own = _group_of(form, crosses[x].state) | _group_of(form, crosses[x].gradient)
                states = [s for g in form.groups for s in g if s.name in own]
            else:
                states = [s for g in form.groups if solved[x][0] in g for s in g]
                stack += [y for y in _outside(form, solved[x][1].right, {s.name for s in states})]
            for s in states:
                stack += _made_of(s)
    return seen


def _made_of(s: StateForm) -> list[Node]:
    return [*(w.left for w in s.writes), *(w.value for w in s.writes), *scales(s)]


def _outside(form: NormalForm, right: Node, own: set[str]) -> list[Node]:
    """What a solved write needs, but for the reads that the solve itself makes."""
    out: list[Node] = []
    for x in form.parts(right):
        out.append(form.reads[x].vector if x in form.reads and form.reads[x].state in own else x)
    return out
