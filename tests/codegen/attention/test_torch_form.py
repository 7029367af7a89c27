"""The torch form of every attention against the float64 oracle: outputs, log-sum-exp, gradients; tails, extremes, memory."""

import dataclasses
import functools
import importlib
import math
from types import SimpleNamespace

import pytest
import torch
from shared.attentions import CATALOGUE, MORE, compiled, everything

from chunkform.codegen.attention.check import Case, check_op, difference, oracle, run, sample
from chunkform.codegen.commands.compile import compile_module
from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.runtime.attention import torch_form as attention_torch

F64 = torch.float64
CASES = {
    "full": Case(seed=0, steps=37, width=8, dtype=F64),
    "causal": Case(seed=1, steps=37, width=8, dtype=F64, causal=True),
    "float32": Case(seed=2, steps=41, width=12, causal=True),
    "groups": Case(seed=3, steps=19, keys=26, heads=4, key_heads=(2,), width=6, dtype=F64),
    "rows that see nothing": Case(seed=4, steps=26, keys=19, heads=4, key_heads=(2,), width=6, dtype=F64, causal=True),
    "far from each other": Case(seed=5, steps=21, width=8, dtype=F64, scale=8.0),
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Several blocks of rows, a last one that isn't whole."""
    before, attention_torch.BLOCK = attention_torch.BLOCK, 2**11
    yield
    attention_torch.BLOCK = before


def op_of(name):
    return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


@functools.cache
def made(name):
    """An attention of `everything`, compiled, and its op."""
    a = next(a for a in everything() if a.name == name)
    return compiled(name), getattr(compile_module(a), name)


def bad(rows):
    return {r.quantity: r.error for r in rows if not r.ok}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue(name, case):
    c = compiled(name)
    if c.spec.nodes is not None and CASES[case].causal:
        pytest.skip("fixed queries have no positions")
    assert bad(check_op(c, op_of(name), CASES[case], "torch")) == {}


@pytest.mark.parametrize("name", [a.name for a in everything()])
def test_a_gradient_alone_is_what_it_is_beside_others(name):
    c, op = made(name)
    s = sample(c, Case(batch=2, steps=9, width=4, dtype=F64))

    def gradients(*names):
        given = {n: x.detach().requires_grad_(n in names) for n, x in s.given.items()}
        y = op(**given, **s.constants, backend="torch")
        y = y if isinstance(y, tuple) else (y,)
        return torch.autograd.grad([x.square().sum() for x in y], [given[n] for n in names])

    together = gradients(*s.given)
    for n, g in zip(s.given, together, strict=True):
        torch.testing.assert_close(gradients(n), (g,))


@pytest.mark.parametrize("case", ["full", "causal", "float32", "groups"])
@pytest.mark.parametrize("name", [make.__name__ for make in MORE])
def test_further_attentions(name, case):
    assert bad(check_op(*made(name), CASES[case], "torch")) == {}


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1)])
@pytest.mark.parametrize("name", ["softmax_attention", "kattention_f6", "relay_nodes"])
def test_empty_and_short_sequences(name, sizes):
    case = Case(steps=sizes[0], keys=sizes[1], width=4, dtype=F64)
    assert bad(check_op(compiled(name), op_of(name), case, "torch")) == {}


