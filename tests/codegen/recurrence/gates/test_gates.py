"""A gate after each pass refuses what isn't true: every corruption of a pass is found, and the right pass is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chunkform.codegen.ir import expr as ir
from chunkform.codegen.ir import functions
from chunkform.codegen.ir.evaluate import Field
from chunkform.codegen.ir.expr import COL, ROW, Node, add, leaf, mul, power, rename
from chunkform.codegen.ir.step_program import StepProgram
from chunkform.codegen.recurrence import compiler_fault as fault
from chunkform.codegen.recurrence import pipeline
from chunkform.codegen.recurrence.chunkwise import chunk_program as chunk
from chunkform.codegen.recurrence.chunkwise.plan import Accumulate, BoundarySums, Plan, Sweep
from chunkform.codegen.recurrence.gates.gates import gate_segments
from chunkform.codegen.recurrence.gates.run_plan import Chunks
from chunkform.codegen.recurrence.normal_form.form import NormalForm, Read, StateForm, Write
from chunkform.codegen.recurrence.step import adjoint as adjoint_module
from chunkform.codegen.recurrence.step import lower
from chunkform.codegen.recurrence.step.adjoint import Adjoint
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, find, sigmoid

PASSES = ("lower", "adjoint", "normalize", "normalize adjoint", "plan", "plan adjoint", "segments")


def spec(name: str) -> Recurrence:
    return find(name)[0]


def gated() -> Recurrence:
    """Linear attention with a gate on its output: a function, and a product that isn't a contraction."""
    r = Recurrence("gated")
    d = r.dims("d")
    q, k = r.inputs("q k", d)
    g = r.inputs("g")
    start = r.parameter("start", d, d)
    S = r.state("S", d, d, initial=2 * start.T)
    r.update(S, S.prev + k * q.T)
    r.output("o", sigmoid(g) * S.next.T * q)
    return r


# --- what a gate says when all is well -------------------------------------------------------------------------------


def test_every_pass_of_a_chunk_parallel_spec_went_through_its_gate() -> None:
    compiled = pipeline.compile_spec(spec("gated_delta_rule"))
    assert tuple(g.name for g in compiled.gates) == PASSES
    assert all(g.points >= 1 and 0 < g.error_bound < 1e-12 and g.what for g in compiled.gates)


def test_a_sequential_spec_went_through_the_gates_of_the_passes_that_it_has() -> None:
    compiled = pipeline.compile_spec(spec("sherman_morrison"))
    assert tuple(g.name for g in compiled.gates) == PASSES[:2]
    assert all(0 < g.error_bound < 1e-9 for g in compiled.gates)


def test_gates_repeat() -> None:
    first, second = (pipeline.compile_spec(spec("kimi_delta_attention")).gates for _ in range(2))
    assert [replace(g, seconds=0) for g in first] == [replace(g, seconds=0) for g in second]


# --- corruptions -----------------------------------------------------------------------------------------------------

Corruption = Callable[[pytest.MonkeyPatch], None]


def patched(where: Any, name: str, change: Callable[[Any], Any]) -> Corruption:
    """Corrupt what a function of the compiler returns."""

    def corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *args, **kwargs: change(original(*args, **kwargs)))

    return corrupt


def operation(change: Callable[[str, tuple, tuple], tuple[str, tuple, tuple]]) -> Corruption:
    """Corrupt the operations that the chunk pass makes."""

    def corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
        original = chunk.make

        def make(op: str, args: tuple = (), attrs: tuple = (), axes: Any = ()) -> Node:
            op, args, attrs = change(op, args, attrs)
            return original(op, args, attrs, axes)

        monkeypatch.setattr(chunk, "make", make)

    return corrupt


def derivative(op: str, rule: Callable[[Node, Node], list[Node]]) -> Corruption:
    return lambda monkeypatch: monkeypatch.setitem(adjoint_module.DERIVATIVES, op, rule)


def function(name: str, slope: Callable[[Node], Node]) -> Corruption:
    row = replace(functions.TABLE[name], derivative=slope)
    return lambda monkeypatch: monkeypatch.setitem(functions.TABLE, name, row)


def first_update(change: Callable[[Node], Node]) -> Callable[[StepProgram], StepProgram]:
    def corrupt(p: StepProgram) -> StepProgram:
        name = next(iter(p.updates))
        return replace(p, updates={**p.updates, name: change(p.updates[name])})

    return corrupt


def in_adjoint(change: Callable[[StepProgram], StepProgram]) -> Callable[[Adjoint], Adjoint]:
    return lambda a: replace(a, program=change(a.program))


