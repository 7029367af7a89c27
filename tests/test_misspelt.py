"""A misspelt import tells the names that are near, and one that is near nothing what Python tells."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import chunkform
import chunkform.generated
from chunkform.errors import ArgumentError, nearest
from chunkform.runtime.compat import fla
from chunkform.runtime.nn import Mixer


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from chunkform import recurrence", "chunkform has no recurrence: did you mean Recurrence?"),
        ("from chunkform import verfiy", "did you mean verify"),
        ("from chunkform.generated import gated_delta_rul", "did you mean gated_delta_rule or"),
        ("import chunkform.generated.gated_deltarule", "did you mean gated_delta_rule or"),
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


def test_a_name_is_near_by_its_words_and_not_by_letters_within_one() -> None:
    assert nearest("delta", ["gated_delta_rule", "xyz"]) == ": did you mean gated_delta_rule?"
    assert "precond" not in nearest("rec", ["precond_gated_delta_rule"])


def test_a_layer_of_a_spec_whose_file_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"no op 'mine' in the catalogue: did you mean mine\.py\?"):
        Mixer("mine", width=8, heads=1)


def test_an_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'recurrence': did you mean Recurrence"):
        chunkform.recurrence  # noqa: B018
    assert not hasattr(chunkform, "recurence")
    with pytest.raises(AttributeError, match="no op 'gated_detla_rule': did you mean gated_delta_rule"):
        chunkform.generated.gated_detla_rule  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"did you mean chunk_gla .*\? https://\S*/docs/from_fla\.md lists the functions"
    ):
        fla.chunk_glaa  # noqa: B018


def test_what_is_near_nothing_is_told_as_python_tells_it() -> None:
    with pytest.raises(ImportError, match="cannot import name 'zebra' from 'chunkform'"):
        exec("from chunkform import zebra")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chunkform\.zebra'"):
        exec("import chunkform.zebra")
    assert importlib.util.find_spec("chunkform.zebra") is None
