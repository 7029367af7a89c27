"""Ops under functorch, autocast, checkpointing and recomputation."""

import pytest
import torch
from shared.op_cases import SPECS, misses, op_of, problem, run
from torch.utils.checkpoint import checkpoint

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.generated.gated_delta_rule import OP, gated_delta_rule
from chunkform.generated.lightning_attention import lightning_attention
from chunkform.generated.retention import retention
from chunkform.runtime.op.op import Backend, Op

SMALL = Case(steps=9, heads=2, width=4)
B, T, H, D = 2, 9, 2, 4


def arguments(*lead):
    q, k, v = torch.randn(3, *lead, B, T, H, D)
    return q, k, v, -torch.rand(*lead, B, T, H)


# --- vmap ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [(0, 0, 0, 0), (0, None, 2, None), (None, None, None, 0)])
def test_vmap_is_a_loop(batched):
    stacked = arguments(3)
    given = [x.movedim(0, d) if d is not None else x[0] for x, d in zip(stacked, batched)]
    together = torch.vmap(lambda *x: lightning_attention(*x)[0], in_dims=batched)(*given)
    each = [
        lightning_attention(*(x if d is None else x.select(d, i) for x, d in zip(given, batched)))[0] for i in range(3)
    ]
    torch.testing.assert_close(together, torch.stack(each))


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_over_an_empty_batch(compiled):
    q, k, v, g = arguments()
    k.requires_grad_()
    f = torch.vmap(lambda q, v: lightning_attention(q, k, v, g)[0], in_dims=(2, None))
    o = (torch.compile(f, fullgraph=True, backend="aot_eager") if compiled else f)(q.new_empty(B, T, 0, H, D), v)
    assert o.shape == (0, B, T, H, D)
    (dk,) = torch.autograd.grad(o.sum(), k)
    assert torch.equal(dk, torch.zeros_like(k))
    each = torch.func.grad(lambda q: lightning_attention(q, k, v, g)[0].sum())
    assert torch.vmap(each)(q.new_empty(0, B, T, H, D)).shape == (0, B, T, H, D)


def test_vmap_over_parameters_states_and_groups():
    q, k, v, _ = arguments(3)
    q, gamma, s = q[:, :, :, :1], -torch.rand(3, H), torch.randn(3, B, H, D, D)

    def one(q, k, v, g, s):
        return retention(q, k, v, g, initial_state=s, output_final_state=True)

    together = torch.vmap(one)(q, k, v, gamma, s)
    for i in range(3):
        for got, want in zip((x[i] for x in together), one(q[i], k[i], v[i], gamma[i], s[i]), strict=True):
            torch.testing.assert_close(got, want)


def test_gradients_of_each_sample():
    q, k, v, g = arguments(3)
    weight = torch.randn(D, D)

    def loss(weight, q, k, v, g):
        return lightning_attention(q @ weight, k, v, g)[0].square().sum()

    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0, 0))(weight, q, k, v, g)
    for i in range(3):
        w = weight.clone().requires_grad_()
        (want,) = torch.autograd.grad(loss(w, q[i], k[i], v[i], g[i]), w)
        torch.testing.assert_close(got[i], want)


def test_the_whole_jacobian():
    q, k, v, g = (x[:1, :3, :1].double() for x in arguments())
    got = torch.func.jacrev(lambda q: lightning_attention(q, k, v, g)[0])(q)
    want = torch.autograd.functional.jacobian(lambda q: lightning_attention(q, k, v, g)[0], q)
    torch.testing.assert_close(got, want)


def test_vmap_under_compile():
    given = arguments(3)
    f = torch.vmap(lambda *x: lightning_attention(*x)[0])
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), f(*given))


def test_vmap_in_torch_library():
    p = problem("gated_delta_rule", SMALL)
    given = [p.given[a.name] for a in OP.signature.tensors]

    def one(*x):
        return OP.registered(list(x) + [None], None, {}, (2, "torch", "default", True, False))[0]

    def loss(*x):
        return one(*x).square().sum()

    stacked = [torch.stack((x, 0.5 * x)) for x in given]
    torch.testing.assert_close(torch.vmap(one)(*stacked)[1], one(*(0.5 * x for x in given)))


# --- derivatives that there are not ----------------------------------------------------------------------------------


def test_second_derivatives_of_functorch_are_refused():
    q, k, v, g = arguments()
    inner = torch.func.grad(lambda q: lightning_attention(q, k, v, g)[0].square().sum())
    with pytest.raises(DoubleBackwardError, match="lightning_attention has no second derivatives"):
        torch.func.grad(lambda q: inner(q).sum())(q)


