"""The Triton kernels on a GPU: outputs, last states and every gradient against the float64 oracle."""

from __future__ import annotations

import pytest
import torch

from chunkform.codegen.check import Case

from triton_errors import compiled, errors

CASES = {
    "usual": Case(batch=2, steps=200, heads=3, width=64, device="cuda"),
    "wide": Case(batch=1, steps=150, heads=2, width=120, device="cuda", seed=1),
    "odd": Case(batch=1, steps=129, heads=2, width=37, device="cuda", seed=2),
    "extreme": Case(batch=1, steps=150, heads=2, width=64, device="cuda", seed=3, decay="extreme"),
}
BOUND = {torch.float32: 1e-5, torch.float16: 1.2, torch.bfloat16: 1.2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", sorted(compiled()))
def test_errors_are_those_of_rounding(name, case, dtype, record):
    rows = errors(name, CASES[case], dtype)
    record(rows)
    for r in rows:
        if dtype == torch.float32:
            assert r.error <= 1e-5, r
        else:
            assert r.error <= 1.2 * r.rounding + 1e-3, r
