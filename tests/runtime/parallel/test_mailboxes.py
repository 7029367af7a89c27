"""Maps that GPUs write into each other's memory: the kernels in Triton's interpreter, and who takes this way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkform.errors import ArgumentError, GroupError
from chunkform.runtime.parallel import mailboxes
from chunkform.runtime.parallel.group import Group


@pytest.fixture(scope="module")
def came() -> dict[str, Any]:
    """In a process of its own: kernels reach the memory of other ranks by its address."""
    command = [sys.executable, str(Path(__file__).with_name("mailboxes.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_rows_come_right_whatever_the_order_of_the_ranks(came: dict[str, Any]) -> None:
    assert all(x["wrong"] == 0 and x["said"] == "" for x in came["right"])
    assert max(x["ahead"] for x in came["right"]) == came["slots"]  # ranks didn't only run in step


def test_a_pass_that_ended_half_way_leaves_nothing_behind(came: dict[str, Any]) -> None:
    assert all(x["wrong"] == 0 and x["said"] == "" for x in came["broken"])


def test_without_acknowledgements_rows_would_be_written_over(came: dict[str, Any]) -> None:
    assert any(x["wrong"] for x in came["unread"])
    assert max(x["ahead"] for x in came["unread"]) > came["slots"]


def test_what_never_comes_is_given_up_and_named(came: dict[str, Any]) -> None:
    for x in came["early"]:
        assert x["wrong"] == 0
        assert "waited for rank" in x["said"] and "to write the maps of exchange 1" in x["said"]


def _facts(**changed: object) -> dict[str, object]:
    return {"way": "memory", "able": True, "host": "a", "gpu": "0", "shared": False, **changed}


@pytest.mark.parametrize("other", [{"way": "gather"}, {"able": False}, {"host": "b"}, {"gpu": "0"}])
def test_ranks_see_each_others_memory_where_all_can_and_want_to(other: dict[str, object]) -> None:
    assert mailboxes.agree([_facts(), _facts(gpu="1")])
    assert not mailboxes.agree([_facts(), _facts(**{"gpu": "1", **other})])


def test_ranks_share_a_gpu_where_all_of_them_are_told_to() -> None:
    assert mailboxes.agree([_facts(shared=True), _facts(shared=True)])
    assert not mailboxes.agree([_facts(shared=True), _facts()])


def test_memory_is_the_usual_way_and_gathering_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mailboxes.VARIABLE, raising=False)
    assert mailboxes.chosen() == "memory"
    monkeypatch.setenv(mailboxes.VARIABLE, "gather")
    assert mailboxes.chosen() == "gather"
    group = Group("op", object(), 0, 2)  # type: ignore[arg-type]
    monkeypatch.setattr(mailboxes, "OF_GROUPS", {})
    assert mailboxes.mailboxes_of(group, torch.device("cpu")) is None


def test_a_way_that_there_is_none_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mailboxes.VARIABLE, "pigeon")
    with pytest.raises(ArgumentError, match="CHUNKFORM_EXCHANGE must be gather or memory, got pigeon"):
        mailboxes.chosen()


def test_memory_that_cant_be_made_is_an_error_that_says_what_does_without() -> None:
    def refused(group: Group, size: int, device: torch.device) -> Any:
        raise RuntimeError("no link")

    boxes = mailboxes.Mailboxes(refused, torch.device("cpu"), 1, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(GroupError, match=r"no link.*CHUNKFORM_EXCHANGE=gather"):
        boxes.box(Group("op", None, 0, 2), torch.zeros(4), True, 0)  # type: ignore[arg-type]
