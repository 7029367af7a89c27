"""Recurrences of the literature that aren't in the catalogue, written as a stranger would: each finds its family.

`compile_spec` holds every pass against its meaning (see test_gates.py), so a compiled spec is a checked one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import sympy
from shared.spec_files import SPECS, compiled_once, read, read_all
from shared.structures import few_of

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence import check
from chunkform.codegen.recurrence.check import check_op, samples
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.chunkwise.cost import Sizes, sweep_flops
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import SpecError
from chunkform.spec.language import (
    Dim,
    Matrix,
    Recurrence,
    State,
    absolute,
    cos,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    log,
    norm,
    normalize,
    sigmoid,
    sin,
    softmax,
    softplus,
    tanh,
    total,
)

LITERATURE = read_all()
OTHER_FAMILIES = {r.name: "segment-parallel" for r in read(SPECS / "entries.py")}  # see test_signs.py
OTHER_FAMILIES |= {r.name: "strata" for r in read(SPECS / "frames.py")}
OTHER_FAMILIES |= {
    "gla_signed": "strata",
    "gateloop": "strata",
    "mamba3_complex": "strata",
    "log_space": "scan",
    "mlstm_stabilised": "strata",
    "gated_by_a_state": "strata",
    "turned_keys": "strata",
}
SEQUENTIAL = {
    "gru": ("what is written isn't affine in what is read", "gate_t", 119),
    "oja_subspace": ("a write multiplies two reads of the state", "k_t^T W_{t-1}", 11),
}
CHUNK_PARALLEL_GATES = ("lower", "adjoint", "normalize", "normalize adjoint", "plan", "plan adjoint", "segments")


def known(name: str) -> Compiled:
    return compiled_once(LITERATURE[name])


def solved(compiled: Compiled) -> bool:
    """Does a write of the forward depend on what it reads, so that a triangular system is solved?"""
    assert compiled.forward is not None
    return any(s.solve for s in compiled.forward.sweeps)


IN_EACH_RUN = {*few_of(tuple(LITERATURE)), *OTHER_FAMILIES, *SEQUENTIAL}


@pytest.mark.parametrize(
    "r",
    [r if n in IN_EACH_RUN else pytest.param(r, marks=pytest.mark.long) for n, r in LITERATURE.items()],
    ids=lambda r: r.name,
)
def test_a_recurrence_of_the_literature(r: Recurrence) -> None:
    compiled = known(r.name)
    if r.name in OTHER_FAMILIES:
        assert compiled.family == OTHER_FAMILIES[r.name]
        return
    if r.name not in SEQUENTIAL:
        assert compiled.family == "chunk-parallel", compiled.reason
        assert tuple(g.name for g in compiled.gates if g.name not in ("stable", "decays")) == CHUNK_PARALLEL_GATES + (
            "substeps",
        ) * (compiled.substeps is not None)
        return
    reason, term, line = SEQUENTIAL[r.name]
    assert compiled.family == "sequential"
    assert reason in compiled.reason and term in compiled.reason
    assert (compiled.reason_where.file, compiled.reason_where.line) == (r.where.file, line)


@pytest.mark.parametrize(
    "name",
    [
        "each_other",
        "centred_sum",
        "channel_delta_rule",
        "gated_slot_attention",
        "mlstm",
        "oja",
        "signed_numbers",
        *(
            pytest.param(n, marks=pytest.mark.long)
            for n in (
                "diagonal_plus_rank_one",
                "momentum",
                "stacked",
                "slow_and_fast",
                "summed_key",
                "read_key",
                "two_reflections",
                "towards_new",
                "channel_rate",
                "comba",
                "rwkv6",
                "pulled_halfway",
                "little_weight_decay",
                "ones_by_channel",
                "second_order",
            )
        ),
    ],
)
def test_the_torch_form_over_several_chunks_matches_the_oracle(name: str) -> None:
    """Sweeps have chunks of their own lengths, by the sizes of decays and of triangular systems."""
    op = compile_op(LITERATURE[name])
    for case in (Case(seed=0, steps=150, width=8), Case(seed=1, steps=130, width=5, decay="extreme")):
        rows = check_op(known(name), op, case, backend="torch")
        assert {x.quantity: x.error for x in rows if not x.ok} == {}


@pytest.mark.parametrize(
    "name, solves",
    [("rwkv6", False), ("rwkv7", True), ("delta_product", True), ("mamba2", False), ("gated_slot_attention", False)]
    + [("longhorn", True), ("ttt_linear", True), ("two_timescales", True), ("oja", True), ("scalar_rnn", False)],
)
def test_only_writes_that_read_the_state_are_solved_for(name: str, solves: bool) -> None:
    assert solved(known(name)) is solves


def test_states_that_share_an_error_are_swept_together() -> None:
    compiled = known("two_timescales")
    assert [s.states for s in compiled.forward.sweeps if s.solve] == [("F", "G")]


def test_states_in_sequence_are_swept_one_after_the_other() -> None:
    compiled = known("gated_slot_attention")
    assert all(len(s.states) == 1 for s in compiled.forward.sweeps)


# --- smaller variations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """A recurrence to be finished: the usual inputs, and one state over (d, e)."""

    r: Recurrence
    d: Dim
    e: Dim
    q: Matrix
    k: Matrix
    x: Matrix
    v: Matrix
    u: Matrix
    b: sympy.Expr
    c: sympy.Expr
    lam: sympy.Expr
    al: Matrix
    be: Matrix
    S: State

    @classmethod
    def of(cls) -> Parts:
        r = Recurrence("variation")
        d, e = r.dims("d e")
        inputs = *r.inputs("q k x", d), *r.inputs("v u", e), *r.inputs("b c")
        decays = r.decay("lam"), r.decay("al", d), r.decay("be", e)
        return cls(r, d, e, *inputs, *decays, r.state("S", d, e))

    def key_of_another(self) -> Matrix:
        """The key, as another state scales it."""
        A = self.r.state("A", self.d)
        self.r.update(A, self.lam * A.prev + hadamard(self.k, self.k))
        return self.k / (1 + A.next)

    def compiled(self, update: object, output: object | None = None) -> Compiled:
        self.r.update(self.S, update)
        self.r.output("o", self.S.next.T * self.q if output is None else output)
        return compile_spec(self.r)


AFFINE = {
    "a decay made of functions": lambda p: exp(-softplus(p.b)) * p.S.prev + p.k * p.v.T,
    "a decay that is a power of a sigmoid": lambda p: sigmoid(p.b) ** 0.0625 * p.S.prev + p.k * p.v.T,
    "a decay times a decay": lambda p: p.lam * diag(p.al) * p.S.prev + p.k * p.v.T,
    "a vector decay made of functions": lambda p: diag(exp(-exp(p.x))) * p.S.prev + p.k * p.v.T,
    "one minus a sigmoid": lambda p: (1 - sigmoid(p.b)) * p.S.prev + sigmoid(p.b) * p.k * p.v.T,
    "a vector of one minus a sigmoid": lambda p: diag(1 - sigmoid(p.x)) * p.S.prev + p.k * p.v.T,
    "the decay once more in the write": lambda p: p.lam * p.S.prev + (1 - p.lam) * p.k * p.v.T,
    "two writes": lambda p: p.lam * p.S.prev + p.k * p.v.T - p.x * p.u.T,
    "a write before the decay": lambda p: p.lam * (p.S.prev + p.k * p.v.T),
    "writes before and after the decay": lambda p: diag(p.al) * (p.S.prev + p.k * p.v.T) + p.x * p.u.T,
    "a write of a sum": lambda p: p.S.prev + (p.k + p.x) * (p.v - p.u).T,
    "functions of keys and values": lambda p: p.lam * p.S.prev + normalize(p.k) * tanh(p.v).T / (1 + norm(p.x) ** 2),
    "cosines and absolute values": lambda p: p.S.prev + cos(p.k) * absolute(p.v).T + sin(p.x) * log(1 + p.u**2).T,
    "a write that doesn't depend on e": lambda p: p.S.prev + (p.b + p.k) * (1 + 0 * p.v).T,
    "the delta rule on the value side": lambda p: p.lam * p.S.prev + (p.k - p.S.prev * p.u) * p.v.T,
    "the delta rule with a decay of each value": lambda p: p.S.prev * diag(p.be) + p.k * (p.v - p.S.prev.T * p.k).T,
    "an error that is gated entry by entry": lambda p: p.S.prev + p.k * hadamard(sigmoid(p.u), p.v - p.S.prev.T * p.x).T,
    "a correction in two steps": lambda p: p.S.prev + p.k * (p.v - (p.S.prev + p.x * p.u.T).T * p.k).T,
    "a Householder matrix": lambda p: p.S.prev - 2 * normalize(p.k) * (normalize(p.k).T * p.S.prev) + p.x * p.v.T,
    "a transition that another state makes": lambda p: (eye(p.d) - p.b * p.key_of_another() * p.k.T) * p.S.prev + p.k * p.v.T,
    "the same, which has a name": lambda p: p.lam * p.r.let("H", eye(p.d) - p.k * p.key_of_another().T) * p.S.prev + p.x * p.v.T,
    "the state forgotten at each step": lambda p: p.k * p.v.T,
    "a constant decay": lambda p: p.S.prev / 2 + p.k * p.v.T,
    "a state that is only read": lambda p: p.S.prev,
}  # fmt: skip
OUTPUTS = {
    "the previous state": lambda p: p.S.prev.T * p.q,
    "both states": lambda p: p.S.next.T * p.q - p.S.prev.T * p.k,
    "the state's other side": lambda p: p.S.next * p.u,
    "a function of a read": lambda p: tanh(p.S.next.T * p.q) + p.v,
    "a quotient of reads": lambda p: p.S.next.T * p.q / (1 + dot(p.S.next.T * p.k, p.v) ** 2),
    "a read of a read": lambda p: p.S.next * (p.S.prev.T * p.q),
    "a scalar": lambda p: p.b * dot(p.S.next.T * p.q, p.v),
    "the sum of a read": lambda p: total(p.S.next.T * p.q),
    "no state at all": lambda p: p.b * p.v,
}  # fmt: skip


@pytest.mark.parametrize("name", AFFINE)
def test_an_affine_update_is_chunk_parallel(name: str) -> None:
    p = Parts.of()
    compiled = p.compiled(AFFINE[name](p))
    assert compiled.family == "chunk-parallel", compiled.reason


@pytest.mark.parametrize("name", OUTPUTS)
def test_any_output_of_reads_is_chunk_parallel(name: str) -> None:
    p = Parts.of()
    p.r.update(p.S, p.lam * p.S.prev + p.b * p.k * (p.v - p.S.prev.T * p.k).T)
    p.r.output("o", OUTPUTS[name](p))
    compiled = compile_spec(p.r)
    assert compiled.family == "chunk-parallel", compiled.reason


# what isn't affine: the reason, and how the term that is to blame reads
NOT_AFFINE = {
    "a function of the whole state": (lambda p: tanh(p.S.prev) + p.k * p.v.T, "isn't affine", "tanh(S_{t-1})"),
    "the state squared": (lambda p: p.S.prev - p.b * p.S.prev * (p.S.prev.T * p.k) * p.v.T, "", "S_{t-1}"),
    "a decay that may be negative": (lambda p: diag(p.q) * p.S.prev * diag(p.v) + p.k * p.v.T, "may be zero or negative", "q_t"),
    "a decay that depends on the state": (lambda p: sigmoid(dot(p.S.prev.T * p.k, p.v)) * p.S.prev, "depends on", "S_{t-1}"),
    "a function of what is read": (lambda p: p.S.prev + p.k * tanh(p.S.prev.T * p.k).T, "isn't affine", "tanh(S_{t-1}^T k_t)"),
    "keys that read the state": (lambda p: p.S.prev + (p.S.prev * p.u) * (p.S.prev.T * p.k).T, "two reads", "k_t^T S_{t-1}"),
    "entries that decay one by one": (lambda p: hadamard(sigmoid(p.k * p.v.T), p.S.prev), "both axes", "sigmoid(k_t v_t^T)"),
    "a write that isn't of rank one": (lambda p: p.S.prev + exp(p.k * p.v.T), "outer product", "exp("),
}  # fmt: skip


ENTRY_BY_ENTRY = ("a decay that may be negative", "entries that decay one by one", "a write that isn't of rank one")


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_says_why(name: str) -> None:
    make, reason, term = NOT_AFFINE[name]
    p = Parts.of()
    compiled = p.compiled(make(p))
    assert compiled.family == ("segment-parallel" if name in ENTRY_BY_ENTRY else "sequential")
    assert reason in compiled.reason and term in compiled.reason
    assert compiled.reason_where.file == __file__
    assert tuple(g.name for g in compiled.gates)[:2] == ("lower", "adjoint")


def test_the_delta_rule_costs_the_same_however_it_is_written() -> None:
    """As papers print it, a matrix times the state, and multiplied out; with keys in rows, and in columns."""
    spelled = [
        (lambda p: p.lam * (eye(p.d) - p.b * p.k * p.k.T) * p.S.prev + p.b * p.k * p.v.T, lambda p: p.S.next.T * p.q),
        (lambda p: p.lam * p.S.prev + p.b * p.k * (p.v - p.lam * p.S.prev.T * p.k).T, lambda p: p.S.next.T * p.q),
        (lambda p: p.S.prev * (p.lam * (eye(p.e) - p.b * p.v * p.v.T)) + p.b * p.k * p.v.T, lambda p: p.S.next * p.u),
        (lambda p: p.lam * p.S.prev + p.b * (p.k - p.lam * p.S.prev * p.v) * p.v.T, lambda p: p.S.next * p.u),
    ]
    found = []
    for update, output in spelled:
        p = Parts.of()
        compiled = p.compiled(update(p), output(p))
        (write,) = compiled.form.state("S").writes
        assert write.leaf is not None
        found.append([sum(sweep_flops(s, Sizes()) for s in x.sweeps) for x in (compiled.forward, compiled.backward)])
    assert found == found[:1] * 4


def test_a_state_that_stands_alone_is_in_the_line_of_its_equation() -> None:
    p = Parts.of()
    Q = p.r.state("Q", p.d, p.d)
    read = p.r.let("read", Q.prev * p.k)
    p.r.update(Q, Q.prev.T)
    compiled = p.compiled(p.S.prev + read * p.v.T)
    assert compiled.reason == "the state is transposed in each step: Q_{t-1}"
    assert "r.update(Q" in str(compiled.reason_where)


def test_a_square_state_that_is_read_from_its_other_side_says_so() -> None:
    """S' = S + u (v - S u)^T has the transposed state in it, and is affine all the same."""
    p = Parts.of()
    Q = p.r.state("Q", p.d, p.d)
    p.r.update(Q, Q.prev / 2 + p.k * (p.q - Q.prev * p.k).T)
    compiled = p.compiled(p.S.prev + (Q.prev * p.k) * p.v.T)
    assert compiled.reason == "what is written reads the state from its other side: -Q_{t-1} k_t"


