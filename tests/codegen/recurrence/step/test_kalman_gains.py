"""Quotients of states that cancel: gains of a Kalman filter whose noises are far from each other."""

from __future__ import annotations

import json

import pytest
from shared.forked import TESTS, script
from shared.kalman_gains import ALIKE, NOISES, off


@pytest.mark.parametrize("noise", NOISES)
def test_gains_of_a_filter_and_their_gradients_are_right_however_far_its_noises_are(noise):
    assert off(noise, "torch") == []


@pytest.mark.parametrize("noise", NOISES)
def test_noises_that_are_alike_however_far_out_leave_products_of_maps_their_digits(noise):
    assert off(noise, "torch", ALIKE) == []


@pytest.mark.long
def test_kernels_have_them_as_well():
    done = script(TESTS / "shared" / "kalman_gains.py", "triton")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
