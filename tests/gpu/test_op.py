"""An op on a GPU as users call it: packed sequences, head groups, compiled, in CUDA graphs, large, on other devices."""

import dataclasses
import sys

import pytest
import torch
from shared.fuzz import fill_empty_memory
from shared.op_cases import SPECS, misses, op_of, problem, run
from torch.library import opcheck

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.recurrence.samples import Case
from chunkform.generated.gated_delta_rule import OP, gated_delta_rule
from chunkform.generated.lightning_attention import lightning_attention
from chunkform.runtime.op import passes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CASE = Case(steps=150, heads=4, width=32, dtype=torch.bfloat16, device="cuda")
LENGTHS = (5, 0, 150, 64, 1, 0, 65)
# Each needs other kernels: test_fuzz.py has all ops.
NAMES = ("gated_delta_rule", "kimi_delta_attention", "retention", "gradient_descent_logistic")


@pytest.fixture(autouse=True)
def nan_in_empty_memory():
    fill_empty_memory(True)
    yield
    fill_empty_memory(False)


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_are_what_the_oracle_makes_of_each(name):
    p = problem(name, CASE, lengths=LENGTHS)
    assert misses(p, run(p)) == {}


@pytest.mark.parametrize("name", (*NAMES, "inverse_attention"))
def test_sizes_that_are_no_powers_of_two(name):
    p = problem(name, CASE, lengths=LENGTHS, sizes=(20, 33))
    assert misses(p, run(p)) == {}


@pytest.mark.parametrize("lengths", [None, (0, 0, 0)])
@pytest.mark.parametrize("name", SPECS)
def test_calls_with_nothing_to_do(name, lengths):
    for initial, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        for sizes in ({"steps": 0}, {"batch": 0}) if lengths is None else ({},):
            p = problem(name, dataclasses.replace(CASE, initial=initial, dtype=dtype, **sizes), lengths=lengths)
            assert misses(p, run(p)) == {}
            torch.cuda.synchronize()


@pytest.mark.parametrize("name", NAMES)
def test_head_groups_are_what_the_oracle_makes_of_them(name):
    first, *others, _ = problem(name, CASE).given
    p = problem(name, CASE, groups={first: 2} | dict.fromkeys(others, 1))
    assert misses(p, run(p)) == {}


def test_gradients_of_large_shared_heads_are_summed_once(monkeypatch):
    """By a kernel, where torch would take a pass over each head; the same to the rounding of their dtype."""
    large = Case(batch=2, steps=1030, heads=8, width=64, dtype=torch.bfloat16, device="cuda")
    p = problem("gated_delta_rule", large, groups={"q": 2, "k": 2})
    ours = run(p)
    assert misses(p, ours) == {}
    monkeypatch.setattr(passes, "LARGE", sys.maxsize)
    theirs = run(p)
    assert all(relative_error(ours[n], theirs[n], 2) < 4e-3 for n in ("dq", "dk"))


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_give_the_same_bits(name):
    for p in (problem(name, dataclasses.replace(CASE, steps=600)), problem(name, CASE, lengths=LENGTHS)):
        first, second = run(p), run(p)
        assert [n for n in first if not torch.equal(first[n], second[n])] == []


@pytest.mark.parametrize("name", NAMES)
def test_packed_calls_do_not_wait_for_the_device(name):
    p = problem(name, CASE, lengths=LENGTHS)
    starts = p.cu_seqlens
    given = {p.keys[n]: x.requires_grad_() for n, x in p.given.items()}

    def call():
        o, s = op_of(name)(**given, cu_seqlens=starts, output_final_state=True)
        torch.autograd.grad([o.float().sum() + s.sum()], list(given.values()), allow_unused=True)

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor_it_gives_the_same(name):
    """The same bits; but for gradients where one sweep makes them: that needs states which a compiled graph doesn't keep."""
    for p in (problem(name, CASE), problem(name, CASE, lengths=LENGTHS)):
        eager, compiled = run(p), run(p, op=torch.compile(op_of(name), fullgraph=True))
        other = hasattr(sys.modules[op_of(name).__module__], "triton_backward_whole")
        gradients = {f"d{x}" for x in p.keys.values()} | {f"d initial {n}" for n in p.states}
        same = [n for n in eager if not (other and n in gradients)]
        assert same and [n for n in same if not torch.equal(eager[n], compiled[n])] == []
        assert misses(p, compiled) == {}


