"""The compiler, pass by pass: spec -> step program -> adjoint -> read-write form -> plan of sweeps over chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from chunkform.spec.language import Recurrence

from ..exact.random_points import GateResult
from ..ir.expr import Node, leaf, replace, walk
from ..ir.letters import Alphabet, lettered_step
from ..ir.notation import plain
from ..ir.step_program import StepProgram
from .chunkwise.compiled import Compiled
from .chunkwise.planner import plan
from .compiler_fault import blaming
from .gates.gates import gate_adjoint, gate_form, gate_lower, gate_plan, gate_segments, gate_stable, gate_substeps
from .normal_form.diagnostics import line_of
from .normal_form.form import NotAffine
from .normal_form.normalize import normalize, normalize_adjoint
from .normal_form.substeps import substeps
from .step.adjoint import Adjoint, adjoint
from .step.lower import lower
from .step.stabilize import stable

_log = logging.getLogger(__name__)


@blaming
def compile_spec(r: Recurrence) -> Compiled:
    """Compile a recurrence up to the plans from which text is printed. A gate after each pass refuses an error.

    Raises:
        SpecError: the spec has no meaning.
        CompilerError: the compiler is at fault (`GateError`: a pass changed the meaning).
    """
    lowered = lower(r)
    step, gates = stable(lowered), [gate_lower(r, lowered)]
    if step is not lowered:
        gates.append(gate_stable(lowered, step))
    return _compile(r, step, gates)


def in_letters(c: Compiled, alphabet: Alphabet) -> Compiled:
    """The same with all names in another alphabet, for those who print code: the passes do again what gates have seen them do."""
    return _compile(c.spec, lettered_step(c.step, alphabet), [], prove=False)


def _compile(r: Recurrence, step: StepProgram, gates: list[GateResult], prove: bool = True) -> Compiled:
    def proved(gate: Callable[..., GateResult], *args: Any, **words: Any) -> None:
        if prove:
            gates.append(gate(*args, **words))

    backwards = adjoint(step)
    proved(gate_adjoint, backwards)
    try:
        form = normalize(step)
        proved(gate_form, backwards, form, backward=False)
        adjoint_form = normalize_adjoint(backwards)
        proved(gate_form, backwards, adjoint_form, backward=True)
        forward = plan(form, tuple(s.name for s in step.states))
        proved(gate_plan, backwards, forward)
        saved = tuple(form.write_leaves())
        backward = plan(adjoint_form, tuple(s.name for s in (*step.states, *backwards.program.states)), saved)
        proved(gate_plan, backwards, forward, backward)
    except NotAffine as why:
        reason, where = f"{why.reason}: {plain(_as_state(why.term), step.names)}", _where(step, backwards, why)
        _log.info("%s isn't chunk-parallel: %s", r.name, reason)
        return Compiled(r, step, backwards, "sequential", reason=reason, reason_where=where, gates=tuple(gates))
    proved(gate_segments, backwards, forward, backward)
    parts = substeps(step, form)
    part = None
    if parts is not None:
        proved(gate_substeps, backwards, parts)
        part = _compile(r, parts.step, [], prove)
    return Compiled(
        r,
        step,
        backwards,
        "chunk-parallel",
        form,
        adjoint_form,
        forward,
        backward,
        gates=tuple(gates),
        substeps=parts,
        substep=part,
    )


def _where(step: StepProgram, backwards: Adjoint, why: NotAffine) -> Any:
    """The line of the spec that holds the offending term, or the update that contains it."""
    equation = None if why.equation is None else _as_state(why.equation)
    terms = {**backwards.program.origins, **step.origins}
    return line_of(_as_state(why.term), equation, [(_as_state(x), where) for x, where in terms.items()])


def _as_state(x: Node) -> Node:
    """x with the forward states as the spec has them."""
    return replace(
        x, {y: leaf("state", *y.attrs[1:]) for y in walk(x) if y.op == "leaf" and y.attrs[0] == "trajectory"}
    )
