"""flash-linear-attention's functions on our ops: each against its formula, a loop over time in float64."""

import importlib
import inspect

import pytest
import torch
from torch.nn import functional as F

from chunkform.errors import ArgumentError
from chunkform.generated import gated_delta_rule
from chunkform.runtime.compat import fla

B, T, H, K, V = 2, 13, 2, 5, 4


@pytest.fixture(autouse=True)
def wide():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def loop(q, k, v, scale=None, S=None, gk=None, gv=None, beta=None, reverse=False):
    """S <- decay S, then S <- S + k (v or beta (v - S^T k))^T, then o = scale S^T q; decays of keys (or one) and of values."""
    groups = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(groups, 2), k.repeat_interleave(groups, 2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    S = q.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3]) if S is None else S
    out = torch.zeros_like(v)
    for t in reversed(range(v.shape[1])) if reverse else range(v.shape[1]):
        if gk is not None:
            S = S * gk[:, t].exp().unsqueeze(-1)
        if gv is not None:
            S = S * gv[:, t].exp().unsqueeze(-2)
        write = v[:, t]
        if beta is not None:
            write = beta[:, t].unsqueeze(-1) * (write - torch.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = S + k[:, t].unsqueeze(-1) * write.unsqueeze(-2)
        out[:, t] = scale * torch.einsum("bhkv,bhk->bhv", S, q[:, t])
    return out, S


def qkv(heads=H, steps=T, batch=B):
    return torch.randn(batch, steps, H, K), torch.randn(batch, steps, H, K), torch.randn(batch, steps, heads, V)


def gate(*dims, batch=B, steps=T, heads=H):
    return F.logsigmoid(torch.randn(batch, steps, heads, *dims) + 1)


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def close(found, expected, by=1e-11):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() <= by * b.norm(), float((a - b).norm() / b.norm())


# --- each function ----------------------------------------------------------------------------------------------------

HEADS = torch.arange(H, dtype=torch.float64)
RETENTION = (1 - 2.0 ** (-5 - HEADS)).log().view(1, 1, H, 1).expand(B, T, H, 1)
LIGHTNING = (-8 / H * (1 - 3 / 12) * HEADS).view(1, 1, H, 1).expand(B, T, H, 1)


def of(name):
    return getattr(fla, name)


@pytest.mark.parametrize("name", ["chunk_simple_gla", "fused_chunk_simple_gla", "fused_recurrent_simple_gla"])
def test_simple_gla(name):
    (q, k, v), g, S = qkv(), gate(), torch.randn(B, H, K, V)
    options = dict(initial_state=S, output_final_state=True)
    close(of(name)(q, k, v, g, **options), loop(q, k, v, S=S, gk=g.unsqueeze(-1)))
    close(of(name)(q, k, v, g_gamma=RETENTION[0, 0, :, 0], **options), loop(q, k, v, S=S, gk=RETENTION))
    close(of(name)(q, k, v, scale=0.3, **options), loop(q, k, v, 0.3, S))
    assert of(name)(q, k, v, g)[1] is None


def test_gla():
    (q, k, v), gk, gv = qkv(), gate(K), gate(V)
    close(fla.chunk_gla(q, k, v, gk, 0.7, None, True), loop(q, k, v, 0.7, gk=gk))
    close(fla.fused_recurrent_gla(q, k, v, gk, output_final_state=True), loop(q, k, v, gk=gk))
    close(fla.fused_recurrent_gla(q, k, v, gv=gv, output_final_state=True), loop(q, k, v, gv=gv))


@pytest.mark.parametrize("name", ["chunk_retention", "fused_chunk_retention", "fused_recurrent_retention"])
def test_retention(name):
    q, k, v = qkv()
    close(of(name)(q, k, v, output_final_state=True), loop(q, k, v, gk=RETENTION))


@pytest.mark.parametrize("name", ["chunk_lightning_attn", "fused_recurrent_lightning_attn"])
def test_lightning_attention(name):
    q, k, v = qkv()
    close(of(name)(q, k, v, 3, 12, output_final_state=True), loop(q, k, v, gk=LIGHTNING))


@pytest.mark.parametrize("name", ["chunk_linear_attn", "fused_chunk_linear_attn", "fused_recurrent_linear_attn"])
def test_linear_attention(name):
    q, k, v = qkv()
    q, k = q.exp(), k.exp()
    S, z = torch.randn(B, H, K, V), torch.rand(B, 1, H, K)
    plain = of(name)(q, k, v, initial_state=S, output_final_state=True, normalize=False)
    close(plain, loop(q, k, v, S=S))
    o, (last, share) = of(name)(q, k, v, initial_state=(S, z), output_final_state=True, normalize=True)
    zs = z + k.cumsum(1)
    weights = (q * K**-0.5 * zs).sum(-1, keepdim=True)
    expected, state = loop(q, k, v, S=S)
    close((o, last, share), (expected / (weights + 1e-10), state, zs[:, -1:]))
    expected = loop(q, k, v)[0]
    if not name.startswith("fused_recurrent"):  # it normalises only when it is told to
        expected = expected / ((q * K**-0.5 * k.cumsum(1)).sum(-1, keepdim=True) + 1e-10)
    close(of(name)(q, k, v)[:1], (expected,))


@pytest.mark.parametrize("name", ["chunk_delta_rule", "fused_recurrent_delta_rule"])
@pytest.mark.parametrize("l2norm", [False, True])
def test_delta_rule(name, l2norm):
    (q, k, v), beta, S = qkv(), torch.rand(B, T, H), torch.randn(B, H, K, V)
    found = of(name)(q, k, v, beta, initial_state=S, output_final_state=True, use_qk_l2norm_in_kernel=l2norm)
    q, k = (unit(q), unit(k)) if l2norm else (q, k)
    close(found, loop(q, k, v, S=S, beta=beta))


def test_gated_delta_rule():
    q, k, v = qkv(heads=2 * H)  # grouped values
    g, beta, S = gate(heads=2 * H), torch.rand(B, T, 2 * H), torch.randn(B, 2 * H, K, V)
    options = dict(initial_state=S, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected = loop(unit(q), unit(k), v, S=S, gk=g.unsqueeze(-1), beta=beta)
    close(fla.chunk_gated_delta_rule(q, k, v, g, beta, **options), expected)
    close(fla.chunk_gdn(q, k, v, g, beta, **options), expected)
    close(fla.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, **options), expected)
    close(fla.fused_recurrent_gdn(q, k, v, beta=beta, **options), loop(unit(q), unit(k), v, S=S, beta=beta))
    gk = gate(K, heads=2 * H)
    expected = loop(unit(q), unit(k), v, S=S, gk=gk + g.unsqueeze(-1), beta=beta)
    close(fla.fused_recurrent_gated_delta_rule(q, k, v, g, gk, beta=beta, **options), expected)


def test_gates_made_in_the_kernel():
    (q, k, v), raw, A_log, bias = qkv(), torch.randn(B, T, H), torch.randn(H), torch.randn(H)
    logits = torch.randn(B, T, H)
    options = dict(use_gate_in_kernel=True, A_log=A_log, dt_bias=bias, use_beta_sigmoid_in_kernel=True)
    found = fla.chunk_gated_delta_rule(
        q, k, v, raw, logits, output_final_state=True, use_qk_l2norm_in_kernel=True, allow_neg_eigval=True, **options
    )
    g = -A_log.exp() * F.softplus(raw + bias)
    close(found, loop(unit(q), unit(k), v, gk=g.unsqueeze(-1), beta=2 * logits.sigmoid()))


@pytest.mark.parametrize("name", ["chunk_kda", "fused_recurrent_kda"])
def test_kda(name):
    (q, k, v), g, beta, S = qkv(), gate(K), torch.rand(B, T, H), torch.randn(B, H, K, V)
    options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
    close(
        of(name)(q, k, v, g=g, beta=beta, initial_state=S, **options), loop(unit(q), unit(k), v, S=S, gk=g, beta=beta)
    )
    raw, A_log, bias = torch.randn(B, T, H, K), torch.randn(H), torch.randn(H * K)
    made = of(name)(q, k, v, raw, beta, A_log=A_log, dt_bias=bias, use_gate_in_kernel=True, **options)
    inner = raw + bias.view(H, K)
    close(made, loop(unit(q), unit(k), v, gk=-A_log.exp()[:, None] * F.softplus(inner), beta=beta))
    bounded = of(name)(
        q, k, v, raw, beta, A_log=A_log, dt_bias=bias, use_gate_in_kernel=True, lower_bound=-5.0, **options
    )
    g = -5 * torch.sigmoid(A_log.exp()[:, None] * inner)
    close(bounded, loop(unit(q), unit(k), v, gk=g, beta=beta))


def test_mesa_net():
    (q, k, v), g, beta = qkv(), gate(), torch.rand(B, T, H)
    lamb, first, S = torch.rand(H, K) + 0.25, torch.randn(B, H, K, K), torch.randn(B, H, K, V)
    first = first @ first.mT
    found = fla.chunk_mesa_net(q, k, v, g, beta, lamb, first, S, True, use_qk_l2norm_in_kernel=True)
    out, memory, unit_q, unit_k = [], first, unit(q), unit(k)
    for t in range(T):
        decay, write = g[:, t].exp()[..., None, None], (beta[:, t, :, None] * unit_k[:, t]).unsqueeze(-1)
        memory = decay * memory + write * unit_k[:, t].unsqueeze(-2)
        S = decay * S + write * v[:, t].unsqueeze(-2)
        x = torch.linalg.solve(memory + torch.diag_embed(lamb), unit_q[:, t])
        out.append(torch.einsum("bhkv,bhk->bhv", S, x))
    close((found[0], *found[1]), (torch.stack(out, 1), memory, S), 1e-8)
    assert fla.chunk_mesa_net(q, k, v, g, beta, lamb)[1] == (None, None)


def test_attention():
    q, k, v = torch.randn(B, T, 2 * H, K), *qkv()[1:]
    for scale in (None, 0.3):
        energy = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) * (scale or K**-0.5)
        weights = energy.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
        expected = torch.einsum("bhij,bjhe->bihe", weights, v.repeat_interleave(2, 2))
        close((fla.parallel_attn(q, k, v, scale=scale),), (expected,))


