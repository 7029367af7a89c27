"""Modules by their former names (chunkform/renamed.py)."""

import importlib
import sys

import pytest
from shared.forked import code

from chunkform.renamed import RENAMED


@pytest.mark.parametrize("name", RENAMED)
def test_a_former_name_is_the_new_module_and_warns(name):
    sys.modules.pop(f"chunkform.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"chunkform.{name} is now chunkform.{RENAMED[name]}"):
        found = importlib.import_module(f"chunkform.{name}")
    assert found is importlib.import_module(f"chunkform.{RENAMED[name]}")
    assert found.__spec__.name == f"chunkform.{RENAMED[name]}"


def test_the_warning_names_the_line_that_imports():
    text = "import warnings\nwith warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always')\n"
    text += "    from chunkform.runtime.fla import chunk_gated_delta_rule\nprint(w[0].lineno, w[0].filename)"
    done = code(text)
    assert done.stdout.strip() == "4 <string>", done.stderr


@pytest.mark.parametrize(
    ("module", "name"), [("claims.judge", "Judge"), ("verify.judge", "Judge"), ("claims.world", "World")]
)
def test_a_former_name_in_a_module_of_a_former_name_is_found(module, name):
    sys.modules.pop(f"chunkform.codegen.{module}", None)
    with pytest.warns(DeprecationWarning, match=f"chunkform.codegen.{module} is now"):
        found = getattr(importlib.import_module(f"chunkform.codegen.{module}"), name)
    assert found.__name__ == {"Judge": "Verifier", "World": "Instance"}[name]


def test_no_other_name_is_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("chunkform.runtime.nothing")
