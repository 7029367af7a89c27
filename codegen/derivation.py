"""What the compiler derived, as formulas for people: the step, its adjoint, the read-write form, and the form over chunks.

Each formula is a `Formula` with a plain and a LaTeX text, in the notation of the documents: S_t is the state after step t, and
dS_t the whole gradient of S_t, through the outputs of step t and through all later steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from .adjoint import Adjoint, gradient_name
from .ir import (
    ONE,
    ZERO,
    Node,
    add,
    dim_of,
    leaf,
    leaves,
    mul,
    power,
    rebuild,
    rename,
    replace,
    split_constant,
    total,
    walk,
)
from .pipeline import Compiled
from .read_write import NormalForm, Pairing, StateForm, Write
from .shared_terms import shared_terms
from .show import PRODUCT, Notation
from .step import StateVar, StepProgram


@dataclass(frozen=True)
class Formula:
    """One displayed formula, or (`text`) a sentence between formulas."""

    plain: str
    latex: str
    text: bool = False


@dataclass(frozen=True)
class Section:
    """A titled group of formulas."""

    title: str
    formulas: tuple[Formula, ...]


def derivation(c: Compiled) -> tuple[Section, ...]:
    """The whole derivation of a compiled spec, section by section."""
    from .chunk_notation import chunk_sections

    sections = [Section("The recurrence", tuple(step_formulas(c))), Section("Its adjoint", tuple(adjoint_formulas(c)))]
    if c.form is not None and c.adjoint_form is not None:
        sections.append(Section("Read-write form", tuple(form_formulas(c, backward=False))))
        sections.append(Section("Read-write form of the adjoint", tuple(form_formulas(c, backward=True))))
        sections += chunk_sections(c)
    return tuple(sections)


def derivation_lines(c: Compiled) -> list[str]:
    """The derivation as lines of plain text; for comments."""
    lines: list[str] = []
    for section in derivation(c):
        lines += ([""] if lines else []) + [section.title]
        lines += [f"{'' if f.text else '    '}{f.plain}" for f in section.formulas]
    return lines


def sentence(text: str, latex: str = "") -> Formula:
    """Words between formulas; `latex` has the mathematics in them between dollar signs."""
    return Formula(text, latex or text, text=True)


def order_of(c: Compiled) -> tuple[str, ...]:
    """Declared names, in the order in which factors and terms stand in print."""
    step = c.step
    by_kind = sorted(step.variables, key=lambda v: (not v.is_decay, v.kind == "input"))
    scalars = [v.name for v in by_kind if not v.axes]
    others = [v.name for v in by_kind if v.axes]
    return (*scalars, *(s.name for s in step.states), *others, *step.names.values(), *step.outputs)


def formula(
    c: Compiled,
    write: Callable[[Notation], str],
    names: dict[Node, Node] | None = None,
    text: bool = False,
    **about: object,
) -> Formula:
    """Both texts of what `write` says with a notation."""
    order = order_of(c)
    plain, tex = (write(Notation(t, names or {}, order=order, **about)) for t in (False, True))  # type: ignore[arg-type]
    return Formula(plain, tex, text)


def equation(
    c: Compiled, left: Node, right: Node, names: dict[Node, Node] | None = None, axes: tuple[str, ...] | None = None
) -> Formula:
    """left = right; the right side isn't printed by the name that it defines."""
    names = {k: v for k, v in (names or {}).items() if k is not right or v.attrs[1] != left.attrs[1]}
    return formula(c, lambda n: f"{n.text(left, axes)} = {n.text(right, axes)}", names)


# --- the step -------------------------------------------------------------------------------------------------------


def step_names(step: StepProgram, trajectory: bool = False) -> dict[Node, Node]:
    """Symbols for what a step names: its auxiliary quantities, and its states after the step."""
    names = {x: leaf("let", n, _stored_axes(x)) for x, n in step.names.items()}
    for s in step.states:
        names[step.updates[s.name]] = leaf("next", s.name, s.axes)
    if trajectory:
        names = {as_trajectory(x): n for x, n in names.items()}
    return {x: n for x, n in names.items() if x.op not in ("leaf", "const")}


