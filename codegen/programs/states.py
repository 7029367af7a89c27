"""The states of a program: which of them a matrix is made of, and how they start."""

from __future__ import annotations

from ..ir.expr import ONE
from ..ir.step_program import StateVar
from .graph import Graph


def solved_states(g: Graph) -> set[str]:
    """States that a matrix which is solved for is made of."""
    found = {s for n in g.solves for s in n.states.values() if len(g.dims[s]) == 2}
    return found | {n.states[s] for n in g.nodes if hasattr(n, "inverted") for s in n.inverted}


def state_vars(g: Graph) -> tuple[StateVar, ...]:
    """The program's states; `initial` is set where the program gives one, or a matrix is solved for, for its start is then
    not free."""
    own = {s.name: s.initial is not None for s in g.program.step.states}
    out = []
    for s in g.finals:
        dims = g.dims[s]
        axes = tuple(d + "'" * dims[:i].count(d) for i, d in enumerate(dims))
        out.append(StateVar(s, axes, ONE if own.get(s) and s not in solved_states(g) else None))
    return tuple(out)
