"""Random valid specs compile, and compute what plain loops do: a few in each run; `run.py` goes through thousands by hand."""

from __future__ import annotations

import pytest
from shared.forked import script

from .run import try_seed
from .wider import FIRST

SEEDS = range(20_000, 20_010)
WIDER = (FIRST + 34, *range(FIRST + 1, FIRST + 8))
INTERPRETED = (20_000, 20_001)


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *WIDER[:2], *(pytest.param(n, marks=pytest.mark.long) for n in (*SEEDS[2:], *WIDER[2:]))]
)
def test_a_random_spec_computes_what_a_plain_loop_does(seed: int) -> None:
    outcome = try_seed(seed, explained=seed % 4 == 0)
    assert outcome.problem is None, outcome.problem


def test_kernels_of_random_specs_compute_what_plain_loops_do() -> None:
    """In Triton's interpreter, which must be chosen before Triton is imported."""
    done = script("random_specs.run", *map(str, INTERPRETED), "--triton")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(range(*INTERPRETED))} specs, 0 failed" in done.stdout
