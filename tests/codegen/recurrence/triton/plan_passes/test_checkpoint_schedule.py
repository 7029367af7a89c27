"""Which sweeps a kernel makes, and what is read from checkpointed states instead."""

from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.expr import ROW, leaf, make, mul, terms_of, walk
from chunkform.codegen.ir.kernel_ir import For
from chunkform.codegen.printing.code_passes import finished_kernel as finished
from chunkform.codegen.printing.kernel_text import lines_of
from chunkform.codegen.recurrence.chunkwise.plan import Sweep
from chunkform.codegen.recurrence.triton import kernel_plan, simplified
from chunkform.codegen.recurrence.triton.launch.launch_plan import Host
from chunkform.codegen.recurrence.triton.plan_passes.checkpoint_schedule import checkpoint_schedule
from chunkform.codegen.recurrence.triton.plan_passes.hoist import Opening, opened
from chunkform.codegen.recurrence.triton.plan_passes.value_placement import fuse


def test_a_decays_gradient_is_read_from_checkpoints_by_one_kernel_or_summed_by_sweeps():
    c = compiled("kimi_delta_attention")
    fused = fuse(c.backward)
    found = checkpoint_schedule(c.backward, fused, ["S"])
    assert (len(found.sweeps), len(found.from_checkpoints), set(found.spans), found.whole) == (1, 2, {"S"}, {"S"})
    stages = list(c.backward.stages)
    last = max(k for k, s in enumerate(stages) if isinstance(s, Sweep) and s.boundary_sums)
    stages[last] = replace(stages[last], side="row" if stages[last].side == "col" else "col")
    apart = checkpoint_schedule(replace(c.backward, stages=tuple(stages)), fused, ["S"])
    assert (len(apart.sweeps), len(apart.from_checkpoints), apart.spans) == (3, 0, {})
    assert sum(len(s.boundary_sums) for s in apart.sweeps.values()) == 2


@pytest.mark.parametrize("name", ["lightning_attention", "gated_delta_rule", "value_decay_attention"])
def test_what_sweeps_hold_is_not_read_from_checkpoints(name):
    c = compiled(name)
    found = checkpoint_schedule(c.backward, fuse(c.backward), ["S"])
    assert (set(found.sweeps), found.from_checkpoints) == (
        {k for k, s in enumerate(c.backward.stages) if isinstance(s, Sweep)},
        {},
    )


def test_what_is_only_used_in_one_sum_is_stored_as_one():
    """Of Kimi delta attention's keys, a read takes of two kinds of writes of its own block."""
    c = compiled("kimi_delta_attention")
    schedule = checkpoint_schedule(c.backward, fuse(c.backward), ["S"])
    from_checkpoints = [opened(s, True) for s in schedule.from_checkpoints.values()]
    assert [sorted(len(terms_of(n)) for n in o.prologue.intra.values()) for o in from_checkpoints] == [[2], [1, 1]]
    for o in from_checkpoints:
        used = {x.attrs[1] for x in walk(*o.outputs.values()) if x.op == "leaf" and x.attrs[0] == "intra"}
        assert used == {x.attrs[1] for x in o.prologue.intra}


@pytest.mark.parametrize(
    ("name", "queues"), [("gated_delta_rule", True), ("lightning_attention", True), ("gated_linear_attention", False)]
)
def test_kernels_ahead_take_one_chunk_after_the_other_or_have_few_registers(name, queues):
    c = compiled(name)
    host = Host(c, kernel_plan(c, c.backward), True, True)
    text = host.text()
    ahead = [k for k in host.kernels if not k.sweeps and not k.reads]
    assert ahead and all((k.queues, k.few) == (queues, not queues) for k in ahead)
    assert text.count("(config.queues(layout.programs),)") == queues * len(ahead)
    assert text.count("maxnreg=config.registers,") == (not queues) * sum(1 + bool(k.slow_path) for k in ahead)


