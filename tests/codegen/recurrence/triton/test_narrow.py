"""Kernels with the narrower tiles that a GPU with less shared memory gets, in Triton's interpreter: they compute the same."""

import subprocess
import sys
from pathlib import Path

import pytest

INTERPRET = Path(__file__).with_name("narrow_interpreted.py")


@pytest.mark.parametrize("name", ["gated_delta_rule", "sherman_morrison"])
def test_narrow_tiles_compute_what_the_torch_form_does(name):
    found = subprocess.run([sys.executable, str(INTERPRET), name], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
