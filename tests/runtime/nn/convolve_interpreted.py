"""The kernels of the short convolution in Triton's interpreter beside its torch form in float64, as JSON. By `shared.forked`.

Blocks are so small that there are several along both axes.
"""

import json

import torch

from chunkform.runtime.nn import convolve as c

c.ROWS, c.STEPS, c.BLOCK, c.CHANNELS = 8, 8, 16, 16
D = 21
CASES = [  # taps, lengths of packed sequences or None, bias, tail, SiLU, where channels lie
    (4, None, False, False, True, "last"),
    (4, None, True, True, True, "last"),
    (4, [3, 0, 1, 7, 2, 9], True, True, True, "last"),
    (4, [12, 5], False, False, True, "first"),
    (3, [1, 4, 0, 9], False, True, False, "last"),
    (2, None, True, True, True, "first"),
    (1, [5, 6], True, False, False, "last"),
]


def called(given, grad, silu, packed, dtype, backend, channels):
    x, *others = (None if v is None else v.detach().to(dtype) for v in given)
    x = x.mT.contiguous().mT if channels == "first" else x
    x, *others = (None if v is None else v.requires_grad_() for v in (x, *others))
    weight, bias, tail = others
    y = c.convolve(x, weight, bias, silu, tail, packed, backend)
    with torch.no_grad():
        assert torch.equal(y, c.convolve(x, weight, bias, silu, tail, packed, backend))
    live = [v for v in (x, *others) if v is not None and v.numel()]
    return [y, *torch.autograd.grad(y, live, grad.to(dtype))]


def far(exact, found):
    return ((exact - found).abs().max() / exact.abs().max()).item()


errors = {}
torch.manual_seed(0)
for case in CASES:
    taps, lengths, bias, tail, silu, channels = case
    batch, steps = (2, 19) if lengths is None else (1, sum(lengths))
    shapes = [(batch, steps, D), (taps, D), (D,) if bias else None]
    shapes.append((batch if lengths is None else len(lengths), taps - 1, D) if tail else None)
    given = [None if s is None else torch.randn(*s, dtype=torch.float64) for s in shapes]
    packed = None if lengths is None else c.packed_by(torch.tensor([0, *lengths]).cumsum(0), steps)
    grad = torch.randn(batch, steps, D, dtype=torch.float64)
    exact = called(given, grad, silu, packed, torch.float64, "torch", channels)
    found = called(given, grad, silu, packed, torch.float32, "triton", channels)
    errors[str(case)] = max(map(far, exact, found))

for taps, length in ((4, 4), (4, 3), (2, 4)):  # a step of generation, and the inputs that are kept
    x, kept = torch.randn(3, D), torch.randn(3, D, length)
    weight, bias = torch.randn(taps, D), torch.randn(D)
    whole = torch.cat([kept, x.unsqueeze(2)], 2)
    y = c.convolve(whole.mT, weight, bias, True, backend="torch")[:, -1]
    found = c.convolve_step(x, weight, bias, True, kept)
    errors[f"step {taps} {length}"] = max(far(y, found), far(whole[:, :, 1:], kept))
print(json.dumps(errors))
