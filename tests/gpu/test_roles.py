"""Kernels whose warps have roles, on a GPU of compute capability 9.0: errors of each head against float64, beside those of
kernels without roles, wherever a call may have them; and what they are launched for."""

import importlib
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from shared.heads import DRAWS, few, worst_head

import chunkform.generated as ops
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch import replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NAMES = ["lightning_attention", "retention", "linear_attention"]
every_op = pytest.mark.parametrize("name", NAMES)
LENGTHS = (0, 100, 101, 301, 700)
SHAPES = {  # B, T, H, D, E, heads of q and k, dtype, initial state
    "tail": (2, 500, 4, 128, 128, 4, "bfloat16", False),
    "initial state": (3, 333, 5, 128, 128, 5, "bfloat16", True),
    "one step": (2, 1, 3, 128, 128, 3, "bfloat16", True),
    "one chunk": (1, 64, 1, 128, 128, 1, "bfloat16", False),
    "float16": (2, 500, 4, 128, 128, 4, "float16", True),
    "shared heads": (2, 500, 4, 128, 128, 2, "bfloat16", True),
    "narrow": (2, 500, 2, 64, 64, 2, "bfloat16", True),
    "uneven": (2, 200, 2, 96, 80, 2, "bfloat16", True),
    "wide values": (2, 200, 2, 128, 256, 2, "bfloat16", True),
    "parts": (1, 4096, 2, 128, 128, 2, "bfloat16", True),
}


@pytest.fixture
def launched(monkeypatch):
    """The kernels with roles that are launched; each call that may have one does."""
    torch.cuda.init()  # before that no GPU has roles
    if not warp_roles.available():
        pytest.skip("no kernels with roles on this GPU with this Triton")
    monkeypatch.setattr(warp_roles, "FUSED", False)  # a fused backward is tested in test_fused_roles.py
    found = []
    real = warp_roles.launch

    def noted(kernel, grid, *args, **options):
        if "LOADER_REGISTERS" in options:
            found.append(kernel)
        return real(kernel, grid, *args, **options)

    monkeypatch.setattr(warp_roles, "launch", noted)
    monkeypatch.setattr(warp_roles, "FORCED", True)
    monkeypatch.setattr(replay, "ON", False)
    return found


def problem(name, B, T, H, D, E, heads, dtype, initial, shift=2.0, seed=0):
    torch.manual_seed(T + H + 1000 * seed)
    dtype = getattr(torch, dtype)
    q, k = ((torch.randn(B, T, heads, D, device="cuda") * D**-0.5).to(dtype) for _ in range(2))
    v = torch.randn(B, T, H, E, device="cuda").to(dtype)
    logs = torch.nn.functional.logsigmoid
    decays = {
        "lightning_attention": {"log_lam": logs(torch.randn(B, T, H, device="cuda") + shift)},
        "retention": {"log_gamma": logs(torch.randn(H, device="cuda") + shift)},
        "linear_attention": {},
    }[name]
    start = torch.randn(B, H, D, E, device="cuda") if initial else None
    return (q, k, v), decays, start


