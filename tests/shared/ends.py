"""Recurrences whose states are multiplied by what may be 0 or 1, and how far their ops are from the steps with autograd.

TRITON_INTERPRET=1 python ends.py '["numbers"]'   # prints the errors of kernels as JSON
python ends.py '["numbers"]' cuda                 # on a GPU
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.recurrence.oracle import run_steps_of
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.spec.language import Recurrence, diag, hadamard, normalize, sigmoid, tanh

ENDS = torch.tensor([0.0, 1.0, 1e-40, 1e-30, 1 - 2**-24, 1e-6])
SATURATED = torch.tensor([20.0, -20.0, 100.0, -100.0, 1000.0, -1000.0])
STEPS, HEADS = 35, 2


class Parts:
    """A state with keys, values and queries; z for each channel, y for each step, g a gate."""

    def __init__(self, name: str) -> None:
        self.r = r = Recurrence(name)
        self.d, self.e = d, e = r.dims("d e")
        self.q, self.k = r.inputs("q k", d)
        self.v = r.inputs("v", e)
        self.z, self.y = r.inputs("z", d, domain=(0, 1)), r.inputs("y", domain=(0, 1))
        self.S = r.state("S", d, e)


def numbers(p: Parts) -> None:
    """A number and what it lacks to 1, of two states."""
    G = p.r.state("G", p.d, p.e)
    p.r.update(p.S, p.y * p.S.prev + hadamard(p.z, p.k) * p.v.T)
    p.r.update(G, (1 - p.y) * G.prev + p.k * p.v.T)
    p.r.output("o", (p.S.next + G.next).T * p.q)


def channels(p: Parts) -> None:
    p.r.update(p.S, diag(1 - p.z) * p.S.prev + p.y * hadamard(p.z, p.k) * p.v.T)
    p.r.output("o", p.S.next.T * p.q)


def vectors(p: Parts) -> None:
    """A number of each channel and what it lacks to 1, of two vectors, and of squares of such numbers."""
    h, n = p.r.state("h", p.d), p.r.state("n", p.d)
    p.r.update(h, hadamard(1 - p.z, h.prev) + p.k)
    p.r.update(n, hadamard(p.z**2, n.prev) + hadamard(1 - p.z**2, p.k))
    p.r.update(p.S, (1 - p.y**2) * p.S.prev + p.k * p.v.T)
    p.r.output("o", p.S.next.T * p.q)
    p.r.output("m", h.next + n.next)


def corrected(p: Parts) -> None:
    key = normalize(p.k)
    p.r.update(p.S, (1 - p.y) * (p.S.prev - 0.5 * key * (p.S.prev.T * key).T) + hadamard(p.z, key) * p.v.T)
    p.r.output("o", p.S.next.T * p.q)


def strata(p: Parts) -> None:
    n = p.r.state("n", p.d)
    p.r.update(n, (1 - p.y) * n.prev + hadamard(p.z, p.k))
    p.r.update(p.S, p.y * p.S.prev + tanh(n.next) * p.v.T)
    p.r.output("o", p.S.next.T * p.q)


def fed_back(p: Parts) -> None:
    p.r.update(p.S, (1 - p.y) * p.S.prev + hadamard(p.z, p.k) * tanh(p.v - p.S.prev.T * p.k).T)
    p.r.output("o", p.S.next.T * p.q)


def momentum(p: Parts) -> None:
    M = p.r.state("M", p.d, p.e)
    p.r.update(M, (1 - p.y) * M.prev + hadamard(p.z, p.k) * p.v.T)
    p.r.update(p.S, p.y * p.S.prev + M.next)
    p.r.output("o", p.S.next.T * p.q)


def gates(p: Parts) -> None:
    """Gates that saturate, for each channel and each step."""
    g = p.r.inputs("g", p.d)
    n = p.r.state("n", p.d)
    p.r.update(n, hadamard(1 - sigmoid(g), n.prev) + hadamard(sigmoid(g), p.k))
    p.r.update(p.S, diag(1 - sigmoid(g) ** 2) * p.S.prev + hadamard(p.z, p.k) * (p.y * p.v).T)
    p.r.output("o", p.S.next.T * p.q)
    p.r.output("m", n.next)


SPECS: dict[str, Callable[[Parts], None]] = {
    f.__name__: f for f in (numbers, channels, vectors, corrected, strata, fed_back, momentum, gates)
}


def made(name: str) -> Recurrence:
    p = Parts(name)
    SPECS[name](p)
    return p.r


MADE: dict[str, Callable[[], Recurrence]] = {name: partial(made, name) for name in SPECS}


def errors(name: str, backend: str, batch: int = 2, device: str = "cpu") -> dict[str, float]:
    """Of outputs and gradients in float32, beside steps in float64; infinite where they aren't finite."""
    r = made(name)
    step, op = lower(r), compile_op(r)
    g = torch.Generator().manual_seed(1)
    sizes = {d: 4 + n for n, d in enumerate(step.dims)}

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given: dict[str, Tensor] = {}
    for v in step.variables:
        shape = (batch, STEPS, HEADS, *(sizes[dim_of(a)] for a in v.axes))
        given[v.name] = drawn(*shape)
        if v.domain is not None or v.name == "g":
            some = SATURATED if v.name == "g" else ENDS
            here = torch.rand(shape, generator=g) < 0.3
            usual = 3 * given[v.name] if v.name == "g" else torch.rand(shape, generator=g)
            given[v.name] = torch.where(here, some[torch.randint(len(some), shape, generator=g)], usual)
    wide = {n: x.double().requires_grad_() for n, x in given.items()}
    start = {s.name: torch.zeros(batch, HEADS, *(sizes[dim_of(a)] for a in s.axes)).double() for s in step.states}
    want, _ = run_steps_of(step, wide, start, {}, sizes, STEPS, batch, HEADS, "cpu")
    incoming = {n: drawn(*x.shape) for n, x in want.items()}
    torch.autograd.backward(list(want.values()), [x.double() for x in incoming.values()])
    narrow = {n: x.clone().to(device).requires_grad_() for n, x in given.items()}
    *got, _ = op(**narrow, backend=backend)
    torch.autograd.backward(got, [x.to(device) for x in incoming.values()])
    pairs = {n: (x, y) for (n, y), x in zip(want.items(), got, strict=True)}
    pairs |= {f"d{n}": (narrow[n].grad, x.grad) for n, x in wide.items()}
    pairs = {n: (x.detach().cpu(), y.detach()) for n, (x, y) in pairs.items()}
    return {n: float((x - y).norm() / y.norm()) if x.isfinite().all() else float("inf") for n, (x, y) in pairs.items()}


if __name__ == "__main__":
    where = "".join(sys.argv[2:3]) or "cpu"
    print(json.dumps({n: errors(n, "triton", batch=1, device=where) for n in json.loads(sys.argv[1])}))
