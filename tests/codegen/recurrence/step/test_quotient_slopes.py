"""Gradients of bounded gates keep their digits in float32 however large the gate's argument is."""

from __future__ import annotations

import torch

import chunkform
from chunkform.spec.language import Recurrence, absolute, relu, softplus, sqrt

GATES = {  # and what the slopes are, in float64
    "g / (1 + |g|)": (lambda g: g / (1 + absolute(g)), lambda g: (1 + g.abs()) ** -2),
    "g^2 / (1 + g^2)": (lambda g: g**2 / (1 + g**2), lambda g: 2 * g * (1 + g**2) ** -2),
    "g / sqrt(1 + g^2)": (lambda g: g / sqrt(1 + g**2), lambda g: (1 + g**2) ** -1.5),
    "(g^2 - 1) / (g^2 + 1)": (lambda g: (g**2 - 1) / (g**2 + 1), lambda g: 4 * g * (1 + g**2) ** -2),
    "relu": (lambda g: relu(g) / (1 + relu(g)), lambda g: (g > 0) * (1 + g.relu()) ** -2),
    "softplus": (
        lambda g: softplus(g) / (1 + softplus(g)),
        lambda g: g.sigmoid() * (1 + torch.nn.functional.softplus(g)) ** -2,
    ),
}


def test_slopes_of_quotients_keep_their_digits():
    r = Recurrence("quotients")
    x, g = r.inputs("x g")
    h = r.state("h")
    r.update(h, 0.5 * h.prev + x)
    for n, (gate, _) in enumerate(GATES.values()):
        r.output(f"o{n}", gate(g))
    r.output("y", h.next)
    op = chunkform.compile(r)
    at = torch.tensor([-1e5, -3e3, -88.0, -2.0, -1e-3, 1e-4, 0.7, 30.0, 1e3, 2e4, 3e6])
    for n, (name, (_, slope)) in enumerate(GATES.items()):
        given = at[None, :, None].clone().requires_grad_()
        op(x=torch.zeros_like(given), g=given)[n].sum().backward()
        exact = slope(at.double())
        assert given.grad is not None
        error = (given.grad.flatten() - exact).abs()
        assert bool((error <= 2e-6 * exact.abs() + 1e-37).all()), (name, error / exact.abs())
