"""Row maps: what a recurrence without states may declare, and what it is told."""

import pytest

from chunkform.errors import SpecError
from chunkform.spec.language import RowMap
from chunkform.spec.language.data import as_data, from_data


def some():
    m = RowMap("some")
    return m, m.dims("d")


def test_it_has_no_states_and_no_decays():
    m, d = some()
    with pytest.raises(SpecError, match=r"some is a RowMap, which has no states: declare a Recurrence"):
        m.state("S", d)
    with pytest.raises(SpecError, match=r"nothing decays: write r.inputs\('a', ..\)"):
        m.decay("a")
    with pytest.raises(SpecError, match=r"nothing decays: write r.parameters\('a', ..\)"):
        m.head_decay("a")


def test_as_data_it_stays_one():
    m, d = some()
    m.output("y", 2 * m.inputs("x", d))
    again = from_data(as_data(m))
    assert isinstance(again, RowMap) and as_data(again) == as_data(m)


def test_it_has_outputs_and_inputs():
    m, d = some()
    x = m.inputs("x", d)
    with pytest.raises(SpecError, match="some has no output"):
        m.validate()
    m.output("y", 2 * x)
    assert m.validate() is m
