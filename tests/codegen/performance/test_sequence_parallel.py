"""The planner: what it counts follows from the maps, and what it says of time moves as it must."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunkform.codegen.commands.cli import app
from chunkform.codegen.performance.sequence_parallel import Links, Step, link_plan, sizes_up_to
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import ArgumentError
from chunkform.runtime.parallel.links import gathering, scanning
from chunkform.runtime.parallel.shards import Piece, pieces_of
from chunkform.spec.language import find


@cache
def compiled(name: str) -> Compiled:
    return compile_spec(find(name)[0])


def step(name: str, gpus: int, steps: int = 65536, links: Links | None = None) -> Step:
    return link_plan(compiled(name), (2, steps, 4, 128), gpus, links)


@pytest.mark.parametrize(
    "name, linear", [("lightning_attention", 1), ("gated_linear_attention", 128), ("gated_delta_rule", 128 * 128)]
)
def test_a_map_is_as_large_as_its_linear_part_and_the_state(name: str, linear: int) -> None:
    assert step(name, 4).map_bytes == 4 * 2 * 4 * (linear + 128 * 128)
    assert step(name, 4, steps=1 << 20).map_bytes == step(name, 4).map_bytes


def test_every_rank_receives_the_maps_of_the_others_twice() -> None:
    assert step("gated_delta_rule", 1).received == 0
    assert step("gated_delta_rule", 1).communicate == step("gated_delta_rule", 1).compose == 0
    for gpus in (2, 8, 64):
        s = step("gated_delta_rule", gpus)
        assert s.received == 2 * (gpus - 1) * s.map_bytes
        assert s.steps == 65536 // gpus


def test_up_to_a_node_maps_are_written_and_of_many_nodes_they_take_log_steps() -> None:
    steps = {n: step("gated_delta_rule", n, 1 << 20) for n in (2, 8, 64, 1024)}
    assert [s.exchange for s in steps.values()] == ["write", "write", "gather", "scan"]
    assert steps[1024].received == 2 * 10 * steps[1024].map_bytes
    nodes = [step("gated_delta_rule", 64, 1 << 20, Links(network=x)) for x in (45e9, 5e9)]
    assert [s.exchange for s in nodes] == ["gather", "scan"]
    for s in (*steps.values(), *nodes):
        links = Links(network=5e9) if s is nodes[1] else Links()
        if s.gpus > links.per_node:
            known = {"gather": gathering(s.map_bytes, s.gpus, links), "scan": scanning(s.map_bytes, s.gpus, links)}
            assert s.exchange == min(known, key=known.__getitem__)
            assert s.communicate == pytest.approx(2 * min(known.values()))


def test_slower_links_take_longer_and_more_nodes_use_the_network() -> None:
    fast, slow = (step("gated_linear_attention", 8, links=Links(link=x)) for x in (400e9, 4e9))
    assert slow.communicate > fast.communicate and slow.compute == fast.compute
    one, many = (step("gated_linear_attention", 8, links=Links(per_node=n, network=1e9)) for n in (8, 2))
    assert many.communicate > 2 * one.communicate


def test_longer_sequences_gain_more_from_more_gpus() -> None:
    """By the model alone. One GPU's measured time of a million steps is more than four times that of a quarter of them."""

    def gain(steps: int) -> float:
        one, four = (step("gradient_descent_squared", n, steps) for n in (1, 4))
        assert one.measured is four.measured is None
        return one.seconds / four.seconds

    assert 1 < gain(1 << 17) < gain(1 << 20) < 4


def test_of_thousands_of_gpus_the_best_number_is_in_between() -> None:
    """Every rank receives the maps of all, so that at some number more ranks cost more than they save."""
    counts = sizes_up_to(4096)
    assert counts[-1] == 4096 and sizes_up_to(6) == [1, 2, 4, 6]
    seconds = [step("lightning_attention", n, steps=1 << 23).seconds for n in counts]
    best = seconds.index(min(seconds))
    assert 8 < counts[best] < 4096 and seconds[best] < seconds[0] / 50


def test_what_has_no_map_is_refused() -> None:
    with pytest.raises(ArgumentError, match="sherman_morrison: a plan needs a recurrence that is affine in its state"):
        step("sherman_morrison", 2)
    with pytest.raises(ArgumentError, match="gpus must be 1 to the 16 steps of the sequence, got 32"):
        step("lightning_attention", 32, steps=16)


def test_the_command_prints_a_row_for_each_number_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ["plan", "gated_delta_rule", "--gpus", "16", "--seq", "8192", "--heads", "2", "--json", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert [s["gpus"] for s in found["steps"]] == [1, 2, 4, 8, 16]
    assert found["shape"] == {"B": 1, "T": 8192, "H": 2, "D": 128}
    assert found["steps"][0]["speedup"] == 1.0
    assert CliRunner().invoke(app, ["plan", "gated_delta_rule", "--gpus", "0"]).exit_code == 2


def test_every_step_of_packed_sequences_is_in_one_piece() -> None:
    borders, lengths = [0, 0, 4, 4, 9, 12, 12], [5, 0, 4, 3]
    found = [pieces_of(borders, lengths, r) for r in range(4)]
    assert found[0] == [Piece(0, 0, 0, True, True), Piece(1, 0, 4, True, True), Piece(2, 4, 4, True, True)] + [
        Piece(3, 4, 5, True, False)
    ]
    assert found[1] == []
    assert found[2] == [Piece(3, 0, 4, False, True)]
    assert found[3] == [Piece(4, 0, 3, True, True), Piece(5, 3, 3, True, True)]
