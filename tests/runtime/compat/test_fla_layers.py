"""Layers of flash-linear-attention on our ops, beside their equations as plain loops over steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from chunkform.errors import ArgumentError
from chunkform.runtime.compat import fla_layers as layers


def convolved(conv, x):
    """[B, T, channels], as torch has it."""
    taps = conv.kernel_size[0]
    y = F.conv1d(F.pad(x.mT, (taps - 1, 0)), conv.weight, conv.bias, groups=x.shape[-1]).mT
    return F.silu(y)


def qkv(m, x):
    return [convolved(getattr(m, f"{n}_conv1d"), getattr(m, f"{n}_proj")(x)) for n in "qkv"]


def split(x, width, count):
    """Heads, each given to as many neighbours as there are `count` of in all."""
    x = x.unflatten(-1, (-1, width))
    return x.repeat_interleave(count // x.shape[-2], -2)


def loop(q, k, v, step):
    """o_t = S_t^T q_t, where S_t = step(S_{t-1}, t)."""
    S, out = q.new_zeros(*q[:, 0].shape, v.shape[-1]), []
    for t in range(q.shape[1]):
        S = step(S, t)
        out.append(torch.einsum("bhd,bhde->bhe", q[:, t], S))
    return torch.stack(out, 1)


def written(S, k, v, beta):
    """The delta rule."""
    error = v - torch.einsum("bhd,bhde->bhe", k, S)
    return S + beta[..., None, None] * torch.einsum("bhd,bhe->bhde", k, error)


def rms(x, weight, eps):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_net(m, x):
    q, k, v = qkv(m, x)
    q, k, v = split(q, m.head_k_dim, 2), unit(split(k, m.head_k_dim, 2)), split(v, m.head_v_dim, 2)
    q, beta = unit(q) * m.head_k_dim**-0.5, m.b_proj(x).sigmoid()
    o = loop(q, k, v, lambda S, t: written(S, k[:, t], v[:, t], beta[:, t]))
    return m.o_proj(rms(o, m.o_norm.weight, 1e-5).flatten(2))


def gated_delta_net(m, x):
    count = m.num_v_heads
    q, k, v = qkv(m, x)
    q, k, v = split(q, m.head_k_dim, count), unit(split(k, m.head_k_dim, count)), split(v, m.head_v_dim, count)
    q, beta = unit(q) * m.head_k_dim**-0.5, 2 * m.b_proj(x).sigmoid()
    a = torch.exp(-m.A_log.exp() * F.softplus(m.a_proj(x) + m.dt_bias))
    o = loop(q, k, v, lambda S, t: written(a[:, t, :, None, None] * S, k[:, t], v[:, t], beta[:, t]))
    gate = m.g_proj(x).unflatten(-1, (count, -1))
    return m.o_proj((rms(o, m.o_norm.weight, 1e-5) * F.silu(gate)).flatten(2))


def kimi(m, x):
    count = m.num_v_heads
    q, k, v = qkv(m, x)
    q, k, v = split(q, m.head_k_dim, count), unit(split(k, m.head_k_dim, count)), split(v, m.head_v_dim, count)
    q, beta = unit(q) * m.head_k_dim**-0.5, m.b_proj(x).sigmoid()
    raw = (m.f_proj(x) + m.dt_bias).unflatten(-1, (count, -1))
    rate = m.A_log.exp()[:, None]
    a = torch.exp(-rate * F.softplus(raw) if m.lower_bound is None else m.lower_bound * torch.sigmoid(rate * raw))
    o = loop(q, k, v, lambda S, t: written(a[:, t, ..., None] * S, k[:, t], v[:, t], beta[:, t]))
    gate = m.g_proj(x).unflatten(-1, (count, -1))
    return m.o_proj((rms(o, m.o_norm.weight, 1e-5) * gate.sigmoid()).flatten(2))


def gated_linear(m, x):
    count = m.num_heads
    q, k, v = (split(getattr(m, f"{n}_proj")(x), m.head_v_dim if n == "v" else m.head_k_dim, count) for n in "qkv")
    a = split((F.logsigmoid(m.gk_proj(x)) / 16).exp(), m.head_k_dim, count)
    o = loop(q * m.head_k_dim**-0.5, k, v, lambda S, t: a[:, t, ..., None] * S + k[:, t, ..., None] * v[:, t, :, None])
    gate = m.g_proj(x).unflatten(-1, (count, -1))
    return m.o_proj((rms(o, m.g_norm_swish_gate.weight, 1e-5) * F.silu(gate)).flatten(2))


def mamba2(m, x):
    inner = m.out_proj.in_features
    gate, y, dt = m.in_proj(x).split([inner, inner + 2 * m.groups * m.states, m.num_heads], -1)
    y, B, C = convolved(m.conv1d, y).split([inner, m.groups * m.states, m.groups * m.states], -1)
    y, B, C = split(y, m.head_dim, m.num_heads), split(B, m.states, m.num_heads), split(C, m.states, m.num_heads)
    dt = F.softplus(dt + m.dt_bias)
    a = torch.exp(-dt * m.A_log.exp())[..., None, None]
    write = torch.einsum("bth,bthd,bthe->bthde", dt, B, y)
    o = (loop(C, B, y, lambda S, t: a[:, t] * S + write[:, t]) + m.D[:, None] * y).flatten(2) * F.silu(gate)
    o = rms(o.unflatten(-1, (m.groups, -1)), m.norm.weight.view(m.groups, -1), 1e-5).flatten(2)
    return m.out_proj(o)


CASES = {
    "delta_net": (delta_net, lambda: layers.DeltaNet(16, num_heads=2)),
    "gated_delta_net": (
        gated_delta_net,
        lambda: layers.GatedDeltaNet(16, 1.5, 4, 2, num_v_heads=4, allow_neg_eigval=True, conv_bias=True),
    ),
    "kimi": (kimi, lambda: layers.KimiDeltaAttention(16, head_dim=4, num_heads=2)),
    "kimi, bounded": (
        kimi,
        lambda: layers.KimiDeltaAttention(16, 2.0, 4, 2, num_v_heads=4, safe_gate=True, lower_bound=-5.0),
    ),
    "gated_linear": (gated_linear, lambda: layers.GatedLinearAttention(16, num_heads=4, num_kv_heads=2)),
    "mamba2": (mamba2, lambda: layers.Mamba2(hidden_size=16, head_dim=8, state_size=6, n_groups=2)),
}


def case(name):
    torch.manual_seed(3)
    reference, make = CASES[name]
    layer = make().double()
    for p in layer.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return layer, reference, torch.randn(2, 13, 16, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_layers_are_their_equations(name):
    layer, reference, x = case(name)
    y, expected = layer(x)[0], reference(layer, x)
    assert torch.allclose(y, expected, atol=1e-10)
    grad, weights = torch.randn_like(y), list(layer.parameters())
    for a, b in zip(torch.autograd.grad(y, weights, grad), torch.autograd.grad(expected, weights, grad), strict=True):
        assert torch.allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_generation_goes_on_from_a_prompt(name, monkeypatch):
    """With padding on the left, and one token after the other by the op's step."""
    layer, _, x = case(name)
    layer, x = layer.float(), x.float()
    with torch.no_grad():
        whole = layer(x)[0]
        mask = torch.ones(2, 12)
        mask[1, :3] = 0
        padded = torch.cat([x[:, :3], x[:, :9]], 1)
        padded[0] = x[0, :12]
        y, _, cache = layer(padded, mask, use_cache=True)
        assert torch.allclose(y[0], whole[0, :12], atol=1e-5) and torch.allclose(y[1, 3:], whole[1, :9], atol=1e-5)
        assert not y[1, :3].any()
        after = layer(torch.stack([x[0, 12:], x[1, 9:10]]), past_key_values=cache.rows(torch.tensor([0, 1])))[0]
    assert torch.allclose(after[0], whole[0, 12:], atol=1e-5) and torch.allclose(after[1], whole[1, 9:10], atol=1e-5)


