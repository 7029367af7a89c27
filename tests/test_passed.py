"""Gates that have passed don't run again for the very same, and do for anything else."""

import functools
from dataclasses import dataclass, replace

import pytest
from shared import judged_by, passed
from shared.op_cases import SPECS

from chunkform.codegen.exact import random_points
from chunkform.codegen.exact.random_points import Positive
from chunkform.codegen.ir.code import Name
from chunkform.codegen.ir.evaluate import Reals
from chunkform.codegen.ir.expr import leaf
from chunkform.codegen.ir.kernel_ir import Let
from chunkform.codegen.recurrence.gates.gates import gate_plan
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Attention, Recurrence, dot, exp


@dataclass(frozen=True)
class Given:
    term: object
    sizes: tuple[int, ...]


@pytest.fixture
def gate(tmp_path):
    """A gate that notes its runs, and finds fault with what has no sizes."""
    ran = []

    def run(given):
        ran.append(given)
        return None if given.sizes else "a fault"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passed, "folder", lambda: tmp_path)
        patch.setattr(passed, "record", lambda: (frozenset(), ""))
        passed.replaced.clear()
        yield passed.passing_once(run, gate_plan), ran


def test_the_same_runs_once_and_anything_else_again(gate):
    once, ran = gate
    some = [Given(leaf("input", n, ("d",)), sizes) for n in "kq" for sizes in ((1, 2), (2, 1), (True, 2))]
    for given in (*some, *some, Given(leaf("input", "k", ("d",)), (1, 2))):
        assert once(given) is None
    assert ran == some


def test_trees_are_told_apart_also_once_their_content_is_known(gate):
    once, ran = gate
    tree = Name("a") + Name("b")
    some = [
        Given(x, (1,)) for x in (tree, Name("b") + Name("a"), replace(tree, right=Name("c")), Let(("x",), tree), tree)
    ]
    for given in (*some, *some):
        assert once(given) is None
    assert ran == some[:4]


def test_numbers_of_many_digits_have_their_precision_as_content(gate):
    once, ran = gate
    some = [Given(Reals(digits), (1,)) for digits in (50, 30)]
    for given in (*some, *some, Given(Reals(50), (1,)), Given(Positive(50), (1,))):
        assert once(given) is None
    assert len(ran) == 3


def test_a_fault_is_found_each_time(gate):
    once, ran = gate
    assert once(Given(1, ())) == once(Given(1, ())) == "a fault" and len(ran) == 2


def test_what_a_test_looks_on_by_replaces_nothing_for_others(gate):
    once, ran = gate
    once(Given(1, (1,)))
    seen = []
    plain = random_points.seed_of
    with passed.instead(random_points, seed_of=seen.append):
        random_points.seed_of("asked")
        once(Given(1, (1,)))
    assert len(ran) == 1 and seen == ["asked"] and random_points.seed_of is plain


def test_all_run_while_something_is_replaced(gate, monkeypatch):
    once, ran = gate
    once(Given(1, (1,)))
    monkeypatch.setattr(random_points, "seed_of", lambda *_: 0)
    once(Given(1, (1,)))
    monkeypatch.undo()
    once(Given(1, (1,)))
    assert len(ran) == 2


def test_what_has_no_content_runs_each_time(gate):
    once, ran = gate
    for _ in range(2):
        once(Given(object(), (1,)))
        once(Given(lambda: 1, (1,)))  # it may call anything
    assert len(ran) == 4


def test_functions_are_told_apart_by_what_they_hold():
    plans = [compile_spec(SPECS[n]).forward for n in ("retention", "retention", "delta_rule")]
    held = [passed.content(functools.partial(gate_plan, plan)) for plan in plans]
    assert held[0] == held[1] != held[2]


def test_what_is_recorded_runs_where_it_is_its_turn_alone(gate, tmp_path):
    once, ran = gate
    some = [Given(1, (n,)) for n in range(1, 40)]
    keys = [passed.content((gate_plan, (given,), {})) for given in some]
    turn = keys[0][passed.DIGITS]
    passed.record = lambda: (frozenset(x[: passed.DIGITS] for x in keys[:30]), turn)  # which the fixture puts back
    for given in (*some, *some):
        assert once(given) is None
    due = [g for g, key in zip(some[:30], keys, strict=False) if key[passed.DIGITS] == turn]
    assert ran == [*due, *some[30:]] and 0 < len(due) < 15
    notes = {key: (tmp_path / key).read_text() for key in keys}
    assert [g for g, key in zip(some, keys, strict=True) if notes[key] == passed.RECORDED] == [
        g for g in some[:30] if g not in due
    ]


def test_no_record_is_looked_at_where_all_gates_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(passed, "RECORD", tmp_path / "passed.txt")
    passed.RECORD.write_text("0123456789ab\n")
    found = []
    for how in (None, "once", "all"):
        monkeypatch.delenv("CHUNKFORM_TEST_GATES", raising=False)
        if how:
            monkeypatch.setenv("CHUNKFORM_TEST_GATES", how)
        found.append(passed.record.__wrapped__()[0])
    assert found == [{"0123456789ab"}, set(), set()]


def recurrence(gate=None):
    r = Recurrence("decayed")
    d, e = r.dims("d e")
    k, q = r.inputs("k q", d)
    v = r.inputs("v", e)
    a = r.inputs("a")
    S = r.state("S", d, e)
    r.update(S, (gate or exp)(-(a**2)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def attention(scale=1):
    a = Attention("scaled")
    d = a.dims("D")
    q, k = a.queries("q", d), a.keys("k", d)
    a.softmax(dot(q, k), scale)
    a.output("o", a.average(k))
    return a


@pytest.mark.parametrize(
    ("make", "other"), [(recurrence, lambda: recurrence(lambda x: 1 / (1 + exp(x)))), (attention, lambda: attention(2))]
)
def test_specs_are_told_apart_by_what_they_say_wherever_they_say_it(make, other):
    assert passed.content(make()) == passed.content(make()) != passed.content(other())


LINES = {
    "chunkform.a": "",
    "chunkform.a.gate": "from .b import numbers\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import c\n",
    "chunkform.a.b": "def numbers():\n    from ..lazy import seven\n    return seven\n",
    "chunkform.a.c": "SEVEN = 7\n",
    "chunkform.lazy": 'NAMES = {"chunkform.named": "seven"}\n\nall = "chunkform.many."\n',
    "chunkform.named": "seven = 7\n",
    "chunkform.many.one": "import chunkform.a.b\n",
    "chunkform.other": "from chunkform.a.gate import (\n    gate,\n)\n",
}


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ("chunkform.a", "a gate b c lazy many.one other"),
        ("chunkform.a.gate", "gate other"),
        ("chunkform.a.b", "gate b lazy many.one other"),
        ("chunkform.a.c", "c"),
        ("chunkform.lazy", "gate b lazy many.one other"),
        ("chunkform.named", "gate b lazy named many.one other"),
        ("chunkform.many.one", "gate b lazy many.one other"),
        ("chunkform.other", "other"),
    ],
)
def test_a_gate_is_judged_by_all_that_its_module_imports(changed, seen):
    def hashes(more):
        texts = {n: text + (more if n == changed else "") for n, text in LINES.items()}
        return judged_by.hashes({n: text.encode() for n, text in texts.items()}, {"chunkform.a"})

    plain, other = hashes(""), hashes("x = 1\n")
    assert {n for n in LINES if plain[n] != other[n]} == {
        n for n in LINES if n.removeprefix("chunkform.").removeprefix("a.") in seen.split()
    }
    assert plain == hashes("# only said\n\n")
