"""Complex states and quantities: notation for pairs of real ones, with the forms and the numbers of the real spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import chunkform
from chunkform.codegen.exact.same import same
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import SpecError
from chunkform.spec.language import (
    Recurrence,
    absolute,
    conj,
    cos,
    diag,
    dot,
    exp,
    hadamard,
    imag,
    ones,
    real,
    sin,
    softplus,
    sqrt,
)


def lru(native: bool) -> Recurrence:
    r = Recurrence("lru")
    d = r.dims("d")
    x = r.inputs("x", d)
    nu, theta = r.parameters("nu theta", d)
    m = exp(-exp(nu))
    write = hadamard(sqrt(1 - m**2), x)
    if native:
        h = r.state("h", d, complex=True)
        r.update(h, hadamard(exp(1j * theta - exp(nu)), h.prev) + write)
        r.output("y", real(h.next))
        return r
    re, im = r.state("re", d), r.state("im", d)
    r.update(re, hadamard(m, hadamard(cos(theta), re.prev) - hadamard(sin(theta), im.prev)) + write)
    r.update(im, hadamard(m, hadamard(sin(theta), re.prev) + hadamard(cos(theta), im.prev)))
    r.output("y", re.next)
    return r


def s4d(native: bool) -> Recurrence:
    r = Recurrence("s4d")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    a, turn = r.parameters("a turn", c, n)
    step = diag(softplus(dt))
    if native:
        C, h = r.parameters("C", c, n, complex=True), r.state("h", c, n, complex=True)
        r.update(h, hadamard(exp(step * (1j * turn - exp(a))), h.prev) + step * x * ones(n).T)
        r.output("y", real(hadamard(C, h.next)) * ones(n))
        return r
    Cr, Ci = r.parameters("C_re C_im", c, n)
    re, im = r.state("re", c, n), r.state("im", c, n)
    m = exp(-step * exp(a))
    co, si = hadamard(m, cos(step * turn)), hadamard(m, sin(step * turn))
    r.update(re, hadamard(co, re.prev) - hadamard(si, im.prev) + step * x * ones(n).T)
    r.update(im, hadamard(si, re.prev) + hadamard(co, im.prev))
    r.output("y", (hadamard(Cr, re.next) - hadamard(Ci, im.next)) * ones(n))
    return r


def gateloop(native: bool) -> Recurrence:
    r = Recurrence("gateloop")
    d, e = r.dims("d e")
    (q, k), v, th, a = r.inputs("q k", d), r.inputs("v", e), r.inputs("th", d), r.decay("a", d)
    if native:
        S = r.state("S", d, e, complex=True)
        r.update(S, diag(hadamard(a, exp(1j * th))) * S.prev + k * v.T)
        r.output("o", real(S.next.T * q))
        return r
    S1, S2 = r.state("S1", d, e), r.state("S2", d, e)
    re, im = hadamard(a, cos(th)), hadamard(a, sin(th))
    r.update(S1, diag(re) * S1.prev - diag(im) * S2.prev + k * v.T)
    r.update(S2, diag(re) * S2.prev + diag(im) * S1.prev)
    r.output("o", S1.next.T * q)
    return r


def mamba3(native: bool) -> Recurrence:
    r = Recurrence("mamba3")
    d, e = r.dims("d e")
    th, x, a = r.inputs("th", d), r.inputs("x", e), r.decay("a")
    if native:
        (B, C), S = r.inputs("B C", d, complex=True), r.state("S", d, e, complex=True)
        r.update(S, a * diag(exp(1j * th)) * S.prev + B * x.T)
        r.output("y", real(S.next.T * conj(C)))
        return r
    B1, B2, C1, C2 = r.inputs("B_re B_im C_re C_im", d)
    S1, S2 = r.state("S1", d, e), r.state("S2", d, e)
    c, s = diag(cos(th)), diag(sin(th))
    r.update(S1, a * (c * S1.prev - s * S2.prev) + B1 * x.T)
    r.update(S2, a * (s * S1.prev + c * S2.prev) + B2 * x.T)
    r.output("y", S1.next.T * C1 + S2.next.T * C2)
    return r


@pytest.mark.parametrize("spec", [lru, s4d, gateloop, mamba3])
def test_the_same_as_the_real_spelling_in_the_same_form(spec: Callable[[bool], Recurrence]) -> None:
    native, plain = spec(True).validate(), spec(False).validate()
    assert len(native.states) == len(plain.states) == 2 and len(native.updates) == 2
    found = same(native, plain)
    assert found.same, found
    assert compile_spec(native).family == compile_spec(plain).family != "sequential"


def test_numbers_of_all_operations() -> None:
    """Each of them, beside what torch makes of complex numbers."""
    r = Recurrence("everything_complex")
    d = r.dims("d")
    z, w = r.inputs("z w", d, complex=True)
    g = r.inputs("g", complex=True)
    b = r.inputs("b")
    h, n = r.state("h", d, complex=True, initial=(0.5 + 0.25j) * ones(d)), r.state("n", complex=True, initial=1j)
    u = r.let("u", z / (2 + w * 1j) + (1 - 2j) * w)
    r.update(n, 0.5 * exp(1j * b) * n.prev + dot(z, conj(w)) / (3 + 1j * absolute(g)))
    r.update(h, hadamard(exp(-absolute(w) + 1j * real(z)), h.prev) + g * u - imag(g) ** 2 * h.prev / 4)
    y = hadamard(h.next, z) ** 2 * n.next + sin(1j * b) * cos(w) + 1 / (2 + absolute(z) + 1j * ones(d)) + h.prev * g**3
    r.output("real_part", real(y))
    r.output("imag_part", imag(y))
    r.output("total", real(conj(h.next).T * w))
    op = chunkform.compile(r)
    torch.manual_seed(0)
    batch, steps, width = 2, 5, 3
    parts = {n: torch.randn(batch, steps, 1, width, dtype=torch.double) for n in "z_re z_im w_re w_im".split()}
    parts |= {n: torch.randn(batch, steps, 1, dtype=torch.double) for n in ("g_re", "g_im", "b")}
    a, i, t, _ = op(**parts)
    Z, W = (torch.complex(parts[f"{n}_re"], parts[f"{n}_im"])[:, :, 0] for n in "zw")
    G, beta = torch.complex(parts["g_re"], parts["g_im"])[:, :, 0], parts["b"][:, :, 0]
    H = torch.full((batch, width), 0.5 + 0.25j, dtype=torch.cdouble)
    N = torch.full((batch,), 1j, dtype=torch.cdouble)
    for s in range(steps):
        z_, w_, g_, b_ = Z[:, s], W[:, s], G[:, s], beta[:, s]
        U = z_ / (2 + w_ * 1j) + (1 - 2j) * w_
        N = 0.5 * torch.exp(1j * b_) * N + (z_ * w_.conj()).sum(-1) / (3 + 1j * g_.abs())
        before = H
        H = torch.exp(-w_.abs() + 1j * z_.real) * before + g_[:, None] * U - (g_.imag**2)[:, None] * before / 4
        Y = (H * z_) ** 2 * N[:, None] + torch.sin(1j * b_)[:, None] * torch.cos(w_) + 1 / (2 + z_.abs() + 1j)
        Y = Y + before * (g_**3)[:, None]
        T = (H.conj() * w_).sum(-1).real
        for name, found, true in (("real", a, Y.real), ("imag", i, Y.imag), ("total", t, T)):
            assert torch.allclose(found[:, s, 0], true, rtol=1e-12, atol=1e-12), (s, name)


def declared() -> tuple[Recurrence, object, object, object]:
    r = Recurrence("bad")
    d = r.dims("d")
    return r, d, r.inputs("k", d), r.state("S", d)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda r, d, k, S: r.update(S, 1j * k), "must be real, got the complex I * k: write real(..) or imag(..)"),
        (lambda r, d, k, S: r.output("y", exp(1j * k)), "the output y must be real"),
        (lambda r, d, k, S: r.state("h", d, complex=True, sign="positive"), "the complex state h has no order"),
        (lambda r, d, k, S: r.inputs("z", d, complex=True, domain=(0, 1)), "the complex input z has no order"),
        (lambda r, d, k, S: r.state("h", d, complex=True) * k, "h is a state: write h.prev or h.next"),
        (lambda r, d, k, S: r.state("h", d, complex=True).T, "h is a state: write h.prev or h.next"),
        (lambda r, d, k, S: r.state("h", d, complex=True).real_part, "the state h has no 'real_part'"),
        (lambda r, d, k, S: r.output("y", r.state("h", d, complex=True)), "got the state h: write h.prev or h.next"),
        (lambda r, d, k, S: r.output("y", real(softplus(1j * k))), "aren't known: complex terms take + - * /"),
        (lambda r, d, k, S: r.state("h", d, complex=True, initial="x"), "the initial value of h must be a number"),
        (lambda r, d, k, S: real(S), "real takes a term of the spec, got the state S"),
        (lambda r, d, k, S: conj(None), "conj takes a term of the spec, got None"),
    ],
)
def test_mistakes(wrong: Callable[..., object], says: str) -> None:
    with pytest.raises(SpecError) as error:
        wrong(*declared())
    assert says in str(error.value)
