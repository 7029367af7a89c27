"""A Kalman filter's variance and mean, whose noises are exponentials or softplus of inputs far out, beside a loop in float64.

TRITON_INTERPRET=1 python kalman_gains.py triton          # prints what is off, of kernels, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import chunkform
from chunkform.spec.language import Recurrence, apply, exp, hadamard, softplus

NOISES = {"exp": (exp, torch.exp), "softplus": (softplus, torch.nn.functional.softplus)}
FAR = [(30, 30), (30, -30), (-30, 30), (-30, -30), (5, -15), (0, 0)]
ALIKE = [(40, 40), (-40, -40), (60, 60), (-60, -60)]  # both noises so far out


def filtered(noise: str) -> Recurrence:
    r = Recurrence(f"filtered_{noise}")
    d = r.dims("d")
    q, w, y = r.inputs("q w y", d)
    P, x = r.state("P", d), r.state("x", d)
    before, around = P.prev + apply(NOISES[noise][0], q), apply(NOISES[noise][0], w)
    gain = apply(lambda a, b: a / (a + b), before, around)
    r.update(P, before - hadamard(gain, before))
    r.update(x, x.prev + hadamard(gain, y - x.prev))
    r.output("o", x.next)
    return r


FILTERED: dict[str, Callable[[], Recurrence]] = {noise: partial(filtered, noise) for noise in NOISES}


def loop(noise: str, q: Tensor, w: Tensor, y: Tensor) -> Tensor:
    P = x = torch.zeros_like(q[:, 0])
    found = []
    for t in range(q.shape[1]):
        before, around = P + NOISES[noise][1](q[:, t]), NOISES[noise][1](w[:, t])
        gain, P = before / (before + around), before * (around / (before + around))
        x = x + gain * (y[:, t] - x)
        found.append(x)
    return torch.stack(found, 1)


def off(noise: str, backend: str, cases: list[tuple[int, int]] = FAR) -> list[str]:
    """What isn't as the loop's, of the output and of gradients. A gradient may be off by what float32 has no digits for beside
    the others."""
    op = chunkform.compile(filtered(noise))
    wrong = []
    for far in cases:
        g = torch.Generator().manual_seed(0)
        q, w, y = (torch.randn(1, 24, 2, 3, generator=g) + shift for shift in (*far, 0))
        mine = [x.clone().requires_grad_() for x in (q, w, y)]
        exact = [x.double().requires_grad_() for x in (q, w, y)]
        got, wanted = op(*mine, backend=backend)[0], loop(noise, *exact)
        found = (got, *torch.autograd.grad(got.sum(), mine))
        right = (wanted, *torch.autograd.grad(wanted.sum(), exact))
        largest = max(float(x.norm()) for x in right[1:])
        for name, a, b in zip(("o", "dq", "dw", "dy"), found, right, strict=True):
            error = float((a - b).detach().norm())
            if not error <= 2e-6 * float(b.detach().norm()) + 1e-12 * largest:
                wrong.append(f"{noise} around {far}: {name} is off by {error:.1e} of {float(b.detach().norm()):.1e}")
    return wrong


if __name__ == "__main__":
    print(json.dumps([x for noise in NOISES for x in off(noise, sys.argv[1])]))
