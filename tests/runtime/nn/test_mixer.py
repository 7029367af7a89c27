"""A layer around any op: by its signature alone, and the same step by step as at once."""

import dataclasses
import functools
import pickle

import pytest
import torch
from shared.spec_files import SPECS, read
from torch import nn
from torch.nn import functional as F

import chunkform
from chunkform.errors import ArgumentError
from chunkform.runtime.nn import Cache, Mixer
from chunkform.spec.language import Attention, Program, Recurrence, catalogue, sigmoid

NAMES = [r.name for kind in (Recurrence, Program) for r in catalogue(kind)]
# Attentions that answer at each position; those with fixed queries don't.
NAMES += [a.name for a in catalogue(Attention) if a.name not in ("relay_nodes", "ked")]
STRANGERS = ["rwkv6", "gated_slot_attention", "mlstm", "scalar_rnn", "stacked"]
WIDTH, HEADS, T = 12, 2, 11


@pytest.fixture(autouse=True)
def wide():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module", autouse=True)
def compiled_here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKFORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@functools.cache
def op_named(name):
    """An op of the catalogue, or of a recurrence that isn't in it."""
    return name if name in NAMES else chunkform.compile(read(SPECS / f"{name}.py")[0])


def close(a, b, by=1e-9):
    assert a.shape == b.shape
    assert (a - b).norm() <= by * b.norm(), float((a - b).norm() / b.norm())


# --- every op ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the op's own step", "the op on one step"])
@pytest.mark.parametrize(
    "name",
    [*NAMES, *(pytest.param(n, marks=[pytest.mark.long] * (n in ("stacked", "rwkv6"))) for n in STRANGERS)],
)
def test_prefill_and_steps_are_the_whole(name, how):
    mixer = Mixer(op_named(name), WIDTH, HEADS)
    x = torch.randn(3, T, WIDTH)
    whole = mixer(x)
    assert whole.shape == x.shape and whole.isfinite().all()
    part, cache = mixer(x[:, :6], output_cache=True)
    parts = [part]
    with torch.set_grad_enabled(how == "the op on one step"):
        for t in range(6, T):
            y, cache = mixer.step(x[:, t], cache)
            parts.append(y.unsqueeze(1))
    close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("name", [*NAMES, *STRANGERS])
def test_every_parameter_learns(name):
    mixer = Mixer(op_named(name), WIDTH, HEADS)
    mixer(torch.randn(2, T, WIDTH)).square().sum().backward()
    for n, p in mixer.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), n
        blind = (name, n) == ("kattention_f6", "arguments.values.c")  # the same for all keys of a query
        assert (p.grad.abs().max() > 0) != blind, n


@pytest.mark.parametrize("name", ["delta_rule", "kimi_delta_attention", "retention", "kattention"])
def test_a_step_sees_nothing_later(name):
    mixer = Mixer(name, WIDTH, HEADS)
    x = torch.randn(1, T, WIDTH, requires_grad=True)
    mixer(x)[0, 5].sum().backward()
    assert x.grad[0, 6:].abs().max() == 0 and x.grad[0, :6].abs().min() > 0


@pytest.mark.parametrize("name", ["gated_delta_rule", "sherman_morrison"])
def test_from_nothing_step_by_step(name):
    mixer = Mixer(name, WIDTH, HEADS)
    x = torch.randn(2, 4, WIDTH)
    for gradients in (True, False):
        cache, parts = None, []
        with torch.set_grad_enabled(gradients):
            for t in range(4):
                y, cache = mixer.step(x[:, t], cache)
                parts.append(y)
        close(torch.stack(parts, 1), mixer(x))


