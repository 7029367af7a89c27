"""The read-write form as formulas: how each state decays, what is written to it, and what the results are made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...ir.expr import ONE, ZERO, Node, add, leaf, mul, power, rebuild, rename, replace, split_constant, total, walk
from ...ir.notation import PRODUCT, Notation
from ..chunkwise.compiled import Compiled
from ..normal_form.form import NormalForm, StateAdjointProduct, StateForm, Write
from ..step.adjoint import gradient_name
from .formulas import Formula, as_trajectory, equation, formula, order_of, part_text, stateless_names, summed
from .lets import form_names, form_terms


def solved_letters(c: Compiled, form: NormalForm) -> set[str]:
    """What the solved writes of a form are called, less the numbers of several."""
    return {x.attrs[1].rstrip("0123456789") for x in Reader(c, form).symbols.values()}


class Reader:
    """Spells out the leaves of a read-write form: a read as the product that it is, a solved write by a symbol."""

    def __init__(self, c: Compiled, form: NormalForm) -> None:
        self.c, self.form = c, form
        self.reads = {r.attrs[:2]: r for r in form.reads}
        self.writes = {x.attrs[:2]: (x, *found) for x, found in form.write_leaves().items()}
        self.symbols: dict[Node, Node] = {}
        taken = set(order_of(c))
        named = {as_trajectory(x): n for x, n in c.step.names.items()} | self._gradient_names()
        for direction, stems in ((1, "wuxyz"), (-1, "pghmn")):
            mine = [(x, w) for x, s, w in self.writes.values() if s.direction == direction]
            numbers = [""] if len(mine) == 1 else [str(i + 1) for i in range(len(mine))]
            free = (n for n in (*stems, f"write{direction}") if not {n, *(f"{n}{i}" for i in numbers)} & taken)
            stem = next(free)
            for number, (x, w) in zip(numbers, mine, strict=False):
                name = named.get(self.spelled(w.right)) or f"{stem}{number}"
                self.symbols[x] = leaf("let", name, x.attrs[2])

    def _gradient_names(self) -> dict[Node, str]:
        """The gradients of the spec's auxiliary quantities, over whole gradients of the states."""
        a = self.c.adjoint
        whole = {
            a.gradients[a.forward.updates[s.name]]: leaf("gradient", f"d{s.name}", s.axes) for s in a.forward.states
        }
        found = {a.gradients.get(x, ZERO): f"d{n}" for x, n in a.forward.names.items()}
        return {replace(g, whole): n for g, n in found.items() if g is not ZERO}

    def spelled(self, x: Node) -> Node:
        """x without reads: each is written as a product of a state and a vector."""
        table = {}
        for y in walk(x):
            if y.op != "leaf" or y.attrs[0] not in ("read", "write", "state-adjoint product"):
                continue
            key, order = y.attrs[:2], y.attrs[2]
            if key in self.reads:
                own, meaning = self.reads[key].attrs[2], self.read(self.reads[key])
            elif key in self.writes and self.writes[key][0] in self.symbols:
                own, meaning = self.writes[key][0].attrs[2], self.symbols[self.writes[key][0]]
            elif y.attrs[0] == "state-adjoint product" and any(x.leaf.attrs[:2] == key for x in self.form.crosses):
                own, meaning = order, self.cross(y)
            elif y.attrs[0] == "state-adjoint product":
                p = next(p for p in self.form.state_adjoints if p.leaf.attrs[:2] == y.attrs[:2])
                own, meaning = p.leaf.attrs[2], self.state_adjoint(p)
            else:
                continue
            table[y] = rename(meaning, dict(zip(own, order, strict=True)))
        return tidy(replace(x, table))

    def read(self, x: Node) -> Node:
        r = self.form.reads[x]
        s = self.form.state(r.state)
        axis = s.row if r.side == "row" else s.col
        product = mul(self.spelled(r.vector), self.snapshot(s, r.snapshot))
        return total(product, axis) if axis is not None else product

    def cross(self, y: Node) -> Node:
        """<S_{t-1}, dT_t> of two states of a coupled group; or of a state and its gradient, over the axis of a decay."""
        x = next(x for x in self.form.crosses if x.leaf.attrs[:2] == y.attrs[:2])
        s, g = self.form.state(x.state), self.form.state(x.gradient)
        if y.axes:
            before = "prev" if all(w.late for w in s.writes) else "mid"
            product = mul(self.snapshot(s, before), self.snapshot(g, "mid"))
            return total(product, *(a for a in s.axes if a not in y.axes))
        return total(mul(self.snapshot(s, "prev"), self.snapshot(g, "prev")), *s.axes)

    def state_adjoint(self, p: StateAdjointProduct) -> Node:
        """D <S_{t-1}, dS_t>, over the decay's axes, with what both write before their decay."""
        s = self.form.state(p.state)
        assert s.decay is not None
        before = "prev" if all(w.late for w in s.writes) else "mid"
        product = mul(self.snapshot(s, before), self.snapshot(self.form.state(f"d{s.name}"), "mid"))
        return total(mul(self.spelled(s.decay), product), *(a for a in s.axes if a not in p.leaf.attrs[2]))

    def snapshot(self, s: StateForm, snapshot: str) -> Node:
        """The state as a read sees it: before its step, after it, or (`mid`) between the early writes and the decay."""
        if s.direction > 0:
            return leaf({"prev": "trajectory", "mid": "middle", "next": "next"}[snapshot], s.name, s.axes)
        early = any(not w.late for w in s.writes)
        if not self.has_carried(s.name[1:]):
            kind = {"next": "gradient before", "mid": "gradient middle" if early else "gradient"}.get(
                snapshot, "gradient"
            )
            return leaf(kind, s.name, s.axes)
        if snapshot == "mid" and early:  # the outputs' part has been written, and maybe more
            whole = all(w.late or w.leaf is None for w in s.writes)
            return leaf("gradient" if whole else "gradient middle", s.name, s.axes)
        if snapshot == "next":
            adds_only = s.decay is None and not early and all(w.leaf is None for w in s.writes)
            return leaf("gradient" if adds_only else "carried before", s.name, s.axes)
        return leaf("carried", s.name, s.axes)

    def has_carried(self, state: str) -> bool:
        """Is the gradient that later steps hand to a state only a part of its whole gradient?"""
        a = self.c.adjoint
        return a.gradients[a.forward.updates[state]].op != "leaf"


