"""A step over matrix values: what each state is made of after it, which the canonical form is then made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as dc_replace

from ...ir.expr import ZERO, Node, factors_of, replace
from ...ir.step_program import StateVar, StepProgram
from .abstract_interpreter import Interpreter, at_least_zero, positive
from .abstract_values import MatrixValue, late_only, rank_one
from .diagnostics import part_of
from .form import NotAffine, by_axis


@dataclass
class Draft:
    """A state on its way to canonical form."""

    name: str
    value: MatrixValue
    direction: int
    flipped: bool = False


def drafts_of(interpreter: Interpreter, program: StepProgram, to_trajectory: dict[Node, Node]) -> list[Draft]:
    drafts = []
    for s in program.states:
        node = replace(program.updates[s.name], to_trajectory)
        with part_of(node):
            drafts.append(Draft(s.name, _update(interpreter, s, node), program.direction))
    coupled = coupled_states(drafts, interpreter)
    for d in drafts:
        if d.name in coupled:
            d.value = late_only(d.value)
            if d.value.decay is not None and d.value.decay.axes:
                raise NotAffine("states that are added to each other are scaled channel by channel", d.value.decay)
        elif d.value.decay is not None and is_signed(d.value) and not forgets(d.value):
            raise NotAffine(
                "this decay may be zero or negative: declare it with r.decay, write it as exp(...) or sigmoid(...), or give what "
                "it is made of a domain that keeps it above 0, as in r.inputs(..., domain=(0.01, 1))",
                d.value.decay,
            )
    return drafts


def _update(interpreter: Interpreter, s: StateVar, node: Node) -> MatrixValue:
    """What a state is after the step."""
    value = interpreter.form(node)
    row, col = (*s.axes, None, None)[:2]
    if not isinstance(value, MatrixValue):  # the update forgets the state at each step
        value = MatrixValue(s.name, row, col, ZERO, (), tuple(rank_one(value, row, col)))
    if value.state != s.name:
        value = _based_on(value, s.name)
    if (value.row, value.col) != (row, col):
        raise NotAffine("the state is transposed in each step", s.leaf, node)
    if value.decay is not None and any(len(d.axes) > 1 for d in by_axis(value.decay)):
        raise NotAffine("the decay runs over both axes of the state, entry by entry", value.decay)
    return value


def coupled_states(drafts: Iterable[Draft], interpreter: Interpreter) -> set[str]:
    """States that are added to others, or have others added to them; and matrices times a scalar that may be zero or negative."""
    added = {n for d in drafts if d.value.others for n in (d.name, *dict(d.value.others))}
    matrices = (d for d in drafts if len(interpreter.states[d.name].axes) == 2)
    return added | {
        d.name for d in matrices if is_signed(d.value) and d.value.decay is not None and not d.value.decay.axes
    }


def is_signed(m: MatrixValue) -> bool:
    """May the decay be zero or negative? One that is always zero forgets the state, and is none."""
    return m.decay not in (None, ZERO) and not positive(m.decay)


def forgets(m: MatrixValue) -> bool:
    """Is the decay one for each channel of a matrix, and never negative, but perhaps zero?"""
    if m.decay is None or len(m.decay.axes) != 1 or None in (m.row, m.col):
        return False
    return not positive(m.decay) and all(map(at_least_zero, factors_of(m.decay)))


def _based_on(m: MatrixValue, name: str) -> MatrixValue:
    """A sum of states, as an update of the state `name`."""
    m = late_only(m)
    assert m.decay is not None
    coefficients = {m.state: m.decay, **dict(m.others)}
    if any(c.axes for c in coefficients.values()):
        raise NotAffine("states that are added to each other are scaled channel by channel", m.decay)
    own = coefficients.pop(name, ZERO)
    return dc_replace(m, state=name, decay=own, others=tuple(coefficients.items()))