def test_the_gated_delta_rule_by_hand():
    """The whole layer once more, a loop over time in plain torch."""
    mixer = Mixer("gated_delta_rule", WIDTH, HEADS, dims={"d": 5, "e": 7}, convolution=3)
    m, x = mixer.arguments, torch.randn(1, T, WIDTH)
    y = x[0] @ m.project.weight.T
    shifted = [torch.cat([torch.zeros(j, y.shape[1]), y[: T - j]]) for j in range(3)]
    y = F.silu(sum(w * s for w, s in zip(m.convolve.weight, shifted, strict=True)))
    q, k, v = (p.unflatten(-1, (HEADS, -1)) for p in y.split([10, 10, 14], -1))
    q, k = (a / (a.square().sum(-1, keepdim=True) + 1e-6).sqrt() for a in (q, k))
    gates = x[0] @ m.gate.weight.T + m.gate.bias
    beta = torch.sigmoid(gates[:, :HEADS])
    alpha = torch.exp(-F.softplus(gates[:, HEADS:] + m.values["alpha"]))
    S, out = torch.zeros(HEADS, 5, 7), []
    for t in range(T):
        S = alpha[t, :, None, None] * S
        error = v[t] - torch.einsum("hde,hd->he", S, k[t])
        S = S + beta[t, :, None, None] * k[t, :, :, None] * error[:, None]
        out.append(torch.einsum("hde,hd->he", S, q[t]))
    o = torch.stack(out)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm
    o = o.flatten(1) * F.silu(x[0] @ mixer.gate.weight.T)
    close(mixer(x)[0], o @ mixer.out.weight.T)


# --- options ----------------------------------------------------------------------------------------------------------


def test_decays_start_with_the_memory_asked_for():
    mixer = Mixer("gated_delta_rule", 32, 4, memory=(10.0, 1000.0))
    nn.init.zeros_(mixer.arguments.gate.weight)
    nn.init.zeros_(mixer.arguments.gate.bias)
    given, _ = mixer.arguments(torch.randn(1, 1, 32))
    steps = -1 / given["log_alpha"][0, 0]
    close(steps, torch.tensor([10.0, 10 * 100 ** (1 / 3), 10 * 100 ** (2 / 3), 1000.0]))
    channels = Mixer("kimi_delta_attention", 32, 4, memory=(2.0, 200.0)).arguments.values["alpha"]
    close(1 / F.softplus(channels[1, [0, -1]]), torch.tensor([2.0, 200.0]))


@pytest.mark.parametrize("name", ["gated_delta_rule", "rotary_attention"])
def test_a_layer_is_saved_whole(name):
    layer, x = Mixer(name, width=16, heads=4), torch.randn(1, 9, 16)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


def test_without_convolution_and_gate():
    mixer = Mixer("linear_attention", WIDTH, HEADS, convolution=0, gate=False)
    assert mixer.arguments.convolve is None and mixer.gate is None
    x = torch.randn(2, T, WIDTH)
    part, cache = mixer(x[:, :4], output_cache=True)
    assert cache.tail is None
    close(torch.cat([part, mixer(x[:, 4:], cache)], 1), mixer(x))


def test_a_user_recurrence_with_its_own_maps_and_constants():
    r = Recurrence("mine")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    c = r.constant("c")
    S = r.state("S", d, e)
    r.update(S, sigmoid(b) * S.prev + c * k * v.T)
    r.output("o", S.next.T * q)
    op = chunkform.compile(r)
    x = torch.randn(1, T, WIDTH)
    seen = {}

    def raw(z):
        seen["b"] = z
        return z

    mixer = Mixer(op, WIDTH, HEADS, maps={"b": raw}, constants={"c": 2.0})
    mixer(x)
    close(seen["b"], x @ mixer.arguments.gate.weight.T + mixer.arguments.gate.bias)
    with pytest.raises(ArgumentError, match=r"mine needs a value for c: constants=\{'c': ...\}"):
        Mixer(op, WIDTH, HEADS)


