"""Gates far out: values and gradients of each spelling of a gate, where its argument is as large as numbers get, beside those in
hundreds of digits.

    python tests/shared/gate_values.py [--device cuda]      # prints what is off; --place, --share 1/5 for some of them
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import mpmath
import torch
from torch import Tensor

import chunkform
from chunkform.spec.language import Recurrence, apply, diag, exp, sigmoid, softplus, sqrt, tanh

FAR = (
    -1e30,
    -1e4,
    -1e3,
    -200,
    -110,
    -95,
    -89,
    -88,
    -50,
    -20,
    -5,
    -0.5,
    0,
    0.5,
    5,
    20,
    50,
    88,
    89,
    95,
    110,
    200,
    1e3,
    1e4,
    1e30,
)
USUAL = 0.3  # the argument of the steps before and after
NEAR = 3e-5  # relative, beside TINY and what 1 - sigmoid(x) rounds to in the slope of a sigmoid, as in torch's own
TINY, ROUNDED = 5e-38, 1.2e-7
DIGITS, END = 500, 900  # beyond which a gate is at its limit, to all digits of a float

Gate = tuple[Callable[[Any], Any], Callable[[Any], Any]]
m = mpmath
SPELLINGS: dict[str, Gate] = {
    "exp(-exp(g))": (lambda g: exp(-exp(g)), lambda g: m.exp(-m.exp(g))),
    "1 - exp(-exp(g))": (lambda g: 1 - exp(-exp(g)), lambda g: -m.expm1(-m.exp(g))),
    "exp(-3 exp(2 g))": (lambda g: exp(-3 * exp(2 * g)), lambda g: m.exp(-3 * m.exp(2 * g))),
    "exp(-exp(g) softplus(g))": (lambda g: exp(-exp(g) * softplus(g)), lambda g: m.exp(-m.exp(g) * m.log1p(m.exp(g)))),
    "exp(-g^4)": (lambda g: exp(-(g**4)), lambda g: m.exp(-(g**4))),
    "exp(-exp(exp(g)))": (lambda g: exp(-exp(exp(g))), lambda g: m.exp(-m.exp(m.exp(min(g, 6))))),
    "exp(-softplus(softplus(g)^3))": (
        lambda g: exp(-softplus(softplus(g) ** 3)),
        lambda g: 1 / (1 + m.exp(m.log1p(m.exp(g)) ** 3)),
    ),
    "sigmoid(-exp(g) softplus(g))": (
        lambda g: sigmoid(-exp(g) * softplus(g)),
        lambda g: 1 / (1 + m.exp(m.exp(g) * m.log1p(m.exp(g)))),
    ),
    "1 / (1 + exp(g) softplus(g))": (
        lambda g: 1 / (1 + exp(g) * softplus(g)),
        lambda g: 1 / (1 + m.exp(g) * m.log1p(m.exp(g))),
    ),
    "exp(-1 / g^2)": (lambda g: exp(-1 / (g**2)), lambda g: m.exp(-1 / g**2) if g else g),
    "exp(-softplus(g))": (lambda g: exp(-softplus(g)), lambda g: 1 / (1 + m.exp(g))),
    "sigmoid(g)^2": (lambda g: sigmoid(g) ** 2, lambda g: 1 / (1 + m.exp(-g)) ** 2),
    "sqrt(sigmoid(g))": (lambda g: sqrt(sigmoid(g)), lambda g: 1 / m.sqrt(1 + m.exp(-g))),
    "sigmoid(-exp(g))": (lambda g: sigmoid(-exp(g)), lambda g: 1 / (1 + m.exp(m.exp(g)))),
    "tanh(exp(g))": (lambda g: tanh(exp(g)), lambda g: m.tanh(m.exp(g))),
    "(1 + tanh(g)) / 2": (lambda g: (1 + tanh(g)) / 2, lambda g: 1 / (1 + m.exp(-2 * g))),
    "1 / (1 + exp(g))": (lambda g: 1 / (1 + exp(g)), lambda g: 1 / (1 + m.exp(g))),
    "1 / (2 + exp(g))": (lambda g: 1 / (2 + exp(g)), lambda g: 1 / (2 + m.exp(g))),
    "1 / sqrt(1 + exp(g))": (lambda g: 1 / sqrt(1 + exp(g)), lambda g: 1 / m.sqrt(1 + m.exp(g))),
    "exp(g) / (1 + exp(g))": (lambda g: exp(g) / (1 + exp(g)), lambda g: 1 / (1 + m.exp(-g))),
    "1 / (1 + exp(g) + exp(2 g))": (
        lambda g: 1 / (1 + exp(g) + exp(2 * g)),
        lambda g: 1 / (1 + m.exp(g) + m.exp(2 * g)),
    ),
    "1 / (3 + exp(g) softplus(g) + exp(3 g))": (
        lambda g: 1 / (3 + exp(g) * softplus(g) + exp(3 * g)),
        lambda g: 1 / (3 + m.exp(g) * m.log1p(m.exp(g)) + m.exp(3 * g)),
    ),
    "exp(g) / (1 + exp(2 g))": (
        lambda g: exp(g) / (1 + exp(2 * g)),
        lambda g: 1 / (m.exp(g) + m.exp(-g)),
    ),
    "2 / (exp(g) + exp(-g))": (
        lambda g: 2 / (exp(g) + exp(-g)),
        lambda g: 2 / (m.exp(g) + m.exp(-g)),
    ),
    "(1 + exp(g)) / (3 + exp(g) + exp(2 g))": (
        lambda g: (1 + exp(g)) / (3 + exp(g) + exp(2 * g)),
        lambda g: (1 + m.exp(g)) / (3 + m.exp(g) + m.exp(2 * g)),
    ),
    "exp(g) / sqrt(1 + exp(2 g))": (
        lambda g: exp(g) / sqrt(1 + exp(2 * g)),
        lambda g: m.exp(g) / m.sqrt(1 + m.exp(2 * g)),
    ),
    "exp(g) sigmoid(-2 g)": (
        lambda g: exp(g) * sigmoid(-2 * g),
        lambda g: 1 / (m.exp(g) + m.exp(-g)),
    ),
    "1 / (1 + exp(g) + .. + exp(5 g))": (
        lambda g: 1 / (1 + exp(g) + exp(2 * g) + exp(3 * g) + exp(4 * g) + exp(5 * g)),
        lambda g: 1 / sum(m.exp(n * g) for n in range(6)),
    ),
    "1 / (2 + exp(g) / (1 + exp(g) + exp(2 g)))": (
        lambda g: 1 / (2 + exp(g) / (1 + exp(g) + exp(2 * g))),
        lambda g: 1 / (2 + 1 / (m.exp(-g) + 1 + m.exp(g))),
    ),
    "exp(-sqrt(1 + exp(2 g) + softplus(g)))": (
        lambda g: exp(-sqrt(1 + exp(2 * g) + softplus(g))),
        lambda g: m.exp(-m.sqrt(1 + m.exp(2 * g) + m.log1p(m.exp(g)))),
    ),
    "1 / (exp(g) softplus(g) + exp(-g))": (
        lambda g: 1 / (exp(g) * softplus(g) + exp(-g)),
        lambda g: 1 / (m.exp(g) * m.log1p(m.exp(g)) + m.exp(-g)),
    ),
}


def decays(names: tuple[str, ...]) -> Recurrence:
    """Each gate is the decay of a vector, that of the first one of a matrix."""
    r = Recurrence("far_decays")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    for n, name in enumerate(names):
        g = r.inputs(f"g{n}")
        h = r.state(f"h{n}", d, e) if n == 0 else r.state(f"h{n}", d)
        r.update(h, SPELLINGS[name][0](g) * h.prev + (k * v.T if n == 0 else k))
        r.output(f"o{n}", h.next.T * k if n == 0 else h.next)
    return r


def factors(names: tuple[str, ...]) -> Recurrence:
    """Each gate multiplies an output; the first one what is written as well."""
    r = Recurrence("far_factors")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    gates = [SPELLINGS[name][0](r.inputs(f"g{n}")) for n, name in enumerate(names)]
    S = r.state("S", d, e)
    r.update(S, S.prev / 2 + gates[0] * k * v.T)
    for n, gate in enumerate(gates):
        r.output(f"o{n}", gate * (S.next.T * k) if n else S.next.T * k)
    return r


def matrices(names: tuple[str, ...]) -> Recurrence:
    """Each gate is the decay of a matrix: by turns of the whole of it, and of each channel."""
    r = Recurrence("far_matrices")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    for n, name in enumerate(names):
        S = r.state(f"S{n}", d, e)
        if n % 2:
            decayed = diag(apply(SPELLINGS[name][0], r.inputs(f"g{n}", d))) * S.prev
        else:
            decayed = SPELLINGS[name][0](r.inputs(f"g{n}")) * S.prev
        r.update(S, decayed + k * v.T)
        r.output(f"o{n}", S.next.T * k)
    return r


PLACES = {"decays": decays, "factors": factors, "matrices": matrices}


def off(place: str, names: tuple[str, ...] = tuple(SPELLINGS), device: str = "cpu") -> list[str]:
    """What isn't as it should be: outputs and gradients of steps before, at and after one whose gates are far out."""
    op = chunkform.compile(PLACES[place](names))
    one = torch.ones(len(FAR), 3, 1, 1, device=device)
    g = torch.full((len(FAR), 3, 1), USUAL, device=device)
    g[:, 1, 0] = torch.tensor(FAR, device=device)
    of_channels = [place == "matrices" and n % 2 == 1 for n in range(len(names))]
    gates = [g.reshape(*g.shape, *([1] if channel else [])).clone().requires_grad_() for channel in of_channels]
    *outputs, _ = op(one, one, *gates)
    sum(x.sum() for x in outputs).backward()
    shown = [x.detach().reshape(len(FAR), 3).cpu() for x in outputs]
    slopes = [x.grad.reshape(len(FAR), 3).cpu() for x in gates]
    with mpmath.workdps(DIGITS):
        exact = [expected(place, names, x) for x in g[:, 1, 0].tolist()]
    wrong = []
    for n, name in enumerate(names):
        wrong += _differences(f"{name}: value", shown[n], [x[0][n] for x in exact], TINY)
        wrong += _differences(f"{name}: gradient", slopes[n], [x[1][n] for x in exact], ROUNDED)
    return wrong