@pytest.mark.parametrize("name", ["parallel_simple_gla", "parallel_retention"])
def test_parallel_forms(name):
    q, k, v = qkv()
    g = {"g": gate()} if name == "parallel_simple_gla" else {}
    decay = g["g"].unsqueeze(-1) if g else RETENTION
    o, matrix = of(name)(q, k, v, **g)
    close((o,), loop(q, k, v, gk=decay)[:1])
    assert matrix is None


# --- what they share --------------------------------------------------------------------------------------------------


def test_states_with_values_first():
    (q, k, v), g, S = qkv(), gate(), torch.randn(B, H, K, V)
    expected, last = loop(q, k, v, S=S, gk=g.unsqueeze(-1))
    for option in ("state_v_first", "transpose_state_layout"):
        found = fla.chunk_simple_gla(q, k, v, g, initial_state=S.mT, output_final_state=True, **{option: True})
        close(found, (expected, last.mT))


def test_backwards_in_time():
    (q, k, v), g, S = qkv(), gate(K), torch.randn(B, H, K, V)
    found = fla.fused_recurrent_gla(q, k, v, g, initial_state=S, output_final_state=True, reverse=True)
    close(found, loop(q, k, v, S=S, gk=g, reverse=True))


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences(reverse):
    lengths = [4, 0, 7, 2]
    (q, k, v), g = qkv(steps=13, batch=1), gate(batch=1)
    S, starts = torch.randn(4, H, K, V), torch.tensor([0, 4, 4, 11, 13])
    o, last = fla.fused_recurrent_simple_gla(
        q, k, v, g, initial_state=S, output_final_state=True, cu_seqlens=starts, cu_seqlens_cpu=starts, reverse=reverse
    )
    for n, length in enumerate(lengths):
        part = slice(int(starts[n]), int(starts[n]) + length)
        own = (x[:, part] for x in (q, k, v))
        expected = loop(*own, S=S[n : n + 1], gk=g[:, part].unsqueeze(-1), reverse=reverse)
        close((last[n : n + 1],), expected[1:])
        if length:
            close((o[:, part],), expected[:1])