@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_logistic", "sherman_morrison"])
def test_packed_sequences_do_not_see_each_other(name):
    mixer = Mixer(name, WIDTH, HEADS)
    lengths = [5, 1, 0, 7]
    starts = torch.tensor([0, 5, 6, 6, 13])
    x, more = torch.randn(1, 13, WIDTH), torch.randn(1, 13, WIDTH)
    y, cache = mixer(x, cu_seqlens=starts, output_cache=True)
    z = mixer(more, cache, cu_seqlens=starts)  # each sequence goes on
    for n, length in enumerate(lengths):
        part = slice(int(starts[n]), int(starts[n]) + length)
        if length:
            close(torch.cat([y[:, part], z[:, part]], 1), mixer(torch.cat([x[:, part], more[:, part]], 1)))


def test_fewer_heads_of_keys():
    mixer = Mixer("gated_delta_rule", WIDTH, 6, heads_of={"q": 2, "k": 3})
    given, _ = mixer.arguments(torch.randn(1, 2, WIDTH))
    assert (given["q"].shape[2], given["k"].shape[2], given["v"].shape[2]) == (2, 3, 6)
    x = torch.randn(2, T, WIDTH)
    whole = mixer(x)
    _, cache = mixer(x[:, :10], output_cache=True)
    with torch.no_grad():
        close(mixer.step(x[:, 10], cache)[0], whole[:, 10])
    whole.sum().backward()
    assert all(p.grad.abs().max() > 0 for p in mixer.parameters())


def test_softmax_attention_by_hand():
    """No activation and no unit keys; keys and values of all steps are what is remembered."""
    mixer = Mixer("softmax_attention", WIDTH, 4, heads_of={"k": 2, "v": 2}, convolution=0, gate=False)
    x = torch.randn(2, T, WIDTH)
    q, k, v = (x @ mixer.arguments.project.weight.T).split([12, 6, 6], -1)
    q, k, v = q.unflatten(-1, (4, 3)), *(y.unflatten(-1, (2, 3)).repeat_interleave(2, 2) for y in (k, v))
    energy = torch.einsum("bihd,bjhd->bhij", q, k) / 3**0.5
    weights = energy.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
    o = torch.einsum("bhij,bjhe->bihe", weights, v)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    close(mixer(x), o.flatten(2) @ mixer.out.weight.T)
    _, cache = mixer(x, output_cache=True)
    assert [s.shape for s in cache.state] == [(2, T, 2, 3)] * 2


def test_a_parameter_with_a_map():
    mixer = Mixer(op_named("rwkv6"), WIDTH, HEADS, maps={"u": F.softplus})
    given, _ = mixer.arguments(torch.randn(1, 2, WIDTH))
    close(given["u"], F.softplus(mixer.arguments.values["u"]))


def test_rows_of_a_cache():
    mixer = Mixer("gradient_descent_squared_momentum", WIDTH, HEADS)
    x = torch.randn(3, 6, WIDTH)
    _, cache = mixer(x[:, :4], output_cache=True)
    index = torch.tensor([2, 0, 0])
    close(mixer(x[index, 4:], cache.rows(index)), mixer(x)[index, 4:])


