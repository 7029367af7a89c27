"""The specs that sweeps of `make test` take have every structure that any spec of the repository has."""

from shared.step_calls import recurrences, step_of
from shared.structures import few_of, structures_of, sweep

from chunkform.codegen.recurrence.step.lower import lower
from chunkform.spec.language import Recurrence, exp, tanh


def test_few_have_every_structure() -> None:
    names = tuple(recurrences())
    few = few_of(names)
    assert 15 < len(few) < len(names) / 3
    had = set().union(*(structures_of(step_of(name)) for name in few))
    assert [name for name in names if not structures_of(step_of(name)) <= had] == []
    assert few_of(few) == few


def test_what_no_spec_has_is_a_structure_of_its_own() -> None:
    r = Recurrence("stranger")
    d, e = r.dims("d e")
    k, v, S = r.inputs("k", d), r.inputs("v", e), r.state("S", d, e)
    r.update(S, S.prev + exp(tanh(exp(k))) * v.T)
    r.output("o", S.next.T * k)
    others = set().union(*(structures_of(step_of(name)) for name in recurrences()))
    assert structures_of(lower(r)) - others


def test_a_sweep_keeps_the_order_and_marks_what_is_long() -> None:
    found = sweep(recurrences())
    plain = [x for x in found if isinstance(x, str)]
    assert tuple(plain) == few_of(tuple(recurrences()))
    assert [x if isinstance(x, str) else x.values[0] for x in found] == list(recurrences())
    assert all(x.marks[0].name == "long" for x in found if not isinstance(x, str))
