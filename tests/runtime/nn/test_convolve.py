"""The short convolution as a function: torch's own, gradients, packed sequences, and its kernels in Triton's interpreter."""

import json
from pathlib import Path

import pytest
import torch
from shared.forked import script
from torch.nn import functional as F

from chunkform.runtime.nn.convolve import Packed, convolve, packed_by

HERE = Path(__file__).parent


def test_kernels_are_the_torch_form():
    done = script(HERE / "convolve_interpreted.py")
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 10 and {n: e for n, e in errors.items() if not e < 3e-6} == {}


@pytest.mark.parametrize("silu", [True, False])
def test_is_torchs_depthwise_convolution(silu):
    x, weight, bias = (torch.randn(s, dtype=torch.float64) for s in ((2, 9, 5), (4, 5), (5,)))
    y = F.conv1d(F.pad(x.mT, (3, 0)), weight.flip(0).mT.unsqueeze(1), bias, groups=5).mT
    assert torch.allclose(convolve(x, weight, bias, silu), F.silu(y) if silu else y, atol=1e-12)


def test_gradients_with_tails_of_packed_sequences():
    given = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((1, 7, 2), (3, 2), (2,), (3, 2, 2)))
    packed = packed_by(torch.tensor([0, 1, 1, 7]), 7)
    assert torch.autograd.gradcheck(lambda x, w, b, tail: convolve(x, w, b, True, tail, packed), tuple(given))


def test_each_row_of_a_batch_may_be_packed_by_itself():
    x, weight = torch.randn(2, 6, 3), torch.randn(4, 3)
    place = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]], dtype=torch.int32)
    y = convolve(x, weight, packed=Packed(place))
    assert torch.allclose(y[0, 3:], convolve(x[:1, 3:], weight)[0], atol=1e-6)
    assert torch.allclose(y[1, 1:], convolve(x[1:, 1:], weight)[0], atol=1e-6)