def test_a_step_of_generation_is_the_next_step_of_the_sequence():
    (q, k, v), g, beta = qkv(), gate(), torch.rand(B, T, H)
    whole, last = fla.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    _, state = fla.chunk_gated_delta_rule(
        q[:, :-1], k[:, :-1], v[:, :-1], g[:, :-1], beta[:, :-1], output_final_state=True
    )
    with torch.no_grad():
        found = fla.fused_recurrent_gated_delta_rule(
            q[:, -1:], k[:, -1:], v[:, -1:], g[:, -1:], beta=beta[:, -1:], initial_state=state, output_final_state=True
        )
    close(found, (whole[:, -1:], last))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("state", [None, torch.float32, torch.bfloat16])
def test_one_step_without_gradients_is_the_decoding_step(keep, state, monkeypatch):
    """Whether a last state is wanted or not; which is in float32, as after many steps."""
    steps = []
    step = gated_delta_rule.step
    monkeypatch.setattr(gated_delta_rule, "step", lambda *a, **o: steps.append(1) or step(*a, **o))
    (q, k, v), g, beta = (x.float() for x in qkv(steps=1)), gate(steps=1).float(), torch.rand(B, 1, H).float()
    start = None if state is None else torch.randn(B, H, K, V).to(state)
    given = {"initial_state": start, "output_final_state": keep}
    wanted = fla.chunk_gated_delta_rule(q, k, v, g, beta, **given)
    assert steps == []
    with torch.no_grad():
        found = fla.chunk_gated_delta_rule(q, k, v, g, beta, **given)
    assert steps == [1] and torch.allclose(found[0], wanted[0], atol=1e-5)
    assert (found[1] is None) == (not keep)
    if keep:
        assert found[1].dtype == torch.float32 and torch.allclose(found[1], wanted[1], atol=1e-5)


