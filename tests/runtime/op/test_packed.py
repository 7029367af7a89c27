"""Packed sequences: each gives what it gives alone, with its own initial and final state, and all gradients."""

import numpy as np
import pytest
import torch
from shared.op_cases import SPECS, misses, problem, run

from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError, BackendError
from chunkform.generated.gated_delta_rule import OP, gated_delta_rule
from chunkform.runtime.launch.varlen import packed_of
from chunkform.runtime.parallel.shards import host_boundaries

LENGTHS = (5, 0, 70, 5, 1, 0)  # empty ones in between and at the end, equal ones, one across a chunk's boundary
SMALL = Case(heads=2, width=6)


@pytest.mark.parametrize("name", SPECS)
def test_packed_sequences_are_what_the_oracle_makes_of_each(name):
    p = problem(name, SMALL, lengths=LENGTHS)
    assert misses(p, run(p)) == {}


def test_an_empty_sequence_hands_its_state_on():
    p = problem("gated_delta_rule", SMALL, lengths=LENGTHS)
    got = run(p)
    for n in (1, 5):
        assert torch.equal(got["final S"][n], p.states["S"][n])
        assert torch.equal(got["d initial S"][n], p.final_cotangents["S"][n])


def test_only_empty_sequences():
    p = problem("gated_delta_rule", SMALL, lengths=(0, 0, 0))
    got = run(p)
    assert got["o"].shape == (1, 0, 2, 14)
    assert torch.equal(got["final S"], p.states["S"])


def test_a_parameter_sums_over_sequences():
    p = problem("retention", SMALL, lengths=(9, 4))
    assert p.given["gamma"].shape == (2,)
    assert misses(p, run(p), 1e-5) == {}


def arguments(steps=9, batch=1):
    q, k, v = torch.randn(3, batch, steps, 2, 4)
    return {"q": q, "k": k, "v": v, "beta": torch.rand(batch, steps, 2), "log_alpha": -torch.rand(batch, steps, 2)}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_starts_may_be_int32_or_int64(dtype):
    whole, _ = gated_delta_rule(**arguments(), cu_seqlens=torch.tensor([0, 9], dtype=dtype))
    assert whole.shape == (1, 9, 2, 4)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 4, 9], r"cu_seqlens must be an int32 or int64 tensor \[N \+ 1\], got list"),
        (torch.tensor([0.0, 9.0]), r"cu_seqlens must be int32 or int64, got float32"),
        (torch.tensor([[0, 9]]), r"cu_seqlens must be \[N \+ 1\] for N >= 1 sequences, got the shape \[1, 2\]"),
        (torch.tensor([]), r"cu_seqlens must be int32 or int64, got float32"),
        (torch.tensor([], dtype=torch.int64), r"cu_seqlens must be \[N \+ 1\] .* got the shape \[0\]"),
        (torch.tensor([0, 9]).to_sparse(), r"cu_seqlens must be a dense tensor, got the layout torch.sparse_coo"),
        (torch.tensor([0]), r"cu_seqlens must be \[N \+ 1\] .* got the shape \[1\]"),
        (torch.tensor([0, 8]), r"must start with 0 and end with T = 9, got 0 and 8"),
        (torch.tensor([1, 9]), r"must start with 0 and end with T = 9, got 1 and 9"),
        (torch.tensor([0, 6, 4, 9]), r"must not fall, got 6 and then 4 at sequence 1"),
        (torch.tensor([0, 9], device="meta"), r"cu_seqlens is on meta, but the inputs are on cpu"),
    ],
)
def test_wrong_starts_get_a_clear_error(starts, message):
    with pytest.raises(ArgumentError, match=message):
        gated_delta_rule(**arguments(), cu_seqlens=starts)


def test_packed_sequences_lie_in_one_batch_entry():
    with pytest.raises(ArgumentError, match=r"cu_seqlens: packed sequences lie in one batch entry.* have B = 2"):
        gated_delta_rule(**arguments(batch=2), cu_seqlens=torch.tensor([0, 9]))


def test_a_state_for_each_sequence_is_asked_for():
    with pytest.raises(ArgumentError, match=r"initial_state must be \[N, H, d, e\] = \[2, 2, 4, 4\]"):
        gated_delta_rule(**arguments(), cu_seqlens=torch.tensor([0, 4, 9]), initial_state=torch.zeros(1, 2, 4, 4))


def test_a_backend_without_packed_sequences_says_so(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if "packed" in OP.backends["triton"].features:
        pytest.skip("it has them")
    with pytest.raises(BackendError, match="cu_seqlens: the triton backend"):
        gated_delta_rule(**arguments(), cu_seqlens=torch.tensor([0, 9]), backend="triton")


def test_starts_may_be_written_to():
    starts = torch.tensor([0, 4, 9])
    given = arguments()
    before, _ = gated_delta_rule(**given, cu_seqlens=starts)
    starts[1] = 6
    after, _ = gated_delta_rule(**given, cu_seqlens=starts)
    assert torch.equal(after, gated_delta_rule(**given, cu_seqlens=torch.tensor([0, 6, 9]))[0])
    assert not torch.equal(before, after)
    starts[1] = 10
    with pytest.raises(ArgumentError, match="must not fall"):
        gated_delta_rule(**given, cu_seqlens=starts)


CHANGES = {
    "numpy": lambda starts, array: array.__setitem__(1, 6),
    "data": lambda starts, array: starts.data.__setitem__(1, 6),
    "dlpack": lambda starts, array: torch.from_dlpack(starts).__setitem__(1, 6),
    "inference": lambda starts, array: torch.inference_mode()(starts.__setitem__)(1, 6),
}


@pytest.mark.parametrize("how", CHANGES)
def test_starts_may_change_behind_the_back_of_torch(how):
    array = np.array([0, 4, 9])
    with torch.inference_mode(how == "inference"):
        starts = torch.from_numpy(array)
    given = arguments()
    given["q"].requires_grad_()
    want = [gated_delta_rule(**given, cu_seqlens=torch.tensor([0, n, 9]))[0] for n in (4, 6)]
    before, _ = gated_delta_rule(**given, cu_seqlens=starts)
    CHANGES[how](starts, array)
    after, _ = gated_delta_rule(**given, cu_seqlens=starts)
    for got, right in zip((before, after), want, strict=True):
        assert torch.equal(got, right)
        assert torch.equal(*(torch.autograd.grad(o.sum(), given["q"])[0] for o in (got, right)))


def test_ranks_read_starts_anew():
    array = np.array([0, 4, 9])
    starts = torch.from_numpy(array)
    assert host_boundaries("x", starts, 1) == [0, 4, 9]
    array[1] = 6
    assert host_boundaries("x", starts, 1) == [0, 6, 9]


def test_starts_are_the_same_for_a_batch():
    given, starts = arguments(), torch.tensor([[0, 4, 9], [0, 6, 9]])
    with pytest.raises(ArgumentError, match="cu_seqlens must be the same for all calls of a batch"):
        torch.vmap(lambda s: gated_delta_rule(**given, cu_seqlens=s)[0])(starts)


def test_inference_mode():
    with torch.inference_mode():
        o, _ = gated_delta_rule(**arguments(), cu_seqlens=torch.tensor([0, 4, 9]))
    assert o.is_inference()


def test_sequences_of_one_length_run_as_one_batch():
    packed = packed_of("x", torch.tensor([0, 3, 6, 6, 8, 11]), 11)
    assert packed.batches == [[0, 1, 4], [2], [3]]