def test_in_a_model_under_autocast_and_checkpointing():
    torch.set_default_dtype(torch.float32)
    model = nn.Sequential(nn.Linear(4, 16), Mixer("gated_delta_rule", 16, 2), nn.Linear(16, 1))
    x = torch.randn(2, 20, 4)
    exact = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    assert (y - exact).norm() < 0.05 * exact.norm()
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    half = model.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16 and (half - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("name", ["kimi_delta_attention", "gradient_descent_logistic"])
def test_compiled_in_one_graph(name):
    mixer, x = Mixer(name, WIDTH, HEADS), torch.randn(2, T, WIDTH)
    y = torch.compile(mixer, fullgraph=True, backend="aot_eager")(x)
    close(y, mixer(x))
    y.sum().backward()
    found = [p.grad.clone() for p in mixer.parameters()]
    mixer.zero_grad()
    mixer(x).sum().backward()
    for a, p in zip(found, mixer.parameters(), strict=True):
        close(a, p.grad)


def ATTENTION():
    return Mixer("softmax_attention", 8, 2)


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = [
    (lambda: Mixer("nothing", 8, 2), "no op 'nothing' in the catalogue; there are comba"),
    (lambda: Mixer(torch.relu, 8, 2), "op must be a name of the catalogue, an op of .* got <built-in"),
    (lambda: Mixer("relay_nodes", 8, 2), "relay_nodes gives no output at each position"),
    (lambda: ATTENTION()(torch.zeros(1, 4, 8), cu_seqlens=torch.tensor([0, 4])), "takes no packed sequences"),
    (lambda: Mixer("delta_rule", 8, 0), "heads must be a whole number of at least 1, got 0"),
    (lambda: Mixer("delta_rule", 8, 2, dims={"f": 4}), "dims has 'f', but delta_rule has d, e"),
    (lambda: Mixer("delta_rule", 8, 2, dims={"d": 0}), r"dims\['d'\] must be a whole number of at least 1, got 0"),
    (lambda: Mixer("delta_rule", 2, 4), r"dims\['d'\] must be .*, got 0 \(width // heads by default\)"),
    (
        lambda: Mixer("delta_rule", 8, 2, maps={"gamma": torch.exp}),
        "maps has 'gamma', but delta_rule has q, k, v, beta",
    ),
    (lambda: Mixer("delta_rule", 8, 2, constants={"c": 1.0}), "constants has 'c', but delta_rule has none"),
    (lambda: Mixer("delta_rule", 8, 4, heads_of={"q": 3}), r"heads_of\['q'\] = 3 must divide heads = 4"),
    (lambda: Mixer("retention", 8, 2, memory=(5.0, 2.0)), r"0 < low <= high, got \(5.0, 2.0\)"),
    (lambda: Mixer("delta_rule", 8, 2, convolution=-1), "taps must be a whole number of at least 1, got -1"),
    (lambda: Mixer("delta_rule", 8, 2)(torch.zeros(2, 8)), r"x must be \[B, T, width\] with width 8, got \[2, 8\]"),
    (lambda: Mixer("delta_rule", 8, 2)(torch.zeros(1, 2, 8).int()), "x must be of a floating dtype, got int32"),
    (lambda: Mixer("delta_rule", 8, 2).step(torch.zeros(2, 3, 8)), r"x must be \[B, width\] .* got \[2, 3, 8\]"),
]


@pytest.mark.parametrize("wrong, said", MISTAKES, ids=[s[:30] for _, s in MISTAKES])
def test_mistakes_are_named(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        wrong()


def test_a_cache_is_plain_data():
    assert [f.name for f in dataclasses.fields(Cache)] == ["state", "tail"]


def test_what_vectors_are_made_of_keeps_its_length():
    """A unit key holds a product with a matrix stable. An input of a state of vectors is none."""
    assert "length" not in Mixer("hgrn", width=16, heads=2).inputs["x"]
    assert Mixer("gated_delta_rule", width=16, heads=2).inputs["k"].endswith("divided by its length")
    r = Recurrence("square")
    d = r.dims("d")
    q, k, v = r.inputs("q k v", d)
    S = r.state("S", d, d)
    r.update(S, S.prev + k * v.T)
    r.output("o", S.next.T * q)
    assert Mixer(r, width=16, heads=2).inputs["v"].endswith("divided by its length")


def test_the_bounds_of_an_input_are_said():
    r = Recurrence("bounded")
    d = r.dims("d")
    x, z = r.inputs("x", d), r.inputs("z", d, domain=(0, None))
    b, c = r.inputs("b", domain=(0, 1)), r.inputs("c", domain=(-1, 2))
    h = r.state("h", d)
    r.update(h, b * h.prev + c * x + z)
    r.output("y", h.next)
    said = Mixer(r, width=16, heads=2).inputs
    assert said["z"].endswith("a SiLU, a softplus")
    assert (said["b"], said["c"]) == ("a projection, a sigmoid", "a projection, a sigmoid from -1 to 2")