def without_the_logarithm(p: StepProgram) -> StepProgram:
    """The gradient of a decay, instead of that of its logarithm."""
    lam = next(v for v in p.variables if v.is_decay)
    name = f"dlog_{lam.name}"
    return replace(p, outputs={**p.outputs, name: mul(p.outputs[name], power(lam.leaf, -1))})


def last_gradient_dropped(p: StepProgram) -> StepProgram:
    """What later steps say of the state no longer reaches the gradients of the inputs."""
    dS = leaf("state", p.states[0].name, p.states[0].axes)
    return replace(p, outputs={n: ir.replace(x, {dS: mul(2, dS)}) for n, x in p.outputs.items()})


def states(change: Callable[[StateForm], StateForm]) -> Callable[[NormalForm], NormalForm]:
    return lambda f: replace(f, groups=tuple(tuple(change(s) for s in g) for g in f.groups))


def writes(change: Callable[[Write], Write]) -> Callable[[NormalForm], NormalForm]:
    return states(lambda s: replace(s, writes=tuple(change(w) for w in s.writes)))


def reads(change: Callable[[Read], Read]) -> Callable[[NormalForm], NormalForm]:
    return lambda f: replace(f, reads={x: change(r) for x, r in f.reads.items()})


def state_adjoints(form: NormalForm) -> NormalForm:
    return replace(form, state_adjoints=tuple(replace(p, late=mul(-1, p.late)) for p in form.state_adjoints))


def mask(op: str, attrs: tuple, inclusive: int) -> tuple:
    return tuple(not a if n == inclusive else a for n, a in enumerate(attrs))


def strictness(op: str, args: tuple, attrs: tuple) -> tuple[str, tuple, tuple]:
    if op in ("order_mask", "decay_mask"):
        attrs = mask(op, attrs, 0 if op == "order_mask" else 2)
    return op, args, attrs


def lateness(which: str, position: int) -> Corruption:
    return operation(lambda op, args, attrs: (op, args, mask(op, attrs, position) if op == which else attrs))


def transposed_inverse(op: str, args: tuple, attrs: tuple) -> tuple[str, tuple, tuple]:
    if op == "inverse":
        args = (rename(args[0], {ROW: COL, COL: ROW}),)
        attrs = (-attrs[0],)
    return op, args, attrs


def sweeps(change: Callable[[Sweep], Sweep]) -> Callable[[Plan], Plan]:
    return lambda p: replace(p, stages=tuple(change(s) if isinstance(s, Sweep) else s for s in p.stages))


def first_write_lost(s: Sweep) -> Sweep:
    group = tuple(replace(x, writes=x.writes[1:]) for x in s.group)
    return replace(s, chunk=chunk.chunk_program(group, s.reads, False, {})) if not s.solve else s


def backwards(s: Sweep) -> Sweep:
    group = tuple(replace(x, direction=-x.direction) for x in s.group)
    return replace(s, group=group, chunk=replace(s.chunk, direction=-s.chunk.direction))


def counted_twice(p: Plan) -> Plan:
    """The accumulated gradient of a decay, with each step's part twice."""
    return replace(
        p,
        stages=tuple(
            replace(s, state_adjoint=replace(s.state_adjoint, late=mul(2, s.state_adjoint.late)))
            if isinstance(s, Accumulate)
            else s
            for s in p.stages
        ),
    )


def at_the_boundaries(change: Callable[[BoundarySums], BoundarySums]) -> Callable[[Plan], Plan]:
    """Changes what sweeps sum at the chunk boundaries."""

    def changed(s: Any) -> Any:
        return replace(s, boundary_sums=tuple(change(b) for b in s.boundary_sums)) if isinstance(s, Sweep) else s

    return lambda p: replace(p, stages=tuple(changed(s) for s in p.stages))


def late_for_early(b: BoundarySums) -> BoundarySums:
    slots = {"late": "early", "early": "late"}
    return replace(b, reads={slots[slot]: x for slot, x in b.reads.items()})


def without_own(b: BoundarySums) -> BoundarySums:
    return replace(b, own=())


def own_twice(b: BoundarySums) -> BoundarySums:
    return replace(b, own=tuple((mul(2, node), rows, columns) for node, rows, columns in b.own))


def twice(b: BoundarySums) -> BoundarySums:
    return replace(b, reads={slot: mul(2, x) for slot, x in b.reads.items()}) if b.kind == "out" else b


SCALARS = ("lightning_attention", "gated_delta_rule")
CORRUPTED = [(n, c) for n in SCALARS for c in (late_for_early, without_own, own_twice)]
CORRUPTED += [(n, twice) for n in (*SCALARS, "gated_linear_attention", "value_decay_attention")]


