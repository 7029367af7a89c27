"""The step kernels of every op in Triton's interpreter: in place and new, in one tile and several, with head groups."""

import functools
import json
from pathlib import Path

import pytest
from shared.forked import script
from shared.step_calls import recurrences
from shared.structures import few_of, sweep

pytest.importorskip("triton")
FEW = few_of(tuple(recurrences()))
OTHERS = tuple(name for name in recurrences() if name not in FEW)


@functools.cache
def interpreted(names: tuple[str, ...]) -> dict:
    ran = script(Path(__file__).with_name("interpret.py"), *names)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


@pytest.fixture
def report() -> dict:
    return interpreted(FEW)


@pytest.mark.parametrize("name", sweep(recurrences()))
def test_a_step_agrees_with_the_oracle(name) -> None:
    assert interpreted(FEW if name in FEW else OTHERS)[name] < (1e-3 if name == "inverse_attention_unstable" else 1e-5)


def test_rows_of_a_pool_have_the_bits_of_steps_and_drafts_agree_with_them(report) -> None:
    pooled = {name: found for name, found in report.items() if name.endswith(" in a pool")}
    drafted = {name: found for name, found in report.items() if name.endswith(" in drafts")}
    assert len(pooled) == len(drafted) > 20 and not any(pooled.values())
    assert max(drafted.values()) < 1e-5, drafted


def test_packed_tokens_with_a_state_for_each_agree_with_torch(report) -> None:
    packed = {name: found for name, found in report.items() if name.endswith(" packed")}
    assert len(packed) > 20 and max(packed.values()) < 1e-5


def test_a_step_between_rows_of_small_numbers_agrees_with_torch(report) -> None:
    small = {name: found for name, found in report.items() if name.endswith(" in small numbers")}
    assert len(small) > 15 and max(small.values()) < 1e-5, small


def test_what_kernels_round_away_at_random_adds_up_to_nothing() -> None:
    """64 rows: the mean is off by 0.06 of a step of the grid, if one bit doesn't tell anything of another."""
    found = interpreted(("lightning_attention",))
    off = [x for n, x in found.items() if n.endswith(" at random")]
    alike = [x for n, x in found.items() if n.endswith(" alike")]
    assert len(off) == 2 and max(off) < 0.25 and max(alike) < 0.5, found
