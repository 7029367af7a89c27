"""With debugging on, values that can't be meant are named before anything is computed; off, nobody looks."""

import math

import pytest
import torch
from shared.forked import code

import chunkform
from chunkform.errors import ArgumentError
from chunkform.generated import lightning_attention, mesa, retention, self_attention, softmax_attention
from chunkform.runtime.nn import Mixer

B, T, H, D = 1, 7, 2, 4
Q, K, V = torch.randn(3, B, T, H, D)
LOG = -torch.rand(B, T, H)
ONES = torch.ones(H)


def changed(x, value, *place):
    x = x.clone()
    x[place] = value
    return x


STARTS = torch.tensor([0, 5, 3, T])
STATE = changed(torch.zeros(B, H, D, D), -math.inf, 0, 1, 2, 3)
HINT = r"looks like a decay: pass its natural logarithm, x.log\(\)"
WRONG = {
    "a decay": (
        lambda: lightning_attention(Q, K, V, LOG.exp()),
        rf"log_lam is the logarithm .* must be at most 0, .*{HINT}",
    ),
    "above 0": (
        lambda: lightning_attention(Q, K, V, changed(LOG, 0.5, 0, 3, 1)),
        r"log_lam .* at most 0, got 0.5 at \[B, T, H\] = \[0, 3, 1\]$",
    ),
    "nan": (
        lambda: lightning_attention(Q, changed(K, math.nan, 0, slice(2, 4), 1, 3), V, LOG),
        r"k must be finite, got nan at \[B, T, H, d\] = \[0, 2, 1, 3\], the first of 2 such entries of 56",
    ),
    "a decay of nan": (
        lambda: lightning_attention(Q, K, V, changed(LOG, math.nan, 0, 0, 0)),
        "log_lam must be a number",
    ),
    "a state": (
        lambda: lightning_attention(Q, K, V, LOG, initial_state=STATE),
        r"the state S must be finite, got -inf at \[B, H, d, e\] = \[0, 1, 2, 3\]",
    ),
    "borders": (
        lambda: lightning_attention(Q, K, V, LOG, cu_seqlens=STARTS),
        "cu_seqlens must not fall, got 5 and then 3",
    ),
    "of a head": (lambda: retention(Q, K, V, ONES / 2), rf"log_gamma .* got 0.5 at \[H\] = \[0\].*{HINT}"),
    "a program": (lambda: mesa(Q, K, LOG.exp(), ONES), rf"mesa: log_lam .*{HINT}"),
    "a step": (
        lambda: lightning_attention.step(None, Q[:, 0], K[:, 0], V[:, 0], LOG[:, 0].exp()),
        rf"lightning_attention.step: log_lam .* \[B, H\] = \[0, 0\].*{HINT}",
    ),
    "an attention": (
        lambda: softmax_attention(Q, changed(K, math.inf, 0, 1, 0, 2), V),
        r"softmax_attention: k must be finite, got inf at \[B, S, H, D\] = \[0, 1, 0, 2\]",
    ),
    "a temperature": (
        lambda: softmax_attention(Q, K, V, changed(ONES, math.inf, 1)),
        r"scale must be above 0 and finite, got inf at \[H\] = \[1\]",
    ),
    "a batch": (
        lambda: torch.vmap(lambda x: lightning_attention(Q, K, V, x)[0])(torch.stack((LOG, LOG.exp()))),
        "log_lam .* at most 0",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_named(what):
    call, message = WRONG[what]
    with chunkform.debug(), pytest.raises(ArgumentError, match=message):
        call()


def test_layers_are_looked_at():
    layer = Mixer(lightning_attention, width=D, heads=1)
    with chunkform.debug(), pytest.raises(ArgumentError, match="must be finite, got nan"):
        layer(torch.full((1, 5, D), math.nan))


def test_what_may_be_is_computed():
    with chunkform.debug():
        lightning_attention(Q, K, V, torch.full_like(LOG, -math.inf))
        lightning_attention(Q, K, V, torch.zeros_like(LOG), cu_seqlens=torch.tensor([0, 3, 3, T]))
        lightning_attention(Q[:, :0], K[:, :0], V[:, :0], LOG[:, :0])
        with pytest.raises(ArgumentError, match="log_lam must have 3 axes"):
            lightning_attention(Q, K, V, LOG[:, :, 0])


def test_it_is_a_switch_and_a_context():
    def refused():
        try:
            lightning_attention(Q, K, V, LOG.exp())
        except ArgumentError:
            return True
        return False

    assert not refused()
    with chunkform.debug():
        assert refused()
        with chunkform.debug(False):
            assert not refused()
        assert refused()
    assert not refused()
    chunkform.debug()
    assert refused()
    chunkform.debug(False)
    assert not refused()
    with pytest.raises(ArgumentError, match="on must be True or False"):
        chunkform.debug("yes")


def test_graphs_are_not_looked_at():
    f = torch.compile(lambda x: lightning_attention(Q, K, V, x)[0], backend="aot_eager", fullgraph=True)
    with chunkform.debug():
        assert f(LOG.exp()).shape == Q.shape


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False)])
def test_the_environment_turns_it_on(value, on):
    done = code("from chunkform.runtime.op import debugging; print(debugging.switched_on)", CHUNKFORM_DEBUG=value)
    assert done.stdout.strip() == str(on)


