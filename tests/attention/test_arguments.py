"""Bad declarations and bad arguments get one clear error."""

import pytest
import torch

from chunkform.errors import ArgumentError, BackendError, DimensionError, NameError_, SpecError
from chunkform.generated import kattention, ked, softmax_attention
from chunkform.spec.language import Attention, dot

X = torch.randn(1, 5, 2, 4)
Q = torch.randn(2, 3, 4)


def test_the_plain_call_works():
    assert softmax_attention(X, X, X).shape == X.shape
    assert kattention(X, Q, Q, torch.zeros(2, 3)).shape == X.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_attention(X[0], X, X), r"q must have 4 axes \[B, T, H, D\], got the shape \[5, 2, 4\]"),
        (lambda: softmax_attention(X, X[..., :3], X), r"k has D = 3, but q has D = 4"),
        (lambda: softmax_attention(X, X, X[:, :4]), r"v has S = 4, but k has S = 5"),
        (lambda: softmax_attention(X.int(), X, X), "q must be float32, bfloat16, float16 or float64, got int32"),
        (lambda: softmax_attention(X, X, None), r"v must be a tensor \[B, S, H, E\], got NoneType"),
        (
            lambda: softmax_attention(X[:, :, :1].expand(1, 5, 3, 4), X, X),
            "k has H = 2 heads, and there are 3.*must divide",
        ),
        (lambda: softmax_attention(X, X, X, scale=0.0), "scale must be above 0, got 0.0"),
        (lambda: softmax_attention(X, X, X, scale=torch.tensor([1.0, -1.0])), "scale must be above 0 in every head"),
        (lambda: softmax_attention(X, X, X, scale="2"), r"scale must be a tensor \[H\] or a number, got '2'"),
        (lambda: softmax_attention(X, X, X, causal=1), "causal must be True or False, got 1"),
        (lambda: kattention(X, Q[:1], Q, torch.zeros(2, 3)), "Q has H = 1 heads, and there are 2"),
        (lambda: kattention(X, Q, Q, torch.zeros(2, 3), beta=-1), "beta must be above 0, got -1"),
        (lambda: kattention(X, Q, Q, torch.zeros(2, 3), backend="cuda"), "backend must be 'torch', 'triton' or None"),
        (lambda: ked(X, torch.zeros(2, 3, 5), Q, Q), r"mu has E = 5, but x has E = 4; mu must be \[H, M, E\]"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_temperature_that_became_negative_is_seen():
    beta = torch.ones(2)
    kattention(X, Q, Q, torch.zeros(2, 3), beta)
    beta[0] = -1.0
    with pytest.raises(ArgumentError, match="beta must be above 0"):
        kattention(X, Q, Q, torch.zeros(2, 3), beta)


def test_the_triton_backend_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="needs CUDA tensors"):
        softmax_attention(X, X, X, backend="triton")
    with pytest.raises(BackendError, match="float64 needs backend='torch'"):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        softmax_attention(X.double(), X, X, backend="triton")


def attention():
    a = Attention("mine")
    d = a.dims("D")
    return a, d, a.queries("q", d), a.keys("k", d)


def test_bad_declarations():
    a, d, q, k = attention()
    with pytest.raises(DimensionError, match=r"the energy must be a scalar, got q_i \(D x 1\)"):
        a.softmax(q)
    with pytest.raises(SpecError, match="beta must be above 0, got -1"):
        a.softmax(dot(q, k), -1)
    with pytest.raises(NameError_, match="'q' is used twice in mine"):
        a.keys("q", d)
    with pytest.raises(NameError_, match="'B' is an axis of every op"):
        a.dims("B")
    with pytest.raises(SpecError, match="mine has no energy"):
        a.validate()
    a.softmax(dot(q, k))
    with pytest.raises(SpecError, match=r"the energy of mine is declared twice, first at test_arguments.py:\d+"):
        a.softmax(dot(q, k))
    with pytest.raises(SpecError, match="mine has no output"):
        a.validate()
    with pytest.raises(SpecError, match=r"the output o uses k_j, which has no value there: average it"):
        a.output("o", k)
    with pytest.raises(SpecError, match="uses an average, which is known after the energy only"):
        a.average(a.average(k))


def test_beta_belongs_to_a_head():
    a, _, q, k = attention()
    with pytest.raises(SpecError, match="beta is one number a head, but r_i belongs to a position"):
        a.softmax(dot(q, k), a.queries("r"))


def test_fixed_queries_are_the_only_queries():
    a, d, _, k = attention()
    mu = a.fixed_queries("mu", a.dims("M"), d)
    a.softmax(dot(mu, k))
    a.output("o", a.average(k))
    with pytest.raises(SpecError, match="mine has fixed queries, and so no others"):
        a.validate()


def test_a_symbol_of_another_attention_is_unknown():
    a, _, q, k = attention()
    other = Attention("other").parameters("gain")
    with pytest.raises(NameError_, match="uses gain, which is not declared in mine"):
        a.softmax(other * dot(q, k))