def _stored_axes(x: Node) -> tuple[str, ...]:
    """The axes of a named term, rows first."""
    row, col = Notation(False).orient(x)
    return tuple(a for a in (row, col) if a is not None)


def as_trajectory(x: Node) -> Node:
    """x with the forward states as the adjoint sees them."""
    states = {y: leaf("trajectory", *y.attrs[1:]) for y in walk(x) if y.op == "leaf" and y.attrs[0] == "state"}
    return replace(x, states)


def step_formulas(c: Compiled) -> Iterable[Formula]:
    """The step in the order of the spec, which is causal."""
    step = c.step
    names = step_names(step)
    terms = {n: x for x, n in step.names.items()} | step.updates
    for equation_ in sorted((*c.spec.lets, *c.spec.updates, *c.spec.outputs), key=lambda x: x.where.line):
        name = equation_.name
        if equation_ in c.spec.outputs:
            axes = step.output_axes[name]
            yield equation(c, leaf("let", name, axes), step.outputs[name], names, axes)
        elif equation_ in c.spec.updates:
            s = step.state(name)
            yield equation(c, leaf("next", name, s.axes), step.updates[name], names, s.axes)
        elif name in terms:
            axes = _stored_axes(terms[name])
            yield equation(c, leaf("let", name, axes), terms[name], names, axes)
    for s in step.states:
        if s.initial is not None:
            yield equation(c, leaf("chunk", f"{s.name}_0", s.axes), s.initial, {}, s.axes)


# --- the adjoint ----------------------------------------------------------------------------------------------------


def adjoint_names(c: Compiled) -> dict[Node, Node]:
    """Symbols for the adjoint: those of the step, and the gradients of what the step names."""
    a = c.adjoint
    names = step_names(a.forward, trajectory=True)
    for s in a.forward.states:
        whole = a.gradients[a.forward.updates[s.name]]
        carried = leaf("state", f"d{s.name}", s.axes)
        names[carried] = leaf("carried", f"d{s.name}", s.axes)
        if whole is not carried or not turned_reads(a, s):
            names[whole] = leaf("gradient", f"d{s.name}", s.axes)
    for x, name in a.forward.names.items():
        g = a.gradients.get(x, ZERO)
        if g.op not in ("leaf", "const") and g not in names:
            names[g] = leaf("gradient", f"d{name}", _stored_axes(x) if set(_stored_axes(x)) == set(g.axes) else g.axes)
    return names


def turned_reads(a: Adjoint, s: StateVar) -> bool:
    """Does the step read the new state transposed? Its gradient then has two parts that print can't join."""
    if len({dim_of(x) for x in s.axes}) == len(s.axes):
        return False
    first, second = s.axes
    turned = rename(a.forward.updates[s.name], {first: second, second: first})
    return turned is not a.forward.updates[s.name]


def adjoint_formulas(c: Compiled) -> Iterable[Formula]:
    """Gradients of what the step names, of the states, of every argument, and of the initial states."""
    a, step = c.adjoint, c.step
    names = adjoint_names(c)
    shared = shared_terms(
        [
            *a.program.outputs.values(),
            *a.program.updates.values(),
            *(x for x in names if names[x].attrs[0] == "gradient"),
        ],
        names,
        Notation(False, names, order=order_of(c)),
        {*order_of(c), *step.dims, "w", "p"},
    )
    names |= shared
    for s in step.states:  # where the new state is read transposed, print knows only the part from later steps
        part = names[a.gradients[step.updates[s.name]]]
        if part.attrs[0] == "carried":
            whole = leaf("gradient", part.attrs[1], s.axes)
            yield formula(c, partial(_part_text, part=part, whole=whole), text=True)
    for x, symbol in shared.items():
        yield equation(c, symbol, x, names, symbol.attrs[2])
    for x, name in step.names.items():
        g = a.gradients.get(x, ZERO)
        if g in names and names[g].attrs[1] == f"d{name}":
            yield equation(c, names[g], g, names, names[g].attrs[2])
    for s in step.states:
        yield _state_gradient(c, s.name, names)
    for v in step.variables:
        if v.kind == "constant":
            continue
        g = a.program.outputs[gradient_name(v)]
        left = leaf("gradient", gradient_name(v), v.axes)
        if v.per_step:
            yield equation(c, left, g, names, v.axes)
        else:
            whole = leaf("whole gradient", gradient_name(v), v.axes)
            yield formula(c, partial(_summed, left=whole, g=g), names)
    for s in step.states:
        yield _boundary(c, s.name, names)