def test_gradients_flow():
    (q, k, v), g, beta = qkv(steps=5), gate(steps=5), torch.rand(B, 5, H)
    leaves = [x[:1].clone().requires_grad_() for x in (q, k, v, g, beta)]
    assert torch.autograd.gradcheck(
        lambda *x: fla.chunk_gated_delta_rule(*x, output_final_state=True, use_qk_l2norm_in_kernel=True), leaves
    )


def test_the_outputs_dtype_is_the_values():
    q, k, v = (x.bfloat16() for x in qkv())
    o, last = fla.chunk_delta_rule(q, k, v, torch.rand(B, T, H, dtype=torch.float32), output_final_state=True)
    assert o.dtype == torch.bfloat16 and last.dtype == torch.float32


def test_positions_of_arguments():
    """The first arguments stand where their functions have them, so that calls by position work too."""
    orders = {
        "chunk_simple_gla": "q k v g g_gamma scale initial_state output_final_state",
        "chunk_gla": "q k v g scale initial_state output_final_state",
        "fused_recurrent_gla": "q k v gk gv scale initial_state output_final_state",
        "chunk_retention": "q k v scale initial_state output_final_state",
        "chunk_lightning_attn": "q k v layer_idx num_layers scale initial_state output_final_state",
        "chunk_linear_attn": "q k v scale initial_state output_final_state normalize",
        "chunk_delta_rule": "q k v beta scale initial_state output_final_state use_qk_l2norm_in_kernel",
        "chunk_gated_delta_rule": "q k v g beta scale initial_state output_final_state",
        "fused_recurrent_gated_delta_rule": "q k v g gk gv beta scale initial_state output_final_state",
        "chunk_kda": "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel",
        "fused_recurrent_kda": "q k v g beta A_log dt_bias scale initial_state output_final_state",
        "chunk_mesa_net": "q k v g beta lamb h_kk_init h_kv_init output_final_state max_CG_iteration",
        "parallel_attn": "q k v g scale",
        "parallel_simple_gla": "q k v g scale output_attentions",
    }
    for name, order in orders.items():
        assert list(inspect.signature(of(name)).parameters)[: len(order.split())] == order.split(), name


