"""Gates that are quotients and logarithms of powers, from 1e-30 to 1e30: values and gradients beside those in 150 digits.

TRITON_INTERPRET=1 python rational_gates.py '{"places": ["writes"], "names": [...]}'     # prints what is off, of kernels, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import mpmath
import torch

import chunkform
from chunkform.spec.language import Max, Recurrence, absolute, apply, diag, exp, log, sigmoid, softplus, sqrt, tanh

DIGITS = 150
NEAR, LEAST = 3e-5, 5e-38  # relative, and beside that: below it are the numbers that float32 rounds
SIZES = (1e-30, 1e-12, 1e-6, 1e-3, 0.5, 3, 20, 1e3, 1e5, 1e7, 1e10, 1e13, 1e20, 1e30)
FAR = [(s * x,) for x in SIZES for s in (1, -1)]
PAIRS = list(
    product((-60, -30, -15, -5, 0.5, 5, 15, 30, 60), repeat=2)
)  # whose exponentials have floats, and their squares none
USUAL = (0.3, 0.4)

m = mpmath


def _softplus(x: Any) -> Any:
    return m.log1p(m.exp(x))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


Gate = tuple[Callable[..., Any], Callable[..., Any]]
GATES: dict[str, Gate] = {
    "g^3 / (1 + |g|^3)": (lambda g: g**3 / (1 + absolute(g) ** 3), lambda g: g**3 / (1 + abs(g) ** 3)),
    "|g|^3 / (1 + |g|^3)": (
        lambda g: absolute(g) ** 3 / (1 + absolute(g) ** 3),
        lambda g: abs(g) ** 3 / (1 + abs(g) ** 3),
    ),
    "g^2 / (1 + g^2)": (lambda g: g**2 / (1 + g**2), lambda g: g**2 / (1 + g**2)),
    "g^4 / (1 + g^4)": (lambda g: g**4 / (1 + g**4), lambda g: g**4 / (1 + g**4)),
    "(g + g^3) / (2 + g^2)^2": (lambda g: (g + g**3) / (2 + g**2) ** 2, lambda g: (g + g**3) / (2 + g**2) ** 2),
    "g^2 / (1 + |g|)^2": (lambda g: g**2 / (1 + absolute(g)) ** 2, lambda g: g**2 / (1 + abs(g)) ** 2),
    "1 / (1 + g^4)": (lambda g: 1 / (1 + g**4), lambda g: 1 / (1 + g**4)),
    "g / sqrt(1 + g^2)": (lambda g: g / sqrt(1 + g**2), lambda g: g / m.sqrt(1 + g**2)),
    "sqrt(1 + g^2)": (lambda g: sqrt(1 + g**2), lambda g: m.sqrt(1 + g**2)),
    "(1 + g / (1 + |g|)) / 2": (lambda g: (1 + g / (1 + absolute(g))) / 2, lambda g: (1 + g / (1 + abs(g))) / 2),
    "(1 + g / sqrt(1 + g^2)) / 2": (lambda g: (1 + g / sqrt(1 + g**2)) / 2, lambda g: (1 + g / m.sqrt(1 + g**2)) / 2),
    "1 - |g| / (1 + |g|)": (lambda g: 1 - absolute(g) / (1 + absolute(g)), lambda g: 1 / (1 + abs(g))),
    "g sqrt(1 + g^2) / (2 + g^4)": (
        lambda g: g * sqrt(1 + g**2) / (2 + g**4),
        lambda g: g * m.sqrt(1 + g**2) / (2 + g**4),
    ),
    "(1 + g)^2 / ((1 + g^2)^2 (2 + g^4))": (
        lambda g: (1 + g) ** 2 / ((1 + g**2) ** 2 * (2 + g**4)),
        lambda g: (1 + g) ** 2 / ((1 + g**2) ** 2 * (2 + g**4)),
    ),
    "log(1 + g^2)": (lambda g: log(1 + g**2), lambda g: m.log(1 + g**2)),
    "log(1 + |g|)": (lambda g: log(1 + absolute(g)), lambda g: m.log(1 + abs(g))),
    "l / (1 + l), l = log(1 + g^4)": (
        lambda g: log(1 + g**4) / (1 + log(1 + g**4)),
        lambda g: m.log(1 + g**4) / (1 + m.log(1 + g**4)),
    ),
    "softplus^3 / (1 + softplus^3)": (
        lambda g: softplus(g) ** 3 / (1 + softplus(g) ** 3),
        lambda g: _softplus(g) ** 3 / (1 + _softplus(g) ** 3),
    ),
}
MIXED: dict[str, Gate] = {  # powers beside exponentials, one of which overflows where the other one vanishes
    "g^4 / (1 + exp(|g|))": (
        lambda g: g**4 / (1 + exp(absolute(g))),
        lambda g: g**4 / (1 + m.exp(abs(g))),
    ),
    "g^4 sigmoid(-|g|)": (lambda g: g**4 * sigmoid(-absolute(g)), lambda g: g**4 * _sigmoid(-abs(g))),
    "1 / (1 + exp(g) + g^4)": (lambda g: 1 / (1 + exp(g) + g**4), lambda g: 1 / (1 + m.exp(g) + g**4)),
    "g sigmoid(g) / (1 + exp(-g) + g^2)": (
        lambda g: g * sigmoid(g) / (exp(-g) + g**2 + 1),
        lambda g: g * _sigmoid(g) / (m.exp(-g) + g**2 + 1),
    ),
    "((2 + |g|) exp(-|g|))^2": (
        lambda g: ((2 + absolute(g)) * exp(-absolute(g))) ** 2,
        lambda g: ((2 + abs(g)) * m.exp(-abs(g))) ** 2,
    ),
    "2 g^2 / (1 + |g|)": (lambda g: 2 * g**2 / (1 + absolute(g)), lambda g: 2 * g**2 / (1 + abs(g))),
    "g softplus(-g) / (2 + |g|)": (
        lambda g: g * softplus(-g) / (2 + absolute(g)),
        lambda g: g * _softplus(-g) / (2 + abs(g)),
    ),
    "softplus / (softplus + exp(2 g))": (
        lambda g: softplus(g) / (softplus(g) + exp(2 * g)),
        lambda g: _softplus(g) / (_softplus(g) + m.exp(2 * g)),
    ),
    "exp / (2 + sigmoid exp + sigmoid(3 g))": (
        lambda g: exp(g) / (2 + sigmoid(g) * exp(g) + sigmoid(3 * g)),
        lambda g: m.exp(g) / (2 + _sigmoid(g) * m.exp(g) + _sigmoid(3 * g)),
    ),
    "exp(3 g) / (1 + g^2 + exp(3 g))": (
        lambda g: exp(3 * g) / (1 + g**2 + exp(3 * g)),
        lambda g: m.exp(3 * g) / (1 + g**2 + m.exp(3 * g)),
    ),
    "1 / max(1, g^4 sigmoid)": (
        lambda g: 1 / Max(1, g**4 * sigmoid(g)),
        lambda g: 1 / max(1, g**4 * _sigmoid(g)),
    ),
    "1 / (2 + max(1, g)^2 sigmoid(-g))": (
        lambda g: 1 / (2 + Max(1, g) ** 2 * sigmoid(-g)),
        lambda g: 1 / (2 + max(1, g) ** 2 * _sigmoid(-g)),
    ),
    "max(1, g)^2 sigmoid(-|g|)": (
        lambda g: Max(1, g) ** 2 * sigmoid(-absolute(g)),
        lambda g: max(1, g) ** 2 * _sigmoid(-abs(g)),
    ),
    "exp(-exp(g) softplus(g))": (
        lambda g: exp(-exp(g) * softplus(g)),
        lambda g: m.exp(-min(m.exp(min(g, 100)) * _softplus(g), 10**6)),
    ),
    "g^4 sqrt(sigmoid(g) sigmoid(-g))": (
        lambda g: g**4 * sqrt(sigmoid(g) * sigmoid(-g)),
        lambda g: g**4 * m.sqrt(_sigmoid(g) * _sigmoid(-g)),
    ),
    "g^2 tanh(g)^2 exp(-|g|)": (
        lambda g: g**2 * tanh(g) ** 2 * exp(-absolute(g)),
        lambda g: g**2 * m.tanh(g) ** 2 * m.exp(-abs(g)),
    ),
    "g^6 sigmoid(g)^3 sigmoid(-g)^2": (
        lambda g: g**6 * sigmoid(g) ** 3 * sigmoid(-g) ** 2,
        lambda g: g**6 * _sigmoid(g) ** 3 * _sigmoid(-g) ** 2,
    ),
    "sqrt(1 + g^2 exp) / (1 + exp)": (
        lambda g: sqrt(1 + g**2 * exp(g)) / (1 + exp(g)),
        lambda g: m.sqrt(1 + g**2 * m.exp(g)) / (1 + m.exp(g)),
    ),
}
GAINS: dict[str, Gate] = {  # of a Kalman filter, and what else is of two such numbers
    "p / (p + r), softplus": (
        lambda p, r: softplus(p) / (softplus(p) + softplus(r)),
        lambda p, r: _softplus(p) / (_softplus(p) + _softplus(r)),
    ),
    "1 - p / (p + r), exp": (lambda p, r: 1 - exp(p) / (exp(p) + exp(r)), lambda p, r: 1 / (1 + m.exp(p - r))),
    "p / (p + r), sigmoid": (
        lambda p, r: sigmoid(p) / (sigmoid(p) + sigmoid(r)),
        lambda p, r: _sigmoid(p) / (_sigmoid(p) + _sigmoid(r)),
    ),
    "exp / (1 + exp + softplus)": (
        lambda p, r: exp(p) / (1 + exp(p) + softplus(r)),
        lambda p, r: m.exp(p) / (1 + m.exp(p) + _softplus(r)),
    ),
    "p^2 / (p + r)^2": (
        lambda p, r: softplus(p) ** 2 / (softplus(p) + softplus(r)) ** 2,
        lambda p, r: _softplus(p) ** 2 / (_softplus(p) + _softplus(r)) ** 2,
    ),
    "p / sqrt(p^2 + r^2)": (
        lambda p, r: softplus(p) / sqrt(softplus(p) ** 2 + softplus(r) ** 2),
        lambda p, r: _softplus(p) / m.sqrt(_softplus(p) ** 2 + _softplus(r) ** 2),
    ),
}


def spec(place: str, gates: dict[str, Gate], count: int) -> Recurrence:
    """Each gate is what a vector decays by, or a matrix, or multiplies what is written."""
    r = Recurrence(f"rational_{place}")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    for n, (gate, _) in enumerate(gates.values()):
        of = (d,) if place == "matrices" else ()
        arguments = [r.inputs(f"g{n}_{i}", *of) for i in range(count)]
        x = apply(gate, *arguments) if of else gate(*arguments)
        S = r.state(f"S{n}", d) if place == "vectors" else r.state(f"S{n}", d, e)
        decayed = {"vectors": x * S.prev, "writes": S.prev / 2}.get(place) if place != "matrices" else diag(x) * S.prev
        written = {"vectors": k, "matrices": k * v.T}.get(place)
        r.update(S, decayed + (x * k * v.T if written is None else written))
        r.output(f"o{n}", S.next if place == "vectors" else S.next * v)
    return r


def off(place: str, gates: dict[str, Gate], backend: str | None = None) -> list[str]:
    """What isn't as it should be, at a step whose gates are far out; what is decayed is written one step before."""
    points = PAIRS if gates.keys() <= GAINS.keys() else [(0.0,), *FAR] if gates.keys() <= MIXED.keys() else FAR
    count, size = len(points[0]), len(points)
    op = chunkform.compile(spec(place, gates, count))
    k = torch.zeros(size, 2, 1, 1)
    k[:, int(place == "writes")] = 1
    given = []
    for i in [i for _ in gates for i in range(count)]:
        g = torch.full((size, 2, 1), USUAL[i])
        g[:, 1, 0] = torch.tensor([x[i] for x in points])
        given.append((g[..., None] if place == "matrices" else g).clone().requires_grad_())
    *outputs, _ = op(k, torch.ones_like(k), *given, **({} if backend is None else {"backend": backend}))
    sum(x[:, 1].sum() for x in outputs).backward()
    wrong = []
    with mpmath.workdps(DIGITS):
        for n, (name, (_, exact)) in enumerate(gates.items()):
            own = given[n * count : (n + 1) * count]
            for b, point in enumerate(points):
                at = [m.mpf(float(torch.tensor(float(x)))) for x in point]
                found = [float(outputs[n][b, 1].detach().sum()), *(float(x.grad[b, 1].sum()) for x in own)]
                for what, mine, wanted in zip(
                    ("value", "dp", "dr"), found, [exact(*at), *_slopes(exact, at)], strict=False
                ):
                    if not abs(mine - wanted) <= NEAR * abs(wanted) + LEAST:
                        wrong.append(
                            f"{place}, {name}, {what} at {point}: {mine:.4g}, and should be {float(wanted):.4g}"
                        )
    return wrong


def _slopes(f: Callable[..., Any], at: list[Any]) -> list[Any]:
    out = []
    for i, x in enumerate(at):
        step = (abs(x) or 1) * m.mpf(10) ** -60
        up, down = ([*at[:i], x + s * step, *at[i + 1 :]] for s in (1, -1))
        out.append((f(*up) - f(*down)) / (2 * step))
    return out


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    table = GATES | MIXED | GAINS
    print(json.dumps([x for p in asked["places"] for x in off(p, {n: table[n] for n in asked["names"]}, "triton")]))