@pytest.mark.parametrize(("name", "change"), CORRUPTED)
def test_sums_at_the_boundaries_of_chunks_are_proved(
    name: str, change: Callable[[BoundarySums], BoundarySums], monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(pipeline, "plan", at_the_boundaries(change))(monkeypatch)
    with pytest.raises(GateError, match="from chunk boundaries"):
        pipeline.compile_spec(spec(name))


def drop_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lower.Lowering.matrix

    def matrix(self: Any, m: Any, row: str | None, col: str | None) -> Node:
        return self.term(m.args[0], row, col) if m.op == "add" else original(self, m, row, col)

    monkeypatch.setattr(lower.Lowering, "matrix", matrix)


def ignore_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lower.Lowering.matrix

    def matrix(self: Any, m: Any, row: str | None, col: str | None) -> Node:
        both = m.op == "transpose" and not m.is_vector
        return self.term(m.args[0], row, col) if both else original(self, m, row, col)

    monkeypatch.setattr(lower.Lowering, "matrix", matrix)


def wrong_contraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over an axis that loses its last factor."""
    original = lower.total
    monkeypatch.setattr(lower, "total", lambda x, *axes: original(mul(2, x) if x.op == "mul" else x, *axes))


def no_outgoing_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk.Builder, "outgoing", lambda *_: ir.ONE)


CORRUPTIONS: list[tuple[str, str, str, Corruption]] = [
    ("a dropped term", "lower", "lightning_attention", drop_a_term),
    ("an ignored transpose", "lower", "gated", ignore_transposes),
    ("a doubled contraction", "lower", "delta_rule", wrong_contraction),
    (
        "a changed sign in the update",
        "lower",
        "linear_attention",
        patched(pipeline, "lower", first_update(lambda x: -x)),
    ),
    (
        "the product rule without a factor",
        "adjoint",
        "lightning_attention",
        derivative("mul", lambda x, g: [g for _ in x.args]),
    ),
    ("a power rule without its exponent", "adjoint", "sherman_morrison", derivative("pow", lambda x, g: [g])),
    ("a sum whose gradient is doubled", "adjoint", "delta_rule", derivative("sum", lambda x, g: [mul(2, g)])),
    ("a wrong slope of the sigmoid", "adjoint", "gated", function("sigmoid", lambda x: functions.sigmoid(x))),
    (
        "a decay's gradient instead of its logarithm's",
        "adjoint",
        "retention",
        patched(pipeline, "adjoint_of", in_adjoint(without_the_logarithm)),
    ),
    (
        "a wrong gradient through the last state",
        "adjoint",
        "linear_attention",
        patched(pipeline, "adjoint_of", in_adjoint(last_gradient_dropped)),
    ),
    (
        "an initial state's gradient with a wrong sign",
        "adjoint",
        "delta_rule",
        patched(pipeline, "adjoint_of", in_adjoint(first_update(lambda x: -x))),
    ),
    (
        "a late write called early",
        "normalize",
        "lightning_attention",
        patched(pipeline, "normalize", writes(lambda w: replace(w, late=False))),
    ),
    (
        "an early write called late",
        "normalize adjoint",
        "lightning_attention",
        patched(pipeline, "normalize_adjoint", writes(lambda w: replace(w, late=True))),
    ),
    (
        "a missing write",
        "normalize",
        "delta_rule",
        patched(pipeline, "normalize", states(lambda s: replace(s, writes=s.writes[1:]))),
    ),
    (
        "a lost decay",
        "normalize",
        "gated_linear_attention",
        patched(pipeline, "normalize", states(lambda s: replace(s, decay=None))),
    ),
    (
        "a read of the wrong snapshot",
        "normalize",
        "linear_attention",
        patched(pipeline, "normalize", reads(lambda r: replace(r, snapshot="prev"))),
    ),
    (
        "a read from the wrong side",
        "normalize",
        "leaky",
        patched(pipeline, "normalize", reads(lambda r: replace(r, side="row"))),
    ),
    (
        "a sign in what a state-adjoint product takes",
        "normalize adjoint",
        "lightning_attention",
        patched(pipeline, "normalize_adjoint", state_adjoints),
    ),
    ("a strict mask made inclusive, and back", "plan", "lightning_attention", operation(strictness)),
    ("a mask that decays once too often", "plan", "lightning_attention", lateness("decay_mask", 0)),
    ("a mask that forgets a write's own decay", "plan", "lightning_attention", lateness("decay_mask", 1)),
    ("an incoming state one decay off", "plan", "gated_linear_attention", lateness("decay_in", 0)),
    ("an outgoing write one decay off", "plan", "gated_linear_attention", lateness("decay_out", 0)),
    ("outgoing writes that don't decay", "plan", "retention", no_outgoing_decay),
    ("a transposed inverse", "plan", "delta_rule", operation(transposed_inverse)),
    (
        "no inverse",
        "plan",
        "delta_rule",
        operation(lambda op, args, attrs: ("inverse", (ir.ZERO,), attrs) if op == "inverse" else (op, args, attrs)),
    ),
    ("a write that no sweep makes", "plan", "linear_attention", patched(pipeline, "plan", sweeps(first_write_lost))),
    ("a sweep that runs the wrong way", "plan", "linear_attention", patched(pipeline, "plan", sweeps(backwards))),
]


def leaky() -> Recurrence:
    r = Recurrence("leaky")
    d = r.dims("d")
    q, k = r.inputs("q k", d)
    b = r.inputs("b")
    S = r.state("S", d, d)
    r.update(S, sigmoid(b) * S.prev + q * k.T)
    r.output("o", S.next * q)
    return r


@pytest.fixture(autouse=True)
def no_smaller_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't look for the smallest spec that shows an error."""
    monkeypatch.setattr(fault, "SECONDS", 0.0)


@pytest.mark.parametrize("pass_, name, corrupt", [pytest.param(*x[1:], id=x[0].replace(" ", "-")) for x in CORRUPTIONS])
def test_a_corrupted_pass_is_refused(
    pass_: str, name: str, corrupt: Corruption, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = {"gated": gated, "leaky": leaky}[name]() if name in ("gated", "leaky") else spec(name)
    corrupt(monkeypatch)
    with pytest.raises(GateError) as refused:
        pipeline.compile_spec(r)
    message = str(refused.value)
    assert f"the pass `{pass_}` changed the meaning of {r.name}" in message
    assert "seed" in message and "steps" in message


def test_a_decays_gradient_that_counts_a_step_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't what the sums at the chunk boundaries make."""
    patched(pipeline, "plan", counted_twice)(monkeypatch)
    with pytest.raises(GateError, match="the state-adjoint product of S, summed and from chunk boundaries"):
        pipeline.compile_spec(spec("lightning_attention"))


def test_the_refusal_names_the_gradient_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(a: Adjoint) -> Adjoint:
        return replace(a, program=replace(a.program, outputs={**a.program.outputs, "dk": a.program.outputs["dq"]}))

    patched(pipeline, "adjoint_of", corrupt)(monkeypatch)
    with pytest.raises(GateError, match="the gradient dk is"):
        pipeline.compile_spec(spec("delta_rule"))


def test_segments_that_do_not_compose_are_refused() -> None:
    c = pipeline.compile_spec(spec("gated_delta_rule"))
    assert c.forward is not None and c.backward is not None
    gate_segments(c.adjoint, c.forward, c.backward)

    def broken(s: Sweep) -> Sweep:  # the state enters squared: no longer an affine map of it
        squared = {n: add(x, mul(leaf("state in", n, s.chunk.state_axes[n]), x)) for n, x in s.chunk.states.items()}
        return replace(s, chunk=replace(s.chunk, states=squared))

    with pytest.raises(GateError, match="`segments`"):
        gate_segments(c.adjoint, sweeps(broken)(c.forward), c.backward)


def test_an_initial_value_that_is_lost_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(p: StepProgram) -> StepProgram:
        return replace(p, states=tuple(replace(s, initial=None) for s in p.states))

    patched(pipeline, "lower", corrupt)(monkeypatch)
    with pytest.raises(GateError, match="the initial value of S is"):
        pipeline.compile_spec(gated())


def test_stages_share_what_they_find_over_a_chunk_only_where_they_are_given_the_same_states() -> None:
    m, known = Field(), Chunks()
    first, done = known.over(0, {("state in", "S"): [1, 2], ("stream", "a"): 3}, m.equal)
    done[ir.ONE] = 1
    again, shared = known.over(0, {("state in", "S"): [1, 2], ("state in", "T"): [5]}, m.equal)
    assert again is first and shared is done and set(first) == {("state in", "S"), ("stream", "a"), ("state in", "T")}
    other, none = known.over(0, {("state in", "S"): [1, 3]}, m.equal)
    assert other == {("state in", "S"): [1, 3]} and none == {} and first["state in", "S"] == [1, 2]
    assert known.over(1, {("state in", "S"): [1, 2]}, m.equal)[1] == {}
