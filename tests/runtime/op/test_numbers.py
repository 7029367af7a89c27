"""Numbers: random calls against the oracle, values at the edges, and the same bits twice."""

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared.fuzz import TABLE, Draw, fill_empty_memory, fuzz
from shared.op_cases import SPECS, misses, op_of, problem, run

from chunkform.codegen.recurrence.samples import Case
from chunkform.generated.lightning_attention import lightning_attention

DRAWS = st.builds(
    Draw, name=st.sampled_from(list(SPECS)), **{n: st.sampled_from(choices) for n, choices in TABLE.items()}
)


@pytest.fixture(autouse=True)
def nan_in_empty_memory():
    fill_empty_memory(True)
    yield
    fill_empty_memory(False)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(DRAWS)
def test_any_call_agrees_with_the_oracle(draw):
    assert fuzz(draw) == {}


def test_the_comparison_can_fail():
    p = problem("gated_delta_rule", Case(steps=20, heads=2, width=4))
    got = run(p)
    assert misses(p, got) == {}
    for n in got:
        wrong = got | {n: got[n] * (1 + 1e-4)}
        assert list(misses(p, wrong)) == [n]
    lost = got | {"dk": got["dk"].clone()}
    lost["dk"][0, 3] = torch.nan
    assert list(misses(p, lost)) == ["dk"]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("batch", "steps"), [(0, 5), (2, 0), (2, 1)])
def test_nothing_to_do_and_one_step(name, batch, steps):
    p = problem(name, Case(batch=batch, steps=steps, heads=2, width=4))
    got = run(p)
    assert misses(p, got) == {}
    if steps == 0:
        for n, s in p.states.items():
            if s is not None:
                assert torch.equal(got[f"final {n}"], s)


@pytest.mark.parametrize("name", SPECS)
def test_two_runs_give_the_same_bits(name):
    p = problem(name, Case(steps=70, heads=2, width=4))
    first, second = run(p), run(p)
    assert [n for n in first if not torch.equal(first[n], second[n])] == []


def test_two_packed_runs_give_the_same_bits():
    p = problem("gated_delta_rule", Case(heads=2, width=4), lengths=(5, 0, 70, 5))
    first, second = run(p), run(p)
    assert [n for n in first if not torch.equal(first[n], second[n])] == []


@pytest.mark.parametrize("value", [0.0, -50.0, -700.0, -1e4, -3e38, -torch.inf])
@pytest.mark.parametrize("name", [n for n, r in SPECS.items() if any(v.kind.startswith("decay") for v in r.variables)])
def test_any_decay_behaves_as_the_recurrence_does(name, value):
    """Every third step, or head, decays so much; the others little."""
    p = problem(name, Case(steps=20, heads=2, width=4, dtype=torch.float64))
    decays = {n: x.clone() for n, x in p.given.items() if p.keys[n] != n}
    for x in decays.values():
        (x if x.dim() < 3 else x.movedim(1, 0))[1::3] = value
    p = dataclasses.replace(p, given=p.given | decays)
    assert misses(p, run(p)) == {}


def test_keys_of_zero_leave_the_state_alone():
    p = problem("lightning_attention", Case(steps=20, heads=2, width=4, decay="none"))
    p = dataclasses.replace(p, given=p.given | {"k": torch.zeros_like(p.given["k"])})
    got = run(p)
    assert torch.equal(got["final S"], p.states["S"])
    assert misses(p, got) == {}


def test_float16_overflows_to_infinity_in_outputs_only():
    """o is beyond float16; the state, in float32, isn't."""
    q, k, v = torch.full((3, 1, 5, 1, 4), 100.0, dtype=torch.float16)
    o, s = lightning_attention(q, k, v, torch.zeros(1, 5, 1), output_final_state=True)
    assert (o == torch.inf).all() and (s == 50000).all()


def test_nan_stays_in_its_own_batch_entry_and_head():
    p = problem("gated_delta_rule", Case(batch=2, steps=20, heads=2, width=4))
    v = p.given["v"].clone()
    v[0, 3, 1] = torch.nan
    o = run(dataclasses.replace(p, given=p.given | {"v": v}))["o"]
    assert o[0, 3:, 1].isnan().any()
    assert o[1].isfinite().all() and o[0, :, 0].isfinite().all()


LAYOUTS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "dims first": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "part of a projection": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]] if x.dim() == 4 else x,
    "one head expanded": lambda x: x[:, :, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_arguments_are_not_copied(layout, monkeypatch):
    """The backend gets the caller's own memory."""
    op = op_of("gated_delta_rule").__globals__["OP"]
    p = problem("gated_delta_rule", Case(steps=20, heads=2, width=4))
    given = {n: LAYOUTS[layout](x) for n, x in p.given.items()}
    forward, seen = op.backends["torch"].forward, {}

    def look(arguments, *rest, **options):
        seen.update({n: (x.data_ptr(), x.stride()) for n, x in arguments.items()})
        return forward(arguments, *rest, **options)

    monkeypatch.setitem(op.backends, "torch", dataclasses.replace(op.backends["torch"], forward=look))
    op(given)
    assert seen == {n: (x.data_ptr(), x.stride()) for n, x in given.items()}
