"""The fused backward whose warps have roles, on a GPU of compute capability 9.0: gradients of each head against float64, beside
those of the kernel without roles, wherever a call may have it. `python -m benchmarks.fused_roles` times it as well."""

from contextlib import contextmanager

import pytest
import torch

from benchmarks.fused_roles import KERNEL
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch import replay

from .test_roles import SHAPES, every_op, gradients_agree

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WIDE = [what for what, shape in SHAPES.items() if shape[3] == shape[4] == 128 and what != "parts"]


@pytest.fixture
def launched(monkeypatch):
    """The fused backward passes with roles that are launched; each call that may have one does."""
    torch.cuda.init()
    if not warp_roles.available():
        pytest.skip("no kernels with roles on this GPU with this Triton")
    found = []
    real = warp_roles.launch

    def noted(kernel, *args, **options):
        if kernel.fn.__name__ == KERNEL:
            found.append(kernel)
        return real(kernel, *args, **options)

    monkeypatch.setattr(warp_roles, "launch", noted)
    monkeypatch.setattr(warp_roles, "FORCED", True)
    monkeypatch.setattr(replay, "ON", False)
    return found


@every_op
@pytest.mark.parametrize("what", [*WIDE, "packed"])
def test_gradients_are_as_without_roles(name, what, launched, monkeypatch):
    @contextmanager
    def without_roles(name):
        with monkeypatch.context() as m:
            m.setattr(warp_roles, "FUSED", False)
            yield

    gradients_agree(name, what, launched, without_roles)
