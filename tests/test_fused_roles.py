"""The command that compares the fused backward with roles on a GPU: what it says without one, and of what it has found."""

import math

import pytest
import torch

from benchmarks import fused_roles


def found(error: float = 3e-3, kernel: float = 400.0):
    errors = [
        {
            "op": "retention",
            "shape": "2x300x4x128",
            "decay": "fast",
            "without": {"dq": 3e-3},
            "with roles": {"dq": error},
        }
    ]
    times = [
        {
            "op": "retention",
            "shape": "S1",
            "bound": {"forward": 131.0, "both": 480.2},
            "without": {"both": [740.0, 741.0], "kernel": [533.0, 534.0]},
            "with roles": {"both": [610.0, 611.0], "kernel": [kernel, kernel]},
        }
    ]
    return {"errors": errors, "times": times}


def test_nothing_stands_against_what_is_as_exact_and_was_launched():
    assert fused_roles.complaints(found()) == []
    assert "480.2" in fused_roles.table(found()) and "610.0, 611.0" in fused_roles.table(found())


@pytest.mark.parametrize("error", [4e-3, math.nan])
def test_larger_errors_are_said(error):
    (said,) = fused_roles.complaints(found(error))
    assert said.startswith("retention 2x300x4x128 fast: dq") and "without roles 3.00e-03" in said


def test_a_kernel_that_was_not_launched_is_said():
    assert fused_roles.complaints(found(kernel=math.nan)) == ["retention S1: it was not launched"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fused_roles"])
    with pytest.raises(SystemExit, match=r"needs a GPU of compute capability 9\.0"):
        fused_roles.main()