class GatedDeltaNet(nn.Module):
    """A layer of theirs, as far as its loader looks at it."""

    def __init__(self, twin):
        super().__init__()
        self.hidden_size, self.expand_v, self.head_dim, self.num_heads, self.num_v_heads = 16, 1.5, 4, 2, 4
        self.allow_neg_eigval, self.conv_bias = True, True
        for name, child in twin.named_children():
            setattr(self, name, child)
        self.A_log, self.dt_bias = twin.A_log, twin.dt_bias


def test_layers_of_a_model_are_replaced_with_their_weights():
    twin, _, x = case("gated_delta_net")
    model = layers.converted(nn.Sequential(nn.Identity(), GatedDeltaNet(twin)))
    assert isinstance(model[1], layers.GatedDeltaNet) and torch.equal(model[1](x)[0], twin(x)[0])
    theirs = GatedDeltaNet(twin)
    theirs.extra = nn.Parameter(torch.ones(3))
    with pytest.raises(ArgumentError, match="extra of theirs have no counterpart"):
        layers.from_layer(theirs)
    with pytest.raises(ArgumentError, match="there is no layer Linear here"):
        layers.from_layer(nn.Linear(2, 2))


# As the models of theirs make layers: by keyword, with what only their kernels want.
THEIR_CALLS = {
    "DeltaNet": {"mode": "chunk", "d_model": None, "hidden_size": 16, "num_heads": 2},
    "GatedDeltaNet": {"mode": "chunk", "hidden_size": 16, "head_dim": 4, "num_heads": 2},
    "KimiDeltaAttention": {"mode": "chunk", "hidden_size": 16, "head_dim": 4, "num_heads": 2},
    "GatedLinearAttention": {
        "mode": "fused_recurrent",
        "hidden_size": 16,
        "feature_map": None,
        "gate_fn": "swish",
        "elementwise_affine": True,
        "fuse_norm": True,
        "num_heads": 2,
    },
    "Mamba2": {"hidden_size": 16, "head_dim": 8, "state_size": 6, "hidden_act": "silu", "chunk_size": 256},
    "RWKV7Attention": {
        "mode": "chunk",
        "hidden_size": 16,
        "head_dim": None,
        "num_heads": 2,
        "decay_low_rank_dim": None,
        "elementwise_affine": True,
        "fuse_norm": False,
        "num_hidden_layers": 2,
        "layer_idx": 0,
    },
}


