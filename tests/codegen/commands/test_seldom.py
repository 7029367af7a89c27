"""How often Python looks for cycles in commands and in what may take minutes."""

import gc

import pytest

from chunkform.codegen.api import checked, judged
from chunkform.codegen.commands.cli import app
from chunkform.codegen.ir.collector import SELDOM, seldom_collected


class Stopped(Exception):
    """Raised where it was seen how often cycles are looked for."""


@pytest.fixture(autouse=True)
def often(others_left_alone):
    """As Python itself has it."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_is_as_it_was():
    with pytest.raises(KeyError), seldom_collected():
        assert gc.get_threshold() == SELDOM
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (5_000_000, 20, 100)])
def test_what_looks_more_seldom_stays(own):
    gc.set_threshold(*own)
    with seldom_collected():
        assert gc.get_threshold()[0] == own[0]
    assert gc.get_threshold() == own


def test_what_takes_long_is_done_so(monkeypatch):
    seen = []

    def spied(*arguments, **options):
        seen.append(gc.get_threshold())
        raise Stopped

    monkeypatch.setattr(judged, "claims_of", lambda targets: targets)
    monkeypatch.setattr(judged, "judged", spied)
    monkeypatch.setattr(checked, "check_all", spied)
    for asked in (judged.verify, checked.check):
        with pytest.raises(Stopped):
            asked("retention")
    assert seen == [SELDOM] * 2


def test_commands_are_run_so(monkeypatch):
    seen = []
    monkeypatch.setattr("chunkform.codegen.commands.cli.listed", lambda *a, **k: seen.append(gc.get_threshold()) or [])
    with pytest.raises(SystemExit):
        app(["list"])
    assert seen == [SELDOM]
    assert gc.get_threshold() == (700, 10, 10)
