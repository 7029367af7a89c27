"""Rows of pools on kernels, in Triton's interpreter, beside torch: as JSON, by `shared.forked`."""

import json

import torch

from chunkform.runtime.op import row_kernels
from chunkform.runtime.op.rows import read_rows, write_rows
from chunkform.runtime.op.small_states import LARGEST, Small, small

SHAPES = ((3, 8, 16), (2, 5, 24), (4, 7), (3,), (1, 2, 3, 33))  # heads and a state's axes
ROWS = torch.tensor([5, -1, 2, 0])
OTHERS = [1, 3, 4, 6]


def both(do):
    """What torch does, and what kernels do."""
    found = []
    for on in (False, True):
        row_kernels.on_kernels = lambda pool, on=on: on
        launched.clear()
        found.append(do())
        assert bool(launched) == on
    return found


launched: list[str] = []
usual = row_kernels.launch
row_kernels.launch = lambda kernel, *given, **how: (launched.append(kernel.fn.__name__), usual(kernel, *given, **how))
torch.manual_seed(0)
checked = 0
for shape in SHAPES:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        whole = torch.randn(7, shape[0] + 2, *shape[1:]).to(dtype)
        state = torch.randn(4, *shape, dtype=torch.float32)

        def moved(whole=whole, state=state, shape=shape):
            pool = whole.clone()[:, 1 : 1 + shape[0]]  # heads of a larger pool
            before = read_rows(pool, ROWS)
            write_rows([pool], [state], ROWS.int())
            return before, pool

        (a, b), (c, d) = both(moved)
        assert torch.equal(a, c) and torch.equal(b, d), (shape, dtype)
        checked += 1
    for dtype in (*LARGEST, torch.bfloat16):
        if len(shape) == 1:
            continue
        numbers, scales = small(torch.randn(7, *shape), dtype, False)

        def rounded(numbers=numbers, scales=scales, shape=shape, state=state):
            pool = Small(numbers.clone(), None if scales is None else scales.clone())
            before = pool.read(ROWS)
            pool.write(ROWS, state, False)
            return before, pool

        (a, b), (c, d) = both(rounded)
        assert torch.equal(a, c), (shape, dtype)
        assert b.scales is None or torch.allclose(b.scales, d.scales, rtol=1e-6), (shape, dtype)
        step = 1.0 if dtype == torch.int8 else b.numbers.float().abs() / 8 + 2.0**-9
        far = (b.numbers.float() - d.numbers.float()).abs() / step
        assert far.max() <= 1 and (far > 0).float().mean() < 0.01, (shape, dtype, far.max())  # a rounding of x / scale
        assert torch.equal(d.numbers[OTHERS].float(), numbers[OTHERS].float()), (shape, dtype)
        checked += 1
row_kernels.on_kernels = lambda pool: True
biases = {}
for dtype in (*LARGEST, torch.bfloat16):
    x = torch.rand(1, 1, 4, 16)
    numbers, scales = small(torch.zeros(400, 1, 4, 16), dtype, False)
    pool, rows = Small(numbers, scales), torch.arange(400)
    pool.write(rows, x.expand(400, 1, 4, 16), True)
    nearest = Small(*(None if y is None else y.clone() for y in small(x, dtype, False))).read(torch.tensor([0]))
    found = pool.read(rows)
    biases[str(dtype)] = [float((found.mean(0) - x).abs().max() / (nearest - x).abs().max()), len(found.unique(dim=0))]
    x[0, 0, 0, 0] = float("inf")
    if scales is None:
        pool.write(rows[:1], x, True)
        assert pool.read(rows[:1]).isinf().sum() == 1
print(json.dumps({"checked": checked, "biases": biases}))
