"""States that don't read each other back are compiled stratum by stratum: families, numbers, and refusals of a wrong split."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

import chunkform
from chunkform.codegen.ir.expr import leaf_names
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.gates.strata_gates import gate_strata
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import GateError
from chunkform.spec.language import (
    Max,
    Recurrence,
    absolute,
    diag,
    dot,
    exp,
    hadamard,
    normalize,
    ones,
    sigmoid,
    softmax,
    sqrt,
    tanh,
)


def mlstm_stab() -> Recurrence:
    """The mLSTM as it is published (arXiv:2405.04517), with its stabiliser; the log of the forget gate is below 0."""
    r = Recurrence("mlstm_stab")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    fgate, i = r.inputs("fgate i")
    C, n, m = r.state("C", d, e), r.state("n", d), r.state("m")
    logf = r.let("logf", -absolute(fgate))
    r.update(m, Max(logf + m.prev, i))
    f, g = exp(logf + m.prev - m.next), exp(i - m.next)
    r.update(C, f * C.prev + g * k * v.T)
    r.update(n, f * n.prev + g * k)
    r.output("o", C.next.T * q / (1 + Max(absolute(dot(n.next, q)), exp(-m.next))))
    return r


def read_of_a_matrix() -> Recurrence:
    """What is read of a matrix drives a running maximum, which scales what another matrix takes."""
    r = Recurrence("read_of_a_matrix")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S, m, Z = r.state("S", d, e), r.state("m"), r.state("Z", d, e)
    u = normalize(k)
    r.update(S, lam * S.prev + u * (v - lam * S.prev.T * u).T)
    r.update(m, Max(lam * m.prev, dot(S.next.T * u, v)))
    r.update(Z, sigmoid(m.next) * Z.prev + u * v.T)
    r.output("o", Z.next.T * q + m.prev * v)
    r.output("p", S.next.T * q)
    return r


def gated_by_a_network() -> Recurrence:
    """A state that goes step by step gates a matrix that needn't."""
    r = Recurrence("gated_by_a_network")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, x = r.inputs("v x", e)
    h, S = r.state("h", e), r.state("S", d, e)
    r.update(h, tanh(h.prev + x))
    r.update(S, S.prev * diag(sigmoid(h.next)) + k * v.T)
    r.output("o", S.next.T * q)
    return r


def bounded_slots() -> Recurrence:
    """Slots whose weights are a softmax over time (ABC, arXiv:2110.02488): the running maximum comes first. The output needs a
    number of a later line beside a matrix, so that these are one stratum."""
    r = Recurrence("bounded_slots")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    w = r.inputs("w", m)
    top = r.state("top", m)
    K, V, z = r.state("K", m, d), r.state("V", m, e), r.state("z", m, initial=ones(m))
    r.update(top, Max(top.prev, w))
    a, b = r.let("a", exp(top.prev - top.next)), r.let("b", exp(w - top.next))
    r.update(K, diag(a) * K.prev + b * k.T)
    r.update(V, diag(a) * V.prev + b * v.T)
    r.update(z, hadamard(a, z.prev) + b)
    r.output("o", V.next.T * (softmax(K.next * q / z.next) / z.next))
    return r


def scaled_momentum() -> Recurrence:
    """A memory that takes its momentum over a running mean of squares, as Adam does: the mean comes first, and the memory is with
    the momentum, which it needs as a whole."""
    r = Recurrence("scaled_momentum")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b1, b2 = r.decay("b1 b2")
    M, V, W = r.state("M", d, e), r.state("V", d), r.state("W", d, e)
    r.update(M, b1 * M.prev + (1 - b1) * k * v.T)
    r.update(V, b2 * V.prev + (1 - b2) * k**2)
    r.update(W, W.prev + diag(1 / sqrt(Max(V.next, 0.1))) * M.next)
    r.output("o", W.next.T * q)
    return r


def gated_by_a_read(columns: bool = False) -> Recurrence:
    """Channels decay as well as what another state gives: the gradient of the gate is one of that state's writes."""
    r = Recurrence("gated_by_a_read")
    d, e = r.dims("d e")
    q, k, v, a = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e), r.decay("a", d)
    S, z = r.state("S", d, e), r.state("z", d)
    kept = sigmoid(dot(z.prev, q)) * diag(a) * S.prev
    r.update(z, hadamard(a, z.prev) + k)
    r.update(S, (kept * diag(r.decay("b", e)) if columns else kept) + k * v.T)
    r.output("o", S.next.T * q)
    return r


MADE = (mlstm_stab, read_of_a_matrix, gated_by_a_network, bounded_slots, scaled_momentum, gated_by_a_read)
SPECS = {f.__name__: f for f in MADE}
FAMILIES = {
    "mlstm_stab": [("scan", {"m"}), ("chunk-parallel", {"C", "n"})],
    "read_of_a_matrix": [("chunk-parallel", {"S"}), ("scan", {"m"}), ("chunk-parallel", {"Z"})],
    "bounded_slots": [("scan", {"top"}), ("chunk-parallel", {"K", "V", "z"})],
    "scaled_momentum": [("chunk-parallel", {"V"}), ("segment-parallel", {"M", "W"})],
    "gated_by_a_network": [("sequential", {"h"}), ("chunk-parallel", {"S"})],
    "gated_by_a_read": [("chunk-parallel", {"z"}), ("chunk-parallel", {"S"})],
}


