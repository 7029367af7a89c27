"""Bit for bit, in Triton's interpreter: what `tests/runtime/op/test_bits.py` holds of the torch form, for a few ops."""

import json
import os
import subprocess
import sys
from pathlib import Path

NAMES = ["lightning_attention", "gated_delta_rule"]


def test_kernels_agree_bit_for_bit():
    script = Path(__file__).parent / "bits_interpreted.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(NAMES)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert list(found) == NAMES
    assert {name: {n: x for n, x in checks.items() if x} for name, checks in found.items()} == {n: {} for n in NAMES}