MISTAKES = [
    (lambda q, k, v: fla.chunk_simple_gla(q, k, v, gate(), HEADS), "give g or g_gamma, not both"),
    (lambda q, k, v: fla.fused_recurrent_gla(q, k, v, gate(K), gate(V)), "gk and gv at once have no op"),
    (lambda q, k, v: fla.fused_recurrent_gated_delta_rule(q, k, v, gv=gate(V)), "decays of value channels"),
    (lambda q, k, v: fla.chunk_retention(q, k, v, head_first=True), r"tensors are \[B, T, H, ...\]"),
    (lambda q, k, v: fla.chunk_retention(q, k, v, cp_context=1), "retention: cp_context isn't supported"),
    (lambda q, k, v: fla.chunk_retention(q, k, v, offsets=torch.tensor([0, 3])), "retention: offsets isn't supported"),
    (lambda q, k, v: fla.parallel_retention(q, k, v, output_attentions=True), "no op forms the T x T matrix"),
    (
        lambda q, k, v: fla.chunk_kda(q, k, v, gate(K), gate(), use_gate_in_kernel=True),
        "use_gate_in_kernel needs A_log",
    ),
    (lambda q, k, v: fla.chunk_kda(q, k, v, gate(K), gate(), allow_neg_eigval=True), "needs use_beta_sigmoid"),
    (lambda q, k, v: fla.parallel_attn(q, k, v, gate()), "attn: g isn't supported"),
    (lambda q, k, v: fla.parallel_attn(q, k, v, window_size=4), "attn: window_size isn't supported"),
    (lambda q, k, v: fla.chunk_mesa_net(q, k, v, *[q] * 3, max_CG_iteration=9), "got max_CG_iteration = 9; compile"),
    (lambda q, k, v: fla.chunk_delta_rule(q, k, v, gate(V)), r"delta_rule: beta must have 3 axes"),
    (lambda q, k, v: fla.chunk_gla(q, k, v, gate()), r"log_alpha must have 4 axes .*; log_alpha is g here"),
    (lambda q, k, v: fla.fused_recurrent_gla(q, k, v, gate()), r"log_alpha must have 4 axes .*; log_alpha is gk here"),
    (
        lambda q, k, v: fla.fused_recurrent_gated_delta_rule(q, k, v, gate(K), beta=gate()),
        r"log_alpha must have 3 axes .*; log_alpha is g here",
    ),
    (
        lambda q, k, v: fla.fused_recurrent_gated_delta_rule(q, k, v, gk=gate(), beta=gate()),
        r"log_alpha must have 4 axes .*; log_alpha is gk here",
    ),
    (
        lambda q, k, v: fla.fused_recurrent_gated_delta_rule(q, k, v, gate()[:, :, :1], gate(K), beta=gate()),
        r"gk must have the axes of g, then the channels of keys, got gk \[",
    ),
    (
        lambda q, k, v: fla.fused_recurrent_gated_delta_rule(q, k, v, gate(), gate(K + 1), beta=gate()),
        r"log_alpha is gk \+ g here",
    ),
    (lambda q, k, v: fla.chunk_kda(q, k, v, gate(), gate()), r"log_alpha must have 4 axes .*; log_alpha is g here"),
    (lambda q, k, v: fla.chunk_gla(q, k, v, 0.5), "chunk_gla: g must be a tensor, got float"),
    (
        lambda q, k, v: fla.fused_recurrent_gla(q, k, v, [1.0]),
        "fused_recurrent_gla: gk must be a tensor or None, got list",
    ),
    (lambda q, k, v: fla.chunk_retention(q, None, v), "chunk_retention: k must be a tensor of .*, got NoneType"),
    (lambda q, k, v: fla.chunk_simple_gla(q, k, v, g_gamma=HEADS[:1].repeat(5)), "log_gamma is g_gamma here"),
    (
        lambda q, k, v: fla.chunk_gla(q, k, v, gate(K), initial_state=torch.zeros(1), state_v_first=True),
        "state_v_first the last two axes",
    ),
    (
        lambda q, k, v: fla.chunk_kda(q, k, v, gate(K), gate(), use_gate_in_kernel=True, A_log=torch.zeros(9)),
        r"kda: A_log must have \d+ numbers for g .*, got \[9\]",
    ),
    (
        lambda q, k, v: fla.chunk_gdn(
            q, k, v, gate(), gate(), use_gate_in_kernel=True, A_log=HEADS, dt_bias=torch.zeros(9)
        ),
        r"gated_delta_rule: dt_bias must have \d+ numbers for g .*, got \[9\]",
    ),
    (lambda q, k, v: fla.chunk_gla(q, k, v, gate(K), revers=True), "revers isn't supported: did you mean reverse"),
]


