"""Bit for bit, in Triton's interpreter: what `tests/runtime/op/test_bits.py` holds of the torch form, for a few ops."""

import json
from pathlib import Path

from shared.forked import script

NAMES = ["lightning_attention", "gated_delta_rule"]


def test_kernels_agree_bit_for_bit():
    path = Path(__file__).parent / "bits_interpreted.py"
    done = script(path, json.dumps(NAMES))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert list(found) == NAMES
    assert {name: {n: x for n, x in checks.items() if x} for name, checks in found.items()} == {n: {} for n in NAMES}
