"""How far ahead programs of a decoding step bring into the L2 cache what later ones load.

Rows of a pool in random order take longer to come than what a multiprocessor has under way covers. On an H200 a step of 256
sequences (16 heads of 128 channels, bfloat16) moves its bytes at 81% of a copy's rate without it, and at 87% where programs ask
for what is 200 heads further on; 93% in the place of 86% where rows are in order. 132 and 264 heads bring 84 and 86%, 528 heads
75%: then other memory is driven out. Where programs have whole heads (`entrywise.py`), nothing is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

AHEAD = 48 * 1024  # bytes of each multiprocessor
ALIGNED = 16  # bytes: what is brought at once
FIRST = (9, 0)  # the compute capability that can


def heads_ahead(states: Sequence[Tensor], programs: int) -> int:
    """So many heads; 0 where it can't be, as where parts of a head, one for each of its programs, aren't aligned."""
    matrices = [x for x in states if x.dim() > 3]
    if not matrices or states[0].device.type != "cuda" or torch.cuda.get_device_capability(states[0].device) < FIRST:
        return 0
    sizes = [math.prod(x.shape[2:]) * x.element_size() for x in matrices]
    if not all(_is_dense(x) and size % (ALIGNED * programs) == 0 for x, size in zip(matrices, sizes, strict=True)):
        return 0
    return AHEAD * torch.cuda.get_device_properties(states[0].device).multi_processor_count // sum(sizes)


def _is_dense(x: Tensor) -> bool:
    """Do the entries of a head lie side by side, in any order, from an aligned address on?"""
    expected = 1
    for stride, n in sorted(zip(x.stride()[2:], x.shape[2:], strict=True)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return x.data_ptr() % ALIGNED == 0 and all(n * x.element_size() % ALIGNED == 0 for n in x.stride()[:2])