@pytest.mark.parametrize("wrong, said", MISTAKES, ids=[s[:30] for _, s in MISTAKES])
def test_mistakes_are_named(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        wrong(*qkv())


ODD = {
    "text": "x",
    "a number": torch.tensor(1.0),
    "one axis": torch.ones(3),
    "whole numbers": torch.ones(B, T, H, K, dtype=torch.int64),
    "a list": [1.0],
    "nothing": None,
}


@pytest.mark.parametrize("name", fla.__all__)
def test_an_argument_of_another_kind_is_told_by_its_name(name):
    """Each in its turn: no function ends in an error of torch or of Python, or goes on with what is no number."""
    q, k, v = qkv()
    parameters = inspect.signature(of(name)).parameters
    given = {"q": q, "k": k, "v": v, "beta": gate().exp(), "lamb": torch.ones(H, K), "layer_idx": 1, "num_layers": 4}
    given["g"] = gate(K) if name.endswith(("gla", "kda")) and "simple" not in name else gate()
    needed = [n for n, x in parameters.items() if x.default is x.empty and x.kind is not x.VAR_KEYWORD]
    given = {n: given[n] for n in needed}
    of(name)(**given)
    for n, x in parameters.items():
        for what, odd in ODD.items():
            if x.kind is x.VAR_KEYWORD or x.annotation == "Any" or (odd is None and "None" in x.annotation):
                continue
            number = x.annotation.startswith(("float", "int")) and what == "a number"
            if (
                number
                or (x.annotation == "bool" and odd is None)
                or (n in needed[3:] and isinstance(odd, torch.Tensor))
            ):
                continue
            if x.annotation.startswith("Tensor") and isinstance(odd, torch.Tensor) and n not in "qkv":
                continue
            with pytest.raises(ArgumentError, match=f"{n} must be .*, got "):
                of(name)(**given | {n: odd})


IMPORTS = {
    "chunkform.runtime.compat.fla.ops.gla": "the functions are in chunkform.runtime.compat.fla itself",
    "chunkform.runtime.compat.fla.layers": "layers are in chunkform.runtime.compat.fla_layers",
    "chunkform.runtime.compat.fla.GatedDeltaNet": "layers are in chunkform.runtime.compat.fla_layers",
    "chunkform.runtime.compat.fla_layers.RWKV7Attention": "it is in chunkform.runtime.compat.fla_rwkv7",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_their_modules_are_told_where_they_are(name):
    importlib.import_module("chunkform.runtime.compat.fla_layers")
    with pytest.raises(ModuleNotFoundError, match=IMPORTS[name]):
        importlib.import_module(name)


def test_every_public_function_is_tested():
    text = inspect.getsource(inspect.getmodule(test_every_public_function_is_tested))
    assert [n for n in fla.__all__ if n not in text] == []


@pytest.mark.parametrize("name", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "chunk_kda"])
def test_who_passes_only_what_a_signature_has_passes_all_of_it(name):
    """As transformers does with the functions of fla that it finds."""
    function = getattr(fla, name)
    decays = (12, 2, 8) if name == "chunk_kda" else (12, 2)
    q, k, v = torch.randn(3, 1, 12, 2, 8)
    wanted = {
        "beta": torch.randn(1, 12, 2), "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "A_log": torch.rand(2),
        "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True, "cu_seqlens": torch.tensor([0, 5, 12]),
        "output_final_state": True, "state_v_first": True,
    }  # fmt: skip
    g = torch.randn(1, *decays)
    taken = {n: x for n, x in wanted.items() if n in inspect.signature(function).parameters}
    assert taken.keys() == wanted.keys()
    with pytest.raises(ArgumentError, match="use_gate_in_kernel must be True or False, got str"):
        function(q, k, v, g, **wanted | {"use_gate_in_kernel": "yes"})
    o, last = function(q, k, v, g, **taken)
    assert o.shape == (1, 12, 2, 8) and last.shape == (2, 2, 8, 8)