def test_opcheck_passes_for_triton():
    p = problem("gated_delta_rule", CASE)
    tensors = [x.clone().requires_grad_() for x in (*p.given.values(), *p.states.values())]
    opcheck(OP.registered.forward, (*tensors, None, p.heads, "triton", "default", True, False))


@pytest.mark.parametrize("name", NAMES)
def test_both_passes_run_in_a_cuda_graph(name):
    p = problem(name, CASE)
    given = {p.keys[n]: x.clone().requires_grad_() for n, x in p.given.items()}

    def step():
        o, _ = op_of(name)(**given)
        return (o, *torch.autograd.grad(o.float().square().sum(), list(given.values()), allow_unused=True))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = step()
    with torch.no_grad():
        for x in given.values():
            x.mul_(0.5)
    graph.replay()
    for got, want in zip(static, step(), strict=True):
        assert (got is None and want is None) or torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_cuda_graph_sees_new_starts(dtype):
    p = problem("gated_delta_rule", CASE, lengths=(60, 90))
    given = {p.keys[n]: x for n, x in p.given.items()}
    starts, other = (
        torch.tensor([0, 60, 150], device="cuda", dtype=dtype),
        torch.tensor([0, 100, 150], device="cuda", dtype=dtype),
    )
    gated_delta_rule(**given, cu_seqlens=starts)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = gated_delta_rule(**given, cu_seqlens=starts)
    starts.copy_(other)
    graph.replay()
    assert torch.equal(o, gated_delta_rule(**given, cu_seqlens=other)[0])


def test_several_streams_do_not_mix():
    p = problem("gated_delta_rule", CASE)
    want = gated_delta_rule(**{p.keys[n]: x for n, x in p.given.items()})[0]
    found = []
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(gated_delta_rule(**{p.keys[n]: x for n, x in p.given.items()})[0])
    torch.cuda.synchronize()
    assert all(torch.equal(x, want) for x in found)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_it_runs_on_the_device_of_its_tensors():
    p = problem("gated_delta_rule", CASE)
    want = run(p)
    here = torch.cuda.current_device()
    there = (here + 1) % torch.cuda.device_count()
    other = dataclasses.replace(p, **{
        part: {n: None if x is None else x.to(f"cuda:{there}") for n, x in getattr(p, part).items()}
        for part in ("given", "states", "cotangents", "final_cotangents")
    })  # fmt: skip
    got = run(other)
    assert torch.cuda.current_device() == here
    assert all(x.device.index == there for x in got.values())
    assert [n for n in want if not torch.equal(want[n].cpu(), got[n].cpu())] == []


def test_more_than_65535_heads_in_all():
    q, k, v = torch.randn(3, 35000, 2, 2, 16, device="cuda", dtype=torch.bfloat16)
    g = -torch.rand(35000, 2, 2, device="cuda")
    o, _ = lightning_attention(q, k, v, g)
    s = k[:, 0, :, :, None].float() * v[:, 0, :, None].float()
    s = g[:, 1, :, None, None].exp() * s + k[:, 1, :, :, None].float() * v[:, 1, :, None].float()
    want = torch.stack(((q[:, 0, :, :, None] * 1.0 * k[:, 0, :, :, None] * v[:, 0, :, None]).float().sum(2),
                        (q[:, 1, :, :, None].float() * s).sum(2)), 1)  # fmt: skip
    assert relative_error(o, want, 2) < 1.5e-2


@pytest.mark.alone
def test_more_than_2_to_31_elements():
    """The last batch entry, which lies beyond, is what it is alone; forwards and backwards."""
    B, T, H, D = 9, 32768, 64, 128
    assert B * T * H * D > 2**31
    alone = [torch.randn(1, T, H, D, device="cuda", dtype=torch.bfloat16).mul_(D**-0.5) for _ in range(3)]
    alone.append(-torch.rand(1, T, H, device="cuda"))
    wide = [torch.cat((x.new_zeros(B - 1, *x.shape[1:]), x)).requires_grad_() for x in alone]
    alone = [x.requires_grad_() for x in alone]
    o, _ = lightning_attention(*wide)
    want, _ = lightning_attention(*alone)
    assert relative_error(o[-1:], want, 2) < 1e-2
    g = torch.randn_like(want)
    o.backward(torch.cat((g.new_zeros(B - 1, *g.shape[1:]), g)))
    want.backward(g)
    for x, y in zip(wide, alone, strict=True):
        assert relative_error(x.grad[-1:], y.grad, 2) < 1e-2
