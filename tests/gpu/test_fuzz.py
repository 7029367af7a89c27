"""Random calls on a GPU, drawn by hypothesis, each compared with the float64 oracle: 640 of them, in processes for each op.

CHUNKFORM_FUZZ sets how many of each op, backend and seed (default: 32 in Triton, 8 in torch), CHUNKFORM_FUZZ_SEEDS which seeds
(default: 0): `CHUNKFORM_FUZZ_SEEDS=0,1,2,3` makes it 2,560.
"""

import os

import pytest
from shared.fuzz import command, environment, judged
from shared.op_cases import SPECS

CASES = {"triton": 32, "torch": 8}
SEEDS = [int(x) for x in os.environ.get("CHUNKFORM_FUZZ_SEEDS", "0").split(",")]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("backend", CASES)
def test_random_calls_agree_with_the_oracle(backend, seed, name):
    cases = int(os.environ.get("CHUNKFORM_FUZZ", CASES[backend]))
    found = judged(command(name, "cuda", backend, cases, seed), cases, env=environment())
    assert not found.failures, f"{len(found.causes)} causes\n" + "\n".join(found.told(name))
    assert found.ran >= cases
