"""Bit for bit, in the torch form: no later step changes an earlier one, zeros are no state, runs agree, and so do sequences in
company where `deterministic=True`."""

import pytest
import torch
from shared.bits import (
    ATTENTIONS,
    RECURRENCES,
    Case,
    attention_problem,
    differing,
    has_zero_start,
    later_positions,
    later_steps,
    no_state,
    once_more,
    other_attention_entries,
    other_entries,
    other_heads,
    problem,
    replace,
    run,
    run_attention,
    sequence,
)
from shared.structures import sweep

from chunkform.errors import ArgumentError
from chunkform.generated import gated_delta_rule, lightning_attention, softmax_attention

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


def case(name: str, **more) -> Case:
    """Every op has a dtype of its own, so that all come up; widths that 16 doesn't divide lie anywhere in memory."""
    steps = 20 if name == "inverse_attention_unstable" else 80  # which explodes
    return Case(steps, DTYPES[RECURRENCES.index(name) % 4], batch=2, widths=(13, 20), **more)


def packed(name: str) -> Case:
    return replace(case(name), lengths=(5, 0, 7) if case(name).steps == 20 else (5, 0, 70))


@pytest.mark.parametrize("name", sweep(RECURRENCES))
def test_later_steps_change_nothing_before(name):
    """At a chunk's boundary, inside one and in the tail, with weak decays or strong ones after it or before."""
    strong = 1.0 if name == "sherman_morrison" else 20.0  # which divides by decays
    one, other = problem(name, case(name, decay=0.1)), problem(name, case(name, seed=1, decay=strong))
    found = {n: later_steps(one, other, n) for n in (10, 64, 77) if n < case(name).steps}
    found[-1] = later_steps(other, one, 10)
    assert not any(found.values()), found


@pytest.mark.parametrize("name", sweep(RECURRENCES))
def test_runs_agree_and_zeros_are_no_state(name):
    p = problem(name, case(name))
    assert once_more(p) == {}
    if has_zero_start(p.op):
        assert no_state(p) == {}


@pytest.mark.parametrize("name", sweep(RECURRENCES))
def test_deterministic_sequences_agree_alone_in_a_batch_and_packed(name):
    assert other_entries(problem(name, case(name)), deterministic=True) == {}
    assert other_entries(problem(name, packed(name)), deterministic=True) == {}


@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum", "mesa"])
def test_deterministic_heads_agree_alone_and_beside_others(name):
    assert other_heads(problem(name, case(name)), deterministic=True) == {}


def test_what_is_deterministic_is_as_exact():
    """Groups of heads, parameters of packed sequences, high precision: as it is otherwise, but for rounding."""
    for name in ("gated_delta_rule", "retention"):
        p = problem(name, replace(packed(name), dtype=torch.float32, heads=4))
        few = {n: x[:, :, :2] if n in p.per_step and n != "log_alpha" else x for n, x in p.given.items()}
        for options in ({}, {"precision": "high"}):
            a, b = (run(replace(p, given=few), deterministic=on, **options) for on in (True, False))
            assert max(float((a[n] - b[n]).norm() / b[n].norm()) for n in b) < 1e-6


def test_a_sequence_of_no_steps_is_deterministic_too():
    p = problem("gated_delta_rule", Case(0, batch=2))
    assert torch.equal(run(p, deterministic=True)["final S"], p.states[0])
    assert run(problem("retention", Case(9, batch=0)), deterministic=True)["o"].shape == (0, 9, 2, 24)


def test_compiled_code_is_deterministic_too():
    p = problem("gated_delta_rule", Case(70, torch.float32, batch=2, widths=(13, 20)))
    compiled = torch.compile(gated_delta_rule, backend="aot_eager", fullgraph=True)
    got = run(replace(p, op=compiled), deterministic=True)
    assert differing(got, run(p, deterministic=True)) == {}


def test_decoding_steps_are_deterministic():
    p = problem("gated_delta_rule", Case(3, torch.float32, batch=3, widths=(13, 20)))

    def step(x, on):
        return x.op.step(x.states[0], **{n: v[:, 0] for n, v in x.given.items()}, deterministic=on)

    o, state = step(p, True)
    assert torch.allclose(o, step(p, False)[0], atol=1e-6)
    for n in range(3):
        alone = step(sequence(p, n), True)
        assert torch.equal(alone[0], o[n : n + 1]) and torch.equal(alone[1], state[n : n + 1])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attentions(name):
    widths = (13, 20) if name != "rotary_attention" else (14, 20)
    at = Case(80, DTYPES[ATTENTIONS.index(name) % 3], batch=2, widths=widths)
    p, other = attention_problem(name, at), attention_problem(name, replace(at, seed=1))
    assert differing(run_attention(p), run_attention(p)) == {}
    assert other_attention_entries(p, deterministic=True) == {}
    if "causal" in p.options:
        found = {n: later_positions(p, other, n) for n in (10, 77)}
        assert not any(found.values()), found


def test_compiled_attentions_are_deterministic_too():
    p = attention_problem("kattention", Case(40, torch.float32, batch=2, widths=(13, 20)))
    compiled = torch.compile(p.op, backend="aot_eager", fullgraph=True)
    got = run_attention(replace(p, op=compiled), deterministic=True)
    assert differing(got, run_attention(p, deterministic=True)) == {}


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_deterministic_is_a_bool(value):
    p = problem("lightning_attention", Case(3))
    with pytest.raises(ArgumentError, match=r"lightning_attention: deterministic must be True or False, got"):
        lightning_attention(**p.given, deterministic=value)
    with pytest.raises(ArgumentError, match=r"lightning_attention.step: deterministic must be True or False, got"):
        lightning_attention.step(None, **{n: x[:, 0] for n, x in p.given.items()}, deterministic=value)
    q = torch.randn(1, 3, 1, 4)
    with pytest.raises(ArgumentError, match=r"softmax_attention: deterministic must be True or False, got"):
        softmax_attention(q, q, q, deterministic=value)
