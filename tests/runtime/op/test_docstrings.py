"""Every generated op's docstring says what it computes and takes, and its example runs."""

import doctest
import importlib
import inspect

import pytest
from shared.op_cases import SPECS, op_of


@pytest.mark.parametrize("name", SPECS)
def test_the_example_runs(name):
    op = op_of(name)
    module = importlib.import_module(op.__module__)
    example = doctest.DocTestParser().get_doctest(op.__doc__, {name: op}, name, module.__file__, 0)
    ran = doctest.DocTestRunner(verbose=False).run(example)
    assert ran.attempted >= 3 and ran.failed == 0


@pytest.mark.parametrize("name", SPECS)
def test_every_argument_is_described(name):
    op = op_of(name)
    text = inspect.getdoc(op)
    assert [n for n in inspect.signature(op).parameters if f"\n    {n}: " not in text] == []
    for part in ("In LaTeX:", "Returns:", "Raises:", "Cost: ", "Example:"):
        assert part in text
