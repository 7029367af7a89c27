"""A misspelt import tells the names that are near, and one that is near nothing what Python tells."""

from __future__ import annotations

import importlib.util

import pytest

import chunkform


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from chunkform import recurrence", "chunkform has no recurrence: did you mean Recurrence?"),
        ("from chunkform import verfiy", "did you mean verify"),
        ("from chunkform.generated import gated_delta_rul", "did you mean gated_delta_rule or delta_rule?"),
        ("import chunkform.generated.gated_deltarule", "did you mean gated_delta_rule or delta_rule?"),
        ("import chunkform.generatd", "did you mean generated?"),
        ("from chunkform.runtime.nn import Mixr", "did you mean Mixer"),
        ("from chunkform.spec.language import Recurence", "did you mean Recurrence"),
        ("from chunkform.runtime.compat.fla import chunk_gated_deltarule", "did you mean chunk_gated_delta_rule"),
    ],
)
def test_an_import(line: str, told: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(line)
    assert told in str(caught.value)


def test_an_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'recurrence': did you mean Recurrence"):
        chunkform.recurrence  # noqa: B018
    assert not hasattr(chunkform, "recurence")


def test_what_is_near_nothing_is_told_as_python_tells_it() -> None:
    with pytest.raises(ImportError, match="cannot import name 'zebra' from 'chunkform'"):
        exec("from chunkform import zebra")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chunkform\.zebra'"):
        exec("import chunkform.zebra")
    assert importlib.util.find_spec("chunkform.zebra") is None
