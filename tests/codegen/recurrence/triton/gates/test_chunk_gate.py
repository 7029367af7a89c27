"""Kernels over chunks are run over exact numbers, and refused where a pass has changed what they leave in memory."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Either, Name
from chunkform.codegen.ir.code_parts import walk_code
from chunkform.codegen.ir.kernel_ir import Body, KernelFunction, Let, Statement, Store, changed, stores
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.gates.chunk_gate import gate_chunks
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.errors import GateError

OPS = ["gated_delta_rule", "gated_linear_attention", "momentum"]
Made = tuple[Kernel, tuple[KernelFunction, ...]]


@pytest.fixture(scope="module")
def kernels() -> list[Made]:
    """The kernels over chunks of some ops that have a gate, and what passes have made of them."""
    found: list[Made] = []
    with instead(section, gate_chunks=lambda k, f: found.append((k, f)) if k.pieces and not k.sweeps else None):
        for name in OPS:
            section.made_form(compiled(name))
    return found


def refused(k: Kernel, functions: tuple[KernelFunction, ...]) -> bool:
    try:
        gate_chunks(k, functions)
    except GateError as why:
        assert k.name in str(why)
        return True
    return False


def edited(f: KernelFunction, change: Callable[[Statement], Body]) -> KernelFunction:
    return replace(f, body=changed(f.body, change))


def masked(f: KernelFunction) -> list[Store]:
    """The stores with a mask, but for those whose mask says which of two ways a row is made in: both make the same."""
    return [x for x in stores(f.body) if x.mask is not None and not isinstance(x.mask, Either)]


def without(f: KernelFunction, store: Store, mask_alone: bool) -> KernelFunction:
    """A kernel without a store, or that stores whatever its mask says."""
    return edited(f, lambda x: ((replace(x, mask=None),) if mask_alone else ()) if x is store else (x,))


def test_kernels_over_chunks_leave_what_the_chunk_program_says(kernels: list[Made]) -> None:
    for k, functions in kernels:
        gate_chunks(k, functions)


def test_each_store_is_needed_and_its_mask(kernels: list[Made]) -> None:
    for k, (f, *others) in kernels:
        for store in stores(f.body):
            assert refused(k, (without(f, store, False), *others)), (k.name, store.pointer.text)
        for store in masked(f):
            assert refused(k, (without(f, store, True), *others)), (k.name, store.pointer.text)


def test_chunks_that_a_kernel_leaves_are_made_by_the_other_one(kernels: list[Made]) -> None:
    split = [(k, functions) for k, functions in kernels if len(functions) > 1]
    assert split
    for k, (f, other) in split:
        assert refused(k, (f, replace(other, body=()))), k.name
        (rows,) = {x.mask.text for x in stores(other.body) if x.mask is not None and "i_new" in x.mask.text} or {""}
        all_rows = edited(other, lambda x: (replace(x, value=Name("C")),) if _makes(x, "large_range_from") else (x,))
        assert refused(k, (f, all_rows)) or not rows, k.name


def test_an_edge_that_is_off_by_one_is_refused(kernels: list[Made]) -> None:
    """A row more than a chunk has, or one less."""
    for k, functions in kernels[:3]:
        for wrong in (Name("i") < Name("last") + 2, Name("i") < Name("last")):
            f = edited(functions[0], lambda x, wrong=wrong: (replace(x, value=wrong),) if _makes(x, "i_ok") else (x,))
            assert f != functions[0] and refused(k, (f, *functions[1:])), (k.name, wrong.text)


def test_what_a_program_takes_is_its_own(kernels: list[Made]) -> None:
    """Pointers that don't move on from the chunk before, in kernels whose programs take one chunk after the other."""
    queues = [(k, f) for k, f in kernels if k.queues]
    assert queues
    for k, functions in queues:
        stale = edited(functions[0], lambda x: () if isinstance(x, Let) and _moves(x) else (x,))
        assert stale != functions[0] and refused(k, (stale, *functions[1:])), k.name


def _moves(x: Let) -> bool:
    return any(isinstance(y, Name) and y.id == f"{x.names[0]}_all" for y in walk_code(x.value))


def _makes(x: Statement, name: str) -> bool:
    return isinstance(x, Let) and x.names == (name,)
