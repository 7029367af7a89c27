"""Attention kernels on a GPU: outputs, log-sum-exp and every gradient against the float64 oracle.

In two bytes an error is judged beside that of rounding alone: the oracle over inputs and incoming gradients as they are rounded,
its results rounded once more, and its features and weights too, as tensor cores take them, which FACTOR allows for. In float32
products are three passes of tf32. Where energies are large, rounding a feature moves them by more than one, and weights with
them: such cases are judged by what that does to the definition itself.

A parameter's gradient of few numbers a head is a sum over all pairs, whose terms cancel: what they leave depends on averages that
were rounded on their way. It may be off by twice as much as in the torch form, which rounds those as well.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace

import pytest
import torch
from shared.attentions import masked
from shared.triton_errors import by_head

from chunkform.codegen.attention.check import Case, head_axis, oracle, rounded, run, sample
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.commands.compile import compile_op
from chunkform.spec.language import find

ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
FLOAT32 = 2e-5
FEW = 8  # numbers; a quantity of fewer is judged over several samples
FACTOR, LAST = 4.0, 3.0  # times what rounding the inputs does; units in the last place
EAGER = 2.0  # times what the torch form is off by
CASES = {
    "usual": Case(batch=2, steps=257, heads=3, width=64, same=True, device="cuda"),
    "causal": Case(batch=1, steps=300, heads=2, width=128, same=True, device="cuda", seed=1, causal=True),
    "odd": Case(
        batch=1, steps=129, keys=200, heads=4, key_heads=(2,), width=96, same=True, device="cuda", seed=2, causal=True
    ),
    "widest": Case(batch=1, steps=140, heads=2, width=256, same=True, device="cuda", seed=3, causal=True),
    "blind rows": Case(batch=1, steps=200, keys=77, heads=2, width=40, device="cuda", seed=4, causal=True),
    "far from each other": Case(batch=1, steps=130, heads=2, width=64, same=True, device="cuda", seed=5, scale=4.0),
}
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Each row is three kernels to compile: shapes and dtypes are varied over the attentions.
RUNS = [
    *(("softmax_attention", case, BF16) for case in CASES),
    *(("softmax_attention", case, F32) for case in ("usual", "odd", "widest")),
    *(("softmax_attention", case, F16) for case in ("usual", "causal")),
    *(("kattention", case, BF16) for case in ("usual", "causal", "blind rows", "far from each other")),
    *(("kattention", "causal", dtype) for dtype in (F32, F16)),
    *((name, "causal", BF16) for name in ("self_attention", "rotary_attention", "distance_attention")),
    *((name, "causal", BF16) for name in ("kattention_f4", "kattention_f5", "kattention_f6")),
    *((name, "usual", BF16) for name in ("relay_nodes", "ked")),
]


def difference(value, reference, axis):
    """The relative error of the worst head; infinite where they are not infinite at the same places."""
    infinite = reference.isinf()
    if not torch.equal(value.isinf(), infinite):
        return math.inf
    return relative_error(*(torch.where(infinite, 0, x) for x in (value, reference)), axis)


def op_of(name):
    return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


def test_a_matrix_of_keys_that_stays_where_it_is(monkeypatch):
    """As it does where scores are sums over fewer channels than values have."""
    module = importlib.import_module("chunkform.generated.self_attention")
    monkeypatch.setattr(module, "OP", replace(module.OP, moved=None))
    test_errors_are_little_more_than_those_of_rounding("self_attention", "causal", BF16)


@pytest.mark.parametrize(("name", "case", "dtype"), RUNS, ids=lambda x: str(x).removeprefix("torch."))
def test_errors_are_little_more_than_those_of_rounding(name, case, dtype):
    c = compile_attention(find(name)[0])
    case = replace(CASES[case], dtype=dtype, causal=CASES[case].causal and c.spec.nodes is None)
    runs = []

    def judged(numbers):
        """As many samples as make FEW numbers a head: what one number is off by is a matter of chance, as terms cancel in it."""
        while len(runs) < -(-FEW // max(1, numbers)):
            own = replace(case, seed=case.seed + 1000 * len(runs))
            s = sample(c, own)
            got = run(c, op_of(name), s, case.causal, "triton")
            eager = run(c, op_of(name), s, case.causal, "torch")
            runs.append((got, oracle(c, s, case.causal), oracle(c, rounded(s, own), case.causal), eager))
        return runs[: max(1, -(-FEW // max(1, numbers)))]

    bad = {}
    for n, x in judged(FEW)[0][1].items():
        axis = head_axis(c, n)
        several = judged(x.numel() // max(1, x.shape[axis]))
        got, reference, moved = (torch.cat([by_head(r[k][n], axis) for r in several], 1) for k in range(3))
        error, rounding = difference(got, reference, 0), difference(moved, reference, 0)
        beside = 0.0
        if len(several) > 1 and dtype != torch.float32:
            beside = EAGER * difference(torch.cat([by_head(r[3][n], axis) for r in several], 1), reference, 0)
        allowed = (
            max(FLOAT32, FACTOR * rounding)
            if dtype == torch.float32
            else max(LAST * ULP[dtype], FACTOR * rounding, beside)
        )
        if not error <= allowed:
            bad[n] = f"{error:.1e}, rounding alone {rounding:.1e}"
    assert bad == {}


@pytest.mark.parametrize("causal", [False, True])
def test_columns_of_minus_infinity_and_blind_heads(causal):
    """The kernels beside the torch form, both in float32."""
    a = masked()
    c, op = compile_attention(a), compile_op(a)
    s = sample(c, Case(batch=2, steps=150, keys=220, width=64, device="cuda"))
    m = s.given["m"].clone()
    m[:, ::3] = -math.inf
    m[0, :, 1] = -math.inf
    s = replace(s, given={**s.given, "m": m})
    ours, reference = (run(c, op, s, causal, backend) for backend in ("triton", "torch"))
    for n, ref in reference.items():
        assert not ours[n].isnan().any(), n
        assert difference(ours[n], ref, head_axis(c, n)) < FLOAT32, n


def test_two_runs_give_the_same_bits():
    op, g = op_of("kattention"), torch.Generator("cuda").manual_seed(0)
    x = torch.randn(2, 333, 4, 64, device="cuda", generator=g).bfloat16().requires_grad_()
    Q, K = (torch.randn(4, 64, 64, device="cuda", generator=g).div(8).requires_grad_() for _ in "QK")
    b = torch.randn(4, 64, device="cuda", generator=g).requires_grad_()
    found = []
    for _ in range(2):
        y = op(x, Q, K, b, beta=0.2, causal=True)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), [x, Q, K, b])])
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


def test_memory_is_linear_in_the_length():
    def peak(T):
        x = torch.randn(1, T, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        op_of("softmax_attention")(x, x, x, causal=True).sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    peak(256)
    assert peak(16384) < 5 * peak(4096)


def test_more_than_65535_heads():
    q = torch.randn(7, 5, 10001, 16, device="cuda")
    o = op_of("softmax_attention")(q, q, q)
    ref = op_of("softmax_attention")(q[-1:, :, -3:], q[-1:, :, -3:], q[-1:, :, -3:], backend="torch")
    assert torch.allclose(o[-1:, :, -3:], ref, atol=1e-4)


def test_empty_sequences():
    q, k = torch.randn(2, 5, 2, 64, device="cuda"), torch.randn(2, 0, 2, 64, device="cuda")
    o, lse = op_of("softmax_attention")(q, k, k, output_lse=True)
    assert (o == 0).all() and (lse == -math.inf).all()
    assert op_of("softmax_attention")(k, q, q).shape == k.shape


def test_wide_features_go_to_the_torch_form():
    q = torch.randn(1, 20, 1, 300, device="cuda")
    o = op_of("softmax_attention")(q, q, q)
    ref = torch.nn.functional.scaled_dot_product_attention(*(q.double().transpose(1, 2),) * 3)
    assert relative_error(o, ref.transpose(1, 2), 2) < 1e-4