def test_rows_without_a_key_average_to_zero():
    q, k, v = torch.randn(1, 5, 2, 4), torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 4)
    o, lse = op_of("softmax_attention")(q, k, v, causal=True, output_lse=True)
    assert (o[:, :2] == 0).all() and (lse[:, :2] == -math.inf).all() and lse[:, 2:].isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_energies_of_minus_infinity_are_weights_of_zero(causal):
    c, op = made("masked")
    s = sample(c, Case(steps=20, keys=33, width=8, dtype=F64))
    m = s.given["m"].clone()
    m[:, ::3] = -math.inf
    m[0, :, 1] = -math.inf  # one head sees nothing
    far = torch.where(m.isinf(), -1e6, m)
    got = run(c, op, dataclasses.replace(s, given={**s.given, "m": m}), causal, "torch")
    assert not any(x.isnan().any() for x in got.values())
    assert (got["o"][0, :, 1] == 0).all() and (got["lse"][0, :, 1] == -math.inf).all()
    cotangents = {n: x.clone() for n, x in s.cotangents.items()}
    for x in cotangents.values():
        x[0, :, 1] = 0  # there, far isn't -inf
    s = dataclasses.replace(s, cotangents=cotangents, given={**s.given, "m": m})
    got = run(c, op, s, causal, "torch")
    ref = oracle(c, dataclasses.replace(s, given={**s.given, "m": far}), causal)
    for n in ("dq", "dk", "dv", "dbeta"):
        assert difference(c, n, got[n], ref[n]) < 1e-9, n


def test_gradients_of_a_quotient_by_a_large_sum_of_weights():
    """The square of the sum is beyond float32."""
    c, op = made("exponential")
    s = sample(c, Case(batch=1, steps=9, width=4, dtype=F64))
    given = s.given | {"r": torch.full_like(s.given["r"], 60.0), "beta": torch.ones(2, dtype=F64)}
    found = []
    for dtype in (F64, torch.float32):
        x = {n: y.to(dtype).requires_grad_() for n, y in given.items()}
        _, _, p = op(**x, backend="torch")
        found.append(torch.autograd.grad(p, list(x.values()), s.cotangents["p"].to(dtype)))
    for n, a, b in zip(given, *found, strict=True):
        assert difference(c, f"d{n}", b, a) < 1e-3 or n in ("r", "beta"), (
            n
        )  # these are differences of what is nearly equal


def test_a_constant_that_a_formula_divides_by_is_not_zero():
    (_, op), x = made("capped"), torch.randn(1, 3, 1, 4)
    with pytest.raises(ArgumentError, match=r"capped: a formula has no value where cap = 0\.0"):
        op(x, x, x, x[..., 0], x[..., 0], torch.ones(1), cap=0)


def test_a_linear_energy_is_linear_attention():
    q, k = torch.randn(2, 2, 50, 3, 8, dtype=F64)
    v = torch.randn(2, 50, 3, 5, dtype=F64)
    o, _ = op_of("linear_attention")(q, k, v)
    assert torch.allclose(made("linear")[1](q, k, v, causal=True), o)


def test_softmax_attention_is_that_of_torch():
    q, k, v = torch.randn(3, 2, 50, 3, 8, dtype=F64)
    o = op_of("softmax_attention")(q, k, v, causal=True)
    ref = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    assert torch.allclose(o, ref.transpose(1, 2))


def test_energies_of_relay_nodes_are_those_displayed():
    x, mu, W = torch.randn(2, 9, 1, 4, dtype=F64), torch.randn(1, 3, 4, dtype=F64), torch.randn(1, 3, 3, dtype=F64)
    B, pairwise, distance = op_of("relay_nodes")(x, mu, W)
    A = torch.einsum("hkd,bthd->bhkt", mu, x).softmax(-1)
    expected = torch.einsum("bhkt,bthd->bhkd", A, x)
    assert torch.allclose(B, expected)
    assert torch.allclose(pairwise, torch.einsum("bhkd,hkl,bhld->bh", B, W, B))
    gap = torch.einsum("hkl,bhkd->bhld", W, B) - B
    assert torch.allclose(distance, -(gap**2).sum((-1, -2)))


