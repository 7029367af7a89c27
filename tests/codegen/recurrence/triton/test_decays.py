"""Gradients of decays, head by head and channel by channel, and what later steps change, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[3]


def test_strong_decays_of_channels_keep_their_gradients_and_nothing_looks_ahead():
    """Rows on both sides of the border between small and large ranges. All others:
    `python tests/shared/decay_errors.py --help`."""
    words = ["--backend", "triton", "--steps", "70", "--width", "4", "gated_linear_attention"]
    done = subprocess.run(
        [sys.executable, str(TESTS / "shared" / "decay_errors.py"), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ok" in done.stdout and "BAD" not in done.stdout, done.stdout
