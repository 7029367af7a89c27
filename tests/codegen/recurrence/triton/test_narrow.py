"""Kernels with the narrower tiles that a GPU with less shared memory gets, in Triton's interpreter: they compute the same."""

from pathlib import Path

import pytest
from shared.forked import script

INTERPRET = Path(__file__).with_name("narrow_interpreted.py")


@pytest.mark.parametrize("name", ["gated_delta_rule", "sherman_morrison"])
def test_narrow_tiles_compute_what_the_torch_form_does(name):
    found = script(INTERPRET, name)
    assert found.returncode == 0, found.stdout + found.stderr