def _summed(n: Notation, left: Node, g: Node) -> str:
    """The gradient of what is the same at each step: a sum over the steps."""
    body = n.bracket(n.piece(g, left.attrs[2]), PRODUCT)
    under = r"\sum_{t=1}^{n} " if n.tex else "sum_t "
    return f"{n.text(left)} = {under}{body}"


def _state_gradient(c: Compiled, name: str, names: dict[Node, Node]) -> Formula:
    """dS_t: what comes from step t + 1, and what the outputs of step t add."""
    a = c.adjoint
    axes = a.forward.state(name).axes
    carried = leaf("state", f"d{name}", axes)
    whole = a.gradients[a.forward.updates[name]]
    rest = add(whole, mul(-1, carried))
    update = a.program.updates[f"d{name}"]
    left = names[whole]

    def write(n: Notation) -> str:
        later = Notation(
            n.tex, {k: v for k, v in names.items() if k is not update or k is whole}, order=n.order, shift=1
        )
        text = f"{n.text(left, axes)} = {later.text(update, axes)}"
        if rest is not ZERO:
            extra = n.text(rest, axes)
            text += f" - {extra[1:].lstrip()}" if extra.startswith("-") else f" + {extra}"
        return text

    return formula(c, write, {k: v for k, v in names.items() if k is not whole})


def _boundary(c: Compiled, name: str, names: dict[Node, Node]) -> Formula:
    """dS_0, the gradient of the initial state."""
    a = c.adjoint
    axes = a.forward.state(name).axes
    left = leaf("chunk", f"d{name}_0", axes)
    update = a.program.updates[f"d{name}"]
    return formula(c, lambda n: f"{n.text(left, axes)} = {n.text(update, axes)}", names, at=1)


# --- the read-write form ----------------------------------------------------------------------------------------------


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
            stem = next(n for n in (*stems, f"write{direction}") if n not in taken)
            for i, (x, w) in enumerate(mine):
                name = named.get(self.spelled(w.right)) or (stem if len(mine) == 1 else f"{stem}{i + 1}")
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
            if y.op != "leaf" or y.attrs[0] not in ("read", "write", "pairing"):
                continue
            key, order = y.attrs[:2], y.attrs[2]
            if key in self.reads:
                own, meaning = self.reads[key].attrs[2], self.read(self.reads[key])
            elif key in self.writes and self.writes[key][0] in self.symbols:
                own, meaning = self.writes[key][0].attrs[2], self.symbols[self.writes[key][0]]
            elif y.attrs[0] == "pairing" and "." in y.attrs[1]:
                own, meaning = order, self.cross(y.attrs[1])
            elif y.attrs[0] == "pairing":
                p = next(p for p in self.form.pairings if p.state == y.attrs[1])
                own, meaning = p.leaf.attrs[2], self.pairing(p)
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

    def cross(self, name: str) -> Node:
        """<S_{t-1}, dT_t> of two states of a mixed group."""
        x = next(x for x in self.form.crosses if x.leaf.attrs[1] == name)
        s, g = self.form.state(x.state), self.form.state(x.gradient)
        return total(mul(self.snapshot(s, "prev"), self.snapshot(g, "prev")), *s.axes)

    def pairing(self, p: Pairing) -> Node:
        """D <S_{t-1}, dS_t>, over the decay's axes."""
        s = self.form.state(p.state)
        assert s.decay is not None
        product = mul(leaf("trajectory", s.name, s.axes), self.snapshot(self.form.state(f"d{s.name}"), "mid"))
        return mul(self.spelled(s.decay), total(product, *(a for a in s.axes if a not in p.leaf.attrs[2])))

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


