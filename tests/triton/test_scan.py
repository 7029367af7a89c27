"""Scans in Triton's interpreter, against a loop: in both directions, with every kind of factor, in parts, and packed."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import torch

STEPS, HEADS, WIDTH = 75, 2, 5


def by_steps(factor, added, first, forward, early):
    """[T, H, W] -> (states before each step, after it, the last)."""
    S, steps = first, range(len(added)) if forward else range(len(added) - 1, -1, -1)
    before, after = torch.empty_like(added), torch.empty_like(added)
    for t in steps:
        before[t] = S
        S = factor[t] * (S + added[t]) if early else factor[t] * S + added[t]
        after[t] = S
    return before, after, S


def errors(bounds, parts, forward, early, log, wide):
    """Of what a scan over packed sequences, or over one in parts, makes of random numbers."""
    from chunkform.runtime import scan as module
    from chunkform.runtime.packed import Packed
    from chunkform.runtime.places import places

    module.parts_for = lambda *_: parts
    count = len(bounds) - 1
    added, first = torch.randn(1, STEPS, HEADS, WIDTH), torch.randn(count, HEADS, WIDTH)
    factor = torch.randn(1, STEPS, HEADS, *([WIDTH] if wide else []))
    given, factor = (-factor.abs(), (-factor.abs()).exp()) if log else (factor, factor)
    starts = torch.tensor(bounds)
    lay = places(Packed(starts, count, STEPS) if count > 1 else None, (1, STEPS, HEADS), 32)
    wide_factor = factor if wide else factor[..., None].expand_as(added)
    found = module.scan(
        added, given, added, first, lay, (WIDTH,), forward=forward, early=early, log=log, before=torch.float32,
        after=torch.float32,
    )  # fmt: skip
    worst = 0.0
    for n, (a, b) in enumerate(pairwise(bounds)):
        exact = by_steps(wide_factor[0, a:b].double(), added[0, a:b].double(), first[n].double(), forward, early)
        for x, y in zip((found[0][0, a:b], found[1][0, a:b], found[2][n]), exact, strict=True):
            worst = max(worst, float((x - y).norm() / y.norm().clamp_min(1e-9)))
    return worst


def main():
    torch.manual_seed(0)
    one, packed = [0, STEPS], [0, 30, 30, 34, STEPS]
    cases = [
        (one, 1, True, False, True, True),
        (one, 1, False, True, True, True),
        (one, 2, True, False, False, False),
        (one, 2, False, True, False, True),
        (packed, 1, True, True, False, True),
        (packed, 1, False, False, True, False),
    ]
    print(json.dumps([errors(*case) for case in cases]))


def test_scans_agree_with_a_loop():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 6 and all(e < 1e-5 for e in found), found


if __name__ == "__main__":
    main()