def reference(given, decays, start=None, starts=()):
    """The recurrence, step by step, in float64."""
    q, k, v = (x.double() for x in given)
    B, T, H, E = v.shape
    q, k = (x.repeat_interleave(H // x.shape[2], 2) for x in (q, k))
    log = next(iter(decays.values()), None)
    keep = torch.ones(B, T, H, dtype=torch.float64, device="cuda") if log is None else log.double().exp()
    keep = keep.expand(B, T, H) if keep.ndim == 3 else keep[None, None].expand(B, T, H)
    S = torch.zeros(B, H, q.shape[-1], E, dtype=torch.float64, device="cuda") if start is None else start.double()
    out = []
    for t in range(T):
        if t in starts:
            S = torch.zeros_like(S)
        S = S * keep[:, t, :, None, None] + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append((S * q[:, t, :, :, None]).sum(-2))
    return torch.stack(out, 1), S


def both(name, given, decays, monkeypatch, **options):
    """What a call returns with roles, and without."""
    op = getattr(ops, name)
    with torch.no_grad():
        with_roles = op(*given, **decays, **options)
        monkeypatch.setattr(warp_roles, "FORCED", False)
        without = op(*given, **decays, backend="triton", deterministic=True, **options)
    return with_roles, without


@every_op
@pytest.mark.parametrize("what", SHAPES)
def test_errors_are_as_without_roles(name, what, launched, monkeypatch):
    given, decays, start = problem(name, *SHAPES[what])
    options = {"output_final_state": True} | ({} if start is None else {"initial_state": start})
    (o, S), (o2, S2) = both(name, given, decays, monkeypatch, **options)
    assert launched
    out, last = reference(given, decays, start)
    assert worst_head([o], [out], 2) < 1.15 * worst_head([o2], [out], 2) + 1e-4
    assert worst_head([S], [last], 1) < 1.15 * worst_head([S2], [last], 1) + 1e-4


@pytest.mark.parametrize("shift", [-4.0, 5.0, 9.0])
def test_strong_and_weak_decays(shift, launched, monkeypatch):
    given, decays, _ = problem("lightning_attention", 1, 1024, 4, 128, 128, 4, "bfloat16", False, shift)
    (o, _), (o2, _) = both("lightning_attention", given, decays, monkeypatch, output_final_state=True)
    assert launched
    out, _ = reference(given, decays)
    assert worst_head([o], [out], 2) < 1.15 * worst_head([o2], [out], 2) + 1e-4


@every_op
def test_packed_sequences_stay_apart(name, launched, monkeypatch):
    """A NaN of the sequence after is in none of those before."""
    given, decays, _ = problem(name, 1, 700, 4, 128, 128, 4, "bfloat16", False)
    cu = torch.tensor(LENGTHS, device="cuda", dtype=torch.int32)
    (o, _), _ = both(name, given, decays, monkeypatch, cu_seqlens=cu)
    assert launched
    out, _ = reference(given, decays, starts=LENGTHS)
    assert worst_head([o], [out], 2) < 4e-3
    monkeypatch.setattr(warp_roles, "FORCED", True)
    given[2][:, 301:] = float("nan")
    with torch.no_grad():
        again, _ = getattr(ops, name)(*given, **decays, cu_seqlens=cu)
    assert torch.equal(again[:, :301], o[:, :301])
    assert again[:, 301:].isnan().all()


@every_op
def test_graphs_and_replays_give_the_same_bits(name, launched, monkeypatch):
    given, decays, _ = problem(name, *SHAPES["tail"])
    op = getattr(ops, name)
    with torch.no_grad():
        first, _ = op(*given, **decays)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held, _ = op(*given, **decays)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(held, first)
        monkeypatch.setattr(replay, "ON", True)
        for _ in range(4):
            other = tuple(x.clone() for x in given)
            assert torch.equal(op(*other, **decays)[0], first)
    assert launched


HEADS = {4: 2, 3: 2, 1: 0}  # the axis of heads, by how many axes there are


def with_gradients(name, given, decays, start, do, **options):
    """The output, and the gradient of each argument."""
    leaves = [
        x.detach().clone().requires_grad_() for x in (*given, *decays.values(), *([] if start is None else [start]))
    ]
    options |= dict(zip(decays, leaves[3:], strict=False)) | ({} if start is None else {"initial_state": leaves[-1]})
    o, _ = getattr(ops, name)(*leaves[:3], **options)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def gradients_of(name, given, decays, start, launched, without_roles, packed):
    """The output, and the gradient of each argument, with roles, without, and exactly."""
    do = torch.randn(*given[2].shape, device="cuda").to(given[2].dtype)
    options = {"cu_seqlens": torch.tensor(LENGTHS, device="cuda", dtype=torch.int32)} if packed else {}
    before = len(launched)
    mine = with_gradients(name, given, decays, start, do, **options)
    assert len(launched) == before + 1
    with without_roles(name):
        without = with_gradients(name, given, decays, start, do, **options)
    assert len(launched) == before + 1
    wide = (
        [x.double() for x in given],
        {n: x.double() for n, x in decays.items()},
        None if start is None else start.double(),
    )
    exact = with_gradients(name, *wide, do.double(), backend="torch", **options)
    if not before:  # the first draw's, step by step as well
        leaves = [x.requires_grad_() for x in (*wide[0], *wide[1].values(), *([] if start is None else [wide[2]]))]
        out, _ = reference(*wide, LENGTHS if packed else ())
        for x, y in zip(exact, (out, *torch.autograd.grad(out, leaves, do.double())), strict=True):
            assert torch.allclose(x, y, rtol=1e-9, atol=1e-9 * float(y.detach().abs().max()))
    return mine, without, exact


def gradients_agree(name, what, launched, without_roles):
    """Gradients of a few numbers a head are judged over draws of all arguments but the decays."""
    packed = what == "packed"
    shape = (1, 700, 4, 128, 128, 4, "bfloat16", False) if packed else SHAPES[what]
    given, decays, start = problem(name, *shape)
    draws = [gradients_of(name, given, decays, start, launched, without_roles, packed)]
    exact = draws[0][2]
    axes = [1 if start is not None and n == len(exact) - 1 else HEADS[x.ndim] for n, x in enumerate(exact)]
    some = [few(x, axis) for x, axis in zip(exact, axes, strict=True)]
    for seed in range(1, DRAWS if any(some) else 1):
        given, _, start = problem(name, *shape, seed=seed)
        found = gradients_of(name, given, decays, start, launched, without_roles, packed)
        draws.append(tuple(tuple(x if y else None for x, y in zip(each, some, strict=True)) for each in found))
    for n, axis in enumerate(axes):
        mine, without, right = (
            [x[n] for x in several] for several in zip(*draws[: None if some[n] else 1], strict=True)
        )
        assert worst_head(mine, right, axis) < 1.15 * worst_head(without, right, axis) + 1e-4, n


@every_op
@pytest.mark.parametrize("what", [*(x for x in SHAPES if x != "parts"), "packed"])
def test_gradients_are_as_without_roles(name, what, launched, monkeypatch):
    """Of a forward pass that leaves checkpoints of states, or, where the backward pass takes none, no more than its output."""

    @contextmanager
    def without_roles(name):
        with monkeypatch.context() as m:
            module = importlib.import_module(f"chunkform.generated.{name}")
            m.setattr(module, "with_roles", lambda config, *_: replace(config, roles=None))
            yield

    gradients_agree(name, what, launched, without_roles)


def test_tensors_that_begin_at_odd_places_go_without(launched):
    given, decays, _ = problem("lightning_attention", *SHAPES["tail"])
    q = torch.empty(given[0].numel() + 1, device="cuda", dtype=given[0].dtype)[1:].view_as(given[0]).copy_(given[0])
    with torch.no_grad():
        o, _ = ops.lightning_attention(q, *given[1:], **decays)
    out, _ = reference(given, decays)
    assert not launched and worst_head([o], [out], 2) < 4e-3
