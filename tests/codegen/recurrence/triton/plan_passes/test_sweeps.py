"""What sweeps do beside their plan: gradients that are loaded again, maps that are kept, sums that come from the other side."""

from dataclasses import replace

import pytest
from shared.spec_files import SPECS, read
from shared.triton_errors import compiled

from chunkform.codegen.ir.expr import mul, walk
from chunkform.codegen.recurrence.chunkwise.plan import Sweep
from chunkform.codegen.recurrence.gates.gates import gate_plan
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import simplified, triton_source
from chunkform.codegen.recurrence.triton.plan_passes.hoist import opened
from chunkform.codegen.recurrence.triton.plan_passes.reuse_write_gradients import reused
from chunkform.codegen.recurrence.triton.plan_passes.scale_reads import scaled
from chunkform.codegen.recurrence.triton.plan_passes.value_placement import fuse
from chunkform.codegen.recurrence.triton.section import kernel_plan
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence

STRANGERS = [r.name for r in read(SPECS / "corrections.py")]


def loaded(plan):
    """What each sweep is given."""
    given = [walk(*s.given.values()) for s in plan.stages if isinstance(s, Sweep)]
    return [{x.attrs[:2] for x in nodes if x.op == "leaf"} for nodes in given]


@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "delta_rule", "kimi_delta_attention", "inverse_attention", *STRANGERS]
)
def test_sweeps_load_the_gradient_that_a_solved_write_makes(name):
    """And not that write, which is then not stored; they compute the adjoint still."""
    c = compiled(name)
    plan = reused(c.backward)
    (write,) = [x for s in plan.sweeps if s.solve for x in s.chunk.outputs]
    (before, after) = ([write.attrs[:2] in given for given in loaded(p)] for p in (c.backward, plan))
    assert any(before) and not any(after)
    assert any(("stored", f"d{v.name}") in given for given in loaded(plan) for v in c.step.variables)
    gate_plan(c.adjoint, c.forward, kernel_plan(c, c.backward), of_kernels=True)


def test_a_plan_that_would_divide_by_a_coefficient_is_kept():
    """The state loses what a read says without the coefficient that the value's gradient has."""
    r = Recurrence("half_scaled")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, al = r.inputs("b"), r.decay("al")
    S = r.state("S", d, e)
    r.update(S, al * S.prev + k * (b * v - S.prev.T * k).T)
    r.output("o", S.next.T * q)
    c = compile_spec(r)
    assert reused(c.backward) is c.backward


def test_reads_are_made_with_a_steps_decay_that_all_their_uses_are_times():
    """Then no kernel loads the decay of a step on its own, nor sums up to the step before."""
    for name in ("gated_delta_rule", "inverse_attention"):
        c = compiled(name)
        plan = simplified(c.backward)
        assert plan is not reused(c.backward)
        gate_plan(c.adjoint, c.forward, plan, of_kernels=True)
        text = triton_source(c)
        assert "_before" not in text[text.index("def backward_prologue_1(") : text.index("def triton_backward(")]
    assert "alpha_by_head" not in triton_source(compiled("gated_delta_rule"))


def test_matrices_over_steps_serve_the_sweeps_over_both_states():
    """A read that is times beta_t is of what writes with beta_t make of the other state, transposed."""
    for name, before, after in (("gated_delta_rule", 6, 4), ("delta_rule", 6, 4)):
        c = compiled(name)
        plans = reused(c.backward), simplified(c.backward)
        made = [{x for s in p.sweeps for x in opened(s, True).prologue.matrices} for p in plans]
        assert [len(x) for x in made] == [before, after]


@pytest.mark.parametrize("name", ["lightning_attention", "kimi_delta_attention"])
def test_reads_of_which_uses_are_times_no_number_stay(name):
    """Or of a state with a decay for each channel."""
    plan = reused(compiled(name).backward)
    assert scaled(plan) is plan


def test_a_read_that_an_output_is_as_well_stays():
    """The forward pass has it as it is; the backward pass, where all that uses it is times the decay, has it times that."""
    r = Recurrence("read_twice")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, al = r.inputs("v", e), r.decay("al")
    S = r.state("S", d, e)
    r.update(S, al * S.prev + k * (v - al * S.prev.T * k).T)
    r.output("o", S.next.T * q)
    r.output("before", S.prev.T * k)
    c = compile_spec(r)
    plan, backward = reused(c.forward), reused(c.backward)
    assert all(any(".prev." in x.attrs[1] for s in p.sweeps for x in s.chunk.outputs) for p in (plan, backward))
    assert scaled(plan) is plan and scaled(backward) is not backward
    gate_plan(c.adjoint, c.forward, scaled(backward), of_kernels=True)


def test_the_gate_refuses_sweeps_that_compute_something_else():
    c = compiled("gated_delta_rule")
    plan = kernel_plan(c, c.backward)
    k, sweep = [(k, s) for k, s in enumerate(plan.stages) if isinstance(s, Sweep)][-1]
    doubled = {x: mul(2, node) for x, node in sweep.chunk.outputs.items()}
    wrong = replace(sweep, chunk=replace(sweep.chunk, outputs=doubled))
    with pytest.raises(GateError, match="the state-adjoint product of S"):
        gate_plan(
            c.adjoint,
            c.forward,
            replace(plan, stages=(*plan.stages[:k], wrong, *plan.stages[k + 1 :])),
            of_kernels=True,
        )


def test_a_parts_matrix_is_kept_for_the_backward_pass_which_turns_it():
    """A decay alone, or one for each channel, is no matrix."""
    for name, kept in (("gated_delta_rule", True), ("kimi_delta_attention", True), ("gated_linear_attention", False)):
        text = triton_source(compiled(name))
        assert ('saved |= {"S linear": S_linear}' in text) == ('saved["S linear"].mT' in text) == kept
        assert ("if S_linear is not None:" in text) == kept and "if dS_linear is not None:" not in text


def test_sums_over_a_read_are_made_from_the_side_that_is_read_anyway():
    """k^T S p is over a read of S by k, or of S by p, which the gradient of k needs: v isn't loaded for it."""
    c = compiled("gated_delta_rule")
    assert len(c.adjoint_form.reads) == 5
    assert not any(("input", "v") in given for given in loaded(c.backward))
    assert len(compiled("inverse_attention").adjoint_form.reads) == 4


def test_terms_of_a_decays_gradient_count_at_once_where_the_decay_comes_first():
    at_once = {n: fuse(compiled(n).backward).at_once for n in ("gated_delta_rule", "lightning_attention", "late_decay")}
    assert at_once == {"gated_delta_rule": {"S"}, "lightning_attention": set(), "late_decay": set()}
    assert "at_once=True" in triton_source(compiled("gated_delta_rule"))


def test_what_a_sweep_adds_to_is_as_exact_as_what_it_is_made_of():
    """A gradient's terms so far are float32, unless writes that are rounded make them."""
    stored = {n: triton_source(compiled(n)) for n in ("gated_delta_rule", "decay_as_an_input")}
    assert "dk_1 = some.new_empty((B, T, H, D), dtype=some.dtype)" in stored["gated_delta_rule"]
    assert "dlog_beta_0 = some.new_empty((B, T, H, E), dtype=torch.float32)" in stored["decay_as_an_input"]
