"""Per-step kernels: what the prologue makes of each step, decays of a function, outputs and gradients of several terms."""

from __future__ import annotations

import re

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.ir.expr import leaf, mul, total
from chunkform.codegen.recurrence.triton import triton_source
from chunkform.codegen.recurrence.triton.kernels.per_step import matrix_product, outer_vectors, printable
from chunkform.runtime.chunk_kernels.matrices import STEPS, by_matrix, outer_sum
from chunkform.runtime.launch.launch import candidates

STREAMS = ("rwkv7", "mamba2", "mlstm")
OTHERS = ("rwkv6", "longhorn", "gated_slot_attention", "gated_delta_product")


def hosts(name):
    """The functions that launch the kernels of a recurrence."""
    return re.findall(r"^def triton_\w+\(.*?(?=^@triton|^def |\Z)", triton_source(compiled(name)), re.M | re.S)


@pytest.mark.parametrize("name", [*STREAMS, *(pytest.param(n, marks=pytest.mark.long) for n in OTHERS)])
def test_torch_computes_nothing_for_each_step(name):
    found = hosts(name)
    assert len(found) >= 2
    for text in found:
        assert not re.search(r"torch\.(sigmoid|exp|nn)|\.(rsqrt|reciprocal|square|sum\(-|exp\(\))", text)


def test_no_tensor_has_a_matrix_for_each_step():
    for name in ("mapped", "nested", "projected", "scaled_retention"):
        for text in hosts(name):
            assert "[..., None, :]" not in text and not re.search(r"spread\(.*\(B, T, H, \w+, \w+\)", text), name
            assert "by_matrix(" in text or name == "scaled_retention"


def test_what_a_kernel_of_rows_makes():
    x, w, m = leaf("input", "x", ("d",)), leaf("parameter", "w", ("d",)), leaf("parameter", "m", ("e", "d"))
    assert printable(mul(x, w), ("d",)) and printable(mul(x, w), ("d",), summed=True)
    assert not printable(w, ("d",))  # the same at each step
    assert not printable(mul(x, m), ("d", "e"))
    product = total(mul(m, x, x), "d")
    assert not printable(product, ("e",)) and matrix_product(product) == (m, mul(x, x))
    assert matrix_product(total(mul(m, m, x), "d")) is None
    y = leaf("cotangent", "dy", ("e",))
    assert outer_vectors(mul(-1, y, x), ("e", "d")) == (mul(-1, y), x)
    assert outer_vectors(mul(m, x, y), ("e", "d")) is None
    assert outer_vectors(mul(y, w), ("e", "d")) is None  # the other is the same at each step


def test_programs_take_so_many_steps_that_tiles_have_2048_numbers():
    config = candidates(2, 256)[0]
    assert [config.rows(*x) for x in ((128,), (64, 256), (4096,), ())] == [16, 8, 1, 128]


def test_products_with_matrices_are_over_all_steps():
    x, y, m = torch.randn(2, STEPS + 5, 3, 4), torch.randn(2, STEPS + 5, 3, 6), torch.randn(3, 4, 6)
    close = {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(by_matrix("bthi,hij->bthj", x, m), (x[..., None] * m).sum(-2), **close)
    torch.testing.assert_close(outer_sum(x, y), (x[..., None] * y[..., None, :]).sum((0, 1)), **close)
    x, y = x.bfloat16(), y.bfloat16()
    assert by_matrix("bthi,hij->bthj", x, m).dtype == outer_sum(x, y).dtype == torch.float32
