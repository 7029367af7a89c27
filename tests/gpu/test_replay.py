"""Calls that are replayed give the same bits as calls that aren't, whatever else goes on."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from shared.attentions import everything
from shared.fuzz import fill_empty_memory
from shared.op_cases import op_of, problem, run

from chunkform.codegen.attention import check as attentions
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.programs import check as programs
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.runtime.launch import cuda_driver as driver
from chunkform.runtime.launch import replay
from chunkform.spec.language import find

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CASE = Case(steps=150, heads=4, width=32, dtype=torch.bfloat16, device="cuda")
NAMES = (
    "lightning_attention",
    "gated_linear_attention",
    "gated_delta_rule",
    "kimi_delta_attention",
    "inverse_attention",
    "gradient_descent_logistic",
    "sherman_morrison",
)


@pytest.fixture(autouse=True)
def nan_in_empty_memory():
    fill_empty_memory(True)
    yield
    fill_empty_memory(False)


@contextmanager
def directly():
    """Nothing is replayed here."""
    replay.ON = False
    try:
        yield
    finally:
        replay.ON = True


@contextmanager
def counted():
    """A list that gets each pass that is replayed."""
    found, own = [], replay.Recorded.replay

    def counting(self, tensors):
        results = own(self, tensors)
        found.append(results is not None)
        return results

    replay.Recorded.replay = counting
    try:
        yield found
    finally:
        replay.Recorded.replay = own


def differing(p, **options):
    """The quantities that differ between a call that isn't replayed, and one that is."""
    with directly():
        expected = run(p, **options)
    for _ in range(2):
        run(p, **options)
    with counted() as passes:
        got = run(p, **options)
    assert passes == [True, True]
    return [n for n, x in expected.items() if not torch.equal(x, got[n])]


@pytest.mark.parametrize("name", NAMES)
def test_a_replayed_call_gives_the_same_bits(name):
    assert differing(problem(name, CASE)) == []
    assert differing(problem(name, CASE), recompute="always") == []


@pytest.mark.parametrize("name", ["lightning_attention", "kimi_delta_attention", "gradient_descent_logistic"])
def test_packed_sequences_and_head_groups(name):
    assert differing(problem(name, CASE, lengths=(5, 0, 150, 64, 1))) == []
    others = list(problem(name, CASE).given)[1:]
    assert differing(problem(name, CASE, groups=dict.fromkeys(others, 1))) == []


def test_large_tensors_in_parts():
    p = problem("gated_delta_rule", Case(batch=1, steps=8192, heads=4, width=128, dtype=torch.bfloat16, device="cuda"))
    assert differing(p) == []


def test_memory_is_what_a_call_takes_that_is_not_replayed():
    p = problem("gated_delta_rule", Case(batch=1, steps=8192, heads=4, width=128, dtype=torch.bfloat16, device="cuda"))

    def peak():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        run(p)
        return torch.cuda.max_memory_allocated()

    for _ in range(2):
        run(p)
    replayed = peak()
    with directly():
        assert replayed <= 1.02 * peak()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["softmax_attention", "kattention", "self_attention", "relay_nodes", "capped"])
def test_a_replayed_attention_gives_the_same_bits(name, dtype):
    a = next(x for x in everything() if x.name == name)
    c, op = compile_attention(a), compile_op(a)
    case = attentions.Case(batch=2, steps=200, heads=4, width=32, dtype=dtype, causal=a.nodes is None, device="cuda")
    first, other = (attentions.sample(c, replace(case, seed=seed)) for seed in (0, 1))

    def call(s):
        return attentions.run(c, op, s, case.causal, "triton")

    with directly():
        expected = call(other)
    for _ in range(2):
        call(first)
    with counted() as passes:
        got = call(other)
    assert passes == [True, True]
    assert [n for n, x in expected.items() if not torch.equal(x, got[n])] == []


