"""The compiler, pass by pass: spec -> step program -> adjoint -> read-write form -> plan of sweeps over chunks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from chunkform.spec.language import Recurrence

from ..exact.random_points import GateResult
from ..ir.expr import Node, leaf, replace, walk
from ..ir.letters import Alphabet, lettered_step
from ..ir.notation import plain
from ..ir.step_program import StepProgram
from .chunkwise.plan import Plan
from .chunkwise.planner import plan
from .compiler_fault import blaming
from .gates.gates import gate_adjoint, gate_form, gate_lower, gate_plan, gate_segments, gate_stable, gate_substeps
from .normal_form.diagnostics import line_of
from .normal_form.form import NormalForm, NotAffine
from .normal_form.normalize import normalize, normalize_adjoint
from .normal_form.substeps import Substeps, substeps
from .step.adjoint import Adjoint, adjoint
from .step.lower import lower
from .step.stabilize import stable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """Everything that is known of a spec. A `sequential` one has no forms and plans, and a reason why.

    `substeps`: of a step that is several corrections one after the other, how it is several steps of one, and `substep` one of
    these, compiled.
    """

    spec: Recurrence
    step: StepProgram
    adjoint: Adjoint
    family: str
    form: NormalForm | None = None
    adjoint_form: NormalForm | None = None
    forward: Plan | None = None
    backward: Plan | None = None
    reason: str | None = None
    reason_where: Any = None
    gates: tuple[GateResult, ...] = ()
    substeps: Substeps | None = None
    substep: Compiled | None = None
    known: dict[Any, Any] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )  # what `once` has found out

    @property
    def name(self) -> str:
        return self.step.name


P = ParamSpec("P")
R = TypeVar("R")


def once(f: Callable[Concatenate[Compiled, P], R]) -> Callable[Concatenate[Compiled, P], R]:
    """A function of a compiled recurrence, which finds out the same thing about it once."""

    @functools.wraps(f)
    def found(c: Compiled, *args: P.args, **words: P.kwargs) -> R:
        key = (f, *map(id, args), *((n, id(x)) for n, x in words.items()))
        if key not in c.known:
            c.known[key] = f(c, *args, **words), args, words  # which stay, so that nothing else has their ids
        return c.known[key][0]

    return found


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
