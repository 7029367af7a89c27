"""The gate of the kernels of solves: they are what the steps of a spec say, and wrong ones are refused."""

from collections.abc import Iterator

import pytest
from shared.corrupted import corrupted
from shared.passed import instead

from chunkform.codegen.ir.code import Binary, Name
from chunkform.codegen.ir.code_parts import walk_code
from chunkform.codegen.ir.kernel_ir import If, KernelFunction, expressions, statements
from chunkform.codegen.programs import cg_kernel
from chunkform.codegen.programs.cg_kernel import solve_form
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.programs.solve_gate import gate_solves, gate_sums
from chunkform.errors import GateError
from chunkform.spec.language import find

KINDS = (
    "operands swapped", "not transposed", "an edge one further", "an edge one nearer", "no store", "no barrier", "no guard",
    "no mask", "a chunk a step late",
)  # fmt: skip


@pytest.fixture(scope="module")
def asked():
    """What both gates are asked of the solve of a program, where parameters get sums."""
    found = {}
    with instead(
        cg_kernel,
        gate_solves=lambda *given: found.setdefault("solves", given),
        gate_sums=lambda *given: found.setdefault("sums", given),
    ):
        solve_form(next(compile_program(find("mesa_net")[0]).graph.solves).op, fine=True)
    return found


def left(wrong, gate):
    """The wrong kernels that a gate accepts, of several that there must be."""
    accepted, count = [], 0
    for what, k in wrong:
        count += 1
        try:
            gate(k)
            accepted.append(what)
        except GateError:
            pass
    assert count > 3
    return accepted


@pytest.mark.parametrize("number", [0, 1], ids=["checkpoints", "solves"])
def test_wrong_kernels_are_refused(asked, number):
    *given, kernels = asked["solves"]
    gate_solves(*given, kernels)

    def gate(k: KernelFunction) -> None:
        gate_solves(*given, (k, kernels[1]) if number == 0 else (kernels[0], k))

    assert set(left(wrong(kernels[number]), gate)) == without_effect(kernels[number])


def wrong(k: KernelFunction) -> Iterator[tuple[str, KernelFunction]]:
    """The kernel with faults of some kinds; of edges, those of a chunk's steps."""
    for what, found in corrupted(k):
        kind, _, where = what.partition(": ")
        if kind in KINDS and (not kind.startswith("an edge") or "last" in where):
            yield what, found


def without_effect(k: KernelFunction) -> set[str]:
    """Changes that nobody can see: of what only kernels read that are exact, which no solve is."""
    exact = [y for x in statements(k.body) if isinstance(x, If) and x.condition == Name("EXACT") for y in x.body]
    found = [y for x in exact for e in expressions(x) for y in walk_code(e)]
    return {f"operands swapped: {y.text}" for y in found if isinstance(y, Binary) and y.operator == "-"}


def test_wrong_sums_are_refused(asked):
    *given, kernel = asked["sums"]
    gate_sums(*given, kernel)
    assert left(wrong(kernel), lambda k: gate_sums(*given, k)) == []
