"""The command that compares forward passes with a preparer on a GPU: what it says without one, and of what it has found."""

import math

import pytest
import torch

from benchmarks import joined_roles

ALL = {"forward": (joined_roles.FORWARD,), "both": (joined_roles.FORWARD, *joined_roles.BACKWARD, joined_roles.LOADED)}


@pytest.fixture(autouse=True)
def all_kernels(monkeypatch):
    monkeypatch.setattr(joined_roles, "KERNELS", ALL)


def found(error: float = 3e-3, launched: bool = True):
    errors = [{"op": "delta_rule", "case": "2x300x4x128", "without": {"o": 3e-3}, "with roles": {"o": error}}]
    there = {n: [1, 190.0] for n in ALL["both"]}
    kernel = there if launched else {"forward_sweep_1": [1, 170.0]}
    passes = {n: {"all": [199.0, 201.0], "kernels": [kernel, kernel]} for n in ("forward", "both")}
    without = {n: {"all": [280.0, 281.0], "kernels": [{}, {}]} for n in ("forward", "both")}
    times = [
        {
            "op": "delta_rule",
            "shape": "S1",
            "bound": {"forward": 131.0, "both": 350.0},
            "without": without,
            "with roles": passes,
            "others": {"3, 136, 24": [204.0, 900.0]},
        }
    ]
    return {"errors": errors, "times": times}


def test_nothing_stands_against_what_is_as_exact_and_was_launched():
    assert joined_roles.complaints(found()) == []
    table = joined_roles.table(found())
    assert "199.0, 201.0" in table and "190.0" in table and "3, 136, 24: 204.0, 900.0" in table


@pytest.mark.parametrize("error", [4e-3, math.nan])
def test_larger_errors_are_said(error):
    (said,) = joined_roles.complaints(found(error))
    assert said.startswith("delta_rule 2x300x4x128: o") and "without roles 3.00e-03" in said


def test_a_kernel_that_was_not_launched_is_said():
    said = joined_roles.complaints(found(launched=False))
    assert said[0] == "delta_rule S1: forward_joined_roles was not launched" and len(said) == 5


def test_passes_that_have_no_such_kernels_are_not_asked_for_them(monkeypatch):
    monkeypatch.setattr(joined_roles, "KERNELS", {"forward": (joined_roles.FORWARD,)})
    assert len(joined_roles.complaints(found(launched=False))) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr("sys.argv", ["joined_roles"])
    with pytest.raises(SystemExit, match=r"needs a GPU of compute capability 9\.0"):
        joined_roles.main()


def test_an_op_is_asked_for_the_kernels_that_it_has():
    assert joined_roles.kernels_of("delta_rule") == ALL
    assert joined_roles.kernels_of("inverse_attention") == {"forward": (), "both": ALL["both"][1:]}


@pytest.mark.parametrize("name", ["delta_rule", "inverse_attention"])
def test_what_is_compared_is_what_was_asked_for(name, monkeypatch):
    """Packed sequences, initial states and shared heads: without a GPU, both ways are torch."""
    monkeypatch.setattr(joined_roles, "DEVICE", "cpu")
    monkeypatch.setattr(joined_roles, "BACKEND", "torch")
    shape = joined_roles.Shape("small", 1, 40, 2, 16)
    case = joined_roles.Case(shape, start=True, shared=1, lengths=(3, 37))
    row = joined_roles.comparison(name, case)
    assert row["with roles"] == row["without"] and 0 < row["without"]["o"] < 5e-3 and row["without"]["S"] < 1e-5
    gradients = {"delta_rule": {"dv", "dbeta"}, "inverse_attention": {"do", "dlog_lam"}}[name]
    assert set(row["without"]) == {"o", "S", "dq", "dk", "dS"} | gradients and max(row["without"].values()) < 1e-2
