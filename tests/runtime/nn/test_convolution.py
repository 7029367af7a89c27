"""The short convolution: torch's depthwise one, in parts, and over packed sequences."""

import pytest
import torch
from torch.nn import functional as F

from chunkform.errors import ArgumentError
from chunkform.runtime.nn import ShortConvolution


def made(taps=4, channels=5):
    torch.manual_seed(0)
    return ShortConvolution(channels, taps).double()


def expected(convolve, x, tail=None):
    """torch's own, over what came before and x."""
    before = convolve.taps - 1
    tail = x.new_zeros(x.shape[0], before, x.shape[2]) if tail is None else tail
    y = torch.cat([tail, x], 1).mT
    return F.conv1d(y, convolve.weight.T.flip(1).unsqueeze(1), groups=x.shape[2]).mT


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_is_a_causal_depthwise_convolution(taps):
    convolve, x = made(taps), torch.randn(2, 9, 5, dtype=torch.float64)
    y, tail = convolve(x)
    assert torch.allclose(y, expected(convolve, x), atol=1e-12)
    assert torch.equal(tail, x[:, 9 - (taps - 1) :])


@pytest.mark.parametrize("cuts", [(4, 9), (1, 2, 3, 9), (0, 9)])
def test_in_parts(cuts):
    convolve, x = made(), torch.randn(2, 9, 5, dtype=torch.float64)
    tail, parts, start = None, [], 0
    for end in cuts:
        y, tail = convolve(x[:, start:end], tail)
        parts.append(y)
        start = end
    assert torch.allclose(torch.cat(parts, 1), convolve(x)[0], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("taps", [1, 4])
def test_packed_sequences_do_not_see_each_other(taps, dtype):
    convolve = made(taps)
    lengths = [3, 0, 1, 7, 0, 2]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=dtype)
    x = torch.randn(1, sum(lengths), 5, dtype=torch.float64)
    for tail in (None, torch.randn(len(lengths), taps - 1, 5, dtype=torch.float64)):
        y, after = convolve(x, tail, starts)
        for n, length in enumerate(lengths):
            own = x[:, starts[n] : starts[n] + length]
            one, last = convolve(own, None if tail is None else tail[n : n + 1])
            assert torch.allclose(y[:, starts[n] : starts[n] + length], one, atol=1e-12)
            assert torch.equal(after[n : n + 1], last)


def test_gradients_of_packed_sequences():
    convolve = made(3, 2)
    starts = torch.tensor([0, 2, 2, 5])
    x = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    tail = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, tail: convolve(x, tail, starts), (x, tail))


def test_mistakes_are_named():
    with pytest.raises(ArgumentError, match=r"x must be \[B, T, 5\], got \[2, 3, 4\]"):
        made()(torch.zeros(2, 3, 4))
    with pytest.raises(ArgumentError, match=r"tail must be \[2, 3, 5\], got \[1, 3, 5\]"):
        made()(torch.zeros(2, 3, 5), torch.zeros(1, 3, 5))
