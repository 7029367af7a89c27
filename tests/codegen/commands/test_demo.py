"""The demo, with a training of two steps: every other part is as `make demo` runs it."""

import re
from pathlib import Path

import pytest
from shared.forked import program

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_derives_judges_writes_checks_and_trains(tmp_path):
    done = program(DEMO, "--out", str(tmp_path / "out"), "--text", str(DEMO), "--steps", "2")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1  # two steps teach nothing, and it says so by its exit code
    for expected in (
        "dS_t = lam_{t+1} dS_{t+1}",
        "7 gates passed",
        "3 hold, 1 fails",
        "nearest true formula",
        "held-out loss",
    ):
        assert expected in done.stdout
    assert "too large" not in done.stdout
    assert "def my_recurrence(" in (tmp_path / "out" / "my_recurrence.py").read_text()
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<svg") > 40 and "nearest formula that holds" in page
    assert not re.search(r'(src|href)="https?:', page), "the page needs no network"


def test_the_demo_names_a_missing_text(tmp_path):
    done = program(DEMO, "--text", str(tmp_path / "nothing.txt"))
    assert done.returncode == 2 and "there is no file" in done.stderr
