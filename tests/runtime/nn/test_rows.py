"""What layers do around an op: the torch forms are the row maps, which keep their dtypes under autocast."""

import pytest
import torch

from chunkform.errors import ArgumentError
from chunkform.generated.rows import unit
from chunkform.runtime.nn import Mixer, rows


def both(monkeypatch, call, *given):
    """By torch, and by the generated row maps."""
    found = call(*given)
    monkeypatch.setattr(rows, "in_kernels", lambda *_: True)
    return found, call(*given)


CALLS = {
    "unit": (lambda x, z, w: rows.unit(x, 0.5)),
    "silu": (lambda x, z, w: rows.gated_rms_norm(x, z, w, 1e-5)),
    "sigmoid": (lambda x, z, w: rows.gated_rms_norm(x, z, w, 1e-5, "sigmoid")),
    "gate first": (lambda x, z, w: rows.gate_first_rms_norm(x, z, w, 1e-5)),
    "gate first, in groups": (lambda x, z, w: rows.gate_first_rms_norm(x, z, w, 1e-5, 4)),
    "bounded decay": (lambda x, z, w: rows.bounded_decay(x, w[:3], w.expand(3, 8), -5.0)),
    "decay": (lambda x, z, w: rows.softplus_decay(x, w[:3], w.expand(3, 8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_row_maps_are_the_torch_forms(monkeypatch, name):
    x, z, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 5, 3, 8), (2, 5, 3, 8), (8,)))
    a, b = both(monkeypatch, CALLS[name], x, z, w)
    assert torch.allclose(a, b, atol=1e-12)
    grad = torch.randn_like(a)
    one, other = (torch.autograd.grad(y, (x, z, w), grad, allow_unused=True) for y in (a, b))
    for p, q in zip(one, other, strict=True):
        assert (p is None) == (q is None) and (p is None or torch.allclose(p, q, atol=1e-12))


def test_a_row_map_is_no_mixer():
    with pytest.raises(ArgumentError, match="Mixer: unit is a row map, which mixes nothing over time"):
        Mixer(unit, width=8, heads=2)


def test_log_decays_keep_their_digits_under_autocast(monkeypatch):
    g, A, bias = torch.randn(1, 4, 2, 8).bfloat16(), torch.randn(2), torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        a, b = both(monkeypatch, rows.softplus_decay, g, A, bias)
    assert a.dtype == b.dtype == torch.float32
    assert torch.allclose(a, b, atol=1e-6)
