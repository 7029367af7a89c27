"""Sweeps are run over exact numbers, chunk after chunk, and refused where a pass has changed what they leave in memory."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from shared.corrupted import corrupted
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Literal, Name
from chunkform.codegen.ir.kernel_ir import Body, If, KernelFunction, Let, Statement, changed, stores
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.gates.cases import some_missing
from chunkform.codegen.recurrence.triton.gates.sweep_gate import gate_sweep
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.errors import GateError

OPS = ["gated_delta_rule", "gated_linear_attention", "momentum"]
IN_ALL_TILES = "ttt_linear"  # one of its launches for one read makes a number of each step, in every tile
Made = tuple[Kernel, KernelFunction]


@pytest.fixture(scope="module")
def sweeps() -> list[Made]:
    """The sweeps of some ops, and what passes have made of them."""
    return [x for name in OPS for x in sweeps_of(name)]


def sweeps_of(name: str) -> list[Made]:
    found: list[Made] = []
    with instead(section, gate_sweep=lambda k, f: found.append((k, f))):
        section.made_form(compiled(name))
    return found


def refused(k: Kernel, f: KernelFunction) -> bool:
    try:
        gate_sweep(k, f)
    except GateError as why:
        assert k.name in str(why)
        return True
    return False


def edited(f: KernelFunction, change: Callable[[Statement], Body]) -> KernelFunction:
    return replace(f, body=changed(f.body, change))


def value(f: KernelFunction, name: str, change: Callable[[Let], Let]) -> KernelFunction:
    """A kernel in which a name is made of something else."""
    return edited(f, lambda x: (change(x),) if isinstance(x, Let) and x.names == (name,) else (x,))


def test_sweeps_leave_what_their_programs_say(sweeps: list[Made]) -> None:
    assert len(sweeps) > 6
    for k, f in sweeps:
        gate_sweep(k, f)


def test_each_store_of_a_chunk_is_needed_and_its_mask(sweeps: list[Made]) -> None:
    for k, f in sweeps[::2]:
        for store in stores(f.body):
            if not any(n in store.pointer.text for n in ("_linear", "_tail", "_live", "_last")):
                assert refused(k, edited(f, lambda x, store=store: () if x is store else (x,))), store.pointer.text
                bare = replace(store, mask=None)
                dropped = edited(f, lambda x, store=store, bare=bare: (bare,) if x is store else (x,))
                assert store.mask is None or refused(k, dropped), store.pointer.text


def test_chunks_are_taken_at_their_place(sweeps: list[Made]) -> None:
    """What is loaded for the chunk before, and a chunk that has a row less."""
    for k, f in sweeps[:3]:
        stale = value(f, "t0", lambda x: replace(x, value=Name("begin") + Literal(0)))
        short = value(f, "i_ok", lambda x: replace(x, value=Name("i") < Name("last")))
        assert stale != f != short and refused(k, stale) and refused(k, short), k.name


def test_a_state_that_is_not_given_is_zero(sweeps: list[Made]) -> None:
    for k, f in sweeps[:3]:
        unguarded = edited(f, lambda x: x.body if isinstance(x, If) and "_first is not" in x.condition.text else (x,))
        assert unguarded != f and refused(k, unguarded), k.name


def test_what_is_done_where_an_argument_is_given_asks_for_that_argument(sweeps: list[Made]) -> None:
    """Each guard of an argument stands alone: one argument may be given where another isn't."""
    tried = 0
    for k, f in sweeps:
        for what, wrong in corrupted(f):
            if what.startswith(("guard of another", "guards exchanged")):
                tried += 1
                with pytest.raises(GateError, match=k.name):
                    section.gate_over_chunks(k, (wrong,))
    assert tried > 60


def test_of_any_two_arguments_some_launch_does_without_one_alone() -> None:
    for n in range(12):
        for m in range(5):
            names, firsts = [f"argument {x}" for x in range(n)], [f"first {x}" for x in range(m)]
            found = [*some_missing(names, firsts), frozenset(firsts)]
            assert all(any((a in x) != (b in x) for x in found) for a, b in permutations([*names, *firsts], 2))
            assert all(any(a in x for x in found) for a in [*names, *firsts]) and len(found) <= 5


def test_a_launch_for_one_read_stores_what_is_for_another_nowhere(sweeps: list[Made]) -> None:
    found = [(k, f) for k, f in sweeps if k.apart]
    assert found
    for k, f in found:
        wrong = edited(f, lambda x: x.body if isinstance(x, If) and "READ" in x.condition.names else (x,))
        assert wrong != f and refused(k, wrong), k.name


def test_launches_for_one_read_may_store_one_number_in_all_tiles() -> None:
    found = [(k, f) for k, f in sweeps_of(IN_ALL_TILES) if k.apart]
    assert any(a.stored and a.layout == "out" and not a.axes for k, _ in found for a in k.arguments)
    for k, f in found:
        gate_sweep(k, f)


def test_what_is_made_where_a_sweep_yields_is_needed(sweeps: list[Made]) -> None:
    for k, f in sweeps[:3]:
        silent = edited(f, lambda x: () if isinstance(x, If) and x.condition == Name("YIELD") else (x,))
        assert silent != f and refused(k, silent), k.name
