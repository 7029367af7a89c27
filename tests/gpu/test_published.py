"""The catalogue's second shelf on a GPU: each op's kernels against the float64 oracle, and its decoding step.

Run alone: `python3 -m pytest tests/gpu/test_published.py -q`.
"""

import importlib

import pytest
import torch

from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language.load import published

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SPECS = {r.name: r for r in published()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", SPECS)
def test_kernels_match_the_oracle(name, dtype):
    op = getattr(importlib.import_module("chunkform.generated"), name)
    case = Case(seed=5, steps=300, batch=2, heads=2, width=64, dtype=dtype, device="cuda")
    found = check_op(compile_spec(SPECS[name]), op, case, backend="triton")
    assert {r.quantity: r.error for r in found if not r.ok} == {}
