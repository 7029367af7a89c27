"""The example that trains on sequences in segments: FSDP2, context and tensor parallelism have the losses of one process, and
runs go on from checkpoints, on other numbers of processes and where one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from shared.forked import program

EXAMPLE = Path(__file__).parents[3] / "examples" / "context_parallel.py"
OPTIONS = ["--every", "1", "--length", "75", "--batch", "2", "--width", "16"]
FRESH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # a restart finds no addresses of processes that were killed
HYBRID = ["--op", "gated_delta_rule,rotary_attention", "--blocks", "2", "--copies", "2"]


@cache
def alone(*more: str) -> dict[int, float]:
    done = program(EXAMPLE, *OPTIONS, *more)
    assert done.returncode == 0, done.stderr[:3000]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["step"]: row["nats"] for row in rows}


def together(
    count: int, *more: str, restarts: int = 0, watch: Callable[[int, int], None] | None = None
) -> dict[int, float]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return losses([sys.executable, *words, f"--max-restarts={restarts}", str(EXAMPLE), *OPTIONS, *more], watch)


def losses(command: list[str], watch: Callable[[int, int], None] | None = None) -> dict[int, float]:
    """By step. `watch` is called with each step that is printed, and the process that was started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", FRESH: "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as p:
        assert p.stdout is not None and p.stderr is not None
        found = {}
        for line in p.stdout:
            if line.startswith("{"):
                row = json.loads(line)
                found[row["step"]] = row["nats"]
                if watch is not None:
                    watch(row["step"], p.pid)
        problems = p.stderr.read()
        assert p.wait(60) == 0, problems[:3000]
    return found


def apart(found: dict[int, float], expected: dict[int, float]) -> float:
    return max(abs(x - expected[step]) for step, x in found.items())


def test_one_process_trains() -> None:
    found = alone("--steps", "3", "--blocks", "1")
    assert list(found) == [1, 2, 3] and found[3] < found[1]


@pytest.mark.long
def test_two_processes_train_as_one_does() -> None:
    found = together(2, "--cp", "2", "--steps", "3", "--blocks", "1")
    assert list(found) == [1, 2, 3]
    assert apart(found, alone("--steps", "3", "--blocks", "1")) < 1e-4


@pytest.mark.long
def test_eight_processes_share_parameters_sequences_and_heads_and_four_or_two_go_on(tmp_path: Path) -> None:
    """FSDP2 of 2 x 2, segments 2, heads 2, of a model whose blocks are recurrences and attentions in turn; one process too."""
    expected = alone("--steps", "6", *HYBRID)
    more = [*HYBRID, "--save", str(tmp_path), "--tp", "2"]
    assert apart(first := together(8, *more, "--cp", "2", "--steps", "2"), expected) < 1e-4
    assert apart(second := together(4, *more, "--cp", "2", "--steps", "4"), expected) < 1e-4
    assert apart(third := together(2, *more, "--steps", "6"), expected) < 1e-4
    assert [*first, *second, *third] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_one_process_goes_on_where_two_stopped(tmp_path: Path) -> None:
    expected = alone("--steps", "6", *HYBRID)
    more = [*HYBRID, "--save", str(tmp_path)]
    assert list(together(2, *more, "--cp", "2", "--steps", "2")) == [1, 2]
    found = losses([sys.executable, str(EXAMPLE), *OPTIONS, *more, "--steps", "4"])
    assert list(found) == [3, 4] and apart(found, expected) < 1e-4


@pytest.mark.long
def test_a_killed_process_ends_the_others_and_all_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    expected = alone("--steps", "12", *HYBRID)
    seen: list[int] = []
    killed: list[float] = []

    def watch(step: int, started: int) -> None:
        seen.append(step)
        if step == 5 and not killed:
            os.kill(workers(started)[-1], signal.SIGKILL)
            killed.append(time.monotonic())
        elif killed and len(killed) == 1:
            killed.append(time.monotonic())

    more = ["--save", str(tmp_path), "--save-every", "2", "--steps", "12", "--timeout", "20", "--cp", "2"]
    found = together(2, *HYBRID, *more, restarts=1, watch=watch)
    assert sorted(found) == [*range(1, 13)] and apart(found, expected) < 1e-4
    again = seen[seen.index(5) + 1 :]
    again = again[next(n for n, step in enumerate(again) if n == 0 or step <= again[n - 1]) :]
    assert again[0] in (5, 7), seen  # after a checkpoint of step 4, or 6 where the signal came late
    assert killed[1] - killed[0] < 60


def workers(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    return [int(x) for x in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
