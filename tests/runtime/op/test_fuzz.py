"""The machinery of random calls: a process that a call takes with it is replaced, and failures are counted by cause."""

import sys

import pytest
from shared.fuzz import Failure, Judged, child, fill_empty_memory, judged

# The child of a test: prints as `fuzz.child` does; draw 2 kills it, draw 4 says that the GPU is lost, draws 5 and 6 fail alike.
CHILD = """
import json, os, sys
begin = int(sys.argv[sys.argv.index("--begin") + 1])
for index in range(begin, 8):
    print(json.dumps({"index": index, "draw": f"Draw({index})"}), flush=True)
    if index == 2:
        os.kill(os.getpid(), 11)
    why = {4: "AcceleratorError: an illegal memory access", 5: "wrong numbers: dq 1.2e-3 (bound 1e-5)",
           6: "wrong numbers: dq nan (bound 1e-5)"}.get(index, "")
    print(json.dumps({"index": index, "why": why}), flush=True)
    if index == 4:
        os._exit(75)
print(json.dumps({"end": 8}))
"""


def test_a_lost_process_is_replaced_and_causes_are_counted(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    found = judged([sys.executable, str(tmp_path / "child.py")], 8)
    assert found.ran == 8
    assert [f.index for f in found.failures] == [2, 4, 5, 6]
    assert [len(x) for x in found.causes.values()] == [1, 1, 2]
    assert "its process ended with -11" in found.failures[0].why
    assert len(found.told("op")) == 3 and "2 calls: wrong numbers: dq" in found.told("op")[2]


def test_a_child_that_never_starts_fails_each_of_its_draws(tmp_path):
    found = judged([sys.executable, "-c", "raise SystemExit('no such op')"], 3)
    assert [f.index for f in found.failures] == [0, 1, 2]
    assert [*found.causes] == ["its process ended with #: no such op"]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("an illegal memory access at 0x7f01", "an illegal memory access at 0x7e99", True),
        ("wrong numbers: o 1.0e-2 (bound 1e-3)", "wrong numbers: o inf (bound 1e-3)", True),
        ("wrong numbers: o 1.0e-2 (bound 1e-3)", "wrong numbers: dq 1.0e-2 (bound 1e-3)", False),
    ],
)
def test_a_cause_is_a_failure_without_its_numbers(a, b, same):
    assert (len(Judged(2, (Failure(0, "", a), Failure(1, "", b))).causes) == 1) == same


@pytest.mark.long
def test_draws_go_on_where_an_earlier_process_has_ended(capsys):
    """They are the same in each process."""

    def said(begin):
        try:
            child("retention", "cpu", "torch", 4, 3, begin)
        finally:
            fill_empty_memory(False)
        return capsys.readouterr().out.splitlines()

    whole, rest = said(0), said(3)
    assert len(whole) == 9 and rest == whole[6:]
