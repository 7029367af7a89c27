"""Attentions under functorch, autocast, torch.compile and torch.export, and what is done to their outputs."""

import functools

import pytest
import torch
from shared.attentions import everything, masked
from torch.fx.experimental.proxy_tensor import make_fx

from chunkform.codegen.attention.check import Case, sample
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.commands.compile import compile_module
from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.generated import rotary_attention, self_attention, softmax_attention

NAMES = ("softmax_attention", "self_attention", "ked", "capped", "masked", "polynomial", "exponential", "shared")
SMALL = Case(steps=7, width=4, dtype=torch.float64)
Q, K, V = torch.randn(3, 2, 9, 3, 4)


@functools.cache
def made(name):
    """The op of an attention as a function of its tensors, and these."""
    a = next(a for a in everything() if a.name == name)
    s = sample(compile_attention(a), SMALL)
    op, names = getattr(compile_module(a), name), list(s.given)
    options = s.constants | ({"output_lse": True} if a.normaliser == "softmax" else {})

    def run(*given):
        found = op(**dict(zip(names, given, strict=True)), **options)
        return found if isinstance(found, tuple) else (found,)

    return run, list(s.given.values())


def loss(run, *given):
    return sum((x.sin() * torch.arange(1, x.numel() + 1).view_as(x)).sum() for x in run(*given))


def gradients(run, given):
    given = [x.detach().requires_grad_() for x in given]
    return torch.autograd.grad(loss(run, *given), given, allow_unused=True, materialize_grads=True)


# --- functorch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_vmap_is_a_loop(name):
    run, given = made(name)
    stacked = [torch.stack([x * c for c in (1, 0.5, 0.7)]) for x in given]
    together = torch.vmap(run)(*stacked)
    some = torch.vmap(run, in_dims=(0, *[None] * (len(given) - 1)))(stacked[0], *given[1:])
    for n in range(3):
        torch.testing.assert_close([x[n] for x in together], list(run(*(x[n] for x in stacked))))
        torch.testing.assert_close([x[n] for x in some], list(run(stacked[0][n], *given[1:])))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_each_sample(name):
    run, given = made(name)
    stacked = [torch.stack([x, 0.5 * x]) for x in given]
    got = torch.vmap(torch.func.grad(lambda *x: loss(run, *x), tuple(range(len(given)))))(*stacked)
    for n in range(2):
        torch.testing.assert_close([g[n] for g in got], list(gradients(run, [x[n] for x in stacked])))


def test_vmap_over_an_empty_batch():
    x = torch.randn(2, 5, 2, 4)
    for f in (lambda q: softmax_attention(q, x, x), torch.func.grad(lambda q: softmax_attention(q, x, x).sum())):
        assert torch.vmap(f)(x.new_empty(0, *x.shape)).shape == (0, *x.shape)


def test_what_functorch_does_not_get_is_refused():
    f = lambda q: softmax_attention(q, K, V).sum()  # noqa: E731
    with pytest.raises(DoubleBackwardError, match=r"softmax_attention has no forward-mode derivatives \(jvp\)"):
        torch.func.jvp(f, (Q,), (Q,))
    with pytest.raises(DoubleBackwardError, match="softmax_attention has no second derivatives"):
        torch.func.grad(lambda q: torch.func.grad(f)(q).sum())(Q)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(DoubleBackwardError, match="no forward-mode"):
        f(torch.autograd.forward_ad.make_dual(Q, Q))


# --- torch.compile, torch.export ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_attention_is_one_call_in_a_graph(name):
    torch._dynamo.reset()
    run, given = made(name)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), run(*given))
    torch.testing.assert_close(gradients(compiled, given), gradients(run, given))


def test_what_looks_on_sees_one_call():
    """A dispatch mode, as that of `make_fx`, in which arguments may have no numbers."""
    graph = make_fx(lambda *x: softmax_attention(*x), tracing_mode="fake")(Q, K, V, torch.ones(3)).graph
    assert [n.target for n in graph.nodes if n.op == "call_function" and "chunkform" in str(n.target)] == [
        torch.ops.chunkform.softmax_attention.default
    ]


