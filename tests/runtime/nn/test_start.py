"""Layers before they compute: on the meta device, from a spec file; what inputs are made by; how long importing takes."""

import pytest
import torch
from shared.forked import code
from torch.nn import functional as F

from chunkform.errors import ArgumentError, LoadError
from chunkform.runtime.nn import Mixer, ShortConvolution

SPEC = """
from chunkform.spec.language import Recurrence

r = Recurrence("from_a_file")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
g = r.head_decay("g")
S = r.state("S", d, e)
r.update(S, g * S.prev + k * v.T)
r.output("o", S.next.T * q)
"""
KINDS = {  # every kind of argument: decays of channels, of a head, parameters with dims and without, attentions
    "kimi_delta_attention": {},
    "retention": {},
    "mesa_net": {"maps": {"lamb": F.softplus}},
    "rotary_attention": {},
    "self_attention": {},
    "softmax_attention": {"convolution": 0, "gate": False},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_from_the_meta_device_is_a_new_one(name):
    options = KINDS[name]
    torch.manual_seed(0)
    new = Mixer(name, width=16, heads=2, **options)
    meta = Mixer(name, width=16, heads=2, device="meta", **options)
    assert all(p.is_meta for p in meta.parameters())
    layer = meta.to_empty(device="cpu")
    for p in layer.parameters():
        torch.nn.init.constant_(p, float("nan"))
    torch.manual_seed(0)
    layer.reset_parameters()
    own, other = dict(new.named_parameters()), dict(layer.named_parameters())
    assert list(own) == list(other) and all(torch.equal(own[n], other[n]) for n in own)
    x = torch.randn(1, 6, 16)
    assert torch.equal(new(x), layer(x))


@pytest.mark.parametrize("name", ["gated_delta_rule", "retention", "softmax_attention"])
def test_a_layer_is_built_and_called_under_a_device(name):
    with torch.device("meta"):
        layer = Mixer(name, width=16, heads=2)
        assert all(p.is_meta for p in layer.parameters())
        assert layer(torch.empty(1, 6, 16)).shape == (1, 6, 16)


def test_parameters_have_the_dtype_that_was_asked_for():
    layer = Mixer("kimi_delta_attention", width=16, heads=2, dtype=torch.bfloat16)
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    assert layer(torch.randn(1, 6, 16, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert ShortConvolution(3, dtype=torch.float64).weight.dtype == torch.float64


def test_every_submodule_with_parameters_can_be_reset():
    """Who wraps a model layer by layer calls it on each."""
    layer = Mixer("kimi_delta_attention", width=16, heads=2)
    for module in layer.modules():
        if list(module.parameters(recurse=False)) and not isinstance(module, torch.nn.ParameterDict):
            assert callable(module.reset_parameters)


def test_a_layer_of_a_spec_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SPEC)
    x = torch.randn(1, 6, 16)
    for op in ("mine.py", tmp_path / "mine.py", str(tmp_path / "mine.py")):
        layer = Mixer(op, width=16, heads=2)
        assert layer(x).shape == x.shape and "from_a_file" in repr(layer)
    with pytest.raises(LoadError, match=r"did you mean mine\.py"):
        Mixer("mines.py", width=16, heads=2)
    with pytest.raises(ArgumentError, match="did you mean retention"):
        Mixer("retentions", width=16, heads=2)


def test_inputs_say_what_they_are_made_by():
    layer = Mixer("kimi_delta_attention", width=16, heads=2, maps={"beta": lambda x: x})
    assert layer.inputs == {
        "q": "a projection, a causal convolution over 4 steps, a SiLU, divided by its length",
        "k": "a projection, a causal convolution over 4 steps, a SiLU, divided by its length",
        "v": "a projection, a causal convolution over 4 steps, a SiLU",
        "beta": "a projection, the map that was given",
        "alpha": "a projection of low rank, a learned offset, -softplus",
    }
    assert Mixer("retention", width=16, heads=2, convolution=0).inputs["gamma"] == (
        "a learned number for each head and entry, -softplus"
    )
    assert Mixer("rotary_attention", width=16, heads=2, convolution=0).inputs["q"] == "a projection"


def test_importing_layers_is_quick():
    """Beyond torch; the processor's time. What would take long is not loaded: SymPy, and torch's compiler."""
    done = code(
        "import sys, time, torch; start = time.process_time(); import chunkform.runtime.nn; "
        "print(time.process_time() - start, *({'sympy', 'torch._dynamo'} & set(sys.modules)))"
    )
    seconds, *loaded = done.stdout.split()
    assert not loaded and float(seconds) < 0.5