@pytest.mark.parametrize("name", ["mesa_net", "mesa_neumann"])
def test_a_replayed_program_gives_the_same_bits(name):
    c = compile_program(find(name)[0])
    case = replace(CASE, width=64)
    first, other = (programs.sample(c, replace(case, seed=seed)) for seed in (0, 1))

    def call(s):
        return programs.run(c, op_of(name), s, "triton")[0]

    with directly():
        expected = call(other)
    for _ in range(2):
        call(first)
    with counted() as passes:
        got = call(other)
    assert passes == [True, True]
    assert [n for n, x in expected.items() if not torch.equal(x, got[n])] == []


def arguments(seed=0, steps=200):
    g = torch.Generator("cuda").manual_seed(seed)
    q, k, v = torch.randn(3, 1, steps, 4, 32, device="cuda", generator=g).bfloat16()
    return q, k, v, -torch.rand(1, steps, 4, device="cuda", generator=g)


def both_passes(*given):
    given = [x.detach().requires_grad_() for x in given]
    o, _ = op_of("lightning_attention")(*given)
    return [o, *torch.autograd.grad(o.float().square().sum(), given)]


def test_each_argument_keeps_its_own_memory():
    """Recorded where one tensor is given three times, then with three; and with parts of one."""
    q, k, v, decay = arguments()
    for _ in range(3):
        both_passes(q, q, q, decay)
    fused = torch.cat((q, k, v), -1)
    for given in ((q, k, v), (v, k, q), fused.split(32, -1)):
        for _ in range(3):
            got = both_passes(*given, decay)
        with directly():
            assert all(map(torch.equal, got, both_passes(*given, decay)))


def test_calls_that_follow_each_other_keep_their_tensors():
    """Launches wait for a slow kernel while those after them are given other addresses."""
    sets = [arguments(seed) for seed in range(5)]
    with directly():
        expected = [both_passes(*x) for x in sets]
    for _ in range(3):
        both_passes(*sets[0])
    torch.cuda._sleep(20_000_000)
    with counted() as passes:
        got = [both_passes(*sets[n % 5]) for n in range(30)]
    assert passes == [True] * 60
    assert [n for n, x in enumerate(got) if not all(map(torch.equal, x, expected[n % 5]))] == []


def test_streams_and_threads_do_not_mix():
    sets = [arguments(seed) for seed in range(4)]
    with directly():
        expected = [both_passes(*x) for x in sets]
    for _ in range(2):
        both_passes(*sets[0])
    wrong = []

    def work(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                if not all(map(torch.equal, both_passes(*sets[n]), expected[n])):
                    wrong.append(n)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    assert wrong == []


def test_a_cuda_graph_holds_replayed_calls():
    given = arguments()
    other = arguments(1)
    with directly():
        expected = both_passes(*other)
    fill_empty_memory(False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            both_passes(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with counted() as passes, torch.cuda.graph(graph):
        got = both_passes(*given)
    assert passes == [True, True]
    for x, y in zip(given, other, strict=True):
        x.copy_(y)
    graph.replay()
    assert all(map(torch.equal, got, expected))


def test_a_profiler_of_triton_hears_of_launches():
    from triton import knobs

    given, heard = arguments(), []
    for _ in range(3):
        both_passes(*given)
    hook = heard.append
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        both_passes(*given)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert len(heard) > 2


def test_a_launch_that_fails_says_so():
    given = arguments()
    for _ in range(3):
        both_passes(*given)
    found = [x for x in op_of("lightning_attention").__globals__["OP"].known.values() if x.call.replays]
    recorded = [x for known in found for x in known.call.replays.values() if type(x) is replay.Recorded]
    kernels = next(x for x in recorded[-1].steps if type(x) is driver.Kernels)
    with pytest.raises(RuntimeError, match="a Triton kernel wasn't launched: invalid"):
        driver.attempt(1, 0, kernels.run, *kernels.launches[0], None)
