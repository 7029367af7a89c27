"""Pass 3, normalize: find the read-write form of a step program.

    S_t = D_t * S_{t-1} + sum_r l_{r,t} w_{r,t}^T ,   reads y_t = S^T x  or  S x  of a snapshot of the step

The step is interpreted over matrix values `D * S + writes`; each contraction of such a value with a vector becomes a named
read. What doesn't fit raises `NotAffine`, with the term; the caller then falls back to the sequential kernel.

A snapshot says which part of the step a read has seen: `prev` nothing, `mid` the writes before the decay (an adjoint program
has those: q_t dy_t^T enters before the decay), `next` everything. Other snapshots are expanded into these.

States of the forward program are `trajectory` leaves here, also in the forward program itself, so that reads which the
adjoint needs of the forward states are the same nodes.
"""

from __future__ import annotations

from ...ir.expr import Node, replace
from ...ir.step_program import StepProgram
from ..step.adjoint import Adjoint, trajectories
from .abstract_interpreter import Interpreter
from .canonical_form import Canonical
from .diagnostics import part_of, spelled_out
from .drafts import drafts_of
from .form import NormalForm


def normalize(program: StepProgram) -> NormalForm:
    """The read-write form of a forward program."""
    to_trajectory = trajectories(program, *program.updates.values(), *program.outputs.values())
    interpreter = Interpreter({s.name: s for s in program.states}, {s.name: "trajectory" for s in program.states})
    with spelled_out(interpreter) as spelling:
        drafts = drafts_of(interpreter, program, to_trajectory)
        values = _values(interpreter, {n: replace(x, to_trajectory) for n, x in program.outputs.items()})
        canonical = Canonical(interpreter, drafts, values)
        spelling.reads, spelling.snapshots = canonical.reads, canonical.final
        return canonical.form()


def normalize_adjoint(a: Adjoint) -> NormalForm:
    """The read-write form of an adjoint program together with the forward states whose trajectory it reads."""
    to_trajectory = trajectories(a.forward, *a.forward.updates.values(), *a.forward.outputs.values())
    states = {s.name: s for s in (*a.forward.states, *a.program.states)}
    kinds = {s.name: "trajectory" for s in a.forward.states} | {s.name: "state" for s in a.program.states}
    interpreter = Interpreter(states, kinds)
    with spelled_out(interpreter) as spelling:
        drafts = drafts_of(interpreter, a.forward, to_trajectory) + drafts_of(interpreter, a.program, {})
        values = _values(interpreter, a.program.outputs)
        canonical = Canonical(interpreter, drafts, values)
        spelling.reads, spelling.snapshots = canonical.reads, canonical.final
        return canonical.form()


def _values(interpreter: Interpreter, outputs: dict[str, Node]) -> dict[str, Node]:
    values = {}
    for name, node in outputs.items():
        with part_of(node):
            values[name] = interpreter.plain(node)
    return values
