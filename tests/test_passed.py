"""Gates that have passed don't run again for the very same, and do for anything else."""

import functools
from dataclasses import dataclass, replace

import pytest
from shared import passed
from shared.op_cases import SPECS

from chunkform.codegen.exact import random_points
from chunkform.codegen.exact.random_points import Positive
from chunkform.codegen.ir.code import Name
from chunkform.codegen.ir.evaluate import Reals
from chunkform.codegen.ir.expr import leaf
from chunkform.codegen.ir.kernel_ir import Let
from chunkform.codegen.recurrence.gates.gates import gate_plan
from chunkform.codegen.recurrence.pipeline import compile_spec


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
