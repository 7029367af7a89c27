"""Even powers for each channel of a matrix: values and gradients at 0, and on both sides of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chunkform.codegen.commands.compile import compile_op
from chunkform.spec.language import Recurrence, apply, diag, relu, sigmoid

T, D = 20, 8

Gate = tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]
EVEN_POWERS: dict[str, Gate] = {
    "g^2 / 4": (lambda g: g**2 / 4, lambda g: g**2 / 4),
    "g^2 / (1 + g^2)": (lambda g: g**2 / (1 + g**2), lambda g: g**2 / (1 + g**2)),
    "(g - 1)^4 relu(g) / 20": (lambda g: (g - 1) ** 4 * relu(g) / 20, lambda g: (g - 1) ** 4 * g.relu() / 20),
    "g^2 sigmoid(g) / 9": (lambda g: g**2 * sigmoid(g) / 9, lambda g: g**2 * g.sigmoid() / 9),
}


@pytest.mark.parametrize("name", EVEN_POWERS)
def test_a_gate_is_what_it_is_step_by_step_at_0_and_on_both_sides(name: str) -> None:
    of_sympy, of_torch = EVEN_POWERS[name]
    r = Recurrence("gated")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, diag(apply(of_sympy, g)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    op = compile_op(r)
    torch.manual_seed(0)
    q, k, g, v = torch.randn(4, 1, T, 2, D, dtype=torch.float64)
    g[0, ::3], g[0, 1, 0, :4] = 0, 1
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        given = [x.to(dtype).requires_grad_() for x in (q, k, g, v)]
        o, _ = op(**dict(zip("qkgv", given, strict=True)))
        found = [o.detach(), *torch.autograd.grad(o.sum(), given)]
        known = [x.detach().double().requires_grad_() for x in given]
        wanted = steps(of_torch(known[2]), *known)
        exact = [wanted.detach(), *torch.autograd.grad(wanted.sum(), known)]
        for n, x, y in zip("oqkgv", found, exact, strict=True):
            assert float((x.double() - y).norm() / y.norm()) < bound, (n, dtype)


def steps(kept: torch.Tensor, q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    S, rows = torch.zeros(1, 2, D, D, dtype=torch.float64), []
    for t in range(T):
        S = kept[:, t, :, :, None] * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        rows.append((S * q[:, t, :, :, None]).sum(-2))
    return torch.stack(rows, 1)
