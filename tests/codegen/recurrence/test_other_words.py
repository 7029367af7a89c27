"""Whatever words its author chooses, a recurrence has one form, and kernels of it: none falls back to one step at a time."""

import importlib.util
from pathlib import Path

import pytest

from chunkform.codegen.recurrence.over_chunks import why_stepwise
from chunkform.codegen.recurrence.pipeline import compile_spec

found = importlib.util.spec_from_file_location("other_words", Path(__file__).parent / "other_words.py")
assert found is not None and found.loader is not None
words = importlib.util.module_from_spec(found)
found.loader.exec_module(words)

FEW = ("kda_matrix", "mlstm_abs", "rwkv4_relu")  # in every run


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in words.OTHER_WORDS]
)
def test_it_has_the_form_of_its_papers_words(name: str) -> None:
    family, make = words.OTHER_WORDS[name]
    c = compile_spec(make())
    assert c.family == family
    assert why_stepwise(c) is None
