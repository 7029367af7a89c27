"""What the record of a run and the limit of a test say."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from shared.cpu import Recorder, refuse


def test_a_test_that_takes_too_long_fails_unless_it_is_long():
    with pytest.raises(pytest.fail.Exception, match="the test took 61 s of the processor, at most 60: make it smaller"):
        refuse("the test", 61.0, 60.0, is_long=False)
    refuse("the test", 61.0, 60.0, is_long=True)
    refuse("the test", 61.0, 0.0, is_long=False)


def test_a_record_has_outcomes_and_the_seconds_of_each_file(tmp_path: Path):
    found = Recorder(tmp_path / "some" / "tests.json", "make test-all")
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
    said = json.loads((tmp_path / "some" / "tests.json").read_text())
    assert said["outcomes"] == {"failed": 1} and said["failed"] == ["tests/a.py::test_b"]
    assert said["by file"] == {"tests/a.py": 3.5} and said["command"] == "make test-all" and said["date"]