def test_a_temperature_is_looked_at_while_compiled_code_runs():
    compiled = torch.compile(softmax_attention, fullgraph=True, backend="aot_eager")
    scale = torch.ones(3)
    compiled(Q, K, V, scale=scale)
    with pytest.raises(ArgumentError, match="softmax_attention: scale must be above 0 in every head"):
        compiled(Q, K, V, scale=-scale)


def test_a_graph_with_a_dynamic_length_serves_every_length():
    compiled = torch.compile(softmax_attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for T in (9, 5, 7):
        q, k, v = Q[:, :T], K[:, :T], V[:, :T]
        torch.testing.assert_close(compiled(q, k, v, causal=True), softmax_attention(q, k, v, causal=True))


def test_vmap_in_a_graph():
    f = torch.vmap(lambda q, k: softmax_attention(q, k, V))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    given = [torch.stack([Q, K]).requires_grad_(), torch.stack([K, V])]
    torch.testing.assert_close(compiled(*given), f(*given))
    found = [torch.autograd.grad(g(*given).sin().sum(), given[:1]) for g in (compiled, f)]
    torch.testing.assert_close(*found)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return rotary_attention(q, k, v, causal=True)

    exported = torch.export.export(Model(), (Q, K, V))
    assert "chunkform.rotary_attention" in exported.graph_module.code
    torch.testing.assert_close(exported.module()(Q, K, V), rotary_attention(Q, K, V, causal=True))


def test_what_torch_library_asks_of_an_op():
    from chunkform.generated.softmax_attention import OP

    given = [x.clone().requires_grad_() for x in (Q, K, V, torch.ones(3))]
    torch.library.opcheck(OP.registered.forward, (*given, True, "torch", True, False, True))


# --- autocast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_inputs_as_products_do(compiled):
    op = torch.compile(self_attention, fullgraph=True, backend="aot_eager") if compiled else self_attention
    given = [x.requires_grad_() for x in (torch.randn(2, 9, 3, 4), *torch.randn(3, 3, 4, 4))]
    with torch.autocast("cpu", torch.bfloat16):
        y = op(*given)
        found = torch.autograd.grad(y.float().square().sum(), given)
    want = self_attention(given[0].bfloat16(), *given[1:])
    assert y.dtype == torch.bfloat16 and torch.equal(y, want)
    expected = torch.autograd.grad(want.float().square().sum(), given)
    for got, g in zip(found, expected, strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, g)


def test_autocast_leaves_float64_and_numbers_of_positions_alone():
    with torch.autocast("cpu", torch.bfloat16):
        assert softmax_attention(Q.double(), K, V).dtype == torch.float64
        run = compile_module(masked()).masked
        m = torch.zeros(2, 9, 3)
        m[:, :4] = 300.0  # in bfloat16, 301 is 300, too
        m[:, 0] = 301.0
        o = run(0 * Q, K, V, m, beta=20.0)
    assert o.dtype == torch.bfloat16 and torch.allclose(o.float(), V[:, :1].expand_as(o), rtol=0, atol=0.02)


# --- outputs and arguments ---------------------------------------------------------------------------------------------


def test_outputs_that_are_not_kept_may_be_changed_in_place():
    x, W = torch.randn(2, 9, 3, 4, requires_grad=True), torch.randn(3, 3, 4, 4)
    y = self_attention(x, *W)
    (want,) = torch.autograd.grad((y + 1).sin().sum(), x)
    y = self_attention(x, *W)
    y += 1
    torch.testing.assert_close(torch.autograd.grad(y.sin().sum(), x), (want,))


def test_an_output_that_is_kept_and_changed_is_seen():
    q = Q.clone().requires_grad_()
    o = softmax_attention(q, K, V)
    o += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_temperatures_of_inference_mode():
    with torch.inference_mode():
        scale = torch.ones(3).exp()
        o = softmax_attention(Q, K, V, scale=scale)
        with pytest.raises(ArgumentError, match="scale must be above 0 in every head"):
            softmax_attention(Q, K, V, scale=-torch.ones(3))
    torch.testing.assert_close(softmax_attention(Q, K, V, scale=scale), o.clone())
