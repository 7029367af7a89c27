"""Several corrections a step are solved without growth along a chunk, also where keys are alike and few channels hold them."""

from __future__ import annotations

import pytest
import torch

import chunkform
from chunkform.spec.language import Recurrence, eye, normalize, sigmoid

T, D = 64, 6


def corrected(count: int, decayed: bool) -> Recurrence:
    r = Recurrence("corrected_in_turn")
    d, e = r.dims("d e")
    S = r.state("S", d, e)
    x = r.decay("lam") * S.prev if decayed else S.prev
    for n in range(count):
        b = r.inputs(f"b{n}")
        k, v = normalize(r.inputs(f"k{n}", d)), r.inputs(f"v{n}", e)
        x = x + 2 * sigmoid(b) * k * (v - x.T * k).T
    r.update(S, x)
    r.output("o", S.next.T * r.inputs("q", d))
    return r


def gradients(op, given: dict[str, torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    leaves = {n: x.to(dtype).requires_grad_() for n, x in given.items()}
    o, _ = op(**leaves)
    (o * torch.linspace(-1, 1, o.numel(), dtype=dtype).view_as(o).sin()).sum().backward()
    return [o.detach(), *(x.grad for x in leaves.values() if x.grad is not None)]


@pytest.mark.parametrize(("count", "decayed"), [pytest.param(2, False, marks=pytest.mark.long), (2, True), (3, False)])
def test_alike_keys_in_few_channels_leave_float32_its_digits(count: int, decayed: bool) -> None:
    op = chunkform.compile(corrected(count, decayed))
    torch.manual_seed(0)
    key = torch.randn(1, T, 1, D)  # of all corrections of a step
    given = {"q": torch.randn(1, T, 1, D)}
    for n in range(count):
        given |= {f"k{n}": key.clone(), f"v{n}": torch.randn(1, T, 1, D), f"b{n}": torch.full((1, T, 1), 3.0)}
    if decayed:
        given["log_lam"] = torch.full((1, T, 1), -0.001)
    exact = gradients(op, given, torch.float64)
    for x, y in zip(gradients(op, given, torch.float32), exact, strict=True):
        assert (x - y).norm() < 1e-4 * y.norm()


def test_two_reflections_of_a_vector_leave_float32_its_digits() -> None:
    r = Recurrence("two_reflections")
    d = r.dims("d")
    x, a, b = r.inputs("x a b", d)
    h = r.state("h", d)
    first, second = normalize(a), normalize(b)
    r.update(h, (eye(d) - 2 * first * first.T) * (eye(d) - 2 * second * second.T) * h.prev + x)
    r.output("o", h.next)
    torch.manual_seed(0)
    a, x = torch.randn(2, 1, T, 1, D)
    given = {"x": x, "a": a, "b": a + 0.3 * torch.randn(1, T, 1, D)}
    op = chunkform.compile(r)
    exact = gradients(op, given, torch.float64)
    for x, y in zip(gradients(op, given, torch.float32), exact, strict=True):
        assert (x - y).norm() < 1e-3 * y.norm()


def test_two_reflections_along_nearly_one_key_leave_float32_its_digits() -> None:
    """In five channels, which 64 such keys turn over and over."""
    r = Recurrence("nearly_one_key")
    d, e = r.dims("d e")
    a, b, q = r.inputs("a b q", d)
    v, w = r.inputs("v w", e)
    first, second = normalize(a), normalize(b)
    S = r.state("S", d, e)
    x = S.prev + 2 * first * (v - S.prev.T * first).T
    r.update(S, x + 2 * second * (w - x.T * second).T)
    r.output("o", S.next.T * q)
    torch.manual_seed(0)
    key = torch.randn(1, 1, 1, 5)
    given = {n: key + 0.1 * torch.randn(1, T, 1, 5) for n in "ab"} | {n: torch.randn(1, T, 1, 5) for n in "qvw"}
    op = chunkform.compile(r)
    exact = gradients(op, given, torch.float64)
    for x, y in zip(gradients(op, given, torch.float32), exact, strict=True):
        assert (x - y).norm() < 1e-5 * y.norm()