def _differences(what: str, found: Tensor, exact: list[list[Any]], least: float) -> list[str]:
    return [
        f"{what} at step {t}, where g is {FAR[b]:g}: {float(found[b, t]):.4g}, and should be {float(x):.4g}"
        for b, row in enumerate(exact)
        for t, x in enumerate(row)
        if not abs(float(found[b, t]) - x) <= NEAR * abs(x) + least  # NaN is off
    ]


def expected(place: str, names: tuple[str, ...], far: float) -> tuple[list[list[Any]], list[list[Any]]]:
    """Of each gate: outputs, and gradients of their sum, at each step."""
    arguments = [mpmath.mpf(USUAL), mpmath.mpf(max(-END, min(END, far))), mpmath.mpf(USUAL)]
    arguments = [mpmath.mpf(float(torch.tensor(float(x)))) for x in arguments]
    values = [[SPELLINGS[n][1](x) for x in arguments] for n in names]
    slopes = [[_slope(SPELLINGS[n][1], x) for x in arguments] for n in names]
    if place != "factors":
        made = [_decayed(f, df) for f, df in zip(values, slopes, strict=True)]
        return [o for o, _ in made], [dg for _, dg in made]
    states = _states([mpmath.mpf(1) / 2] * 3, values[0])
    outputs = [states, *([x * s for x, s in zip(f, states, strict=True)] for f in values[1:])]
    gradients = [[dx * s for dx, s in zip(df, states, strict=True)] for df in slopes]
    incoming = [1 + sum(f[t] for f in values[1:]) for t in range(3)]
    gradients[0] = [slopes[0][t] * sum(incoming[s] * mpmath.mpf(2) ** (t - s) for s in range(t, 3)) for t in range(3)]
    return outputs, gradients