def mamba(name: str, large: float) -> torch.Tensor:
    """A decay of which a parameter is the logarithm of a rate, after a backward pass; the parameter's gradient."""
    from chunkform.spec.language import exp, softplus

    r = chunkform.Recurrence(name)
    d, e = r.dims("d e")
    k, v, dt, rate = r.inputs("k", d), r.inputs("v", e), r.inputs("dt"), r.parameter("A_log")
    S = r.state("S", d, e)
    r.update(S, exp(-exp(rate) * softplus(dt)) * S.prev + k * v.T)
    r.output("o", S.next.T * k)
    given = torch.full((H,), large, requires_grad=True)
    o, _ = chunkform.compile(r)(K, V, torch.randn(B, T, H), given)
    o.sum().backward()
    assert given.grad is not None
    return given.grad


def test_what_overflows_on_the_way_is_named() -> None:
    with chunkform.debug():
        assert mamba("rates", 20.0).isfinite().all()
        with pytest.raises(ArgumentError, match=r"rates: the gradient of \w+ should be finite, got nan .* overflows"):
            mamba("rates", 89.0)
        huge = torch.full_like(K, 1e38)
        with pytest.raises(ArgumentError, match=r"the output o should be finite, got .* at \[B, T, H, e\] = \[0, "):
            lightning_attention(Q, huge, huge, LOG)


def test_what_overflows_in_an_attention_is_named() -> None:
    large = torch.full_like(V, 3e38)
    q = Q.clone().requires_grad_()
    with chunkform.debug():
        with pytest.raises(
            ArgumentError, match=r"self_attention: the output y should be finite, got .* at \[B, T, H, E\]"
        ):
            self_attention(large, *torch.eye(D).expand(3, H, D, D) * 10)
        o = softmax_attention(q, K, V)
        with pytest.raises(
            ArgumentError, match=r"softmax_attention: the gradient of q should be finite, got .* overflows"
        ):
            (o * 3e38).sum().backward()
        o, lse = softmax_attention(
            q[:, :2], K[:, :1], V[:, :1], causal=True, output_lse=True
        )  # whose first row sees nothing
        assert lse[0, 0, 0] == -math.inf


def test_what_a_loss_spoils_is_not_blamed_on_an_op() -> None:
    q = Q.clone().requires_grad_()
    with chunkform.debug():
        o, _ = lightning_attention(q, K, V, LOG)
        (o * math.nan).sum().backward()
    assert q.grad is not None and q.grad.isnan().any()
