"""The inverse of a state by the Sherman-Morrison formula, as a recurrence of its own."""

from __future__ import annotations

from typing import Any

import sympy

from chunkform.errors import SpecError

from .expression import Matrix, dot, eye
from .recurrence import Equation, Recurrence, State
from .source import caller
from .terms import factors, flipped, summands, symmetric_factors


def rank_one_state(r: Recurrence, matrix: Matrix, what: str) -> tuple[State, Any, Any, Matrix, Any]:
    """(state, decay, c, u, start) where the matrix is a state with S_t = decay S_{t-1} + c u u^T and S_0 = start I.

    Raises SpecError, naming the term, where it isn't.
    """
    lets = {x.name: x for x in r.lets}
    if matrix.op != "symbol" or matrix.args[1] != "state" or not matrix.args[0].endswith(".next"):
        raise SpecError(f"{what}: sherman_morrison inverts a state such as H.next, got {matrix}", caller())
    name = matrix.args[0].partition(".")[0]
    state = next(s for s in r.states if s.name == name)
    update = r.equation(name)
    decay: Any = sympy.Integer(0)
    writes = []
    for term in summands(update.term, lets):
        scalar, parts = symmetric_factors(term, lets)
        if len(parts) == 1 and parts[0] == state.prev:
            decay += scalar
        elif len(parts) == 2 and parts[0].is_vector and flipped(parts[1]) == parts[0]:
            writes.append((scalar, parts[0]))
        else:
            raise SpecError(
                f"{what}: sherman_morrison takes a state that decays by a scalar and is written c * u * u.T; {name} has the "
                f"term {term}",
                update.where,
            )
    if len(writes) != 1 or decay == 0:
        raise SpecError(
            f"{what}: sherman_morrison takes a state that decays by a scalar and is written once a step; {name} is written "
            f"{len(writes)} times",
            update.where,
        )
    initial = state.initial
    scalar, parts = factors(initial) if isinstance(initial, Matrix) else (None, [])
    if scalar is None or [p.op for p in parts] != ["eye"]:
        raise SpecError(
            f"{what}: sherman_morrison takes a state that starts at a multiple of the identity; {name} starts at {initial or 0}",
            state.where,
        )
    return state, decay, writes[0][0], writes[0][1], scalar


def inverse_recurrence(r: Recurrence, name: str, matrix: Matrix, right: Matrix, what: str) -> Recurrence:
    """The recurrence whose state is the inverse, and whose output `name` is the inverse times `right`; its lists are to be
    completed."""
    state, decay, c, u, start = rank_one_state(r, matrix, what)
    made = Recurrence("inverse")
    made.name = name
    d = state.dims[0]
    inverse = State(state.name, state.dims, state.where, (1 / start) * eye(d))
    made.states.append(inverse)
    su = Matrix("symbol", ("Su", "let"), d, right.cols)
    made.lets.append(Equation("Su", inverse.prev * u, state.where))
    made.updates.append(
        Equation(
            state.name,
            (inverse.prev - (c / (decay + c * dot(u, su))) * su * su.T) / decay,
            r.equation(state.name).where,
        )
    )
    made.outputs.append(Equation("y", inverse.next * right, caller()))
    return made
