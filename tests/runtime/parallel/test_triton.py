"""The Triton kernels find what enters a segment on their way: in Triton's interpreter, on three processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.forked import script

NAMES = [  # a matrix, a vector over the columns, a vector over the rows, both of these, a number, and nothing
    "gated_delta_rule",
    "value_decay_attention",
    "gated_linear_attention",
    "gla2d",
    "lightning_attention",
    "linear_attention",
    "gated_delta_rule lasting",
    "gated_linear_attention lasting",
    "lightning_attention lasting",
    "delta_rule",
    "lightning_attention scanned",
    "gated_delta_rule scanned",
    "gated_linear_attention scanned",
    "lightning_attention in memory",
    "gated_delta_rule in memory",
    "gated_linear_attention in memory",
]


@pytest.mark.long
def test_kernels_hand_on_states_between_processes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("interpret.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(found) == set(NAMES)
        assert {(n, k): x for n, row in found.items() for k, x in row.items() if not x < 3e-6} == {}


@pytest.mark.parametrize(
    "name",
    ["lightning_attention", *(pytest.param(n, marks=pytest.mark.long) for n in ("gated_linear_attention", NAMES[1]))],
)
def test_sweeps_that_leave_out_what_is_forgotten_change_no_bit_where_nothing_is(name: str) -> None:
    """Of segments that run side by side, under decays of sigmoid(normal + 9) and none; without a chunk all bits change."""
    done = script(Path(__file__).with_name("lasting.py"), name)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)[name]
    assert found["lasting"] == found["none"] == 0 and found["a chunk less"] > 4


def test_wide_matrices_are_multiplied_by_torch_as_kernels_would() -> None:
    done = script(Path(__file__).with_name("segments.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 1e-5
