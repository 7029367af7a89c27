"""The names that a spec gives to what its step computes, for the read-write form: also where that depends on a state."""

from __future__ import annotations

from ...ir.expr import ONE, Node, add, leaf, leaves, mul, rename, replace, total, walk
from ...ir.notation import Notation
from ...ir.step_program import StepProgram
from ..chunkwise.compiled import Compiled, once
from ..normal_form.abstract_interpreter import Interpreter
from ..normal_form.abstract_values import MatrixValue
from ..normal_form.form import NotAffine
from ..step.adjoint import trajectories
from .formulas import order_of, stateless_names, step_names
from .shared_terms import shared_terms

LETTERS = "clke"  # none that decays' products, solved writes or shared terms of the adjoint have


@once
def form_names(c: Compiled) -> dict[Node, Node]:
    """Symbols of auxiliary quantities, by what they are in the read-write form with its reads written out."""
    return stateless_names(c.step) | _stateful(c.step) | form_terms(c)


@once
def form_terms(c: Compiled) -> dict[Node, Node]:
    """Symbols for long terms without states that the read-write form has again and again, such as a key's squared length."""
    if c.form is None or c.adjoint_form is None:
        return {}
    names, roots = stateless_names(c.step), []
    for form in (c.form, c.adjoint_form):
        for s in (s for group in form.groups for s in group):
            roots += [s.decay or ONE, *(x for w in s.writes for x in (w.left, w.right)), *(x for _, x in s.coupling)]
        roots += [*(r.vector for r in form.reads.values()), *form.values.values()]
    parts = [y for x in roots for y in _stateless_parts(x)]
    order = order_of(c)
    found = shared_terms(parts, names, Notation(False, names, order=order), {*order, *c.step.dims}, LETTERS)
    return {x: n for x, n in found.items() if not n.attrs[2]}


def _stateless_parts(x: Node) -> list[Node]:
    """The largest parts of x that need no state, each as often as it stands there."""
    if not any(y.attrs[0] not in ("input", "decay", "parameter", "constant", "decay parameter") for y in leaves(x)):
        return [x]
    return [y for a in x.args for y in _stateless_parts(a)]


def _stateful(step: StepProgram) -> dict[Node, Node]:
    """Each is interpreted as the form's results are, which multiplies out what stands before a state."""
    lets = {x: n for x, n in step_names(step).items() if n.attrs[0] == "let"}
    seen = trajectories(step, *step.updates.values(), *lets)
    interpreter = Interpreter({s.name: s for s in step.states}, {s.name: "trajectory" for s in step.states})
    found: dict[Node, Node] = {}
    try:
        after = {s.name: interpreter.form(replace(step.updates[s.name], seen)) for s in step.states}
    except NotAffine:
        return found
    for x, symbol in lets.items():
        try:
            value = interpreter.plain(replace(x, seen))
        except NotAffine:
            continue
        written = _written_out(value, interpreter, after)
        if written is not None and written.op not in ("leaf", "const") and set(written.axes) == set(symbol.attrs[2]):
            found[written] = symbol
    return found


def _written_out(x: Node, interpreter: Interpreter, after: dict[str, Node | MatrixValue]) -> Node | None:
    """x with each read as the product that it is; None where one sees a state in the middle of a step."""
    reads = {y.attrs[:2]: (y, read) for y, read in interpreter.raw_reads.items()}
    table: dict[Node, Node] = {}
    for y in walk(x):
        if y.op != "leaf" or y.attrs[:2] not in reads:
            continue
        own, (m, side, vector) = reads[y.attrs[:2]]
        state = _state(m, interpreter, after)
        inner = _written_out(vector, interpreter, after)
        if state is None or inner is None:
            return None
        axis = m.row if side == "row" else m.col
        product = mul(inner, state)
        if axis is not None and not (vector is ONE and None in (m.row, m.col)):
            product = total(product, axis)
        table[y] = rename(product, dict(zip(own.attrs[2], y.attrs[2], strict=True)))
    return replace(x, table)


def _state(m: MatrixValue, interpreter: Interpreter, after: dict[str, Node | MatrixValue]) -> Node | None:
    axes = tuple(a for a in (m.row, m.col) if a is not None)
    if m == MatrixValue(m.state, m.row, m.col):
        return leaf("trajectory", m.state, axes)
    if axes == interpreter.states[m.state].axes and m == after.get(m.state):
        return leaf("next", m.state, axes)
    return _entry_by_entry(m, axes) if len(axes) < 2 else None


def _entry_by_entry(m: MatrixValue, axes: tuple[str, ...]) -> Node | None:
    """A state that is a vector, in the middle of a step: what it was, and what has been written, as reads write it out."""
    if m.others:
        return None
    decay = m.decay or ONE
    writes = [mul(decay, w.scalar, w.left, w.right) for w in m.before] + [
        mul(w.scalar, w.left, w.right) for w in m.after
    ]
    return add(mul(decay, leaf("trajectory", m.state, axes)), *writes)
