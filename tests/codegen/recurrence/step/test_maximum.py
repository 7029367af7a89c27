"""The larger of two is one of them, to the last bit, whatever the other is; at a tie each has half of the gradient."""

from __future__ import annotations

import math
from functools import cache, reduce

import pytest
import torch
from sympy import Max, Min

import chunkform
from chunkform.codegen.ir.expr import Node, add, const, fn, leaf, maximum, minimum, mul, rename
from chunkform.codegen.ir.logarithms import Logarithms
from chunkform.codegen.ir.notation import plain
from chunkform.codegen.ir.ranges import Ranges
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step import adjoint
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, absolute, apply, dot, exp, hadamard, log, ones, sigmoid, sqrt, tanh

A, B, C = leaf("input", "a"), leaf("input", "b"), leaf("input", "c", ("d",))
FAR = (0.0, 1.5, -1e4, 1e4, -1e9, 1e9, -1e30, 1e30, -float("inf"), float("inf"))
MASKS = (-1e4, -1e9, -1e30, -float("inf"))
DTYPES = (torch.float32, torch.float64)


def bounds() -> Recurrence:
    r = Recurrence("bounds")
    a, b, c = r.inputs("a b c")
    limit, s = r.constant("limit", 0.25), r.state("s")
    r.update(s, s.prev + a)
    r.output("larger", Max(a, b))
    r.output("smaller", Min(a, b))
    r.output("largest", Max(a, b, c))
    r.output("bounded", Min(Max(a, limit), 2))
    return r


def online_softmax(start: float) -> Recurrence:
    """The average of v with the weights exp(a), which doesn't depend on the running maximum m."""
    r = Recurrence("online_softmax")
    v, a = r.inputs("v a")
    m, n, s = r.state("m", initial=start), r.state("n"), r.state("s")
    r.update(m, Max(m.prev, a))
    kept, taken = exp(m.prev - m.next), exp(a - m.next)
    r.update(n, kept * n.prev + taken)
    r.update(s, kept * s.prev + taken * v)
    r.output("y", s.next / n.next)
    return r


def mlstm() -> Recurrence:
    r = Recurrence("mlstm")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    i, f = r.inputs("i f")
    S, n, m = r.state("S", d, e), r.state("n", d), r.state("m")
    r.update(m, Max(f + m.prev, i))
    kept, taken = exp(f + m.prev - m.next), exp(i - m.next)
    r.update(S, kept * S.prev + taken * k * v.T)
    r.update(n, kept * n.prev + taken * k)
    r.output("h", S.next.T * q / Max(abs(dot(n.next, q)), exp(-m.next)))
    return r


def mlstm_loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    S, n, m = q.new_zeros(4, 3), q.new_zeros(4), q.new_zeros(())
    out = []
    for t in range(len(i)):
        new = torch.maximum(f[t] + m, i[t])
        kept, taken = (f[t] + m - new).exp(), (i[t] - new).exp()
        S, n, m = kept * S + taken * torch.outer(k[t], v[t]), kept * n + taken * k[t], new
        out.append(S.mT @ q[t] / torch.maximum((n @ q[t]).abs(), (-m).exp()))
    return torch.stack(out)


@cache
def op(make):
    return chunkform.compile(make())


def test_a_maximum_is_written_in_one_way() -> None:
    assert maximum(A, B) is maximum(B, A) and maximum(A, maximum(B, C)) is maximum(maximum(A, B), C)
    assert maximum(A, A) is A and maximum(A, B, A) is maximum(A, B) and maximum(1, A, 2) is maximum(2, A)
    assert maximum(1, 3) is const(3) and maximum(A, 0) is not fn("relu", A)
    assert minimum(A, B) is mul(-1, maximum(-A, -B)) and minimum(A, A) is A
    assert rename(maximum(C, A), {"d": "e"}).axes == ("e",)


