"""Maxima and minima of a scaled state are scanned wherever the scale is known to be at least 0, whatever makes it so."""

from __future__ import annotations

import torch

import chunkform
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Max, Min, Recurrence, exp, hadamard, ones, relu, sigmoid, softmax, softplus

T, D = 11, 3


def scales(r: Recurrence, d, g) -> dict:
    p = r.parameter("p", d)
    return {
        "bounded_parameter": r.parameter("w", d, domain=(0, 1)),
        "bounded_input": 1 - r.inputs("z", d, domain=(0, 1)),
        "positive_input": r.inputs("y", d, sign="positive"),
        "of_a_parameter": softplus(p),
        "head_decay": r.head_decay("lam", d),
        "what_a_decay_leaves": 1 - r.decay("al", d),
        "what_an_exponential_leaves": 1 - exp(-hadamard(exp(p), softplus(g))),
        "what_a_sigmoid_leaves": 1 - sigmoid(g) / 2,
        "share": softmax(g),
        "at_least": Max(g, 0.5 * ones(d)),
    }


def test_scales_that_are_at_least_zero_by_what_they_are_made_of_or_by_their_domains():
    r = Recurrence("scaled_extremes")
    d = r.dims("d")
    x, g = r.inputs("x g", d)
    for n, (name, scale) in enumerate(scales(r, d, g).items()):
        h = r.state(name, d)
        moved = hadamard(scale, h.prev) + x
        r.update(h, (relu(moved), Max(moved, x / 2 - 1), Min(moved, x / 2 + 1))[n % 3])
        r.output(f"out_{n}", h.next)
    op = chunkform.compile(r)
    assert compile_spec(r).family == "scan"
    torch.manual_seed(0)
    x, g, al = torch.randn(3, 1, T, 1, D, dtype=torch.float64)
    z, y = torch.rand(2, 1, T, 1, D, dtype=torch.float64)
    p, lam = torch.randn(2, 1, D, dtype=torch.float64)
    w = torch.rand(1, D, dtype=torch.float64)
    *outs, _ = op(x=x, g=g, p=p, w=w, z=z, y=y, log_lam=-lam.abs(), log_al=-al.abs())
    values = (
        w, 1 - z, y, torch.nn.functional.softplus(p), (-lam.abs()).exp(), 1 - (-al.abs()).exp(),
        1 - (-p.exp() * torch.nn.functional.softplus(g)).exp(), 1 - g.sigmoid() / 2, g.softmax(-1), g.clamp_min(0.5),
    )  # fmt: skip
    for n, (scale, out) in enumerate(zip(values, outs, strict=True)):
        h = torch.zeros(1, 1, D, dtype=torch.float64)
        for t in range(T):
            moved = (scale[:, t] if scale.dim() == 4 else scale) * h + x[:, t]
            low, high = ((0 * h, None), (x[:, t] / 2 - 1, None), (None, x[:, t] / 2 + 1))[n % 3]
            h = moved.clamp(low, high)
            torch.testing.assert_close(out[:, t], h, rtol=1e-12, atol=1e-12)
