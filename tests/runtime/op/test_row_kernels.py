"""Rows of pools are read and written by kernels as torch does it: widened, rounded to the nearest, and at random."""

import json
from pathlib import Path

from shared.forked import script


def test_kernels_read_and_write_rows_as_torch_does():
    done = script(Path(__file__).parent / "rows_interpreted.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["checked"] == 27
    for dtype, (bias, different) in found["biases"].items():
        assert bias < 0.35, dtype  # the mean of 400 draws is nearer than the nearest number
        assert different > 350, dtype
