"""RWKV-7's layer beside its equations as a plain loop over steps."""

import pytest
import torch
from torch.nn import functional as F

from chunkform.errors import ArgumentError
from chunkform.runtime.compat.fla_layers import Cache, from_layer
from chunkform.runtime.compat.fla_rwkv7 import RWKV7Attention


def equations(m, x, v_first):
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    xr, xw, xk, xv, xa, xg = (x + (before - x) * getattr(m, f"x_{n}") for n in "rwkvag")
    r, k, v, a = m.r_proj(xr), m.k_proj(xk), m.v_proj(xv), m.a_lora(xa).sigmoid()
    w = torch.exp(-torch.exp(torch.tensor(-0.5)) * m.w_lora(xw).sigmoid())
    v = v if v_first is None else v + (v_first - v) * m.v_lora(xv).sigmoid()
    kk = F.normalize((k * m.k_k).unflatten(-1, (m.r_k.shape[0], -1)), dim=-1)
    k = k * (1 + (a - 1) * m.k_a)
    r, k, v, a, w = (y.unflatten(-1, (m.r_k.shape[0], -1)) for y in (r, k, v, a, w))
    S, out = x.new_zeros(x.shape[0], m.r_k.shape[0], v.shape[-1], k.shape[-1]), []
    for t in range(x.shape[1]):
        removed = torch.einsum("bhij,bhj->bhi", S, kk[:, t])
        S = S * w[:, t, :, None] - torch.einsum("bhi,bhj->bhij", removed, kk[:, t] * a[:, t])
        S = S + torch.einsum("bhi,bhj->bhij", v[:, t], k[:, t])
        out.append(torch.einsum("bhij,bhj->bhi", S, r[:, t]))
    o = torch.stack(out, 1)
    mean, spread = o.mean(-1, keepdim=True), o.var(-1, unbiased=False, keepdim=True)
    o = ((o - mean) / (spread + m.head_dim * 1e-5).sqrt()).flatten(2) * m.g_norm.weight + m.g_norm.bias
    o = o + ((r * k * m.r_k).sum(-1, keepdim=True) * v).flatten(2)
    return m.o_proj(o * m.g_lora(xg))


def layer(index):
    torch.manual_seed(index)
    m = RWKV7Attention(16, 8, 4, 4, 4, 4, layer_idx=index).double()
    for p in m.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return m


@pytest.mark.parametrize("index", [0, 1])
def test_the_layer_is_its_equations(index):
    m, x = layer(index), torch.randn(2, 11, 16, dtype=torch.float64)
    v_first = None if index == 0 else torch.randn(2, 11, 16, dtype=torch.float64)
    y, expected = m(x, v_first=v_first)[0], equations(m, x, v_first)
    assert torch.allclose(y, expected, atol=1e-8)
    grad, weights = torch.randn_like(y), list(m.parameters())
    for a, b in zip(torch.autograd.grad(y, weights, grad), torch.autograd.grad(expected, weights, grad), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_one_token_after_the_other():
    m, x = layer(0).float(), torch.randn(2, 9, 16)
    with torch.no_grad():
        whole, cache = m(x)[0], Cache()
        parts = [m(x[:, :4], past_key_values=cache)[0]]
        parts += [m(x[:, t : t + 1], past_key_values=cache)[0] for t in range(4, 9)]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-4)


def test_what_it_needs_is_said():
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="needs v_first"):
        layer(1)(x)
    with pytest.raises(ArgumentError, match="takes no padding"):
        layer(0)(x, torch.tensor([[0, 1, 1]]))
    assert torch.equal(from_layer(layer(0))(x)[0], layer(0)(x)[0])


def test_ranks_follow_from_the_width():
    """The ranks of a layer of 1024 channels, and of one whose heads are twice as wide, as their documentation has them."""
    for width, expected in ((64, (64, 160, 64, 64)), (128, (160, 160, 160, 96))):
        m = RWKV7Attention(1024, width)
        assert tuple(getattr(m, f"{n}_lora").lora[0].out_features for n in "wgav") == expected


def test_no_sequences_give_none():
    m = layer(0)
    assert m(torch.randn(0, 5, 16, dtype=torch.float64))[0].shape == (0, 5, 16)
