"""Gradients of decays, head by head and channel by channel, and what later steps change, in Triton's interpreter."""

from pathlib import Path

import pytest
from shared.forked import script

TESTS = Path(__file__).parents[3]


def assert_within_bounds(*words):
    done = script(TESTS / "shared" / "decay_errors.py", "--backend", "triton", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ok" in done.stdout and "BAD" not in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["gated_linear_attention", pytest.param("gla2d", marks=pytest.mark.long)])
def test_strong_decays_of_channels_keep_their_gradients_and_nothing_looks_ahead(name):
    """Rows on both sides of the limit between small and large ranges. All others:
    `python tests/shared/decay_errors.py --help`."""
    assert_within_bounds("--steps", "70", "--width", "4", name)


@pytest.mark.parametrize(
    "name", ["lightning_attention", "gated_delta_rule", pytest.param("retention", marks=pytest.mark.long)]
)
def test_one_strong_decay_a_step_keeps_its_gradient_in_bfloat16(name):
    """On one sweep and on several, with no step's own write or read in sums that are taken apart again."""
    assert_within_bounds("--gradients", "--dtype", "bfloat16", "--steps", "70", "--width", "8", name)


def test_one_strong_decay_a_step_keeps_its_gradient_in_float32():
    """A strong decay's large logarithm costs the sums that others are taken from nothing."""
    assert_within_bounds("--gradients", "--steps", "70", "--width", "4", "lightning_attention")


@pytest.mark.parametrize("name", [pytest.param("square_delta_rule", marks=pytest.mark.long), "beside_channels"])
def test_strong_decays_keep_their_gradients_where_states_are_read_from_checkpoints(name):
    """Of the channels of a square state; and one a step, where a read sees the write of the step before with no decay between."""
    assert_within_bounds("--gradients", "--dtype", "bfloat16", "--steps", "67", "--width", "4", name)