# --- autocast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_inputs_as_products_do(compiled):
    op = torch.compile(lightning_attention, fullgraph=True, backend="aot_eager") if compiled else lightning_attention
    given = [x.requires_grad_() for x in arguments()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, s = op(*given, output_final_state=True)
        assert (o.dtype, s.dtype) == (torch.bfloat16, torch.float32)
        gradients = torch.autograd.grad(o.float().square().sum(), given)
    q, k, v = (x.bfloat16() for x in given[:3])
    want, _ = lightning_attention(q, k, v, given[3])
    assert torch.equal(o, want)
    expected = torch.autograd.grad(want.float().square().sum(), given)
    for got, want in zip(gradients, expected, strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, want)


def test_autocast_leaves_float64_alone():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lightning_attention(*(x.double() for x in arguments()))[0].dtype == torch.float64


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_recomputation_gives_the_same_bits(name):
    p = problem(name, SMALL)
    never, always = run(p, recompute="never"), run(p, recompute="always")
    assert [n for n in never if not torch.equal(never[n], always[n])] == []


def saved_bytes(f):
    """Bytes that the backward pass of f() holds, and f's own result."""
    held = {}

    def pack(x):
        held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        f()
    return sum(held.values())


def test_always_keeps_the_arguments_only():
    given = [x.requires_grad_() for x in (*torch.randn(3, B, 500, H, D), torch.rand(B, 500, H), -torch.rand(B, 500, H))]
    own = sum(x.nbytes for x in given)
    assert saved_bytes(lambda: gated_delta_rule(*given, recompute="always")) == own
    assert saved_bytes(lambda: gated_delta_rule(*given, recompute="never")) > own


def test_auto_weighs_bytes(monkeypatch):
    """The step-by-step form keeps some sqrt(T) states: many for a short sequence of large states."""
    p = problem("gradient_descent_logistic", Case(steps=16, heads=2, width=32))
    op = op_of(p.name)
    given = [x.requires_grad_() for x in p.given.values()]
    always, never = (saved_bytes(lambda r=r: op(*given, recompute=r)) for r in ("always", "never"))
    assert always < never
    assert saved_bytes(lambda: op(*given)) == never  # little in all
    monkeypatch.setattr("chunkform.runtime.op.passes.SMALL", 0)
    assert saved_bytes(lambda: op(*given)) == always


def test_checkpointing_gives_the_same_gradients():
    p = problem("gated_delta_rule", SMALL)
    plain = run(p)
    again = run(p, op=lambda **x: checkpoint(gated_delta_rule, **x, use_reentrant=False))
    assert [n for n in plain if not torch.equal(plain[n], again[n])] == []


@pytest.mark.parametrize("key", ["recompute", "precision"])
def test_an_unknown_choice_is_refused(key):
    with pytest.raises(ArgumentError, match=f"lightning_attention: {key} must be .* or .*, got 'sometimes'"):
        lightning_attention(*arguments(), **{key: "sometimes"})


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_high_precision_is_float64_rounded_once(name):
    p = problem(name, SMALL)
    got = run(p, precision="high")
    assert all(x.dtype == torch.float32 for x in got.values())
    assert misses(p, got, 1e-7) == {}


def test_the_final_state_in_a_dtype_of_choice():
    given = arguments()
    _, s = lightning_attention(*given, output_final_state=True)
    _, half = lightning_attention(*given, output_final_state=True, state_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(half, s.bfloat16())
    again, _ = lightning_attention(*given, initial_state=half)
    torch.testing.assert_close(again, lightning_attention(*given, initial_state=half.float())[0], rtol=0, atol=0)


def test_a_state_dtype_is_a_floating_point_one():
    with pytest.raises(
        ArgumentError, match=r"state_dtype must be a floating-point torch\.dtype or None, got torch\.int32"
    ):
        lightning_attention(*arguments(), state_dtype=torch.int32)


def recording(features):
    """An op whose Triton backend is the torch form, and what it was called with."""
    form, seen = OP.backends["torch"], []

    def forward(given, states, constants, **options):
        seen.append(({n: x.dtype for n, x in given.items()}, options))
        return form.forward(given, states, constants)

    def backward(*arguments, **options):
        return form.backward(*arguments)

    kernels = Backend(forward, backward, frozenset(features))
    return Op(OP.signature, {"torch": form, "triton": kernels}), seen


def test_fast_rounds_inputs_for_kernels_and_widens_results(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    op, seen = recording({"packed", "groups"})
    given = {n: x.requires_grad_() for n, x in problem("gated_delta_rule", SMALL).given.items()}
    o, s = op(given, output_final_state=True, precision="fast", backend="triton")
    assert (o.dtype, s.dtype) == (torch.float32, torch.float32)
    assert seen[0][0] == dict.fromkeys("q k v beta".split(), torch.bfloat16) | {"alpha": torch.float32}
    gradients = torch.autograd.grad(o.square().sum(), list(given.values()))
    assert all(g.dtype == torch.float32 for g in gradients)
    exact = torch.autograd.grad(op(given)[0].square().sum(), list(given.values()))
    for got, want in zip(gradients, exact, strict=True):
        assert 1e-4 < relative_error(got, want, 2) < 2e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_high_widens_inputs_for_kernels_and_rounds_results_once(dtype, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    op, seen = recording({"packed", "groups"})
    given = {n: x.to(dtype) if n != "alpha" else x for n, x in problem("gated_delta_rule", SMALL).given.items()}
    o, _ = op(given, precision="high", backend="triton")
    assert o.dtype == dtype and set(x for x in seen[0][0].values()) == {torch.float32}
    exact = op({n: x.double() for n, x in given.items()})[0]
    assert relative_error(o, exact, 2) < (3e-3 if dtype == torch.bfloat16 else 1e-6)
