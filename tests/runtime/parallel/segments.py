"""Rows and what enters segments, in Triton's interpreter: kernels against torch, which takes over where matrices are wide.

python segments.py     # prints the largest difference
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from chunkform.runtime.chunk_kernels import segment_scan
from chunkform.runtime.chunk_kernels.chunk_layout import chunk_layout
from chunkform.runtime.chunk_kernels.segment_maps import SegmentsMap, map_of_all


def main() -> None:
    torch.manual_seed(0)
    few, many = (chunk_layout(None, (n, 600, n), 64) for n in (2, 1))
    print(max(worst(few, 3, CASES), worst(many, 17, [])))  # 17 are in groups, of 5 and of 2


def worst(layout: Any, parts: int, cases: list[Any]) -> float:
    """The largest difference, of so many segments."""
    (B, H), worst = (layout.batch, layout.heads), 0.0
    for axis, shape in ((0, (16, 20)), (1, (20, 16))):
        local, linear = torch.randn(B * parts, H, *shape), 0.3 * torch.randn(B * parts, H, 16, 16)
        first = torch.randn(B, H, *shape)
        for forward in (True, False):
            found = []
            for widest in (128, 8):
                segment_scan.WIDEST = widest
                m = map_of_all("S", first, local, layout, parts, forward, linear=linear, axis=axis)
                assert m.wide == (widest == 8)
                assert m.wide or (m.groups is None) == (parts == 3)
                rows = torch.stack([m.sent(starts)[0] for starts in (True, False, False)])
                found.append([rows, *m.entering[1:], *m.entered(rows[:2], 1 if forward else -1)])
            worst = max(worst, *(float((x - y).abs().max() / y.abs().max()) for x, y in zip(*found, strict=True)))
    return max([worst, *(joined(layout, parts, forward, *x) for x in cases for forward in (True, False))])


CASES = [  # the size of what is kept of a state [16, 20], its axis, and that decays differ along
    (None, 0, None),
    ((1,), 0, None),
    ((16,), 0, 0),
    ((20,), 1, 1),
    ((320,), 0, None),  # of each entry
    ((16, 16), 0, None),
    ((20, 20), 1, None),
]


def joined(layout: Any, parts: int, forward: bool, kept: tuple[int, ...] | None, axis: int, along: int | None) -> float:
    """What enters from three rows, and from the row of all of them: the largest difference."""
    N, H = layout.batch * parts, layout.heads
    local = torch.randn(N, H, 16, 20)
    linear = None if kept is None else torch.rand(N, H, *kept) * (0.3 if len(kept) == 2 else 1.0)
    m = SegmentsMap("S", None, local, linear, layout, parts, forward, axis, along)
    rows = (torch.randn_like(m.sent(False)[0]), m.sent(False)[0], 0.3 * torch.randn_like(m.sent(False)[0]))
    both = m.composed(m.composed(rows[2], rows[1]), rows[0])[None]
    apart = m.entered(torch.stack(rows if forward else rows[::-1]), 1 if forward else -1)
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(m.entered(both, 1), apart, strict=True))


if __name__ == "__main__":
    main()