@cache
def compiled(name):
    return compile_spec(SPECS[name]())


@cache
def op(name):
    return chunkform.compile(SPECS[name]())


@pytest.mark.parametrize("name", SPECS)
def test_each_stratum_has_its_own_family(name):
    found = [(p.compiled.family, set(p.compiled.step.updates)) for p in compiled(name).strata]
    assert (compiled(name).family, found) == ("strata", FAMILIES[name])


@pytest.mark.parametrize("columns", [False, True])
def test_what_is_gated_by_a_read_has_kernels_over_chunks(columns):
    """The sweep over the state that is read would load the gradient of the gate, which kernels have after all sweeps."""
    parts = compile_spec(gated_by_a_read(columns)).strata
    assert [triton_section(p.compiled).stepwise for p in parts] == [None, None]


FEW = ("mlstm_stab", "bounded_slots", "gated_by_a_read")  # a scan first, one of an output, a gate for each step


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in SPECS])
def test_strata_agree_with_the_step_by_step_run(name):
    for case in (Case(batch=1, steps=130, width=8, dtype=torch.float64), Case(steps=1, width=8, dtype=torch.float64)):
        worst = max(check_op(compiled(name), op(name), case), key=lambda r: r.error)
        assert worst.error < 1e-13, worst
    for dtype in (torch.float32, torch.bfloat16):
        bad = [r for r in check_op(compiled(name), op(name), Case(batch=1, steps=70, width=8, dtype=dtype)) if not r.ok]
        assert not bad, bad


def test_packed_sequences_states_and_steps_of_generation():
    """Sequences that are packed are those alone; the state after some steps, and one step more, are those of a longer run."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 40, 4, n, dtype=torch.float64) for n in (8, 8, 6))
    fgate, i = torch.randn(2, 1, 40, 4, dtype=torch.float64)
    f = op("mlstm_stab")
    q, k = q[:, :, :2], k[:, :, :1]  # heads that others share
    o, _ = f(q, k, v, fgate, i, cu_seqlens=torch.tensor([0, 13, 13, 40]))
    first, _ = f(*(x[:, :13] for x in (q, k, v, fgate, i)))
    torch.testing.assert_close(o[:, :13], first)
    start, state = f(*(x[:, 13:39] for x in (q, k, v, fgate, i)), output_final_state=True)
    torch.testing.assert_close(o[:, 13:39], start)
    last, _ = f.step(tuple(x.float() for x in state), *(x[:, 39].float() for x in (q, k, v, fgate, i)))
    torch.testing.assert_close(o[:, 39].float(), last, rtol=1e-4, atol=1e-5)


def test_a_wrong_split_is_refused():
    """A stratum that hands on something else isn't the step; one that has another gradient isn't either."""
    c = compiled("mlstm_stab")
    first, second = c.strata
    p = first.compiled.step
    wrong = dataclasses.replace(p, outputs={n: 2 * x for n, x in p.outputs.items()})
    broken = dataclasses.replace(first, compiled=dataclasses.replace(first.compiled, step=wrong))
    with pytest.raises(GateError, match="strata"):
        gate_strata(c.adjoint, (broken, second))
    a = first.compiled.adjoint
    program = dataclasses.replace(a.program, updates={n: 3 * x for n, x in a.program.updates.items()})
    changed = dataclasses.replace(first.compiled, adjoint=dataclasses.replace(a, program=program))
    with pytest.raises(GateError, match="strata"):
        gate_strata(c.adjoint, (dataclasses.replace(first, compiled=changed), second))


def test_a_stratum_has_decays_of_what_is_handed_on_and_knows_no_other_state():
    """The gate of its decays has no values for states of earlier strata."""
    r = Recurrence("handed_shares")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    m, S = r.state("m", d), r.state("S", d, e)
    r.update(m, Max(m.prev, k))
    r.update(S, diag(1 - 0.5 * sigmoid(m.prev)) * S.prev + (1 - sigmoid(m.prev)) * v.T)
    r.output("o", S.next.T * q)
    c = compile_spec(r)
    assert [p.compiled.family for p in c.strata] == ["scan", "chunk-parallel"]
    origins = c.strata[1].compiled.step.origins
    assert {name for x in origins for kind, name in leaf_names(x) if kind == "state"} == {"S"}


def test_numbers_that_are_made_of_earlier_states_alone_are_handed_on():
    """The exponents of a stabiliser's gates, so that decays are exponentials of one number; none is above 0."""
    scan, chunks = (p.compiled.step for p in compiled("mlstm_stab").strata)
    given = [v for v in chunks.variables if v.handed]
    assert {v.name for v in given} == set(scan.output_axes) and len(given) == 3
    assert not {"fgate", "i", "m"} & {v.name for v in chunks.variables}
    assert sum(v.domain == (None, 0) for v in given) == 2
    text = triton_section(compiled("mlstm_stab")).text
    assert "torch.maximum(" not in text and "torch.abs(" not in text  # kernels make what is made of each step
