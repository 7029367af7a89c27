"""Rows and what enters segments, in Triton's interpreter: kernels against torch, which takes over where matrices are wide.

python segments.py     # prints the largest difference
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from chunkform.runtime.chunk_kernels import kernels
from chunkform.runtime.chunk_kernels.chunk_layout import places
from chunkform.runtime.chunk_kernels.segment_maps import map_of_all


def main() -> None:
    torch.manual_seed(0)
    B, H, parts = 2, 2, 3
    lay, worst = places(None, (B, 600, H), 64), 0.0
    for axis, shape in ((0, (16, 20)), (1, (20, 16))):
        local, linear = torch.randn(B * parts, H, *shape), 0.3 * torch.randn(B * parts, H, 16, 16)
        first = torch.randn(B, H, *shape)
        for forward in (True, False):
            found = []
            for widest in (128, 8):
                kernels.WIDEST = widest
                m = map_of_all("S", first, local, lay, parts, forward, linear=linear, axis=axis)
                assert m._wide == (widest == 8)
                rows = torch.stack([m.sent(starts)[0] for starts in (True, False, False)])
                found.append([rows, *m.entering[1:], *m.entered(rows[:2], 1 if forward else -1)])
            worst = max(worst, *(float((x - y).abs().max() / y.abs().max()) for x, y in zip(*found, strict=True)))
    print(worst)


if __name__ == "__main__":
    main()