def test_energies_of_ked_are_those_of_both_readings_and_give_the_gradient_by_x():
    x = torch.randn(2, 9, 1, 4, dtype=F64, requires_grad=True)
    mu, L, R = torch.randn(1, 3, 4, dtype=F64), torch.randn(1, 2, 4, dtype=F64), torch.randn(1, 2, 4, dtype=F64)
    B, nodes, matrix = op_of("ked")(x, mu, L, R)
    M = L[0].T @ R[0]
    assert torch.allclose(nodes, torch.einsum("bhkd,de,bhke->bh", B, M, B))
    assert torch.allclose(matrix, torch.einsum("bhkd,de,bhle->bhkl", B, M, B))
    (dx,) = torch.autograd.grad(nodes.sum(), x)
    # the document's chain rule: sum_k (dE/dB_k) (dB_k/dx_i), where dB_k/dx_i g = A_ik (g + mu_k <x_i - B_k, g>)
    A = torch.einsum("hkd,bthd->bhkt", mu, x).softmax(-1)
    g = B @ (M + M.T).T
    inner = torch.einsum("bthd,bhkd->bhkt", x, g) - (B * g).sum(-1)[..., None]
    chain = torch.einsum("bhkt,bhkd->bthd", A, g) + torch.einsum("bhkt,bhkt,hkd->bthd", A, inner, mu)
    assert torch.allclose(dx, chain)


def test_rotary_energies_depend_on_distances_alone():
    q, k, v = torch.randn(3, 1, 1, 1, 8, dtype=F64).expand(3, 1, 12, 1, 8).clone()
    v = torch.eye(12, dtype=F64)[None, :, None]
    weights = op_of("rotary_attention")(q, k, v, causal=True, scale=0.3)[0, :, 0]
    last = weights[-1]
    for n in range(1, 12):
        short = weights[n, : n + 1]
        assert torch.allclose(short / short[-1], last[11 - n :] / last[-1])


def test_no_second_derivatives():
    q = torch.randn(1, 5, 1, 4, requires_grad=True)
    o = op_of("softmax_attention")(q, q, q)
    (g,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="softmax_attention has no second derivatives"):
        g.sum().backward()


def test_memory_grows_with_the_length_and_not_with_its_square(monkeypatch):
    """No tensor of a pass, in either direction, grows faster than T."""
    from torch.utils._python_dispatch import TorchDispatchMode

    monkeypatch.setattr(attention_torch, "BLOCK", 2**14)

    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, torch.Tensor) and "expand" not in str(function):
                    self.entries = max(self.entries, x.numel())
            return out

    def largest(T):
        x = torch.randn(1, T, 1, 8, requires_grad=True)
        with Largest() as mode:
            y = op_of("kattention")(x, torch.randn(1, 8, 8), torch.randn(1, 8, 8), torch.randn(1, 8), causal=True)
            y.sum().backward()
        return mode.entries

    assert largest(4096) <= 2.5 * largest(2048) < 2048**2 / 16


def test_gradients_that_nobody_asked_for_are_not_returned():
    q, k, v = torch.randn(3, 1, 7, 2, 4)
    k.requires_grad_()
    op_of("softmax_attention")(q, k, v).sum().backward()
    assert k.grad is not None and q.grad is None


@pytest.mark.parametrize("score", [5, 8, 11])
def test_self_attention_is_the_same_with_the_matrix_of_its_keys_on_the_querys_side(score):
    """Where scores are sums over no fewer channels, it is there."""
    from chunkform.generated.self_attention import OP

    generator = torch.Generator().manual_seed(score)
    sizes = {"x": (2, 19, 3, 8), "Q": (3, score, 8), "K": (3, score, 8), "V": (3, 8, 8)}
    found = []
    for op in (OP, dataclasses.replace(OP, moved=None)):
        generator.manual_seed(score)
        given = {n: torch.randn(s, generator=generator, dtype=F64).requires_grad_() for n, s in sizes.items()}
        y, lse = op(given, True, True)
        incoming = torch.randn(y.shape, generator=generator, dtype=F64)
        found.append([y, lse, *torch.autograd.grad([y, lse], given.values(), [incoming, lse.detach()])])
    assert (OP.maps_at(SimpleNamespace(sizes={"D": score, "E": 8})) is OP.maps) == (score < 8)
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)
