"""Sweeps that are one kernel with their prologues, whose warps have roles, on a GPU of compute capability 9.0: outputs, last
states and gradients of each head against float64, beside today's kernels. `python -m benchmarks.joined_roles` times them."""

import pytest
import torch

from benchmarks import joined_roles
from chunkform.runtime.chunk_kernels import warp_roles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", joined_roles.NAMES)
@pytest.mark.parametrize("case", joined_roles.CASES, ids=lambda x: x.spelled)
def test_errors_are_as_without_roles(name, case, monkeypatch):
    torch.cuda.init()
    if not warp_roles.available():
        pytest.skip("no kernels with roles on this GPU with this Triton")
    launched = []
    real = warp_roles.launch
    monkeypatch.setattr(
        warp_roles, "launch", lambda k, *args, **options: (launched.append(k), real(k, *args, **options))[1]
    )
    found = {"errors": [joined_roles.comparison(name, case)], "times": []}
    assert joined_roles.complaints(found) == []
    kernels = (x for several in joined_roles.kernels_of(name).values() for x in several)
    assert [k.fn.__name__ for k in launched] == [*kernels]