def test_a_sweep_that_loads_too_much_is_cut_in_one_for_each_read_where_no_launch_makes_one_alone():
    """Each has the sums that are over its read, the first the last states, and the last the pairs inside chunks."""
    c = compiled("two_timescales")
    whole = simplified(c.backward).sweeps[-1]
    *before, one, two, three, four = [s for s in kernel_plan(c, c.backward).stages if isinstance(s, Sweep)]
    assert len(before) == 2 and len(whole.chunk.outputs) == 4
    parts = (one, two, three, four)
    assert {x: n for s in parts for x, n in s.chunk.outputs.items()} == whole.chunk.outputs
    assert all(len(s.chunk.outputs) == 1 and s.chunk.states == whole.chunk.states for s in parts)
    assert [r for s in parts for r in s.reads] == [*whole.reads]
    assert [s.finals for s in parts] == [whole.finals, (), (), ()]
    reads = [(b.state, slot) for s in parts for b in s.boundary_sums for slot in b.reads]
    assert reads == [("F", "late"), ("F", "early"), ("G", "late"), ("G", "early")]
    assert [any(b.own for b in s.boundary_sums) for s in parts] == [False, False, False, True]


@pytest.mark.parametrize(
    "name",
    [
        "lightning_attention",
        "gated_linear_attention",
        "inverse_attention",
        "delta_rule",
        "gated_delta_rule",
        "delta_product",
    ],
)
def test_sweeps_with_one_read_or_of_which_launches_make_one_stay_whole(name):
    c = compiled(name)
    assert [s.reads for s in kernel_plan(c, c.backward).sweeps] == [s.reads for s in simplified(c.backward).sweeps]


def test_a_read_is_only_made_where_its_gradients_are_wanted():
    c = compiled("gated_delta_rule")
    host = Host(c, kernel_plan(c, c.backward), True, True)
    text = host.text()
    assert 'wanted=(bool(needs & {"alpha", "q"}), bool(needs & {"alpha", "k"}))' in text
    assert "S_last if keeps else None" in text


def test_a_steps_decay_is_part_of_the_decays_up_to_it():
    """A write that depends on what the state held before the step's decay needs neither that decay nor those before it."""
    c = compiled("gated_delta_rule")
    for plan, read, written in ((c.forward, "decay_in", "decay_out"), (c.backward, "decay_out", "decay_in")):
        o = opened(plan.sweeps[0])
        nodes = [*walk(*o.definitions.values(), *o.outputs.values(), *o.states.values(), *o.prologue.matrices.values())]
        assert not any(x.op == "leaf" and x.attrs[0] == "decay" for x in nodes)
        late = {x.op: {y.attrs[0] for y in nodes if y.op == x.op} for x in nodes if x.op in (read, written)}
        assert late == {read: {read == "decay_in"}, written: {written == "decay_out"}}


def test_only_decays_from_a_chunks_start_take_in_a_step():
    opening = Opening(compiled("gated_delta_rule").forward.sweeps[0], False)
    (d,) = opening.out.decays
    alpha, other = leaf("decay", "alpha", (ROW,)), leaf("input", "beta", (ROW,))
    before, upto = (make("decay_in", (d,), (late, 1), d.axes) for late in (False, True))
    assert opening.absorbed(mul(alpha, other, before)) == mul(other, upto)
    for x in (mul(alpha, other, upto), mul(other, before), mul(alpha, make("decay_out", (d,), (True, 1), d.axes))):
        assert opening.absorbed(x) == x


def test_a_sweep_takes_elements_of_tiles_through_products_or_selects_and_operands_as_they_are():
    c = compiled("gated_delta_rule")
    host = Host(c, c.forward, False, True)
    host.text()
    (sweep_,) = [k for k in host.kernels if k.sweeps and "sweep" in k.name]
    loop = lines_of(next(x.body for x in finished(sweep_.function).body if isinstance(x, For) and x.name == "n"))
    product = "tl.dot(v.to(DT), identity) if PRODUCTS and v.dtype == DT"
    assert [x for x in loop if "_each = " in x] == [
        f"v_each = {product} else tl.where(e_ok[:, None] & i_ok[None, :], v, 0.0)"
    ]
    assert sweep_.products == {"v_p"}
    assert sum("v_each" in x for x in loop) == 2 and any("tl.trans(k_slice.to(DT))" in x for x in loop)