@pytest.mark.parametrize("name", THEIR_CALLS)
def test_constructors_take_what_theirs_take(name):
    made = layers.layer_of(name)
    assert made(**THEIR_CALLS[name])(torch.randn(1, 3, 16))[0].shape == (1, 3, 16)
    with pytest.raises(ArgumentError, match=f"{name}: head_dims isn't supported"):
        made(**THEIR_CALLS[name], head_dims=3)
    for n, value in made.fixed.items():
        with pytest.raises(ArgumentError, match=f"{name}: {n} must be {value!r}, got 'other'"):
            made(**THEIR_CALLS[name] | {n: "other"})
    with pytest.raises(ArgumentError, match=f"{name}: past_key_values must be a .*fla_layers.Cache, got dict"):
        made(**THEIR_CALLS[name])(torch.randn(1, 3, 16), past_key_values={})


def test_a_mask_of_pairs_is_refused():
    with pytest.raises(
        ArgumentError, match=r"DeltaNet: attention_mask must be \[B, T\], 0 where padded, got \[1, 3, 3\]"
    ):
        layers.DeltaNet(16, num_heads=2)(torch.randn(1, 3, 16), torch.ones(1, 3, 3))
    for mask in (torch.ones(1, 2), torch.ones(2, 3)):
        with pytest.raises(ArgumentError, match=r"DeltaNet: attention_mask must be \[B, T\] = \[1, 3\], or longer"):
            layers.DeltaNet(16, num_heads=2)(torch.randn(1, 3, 16), mask)