def tidy(x: Node) -> Node:
    """x with a power of a product written as a product of powers, so that equal factors cancel."""
    done: dict[Node, Node] = {}
    for y in walk(x):
        node = rebuild(y, (done[a] for a in y.args)) if y.args else y
        if node.op == "pow" and node.args[0].op == "mul" and node.attrs[0].denominator == 1:
            node = mul(*(power(f, node.attrs[0]) for f in node.args[0].args))
        done[y] = node
    return done[x]


def form_formulas(c: Compiled, backward: bool) -> Iterator[Formula]:
    """The states of one direction, what is read, and what the results are made of."""
    form = c.adjoint_form if backward else c.form
    assert form is not None
    reader = Reader(c, form)
    names = form_names(c)
    for x, symbol in (form_terms(c) | stateless_names(c.step)).items():
        if not backward:
            yield equation(c, symbol, x, names)
    if backward:
        for s in c.step.states:
            if reader.has_carried(s.name):
                part, whole = (leaf(kind, f"d{s.name}", s.axes) for kind in ("carried", "gradient"))
                yield formula(c, partial(part_text, part=part, whole=whole), text=True)
    known: set[str] = set()
    for one in (s for group in form.groups for s in group):
        if (one.direction < 0) == backward:
            yield from _state_formulas(c, reader, one, known)
    for name, x in form.values.items():
        axes = (c.adjoint.program if backward else c.step).output_axes[name]
        parameter = backward and not any(gradient_name(v) == name and v.per_step for v in c.step.variables)
        right = reader.spelled(x)
        if parameter:
            left = leaf("whole gradient", name, axes)
            yield formula(c, partial(summed, left=left, g=right), names)
        else:
            yield equation(c, leaf("gradient" if backward else "let", name, axes), right, names, axes)
    for p in form.state_adjoints:
        yield formula(c, partial(_state_adjoint_text, reader=reader, p=p), names)


def _state_formulas(c: Compiled, reader: Reader, s: StateForm, known: set[str]) -> Iterator[Formula]:
    """One state: how it decays, and what is written to it, where no other state has said it: it is `known` then."""
    prev, after = reader.snapshot(s, "prev"), reader.snapshot(s, "next")
    names = form_names(c)
    early = [_outer(reader, w) for w in s.writes if not w.late]
    late = [_outer(reader, w) for w in s.writes if w.late]
    inner = prev
    if early:
        inner = reader.snapshot(s, "mid")
        yield equation(c, inner, add(prev, *early), names, s.axes)
    decay = reader.spelled(s.decay) if s.decay is not None else ONE
    added = [mul(reader.spelled(x), reader.snapshot(reader.form.state(n), "prev")) for n, x in s.coupling]
    yield equation(c, after, add(mul(decay, inner), *added, *late), names, s.axes)
    for w in s.writes:
        if w.leaf is None:
            continue
        written = equation(c, reader.symbols[w.leaf], reader.spelled(w.right), names)
        if written.plain not in known:
            known.add(written.plain)
            yield written


def _outer(reader: Reader, w: Write) -> Node:
    value = reader.symbols[w.leaf] if w.leaf is not None else reader.spelled(w.right)
    return mul(reader.spelled(w.left), value)


def _state_adjoint_text(n: Notation, reader: Reader, p: StateAdjointProduct) -> str:
    """D <S_{t-1}, dS_t> as a sum over the steps that follow."""
    s = reader.form.state(p.state)
    axes = p.leaf.attrs[2]
    kind = "carried last" if reader.has_carried(s.name) else "gradient last"
    last = mul(leaf("last", s.name, s.axes), leaf(kind, f"d{s.name}", s.axes))
    last = total(last, *(a for a in s.axes if a not in axes))
    later = Notation(n.tex, n.names, order=n.order, letter="s")
    text = f"{n.text(reader.state_adjoint(p), axes)} = {n.text(last, axes)}"
    for part, relation in ((p.late, r"\ge" if n.tex else ">="), (p.early, ">")):
        if part is ZERO:
            continue
        whole = reader.spelled(part)
        negative = whole.op != "add" and split_constant(whole)[0] < 0
        body = later.bracket(later.piece(mul(-1, whole) if negative else whole, axes), PRODUCT)
        sign, total_ = "-" if negative else "+", r"\sum" if n.tex else "sum"
        text += f" {sign} {total_}_{{s {relation} t}} {body}"
    return text
