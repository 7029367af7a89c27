"""What the record of a run and the limit of a test say."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from shared.cpu import Recorder, refuse, seconds
from shared.forked import script


def test_a_test_that_takes_too_long_fails_unless_it_is_long():
    with pytest.raises(pytest.fail.Exception, match="the test took 61 s of the processor, at most 60: make it smaller"):
        refuse("the test", 61.0, 60.0, is_long=False)
    refuse("the test", 61.0, 60.0, is_long=True)
    refuse("the test", 61.0, 0.0, is_long=False)


def test_what_a_forked_script_takes_counts(tmp_path: Path):
    (tmp_path / "busy.py").write_text("raise SystemExit(3)\n")
    assert script(tmp_path / "busy.py").returncode == 3  # the process that forks has imported what it needs
    begun = seconds()
    (tmp_path / "busy.py").write_text(
        "import time\nbegun = time.process_time()\nwhile time.process_time() < begun + 0.3: pass\n"
    )
    assert script(tmp_path / "busy.py").returncode == 0
    assert 0.3 <= seconds() - begun < 3


POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor

pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
print(pool.submit(os.getpid).result())
"""


def test_a_forked_script_leaves_no_process_behind(tmp_path: Path):
    (tmp_path / "pool.py").write_text(POOL)
    process = int(script(tmp_path / "pool.py").stdout)
    until = time.monotonic() + 10
    while alive(process):
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.01)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def recorded(path: Path, command: str) -> Recorder:
    found = Recorder(path, command)
    for when, outcome, taken in (("setup", "passed", 2.0), ("call", "failed", 1.5), ("teardown", "passed", 0.0)):
        found.add(
            SimpleNamespace(
                nodeid="tests/a.py::test_b",
                when=when,
                outcome=outcome,
                failed=outcome == "failed",
                user_properties=[(f"cpu {when}", taken)],
            )
        )
    found.write()
    return found


def test_a_record_has_outcomes_and_the_seconds_of_each_file(tmp_path: Path):
    recorded(tmp_path / "some" / "tests.json", "make test-all")
    (run,) = json.loads((tmp_path / "some" / "tests.json").read_text())["runs"]
    assert run["outcomes"] == {"failed": 1} and run["failed"] == ["tests/a.py::test_b"]
    assert run["by file"] == {"tests/a.py": 3.5} and run["command"] == "make test-all" and run["date"]


def test_runs_at_one_commit_add_up(tmp_path: Path):
    path = tmp_path / "tests.json"
    path.write_text(json.dumps({"commit": "another", "runs": [{"command": "before"}]}))
    for command in ("one", "two"):
        recorded(path, command)
    said = json.loads(path.read_text())
    assert [x["command"] for x in said["runs"]] == ["one", "two"] and said["commit"] != "another"
