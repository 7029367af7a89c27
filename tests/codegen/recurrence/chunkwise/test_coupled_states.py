"""Weights between states that are added to each other: which there are, and which are put together."""

from __future__ import annotations

import pytest
import torch
from shared.spec_files import SPECS, read

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir.expr import COL, ROW, factors_of, leaf, make, mul, terms_of, total, walk
from chunkform.codegen.recurrence.chunkwise.coupled_states import factored, gathered, is_transition, reached
from chunkform.codegen.recurrence.chunkwise.plan import Unroll
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import triton_source
from chunkform.codegen.recurrence.triton.kernels.coupling_weights import unroll_with_transitions, with_transitions
from chunkform.codegen.recurrence.triton.plan_passes.roles import is_state
from chunkform.spec.language import Recurrence


def mask(to, of, late=False):
    return make(
        "transition_mask", (leaf("stream", "a", (ROW,)),), (((0, 0), (1, 0), (1, 1)), 2, to, of, late, 1), (ROW, COL)
    )


def nodes(sweep):
    chunk = sweep.chunk
    return walk(*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values())


@pytest.fixture(scope="module")
def momentum():
    return compile_spec(read(SPECS / "momentum.py")[0])


def test_a_state_is_reached_over_others_and_from_itself():
    chain = ((1, 0), (2, 1))
    assert reached(chain, 3) == {(0, 0), (1, 1), (2, 2), (1, 0), (2, 1), (2, 0)}


@pytest.mark.parametrize("steps", [1, 2, 3, 64, 65, 150])
def test_states_that_each_take_anothers_are_a_delay_line(steps):
    """Nothing of such a state is its own, but beyond the sequence's end it stays as it is; and all weights are numbers."""
    r = Recurrence("delay_line")
    d = r.dims("d")
    k = r.inputs("k", d)
    a, b = r.state("a", d), r.state("b", d)
    r.update(b, a.prev)
    r.update(a, k)
    r.output("o", b.next)
    k, late = torch.randn(2, 1, steps, 2, 5).double()
    o, last = compile_op(r)(k, output_final_state=True)
    assert (o[:, 1:] == k[:, :-1]).all() and (o[:, 0] == 0).all()
    assert (last[0] == k[:, -1]).all() and (last[1] == o[:, -1]).all()
    k.requires_grad_()
    (dk,) = torch.autograd.grad((compile_op(r)(k)[0] * late).sum(), k)
    assert (dk[:, :-1] == late[:, 1:]).all() and (dk[:, -1] == 0).all()


def test_what_is_written_alike_is_multiplied_once(momentum):
    (sweep,) = momentum.forward.sweeps
    sums = [x for x in nodes(sweep) if x.op == "sum" and x.attrs == (COL,) and any(map(is_transition, walk(x)))]
    assert len(sums) == 2  # for the reads of M and of S, of which each has one sum over writes to both
    assert {x.attrs[2:4] for x in nodes(sweep) if x.op.startswith("transition_")} == {(0, 0), (1, 0), (1, 1)}


def test_terms_that_differ_in_more_than_a_weight_stay_apart():
    k, v, w = leaf("stream", "k", (COL,)), leaf("stream", "v", (COL,)), leaf("stream", "w", (COL,))
    same = factored(total(mul(mask(1, 0), k), COL) + 2 * total(mul(mask(1, 1), k), COL))
    assert same == total(mul(mask(1, 0) + 2 * mask(1, 1), k), COL)
    other = total(mul(mask(1, 0), v), COL) + total(mul(mask(1, 1), w), COL)
    assert factored(other) == other
    late = total(mul(mask(1, 0), k), COL) + total(mul(mask(1, 1, True), k), COL)  # which are stored at another time
    assert factored(late) == late


def test_what_is_times_the_same_weights_is_summed_first():
    k, v = leaf("stream", "k", (COL,)), leaf("stream", "v", (COL,))
    start = make("transition_in", mask(0, 0).args, (*mask(0, 0).attrs[:4], False, 1), (ROW,))
    one, other = (mul(c, start, total(mul(mask(1, 0), x), COL)) for c, x in ((1, k), (2, v)))
    assert gathered(one + other) == mul(start, total(mul(mask(1, 0), k + 2 * v), COL))
    apart = one + mul(start, total(mul(mask(1, 1), v), COL)) + total(mul(mask(1, 0), v), COL)
    assert gathered(apart) == apart


def test_pairs_of_the_same_weights_are_one_product_over_steps(momentum):
    """Of do with q and of dv with k, which both read S: two of the three writes to dM and dS come with the same weights."""
    (stage,) = (s for s in momentum.backward.stages if isinstance(s, Unroll))
    pairs = [
        [x for x in terms_of(node) if x.op == "sum" and not any(map(is_state, walk(x)))]
        for node in stage.outputs.values()
    ]
    assert [len(x) for x in pairs] == [2, 1]


def test_no_number_is_in_a_product_of_states_and_gradients_at_each_step(momentum):
    (stage,) = (s for s in momentum.backward.stages if isinstance(s, Unroll))
    read = [x for x in walk(*stage.outputs.values()) if x.op == "sum" and any(map(is_state, factors_of(x.args[0])))]
    assert read and not any(not set(f.axes) & {"d", "e"} for x in read for f in factors_of(x.args[0]))


def test_states_and_pairs_have_kernels_of_their_own(momentum):
    text = triton_source(momentum)
    of_states, of_pairs = (text[text.index(f"def backward_unroll_{n}(") :].split("@triton.jit")[0] for n in (1, 2))
    assert "_checkpoints" in of_states and "_checkpoints" not in of_pairs
    assert "tl.program_id(0) % tl.cdiv" in of_states and "tl.program_id(0) % tl.cdiv" not in of_pairs


def test_kernels_load_all_weights(momentum):
    for plan in (momentum.forward, momentum.backward):
        replaced, transitions = with_transitions(plan)
        made = {x.attrs[:2] for w in transitions for x in w.made}
        assert len(made) == sum(len(w.made) for w in transitions)
        loaded = [x for sweep in replaced.sweeps for x in nodes(sweep)]
        assert not any(map(is_transition, loaded))
        assert {x.attrs[:2] for x in loaded if x.op == "leaf" and x.attrs[1].startswith("weight.")} == made


def test_weights_over_blocks_have_names_of_their_own(momentum):
    (stage,) = (x for x in momentum.backward.stages if type(x).__name__ == "Unroll")
    replaced, transitions = unroll_with_transitions(stage)
    assert not any(is_transition(x) for x in walk(*replaced.outputs.values()))
    names = {x.attrs[1] for w in transitions for x in w.made}
    assert names.isdisjoint(x.attrs[1] for w in with_transitions(momentum.backward)[1] for x in w.made)