def stateless_names(step: StepProgram) -> dict[Node, Node]:
    """Symbols of the auxiliary quantities that don't depend on a state."""
    lets = {x: n for x, n in step_names(step).items() if n.attrs[0] == "let"}
    return {x: n for x, n in lets.items() if not any(y.attrs[0] == "state" for y in leaves(x))}


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
    names = stateless_names(c.step)
    for x, symbol in names.items():
        if not backward:
            yield equation(c, symbol, x, names)
    if backward:
        for s in c.step.states:
            if reader.has_carried(s.name):
                part, whole = (leaf(kind, f"d{s.name}", s.axes) for kind in ("carried", "gradient"))
                yield formula(c, partial(_part_text, part=part, whole=whole), text=True)
    for one in (s for group in form.groups for s in group):
        if (one.direction < 0) == backward:
            yield from _state_formulas(c, reader, one)
    for name, x in form.values.items():
        axes = (c.adjoint.program if backward else c.step).output_axes[name]
        parameter = backward and not any(gradient_name(v) == name and v.per_step for v in c.step.variables)
        right = reader.spelled(x)
        if parameter:
            left = leaf("whole gradient", name, axes)
            yield formula(c, partial(_summed, left=left, g=right), names)
        else:
            yield equation(c, leaf("gradient" if backward else "let", name, axes), right, names, axes)
    for p in form.pairings:
        yield formula(c, partial(_pairing_text, reader=reader, p=p), names)


def _part_text(n: Notation, part: Node, whole: Node) -> str:
    mark = "$" if n.tex else ""
    return f"{mark}{n.text(part)}{mark} is the part of {mark}{n.text(whole)}{mark} that comes from later steps."


def _state_formulas(c: Compiled, reader: Reader, s: StateForm) -> Iterator[Formula]:
    """One state: how it decays, and what is written to it."""
    prev, after = reader.snapshot(s, "prev"), reader.snapshot(s, "next")
    names = stateless_names(c.step)
    early = [_outer(reader, w) for w in s.writes if not w.late]
    late = [_outer(reader, w) for w in s.writes if w.late]
    inner = prev
    if early:
        inner = reader.snapshot(s, "mid")
        yield equation(c, inner, add(prev, *early), names, s.axes)
    decay = reader.spelled(s.decay) if s.decay is not None else ONE
    added = [mul(reader.spelled(x), reader.snapshot(reader.form.state(n), "prev")) for n, x in s.mix]
    yield equation(c, after, add(mul(decay, inner), *added, *late), names, s.axes)
    for w in s.writes:
        if w.leaf is not None:
            yield equation(c, reader.symbols[w.leaf], reader.spelled(w.right), names)


def _outer(reader: Reader, w: Write) -> Node:
    value = reader.symbols[w.leaf] if w.leaf is not None else reader.spelled(w.right)
    return mul(reader.spelled(w.left), value)


def _pairing_text(n: Notation, reader: Reader, p: Pairing) -> str:
    """D <S_{t-1}, dS_t> as a sum over the steps that follow."""
    s = reader.form.state(p.state)
    axes = p.leaf.attrs[2]
    kind = "carried last" if reader.has_carried(s.name) else "gradient last"
    last = mul(leaf("last", s.name, s.axes), leaf(kind, f"d{s.name}", s.axes))
    last = total(last, *(a for a in s.axes if a not in axes))
    later = Notation(n.tex, n.names, order=n.order, letter="s")
    text = f"{n.text(reader.pairing(p), axes)} = {n.text(last, axes)}"
    for part, relation in ((p.late, r"\ge" if n.tex else ">="), (p.early, ">")):
        if part is ZERO:
            continue
        whole = reader.spelled(part)
        negative = whole.op != "add" and split_constant(whole)[0] < 0
        body = later.bracket(later.piece(mul(-1, whole) if negative else whole, axes), PRODUCT)
        sign, total_ = "-" if negative else "+", r"\sum" if n.tex else "sum"
        text += f" {sign} {total_}_{{s {relation} t}} {body}"
    return text
