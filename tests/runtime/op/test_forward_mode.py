"""Ops have no forward-mode derivatives, and say so in every way to ask for one: none is zero without a word."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.generated import lightning_attention, mesa, softmax_attention
from chunkform.runtime.nn import Mixer

B, T, H, D = 1, 5, 2, 4
MESSAGE = r"has no forward-mode derivatives \(jvp\): use reverse mode"


def tensors(count):
    return torch.randn(count, B, T, H, D)


Q, K, V = tensors(3)
LOG = -torch.rand(B, T, H)
MIXER = Mixer(lightning_attention, width=D, heads=1).requires_grad_(False)


def registered(name, *more):
    """What torch's library has of an op, as graphs call it."""
    return lambda q: getattr(torch.ops.chunkform, name)(q, K, V, *more)[0]


OPS = {
    "recurrence": lambda q: lightning_attention(q, K, V, LOG)[0],
    "its decay": lambda q: lightning_attention(Q, K, V, -q[..., 0].square())[0],
    "its initial state": lambda q: lightning_attention(Q, K, V, LOG, initial_state=q[:, :D].transpose(1, 2))[0],
    "packed": lambda q: lightning_attention(q, K, V, LOG, cu_seqlens=torch.tensor([0, 2, T]))[0],
    "attention": lambda q: softmax_attention(q, K, V),
    "program": lambda q: mesa(q, K, LOG, torch.ones(H))[0],
    "step": lambda q: lightning_attention.step(None, q[:, 0], K[:, 0], V[:, 0], LOG[:, 0])[0],
    "layer": lambda q: MIXER(q.flatten(1, 2)),
    "registered": registered("lightning_attention", LOG, None, None, H, "torch", "default", True, False),
    "registered attention": registered("softmax_attention", torch.ones(H), False, "torch", True, False, False),
}


def dual(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def dual_without_gradients(f, x):
    with torch.no_grad():
        return dual(f, x)


def both(x):
    return torch.stack((x, x))


ROUTES = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "linearize": lambda f, x: torch.func.linearize(f, x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).square().sum())(x),
    "dual": dual,
    "dual, with gradients": lambda f, x: dual(f, x.requires_grad_()),
    "dual, without gradients": dual_without_gradients,
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "jvp in vmap": lambda f, x: torch.vmap(lambda x: torch.func.jvp(f, (x,), (x,))[1])(both(x)),
    "vmap in jvp": lambda f, x: torch.func.jvp(torch.vmap(f), (both(x),), (both(x),)),
    "vmap in linearize": lambda f, x: torch.func.linearize(torch.vmap(f), both(x)),
    "grad of jvp": lambda f, x: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (x,))[1].sum())(x),
    "jvp of grad": lambda f, x: torch.func.jvp(torch.func.grad(lambda x: f(x).square().sum()), (x,), (x,)),
    "traced": lambda f, x: make_fx(lambda x: torch.func.jvp(f, (x,), (x,))[1])(x),
}
PLAIN = ("jvp", "linearize", "dual", "dual, without gradients")
ASKED = [(op, route) for op in OPS for route in (ROUTES if op in ("recurrence", "attention") else PLAIN)]


@pytest.mark.parametrize(("op", "route"), ASKED)
def test_every_way_to_ask_is_refused(op, route):
    with pytest.raises(DoubleBackwardError, match=MESSAGE):
        ROUTES[route](OPS[op], Q.clone())


@pytest.mark.parametrize("op", ["recurrence", "attention"])
def test_cotangents_with_tangents_are_refused(op):
    x = Q.clone().requires_grad_()
    y = OPS[op](x)
    with forward_ad.dual_level(), pytest.raises(DoubleBackwardError, match=MESSAGE):
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))


@pytest.mark.parametrize("op", ["recurrence", "attention"])
def test_compiled_functions_refuse_tangents(op):
    compiled = torch.compile(OPS[op], backend="aot_eager")
    compiled(Q)
    for route in (dual, ROUTES["jvp"]):
        with pytest.raises(DoubleBackwardError, match=MESSAGE):
            route(compiled, Q.clone())


@pytest.mark.parametrize("op", ["recurrence", "attention", "registered"])
def test_what_has_no_tangent_is_computed_as_ever(op):
    with forward_ad.dual_level():
        torch.testing.assert_close(OPS[op](Q), OPS[op](Q.clone()))
    x = torch.ones(())
    _, tangent = torch.func.jvp(lambda x: x * OPS[op](Q), (x,), (x,))
    torch.testing.assert_close(tangent, OPS[op](Q))


def test_a_step_takes_no_transforms():
    with pytest.raises(ArgumentError, match=r"lightning_attention.step takes no transforms of functorch"):
        torch.vmap(OPS["step"])(both(Q))