def test_what_a_maximum_is_subtracted_from_leaves_nothing_of_it() -> None:
    assert add(A, B, mul(-1, maximum(add(A, B), C))) is mul(-1, maximum(0, add(C, mul(-1, A), mul(-1, B))))
    assert add(A, mul(-1, maximum(A, B))) is minimum(0, add(A, mul(-1, B)))
    assert add(mul(2, A), maximum(A, B)).op == "add" and add(C, mul(-1, maximum(A, B))).op == "add"


def test_a_maximum_is_written_for_people() -> None:
    assert (plain(maximum(A, B)), plain(minimum(A, B))) == ("Max(a_t, b_t)", "Min(a_t, b_t)")
    assert plain(mul(2, maximum(A, 3), C)) == "2 Max(3, a_t) c_t"


def test_ranges_and_logarithms_of_maxima() -> None:
    decay, other = leaf("decay", "l"), leaf("decay", "g")
    known = Ranges()(maximum(decay, const(1) * fn("sigmoid", A)))
    assert known.positive and known.high == 1
    assert Ranges()(maximum(A, 2)).low == 2 and Ranges()(minimum(A, 2)).high == 2
    log = Logarithms(Ranges()).log
    assert log(maximum(fn("exp", A), fn("exp", B))) is maximum(A, B)
    assert log(minimum(fn("exp", A), fn("exp", B))) is minimum(A, B)
    assert log(maximum(decay, other)) is not None and log(maximum(A, B)) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_of_the_larger_is_lost_beside_the_other(dtype: torch.dtype) -> None:
    values = torch.tensor(FAR, dtype=dtype)
    a, b = (x.reshape(1, -1, 1) for x in torch.meshgrid(values, values, indexing="ij"))
    c = torch.full_like(a, -3.0)
    larger, smaller, largest, bounded = op(bounds)(a=a, b=b, c=c)[:4]
    assert torch.equal(larger, torch.maximum(a, b)) and torch.equal(smaller, torch.minimum(a, b))
    assert torch.equal(largest, reduce(torch.maximum, (a, b, c))) and torch.equal(bounded, a.clamp(0.25, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_those_of_torch_maximum(dtype: torch.dtype) -> None:
    """At ties of two, and apart."""
    a, b, c = (
        torch.tensor(x, dtype=dtype).reshape(1, -1, 1).requires_grad_()
        for x in ([1.0, 1, 2, -1e9, 0.25, 3], [1.0, 2, 1, 1, 1, -1e30], [-2.0, -3, 0, 0, 5, 4])
    )
    for name, want in (
        ("larger", torch.maximum(a, b)),
        ("smaller", torch.minimum(a, b)),
        ("largest", torch.maximum(torch.maximum(a, b), c)),
    ):
        r = bounds()
        at = list(compile_spec(r).step.outputs).index(name)
        wanted = torch.autograd.grad(want.square().sum(), (a, b, c), allow_unused=True)
        got = torch.autograd.grad(op(bounds)(a=a, b=b, c=c)[at].square().sum(), (a, b, c), allow_unused=True)
        for x, y in zip(got, wanted, strict=True):
            none = torch.zeros_like(a)
            assert torch.equal(none if x is None else x, none if y is None else y), name


@pytest.mark.parametrize("start", [0, -1e4, -1e30])
def test_gradients_at_ties_of_a_running_maximum_are_whole(start: float) -> None:
    f = chunkform.compile(online_softmax(start))
    v = torch.tensor([1.0, 2, 4]).double().reshape(1, 3, 1)
    for level in (0.0, 1.0):
        a = torch.full((1, 3, 1), level).double().requires_grad_()
        p = torch.softmax(a, 1)
        wanted = torch.autograd.grad((p * v).sum(), a)[0]
        got = torch.autograd.grad(f(v=v, a=a)[0][:, -1].sum(), a)[0]
        torch.testing.assert_close(got, wanted) if start < 0 else None
        assert got.abs().max() > 0.1


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_masked_step_of_an_mlstm_is_left_out(dtype: torch.dtype, mask: float) -> None:
    torch.manual_seed(0)
    given = [torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 3), torch.randn(6), -torch.rand(6)]
    given[3][2] = mask
    exact = [x.double().requires_grad_() for x in given]
    wanted = mlstm_loop(*exact)
    mine = [x.to(dtype).requires_grad_() for x in given]
    got = op(mlstm)(*(x[None, :, None] for x in mine))[0][0, :, 0]
    bound = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(got.double(), wanted, **bound)
    grads = torch.autograd.grad(got.double().square().sum(), mine)
    for x, y in zip(grads, torch.autograd.grad(wanted.square().sum(), exact), strict=True):
        torch.testing.assert_close(x.double(), y, **bound)


def test_a_first_maximum_below_all_others_is_left_out() -> None:
    """As of RWKV-4's stabiliser."""
    r = Recurrence("running_maximum")
    d = r.dims("d")
    k, w = r.inputs("k", d), r.parameter("w", d)
    b, p = r.state("b", d), r.state("p", d, initial=-1e38 * ones(d))
    r.update(p, apply(Max, p.prev + w, k))
    r.update(b, hadamard(exp(p.prev + w - p.next), b.prev) + exp(k - p.next))
    r.output("o", b.next)
    f = chunkform.compile(r)
    for dtype in DTYPES:
        k1 = torch.tensor([0.5, -3.0], dtype=dtype).reshape(1, 1, 1, 2)
        got = f(k=k1, w=torch.tensor([[-0.3, -2.0]], dtype=dtype))[0]
        assert torch.equal(got, torch.ones_like(got))


def test_another_derivative_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_takes_all(x: Node, g: Node) -> list[Node]:
        return [g, *(add(g, mul(-1, g)) for _ in x.args[1:])]

    monkeypatch.setitem(adjoint.DERIVATIVES, "max", first_takes_all)
    with pytest.raises(GateError):
        compile_spec(bounds())


def test_a_maximum_less_one_of_several_terms_of_what_it_is_of_ends() -> None:
    """As where a forget gate is log(1 + exp(-f)), and a stabiliser is taken from the one before it."""
    m, gate, new = A, fn("log", add(1, fn("exp", mul(-1, B)))), leaf("input", "i")
    x = add(m, mul(-1, maximum(new, add(m, mul(-1, gate)))))
    assert x.op == "add" and len(x.args) == 2
    assert add(x, maximum(new, add(m, mul(-1, gate)))) is m


OF_CONSTANTS = {
    "over a maximum": (lambda c: 1 / Max(1, c), lambda c: 1 / max(1, c)),
    "of a size": (lambda c: 1 / Max(1, absolute(c)), lambda c: 1 / max(1, abs(c))),
    "logarithm": (lambda c: log(1 + c**2), lambda c: math.log1p(c**2)),
    "root": (lambda c: sqrt(1 + c**4), lambda c: math.sqrt(1 + c**4)),
    "of two": (lambda c: log(Max(c, sigmoid(c), 1 / 2)), lambda c: math.log(max(c, 1 / (1 + math.exp(-c)), 1 / 2))),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", [lambda h: h / 2, tanh], ids=["over chunks", "step by step"])
def test_maxima_of_constants_alone_are_numbers_like_others(form):
    r = Recurrence("of_constants")
    d = r.dims("d")
    k, c = r.inputs("k", d), r.constant("c", 0.4)
    h = r.state("h", d)
    r.update(h, apply(form, h.prev) + k)
    for n, (made, _) in enumerate(OF_CONSTANTS.values()):
        r.output(f"o{n}", made(c) * h.next)
    op = chunkform.compile(r)
    for value in (0.4, 3.0):
        *outputs, _ = op(torch.ones(1, 1, 1, 2, dtype=torch.float64), c=value)
        for x, (_, exact) in zip(outputs, OF_CONSTANTS.values(), strict=True):
            assert torch.allclose(x, torch.full_like(x, exact(value)), rtol=1e-12)
