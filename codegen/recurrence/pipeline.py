"""The compiler, pass by pass: spec -> step program -> adjoint -> read-write form -> plan of sweeps over chunks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace as replace_parts
from typing import Any

from chunkform.spec.language import Recurrence

from ..exact.random_points import GateResult
from ..ir.expr import Node, leaf, replace, walk
from ..ir.letters import Alphabet, lettered_step
from ..ir.notation import plain
from ..ir.step_program import StepProgram
from ..printing.passes import Pass, run_passes, untold
from .chunkwise.compiled import Compiled, Part
from .chunkwise.plan import Plan
from .chunkwise.planner import plan
from .compiler_fault import blaming
from .gates.column_gate import gate_segment_maps
from .gates.frame_gate import gate_frame
from .gates.gates import (
    gate_adjoint,
    gate_decays,
    gate_form,
    gate_lower,
    gate_plan,
    gate_segments,
    gate_stable,
    gate_substeps,
)
from .gates.strata_gates import gate_scans, gate_strata
from .normal_form.abstract_interpreter import positive
from .normal_form.diagnostics import line_of
from .normal_form.form import NormalForm, NotAffine
from .normal_form.normalize import normalize, normalize_adjoint
from .normal_form.substeps import Substeps, substeps
from .step.adjoint import Adjoint, adjoint
from .step.column_maps import ColumnMaps, segment_maps
from .step.decays import with_decays
from .step.elementwise import Scans, adjoint_of, scans
from .step.entries import EntryMaps
from .step.frames import Frame, ends_program, moving_frame
from .step.lossless import lossless_terms
from .step.lower import lower
from .step.scaled_quotients import scaled_quotients
from .step.stabilize import stable
from .step.turns import with_turns
from .strata.split import Stratum, strata

_log = logging.getLogger(__name__)


class Known:
    """What is known of a recurrence: each pass adds what it makes."""

    lowered: StepProgram
    stabilized: StepProgram
    step: StepProgram
    decays: dict[Node, Node]  # which took whose place
    adjoint: Adjoint
    form: NormalForm
    adjoint_form: NormalForm
    forward: Plan
    backward: Plan
    substeps: Substeps | None
    substep: Compiled | None = None  # one of the substeps, compiled
    scans: Scans | None
    entries: EntryMaps | ColumnMaps | None
    strata: tuple[Stratum, ...] | None
    parts: tuple[Part, ...] = ()  # the strata, compiled
    frame: Frame | None = None  # in which the step is that of the strata

    def __init__(self, spec: Recurrence, prove: bool = True, whole: bool = False) -> None:
        self.spec, self.prove, self.whole = spec, prove, whole  # whole: no strata are looked for


# --- the passes, in order ---------------------------------------------------------------------------------------------


def _lower(k: Known) -> None:
    k.lowered = with_turns(lower(k.spec))


def _stabilize(k: Known) -> None:
    k.stabilized = stable(k.lowered)


def _decays(k: Known) -> None:
    lossless, terms = lossless_terms(k.stabilized)
    decayed, decays = with_decays(lossless)
    k.step, quotients = scaled_quotients(decayed)
    k.decays = terms | decays | quotients


def _adjoint(k: Known) -> None:
    k.adjoint = adjoint_of(k.step)


def _normalize(k: Known) -> None:
    k.form = normalize(k.step)


def _normalize_adjoint(k: Known) -> None:
    k.adjoint_form = normalize_adjoint(k.adjoint)


def _plan(k: Known) -> None:
    k.forward = plan(k.form, tuple(s.name for s in k.step.states))


def _plan_adjoint(k: Known) -> None:
    saved = tuple(k.form.write_leaves())
    k.backward = plan(k.adjoint_form, tuple(s.name for s in (*k.step.states, *k.adjoint.program.states)), saved)


def _substeps(k: Known) -> None:
    k.substeps = substeps(k.step, k.form)


def _substep(k: Known) -> None:
    if k.substeps is not None:
        k.substep = _compile_step(k.spec, k.substeps.step, "substep", k.prove)


def _scans(k: Known) -> None:
    k.scans = scans(k.step, k.adjoint)


def _frame(k: Known) -> None:
    """A frame in which each state with a unit has a form over chunks."""
    frame = None if k.whole or k.scans is not None else moving_frame(k.step, positive)
    if frame is None:
        return

    def family_of(step: StepProgram) -> str:
        return "hidden" if {s.name for s in step.states} <= {*frame.hidden} else _family(k.spec, step)

    found = strata(frame.step, family_of)
    if found is None:
        return
    parts = tuple(
        _scanned(p) if {s.name for s in p.compiled.step.states} <= {*frame.hidden} else p for p in _parts(k, found)
    )
    family = {s.name: p.compiled.family for p in parts for s in p.compiled.step.states}
    if all(family[n] == "chunk-parallel" for n in frame.moved) and all(family[n] == "scan" for n in frame.hidden):
        k.frame, k.strata, k.parts = frame, found, parts


def _scanned(part: Part) -> Part:
    """A stratum of products of units, as the scan that it is too where it has a form over chunks."""
    c = part.compiled
    found = scans(c.step, c.adjoint)
    if found is None or c.family != "chunk-parallel":
        return part
    gates = (*c.gates, gate_scans(c.adjoint, found))
    return replace_parts(part, compiled=Compiled(c.spec, c.step, c.adjoint, "scan", gates=gates))


def _strata(k: Known) -> None:
    if k.frame is not None:
        k.entries = segment_maps(k.step)
        return
    k.strata = None if k.whole or k.scans is not None else strata(k.step, lambda step: _family(k.spec, step))
    k.entries = segment_maps(k.step)


def _parts(k: Known, found: Iterable[Stratum]) -> tuple[Part, ...]:
    return tuple(Part(_compile_stratum(k.spec, x.step, k.prove), x.takes, x.hands) for x in found)


def _stratum(k: Known) -> None:
    if k.frame is not None:
        return
    k.parts = _parts(k, k.strata or ())
    families = [p.compiled.family for p in k.parts]
    others = k.entries is not None or "sequential" in families
    if others and "chunk-parallel" not in families:
        k.parts = ()


def _family(r: Recurrence, step: StepProgram) -> str:
    """The family of a step that is a stratum on trial, as a whole."""
    with untold():
        c = _compile_stratum(r, step, prove=False, whole=True)
    return f"{c.family}, apart" if c.backward is not None and c.backward.waits_for_decays else c.family


def _gates_of_stable(k: Known) -> Iterator[GateResult]:
    if k.stabilized is not k.lowered:
        yield gate_stable(k.lowered, k.stabilized)


def _gates_of_decays(k: Known) -> Iterator[GateResult]:
    if k.decays:
        yield gate_decays(k.stabilized, k.step, k.decays)


def _gates_of_plans(k: Known) -> Iterator[GateResult]:
    yield gate_plan(k.adjoint, k.forward, k.backward)
    yield gate_segments(k.adjoint, k.forward, k.backward)


def _gates_of_frame(k: Known) -> Iterator[GateResult]:
    if k.frame is not None:
        yield gate_frame(k.step, k.frame)
        yield gate_adjoint(adjoint(k.frame.step))
        yield gate_adjoint(adjoint(ends_program(k.frame)))


def _gates_of_strata(k: Known) -> Iterator[GateResult]:
    if k.parts:
        yield gate_strata(k.adjoint if k.frame is None else adjoint(k.frame.step), k.parts)


def _gates_of_substeps(k: Known) -> Iterator[GateResult]:
    if k.substeps is not None:
        yield gate_substeps(k.adjoint, k.substeps)


PASSES: tuple[Pass[Known], ...] = (
    Pass(
        "lower",
        "the spec's terms as a step program",
        "lowered",
        _lower,
        lambda k: (gate_lower(k.spec, k.lowered),),
    ),
    Pass(
        "stabilize",
        "exponents less the largest, where that changes nothing",
        "stabilized",
        _stabilize,
        _gates_of_stable,
    ),
    Pass(
        "decays",
        "coefficients of states that are seen to be positive, in forms of which logarithms lose nothing",
        "step",
        _decays,
        _gates_of_decays,
    ),
    Pass(
        "adjoint",
        "the step program of the gradients, backwards in time",
        "adjoint",
        _adjoint,
        lambda k: (gate_adjoint(k.adjoint),),
    ),
    Pass(
        "normalize",
        "the step's decays, writes and reads",
        "form",
        _normalize,
        lambda k: (gate_form(k.adjoint, k.form, backward=False),),
        refuses=(NotAffine,),
    ),
    Pass(
        "normalize_adjoint",
        "the adjoint's decays, writes and reads",
        "adjoint_form",
        _normalize_adjoint,
        lambda k: (gate_form(k.adjoint, k.adjoint_form, backward=True),),
        refuses=(NotAffine,),
    ),
    Pass(
        "plan",
        "sweeps over chunks that compute the outputs",
        "forward",
        _plan,
        lambda k: (gate_plan(k.adjoint, k.forward),),
        refuses=(NotAffine,),
    ),
    Pass(
        "plan_adjoint",
        "sweeps over chunks that compute the gradients",
        "backward",
        _plan_adjoint,
        _gates_of_plans,
        refuses=(NotAffine,),
    ),
    Pass(
        "substeps",
        "a step of several corrections as several steps of one",
        "substeps",
        _substeps,
        _gates_of_substeps,
    ),
    Pass("substep", "the same passes for one of these", "substep", _substep),
)
STRATA: Pass[Known] = Pass(
    "strata", "groups of states that don't read each other back, as steps of their own", "strata", _strata
)
OTHERWISE: tuple[Pass[Known], ...] = (  # where one of these has refused
    Pass(
        "scans",
        "maps that compose, which each entry of a state goes through",
        "scans",
        _scans,
        lambda k: () if k.scans is None else (gate_scans(k.adjoint, k.scans),),
    ),
    Pass(
        "frame",
        "states in a frame that moves with them, where decays are magnitudes alone",
        "frame",
        _frame,
        _gates_of_frame,
    ),
    STRATA,
    Pass(
        "stratum",
        "the same passes for each of these",
        "parts",
        _stratum,
        _gates_of_strata,
    ),
)
DECAYS = next(n for n, p in enumerate(PASSES) if p.made == "step")
FROM_STEP = DECAYS + 1  # the first pass that needs the step alone


# --- running them -----------------------------------------------------------------------------------------------------


@blaming
def compile_spec(r: Recurrence) -> Compiled:
    """Compile a recurrence up to the plans from which text is printed. A gate after each pass refuses an error.

    Raises:
        SpecError: the spec has no meaning.
        CompilerError: the compiler is at fault (`GateError`: a pass changed the meaning).
    """
    return _compile(Known(r), r.name)


def in_letters(c: Compiled, alphabet: Alphabet) -> Compiled:
    """The same with all names in another alphabet, for those who print code: the passes do again what gates have seen them do."""
    with untold():
        return _compile_step(c.spec, lettered_step(c.step, alphabet), c.name, prove=False)


def _compile_step(r: Recurrence, step: StepProgram, name: str, prove: bool, whole: bool = False) -> Compiled:
    """What the passes make of a step program."""
    known = Known(r, prove, whole)
    known.step = step
    return _compile(known, name, FROM_STEP)


def _compile_stratum(r: Recurrence, step: StepProgram, prove: bool, whole: bool = False) -> Compiled:
    """The same for a stratum, of which decays may be made of what is handed on to it."""
    known = Known(r, prove, whole)
    known.stabilized = step
    return _compile(known, step.name, DECAYS)


def _compile(k: Known, name: str, start: int = 0) -> Compiled:
    done = run_passes(PASSES, k, name, start=start, prove=k.prove)
    if isinstance(why := done.refusal, NotAffine):
        reason, where = f"{why.reason}: {plain(_as_state(why.term), k.step.names)}", _where(k.step, k.adjoint, why)
        _log.info("%s isn't chunk-parallel: %s", name, reason)
        more = run_passes((*PASSES, *OTHERWISE), k, name, start=len(PASSES), prove=k.prove)
        gates = (*done.gates, *more.gates)
        if k.frame is not None:
            return _framed(k, gates)
        if k.parts:
            some = next((p.compiled for p in k.parts if p.compiled.family == "sequential"), None)
            told = {} if some is None else {"reason": some.reason, "reason_where": some.reason_where}
            return Compiled(k.spec, k.step, k.adjoint, "strata", gates=gates, strata=k.parts, **told)
        if k.scans is not None:
            return Compiled(k.spec, k.step, k.adjoint, "scan", gates=gates)
        entries = k.entries
        if entries is not None and k.prove:
            gates = (*gates, gate_segment_maps(k.step, entries))
        family = "sequential" if entries is None else "segment-parallel"
        return Compiled(
            k.spec, k.step, k.adjoint, family, reason=reason, reason_where=where, gates=gates, entries=entries
        )
    turning = [s.turns for s in k.step.states]
    if turning and all(turning) and scans(k.step, k.adjoint) is not None:
        return Compiled(k.spec, k.step, k.adjoint, "scan", gates=done.gates)
    # no sweep of kernels loads decays that wait, nor sums angles in float64: states apart may have kernels
    if (k.backward.waits_for_decays or any(turning)) and not k.whole:
        k.scans = None
        more = run_passes((*PASSES, *OTHERWISE), k, name, start=len(PASSES) + OTHERWISE.index(STRATA), prove=k.prove)
        if k.parts and all(p.compiled.family in ("chunk-parallel", "scan") for p in k.parts):
            return Compiled(k.spec, k.step, k.adjoint, "strata", gates=(*done.gates, *more.gates), strata=k.parts)
    return Compiled(
        k.spec,
        k.step,
        k.adjoint,
        "chunk-parallel",
        k.form,
        k.adjoint_form,
        k.forward,
        k.backward,
        gates=done.gates,
        substeps=k.substeps,
        substep=k.substep,
    )


def _framed(k: Known, gates: tuple[GateResult, ...]) -> Compiled:
    """Of a step in a frame; segments of a sequence on several processes are joined by the step's own maps."""
    if k.entries is not None and k.prove:
        gates = (*gates, gate_segment_maps(k.step, k.entries))
    return Compiled(k.spec, k.step, k.adjoint, "strata", gates=gates, entries=k.entries, strata=k.parts, frame=k.frame)


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