def test_a_matrix_times_the_state_has_no_form_over_chunks() -> None:
    p = Parts.of()
    A = p.r.inputs("A", p.d, p.d)
    compiled = p.compiled(A * p.S.prev + p.k * p.v.T)
    assert compiled.family == "segment-parallel" and "full matrix" in compiled.reason


def test_a_vector_may_be_corrected_by_a_number_that_is_read_of_it() -> None:
    """Papers have such states as vectors: S4's diagonal plus rank one, a delta rule of one value."""
    folder = Path(__file__).parent / "triton" / "specs"
    family = {r.name: compile_spec(r).family for r in read(folder / "corrected_vectors.py")}
    assert family.pop("vectors_each_other") == "segment-parallel"
    assert set(family.values()) == {"chunk-parallel"} and len(family) == 3


def test_a_matrix_of_inputs_may_be_read_with() -> None:
    p = Parts.of()
    A = p.r.parameter("A", p.d, p.d)
    compiled = p.compiled(p.S.prev + (A * p.k) * p.v.T, p.S.next.T * (A.T * p.q))
    assert compiled.family == "chunk-parallel"


def test_what_has_values_for_positive_arguments_alone_is_checked_with_these(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Parts.of()
    A = p.r.state("A", p.d)
    p.r.update(A, p.lam * A.prev + p.k**2)
    compiled = p.compiled(p.lam * p.S.prev + log(A.next) * p.v.T)
    case, s, exact = next(samples(compiled, Case(steps=3, width=4)))
    assert (case.positive, case.steps) == (("states",), 3) and (s.given["k"] < 0).any()
    assert all(x.isfinite().all() for x in exact.values())
    monkeypatch.setattr(check, "POSITIVE", ((),))
    with pytest.raises(SpecError, match=r"test_generality.py:\d+.* variation can't be checked"):
        check_op(compiled, lambda: None, case)


def test_a_sum_of_vectors_alone_goes_over_the_dim_that_it_has() -> None:
    """Where states are taken by rows, a matrix of vectors may have either dim in the place of rows; a gate refused this."""
    r = Recurrence("read_twice_by_rows")
    d, e = r.dims("d e")
    x, k, q = r.inputs("x k q", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, k * (x.T * (q * softmax(v).T + q * ((S.prev * v).T * k * v.T))))
    r.output("o", S.prev.T * tanh(q))
    emit(compile_spec(r), tidy=False)
    r = Recurrence("a_vector_beside")
    d, e = r.dims("d e")
    x, k = r.inputs("x k", d)
    v = r.inputs("v", e)
    S, R = r.state("S", d), r.state("R", d, e)
    r.update(S, S.prev + x)
    r.update(R, x * v.T + S.next * softmax(v).T)
    r.output("o", R.next.T * (k / 2))
    emit(compile_spec(r), tidy=False)


def test_a_scan_knows_the_sizes_of_dims_that_it_has_no_tensor_of() -> None:
    r = Recurrence("mean_of_weights")
    d = r.dims("d")
    b, q = r.inputs("b"), r.inputs("q", d)
    h = r.state("h")
    r.update(h, sigmoid(b) * h.prev + total(softmax(q)) / r.size(d))
    r.output("o", h.next)
    emit(compile_spec(r), tidy=False)


def test_a_decay_may_be_a_function_of_a_number_too_small_for_floats() -> None:
    r = Recurrence("double_gate")
    d = r.dims("d")
    g, k = r.inputs("g k", d)
    h = r.state("h", d)
    r.update(h, hadamard(tanh(exp(-exp(g))), h.prev) + k)
    r.output("o", h.next)
    assert compile_spec(r).family != "sequential"