def _slope(f: Callable[[Any], Any], x: Any) -> Any:
    step = mpmath.mpf(10) ** -100
    return (f(x + step) - f(x - step)) / (2 * step)


def _states(decays: list[Any], writes: list[Any]) -> list[Any]:
    state, found = mpmath.mpf(0), []
    for a, w in zip(decays, writes, strict=True):
        state = a * state + w
        found.append(state)
    return found


def _decayed(f: list[Any], df: list[Any]) -> tuple[list[Any], list[Any]]:
    states = _states(f, [mpmath.mpf(1)] * 3)
    incoming, gradients = mpmath.mpf(0), []
    for t in (2, 1, 0):
        incoming = 1 + (f[t + 1] * incoming if t < 2 else 0)
        gradients.append(df[t] * incoming * (states[t - 1] if t else 0))
    return states, gradients[::-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--place", choices=PLACES, nargs="*", default=list(PLACES))
    parser.add_argument("--share", default="1/1", help="I/N: every Nth gate, from the Ith on")
    a = parser.parse_args()
    first, step = map(int, a.share.split("/"))
    names = tuple(SPELLINGS)[first - 1 :: step]
    for place in a.place:
        print(place, *(off(place, names, a.device) or [f"{len(names)} gates are right"]), sep="\n  ", flush=True)
