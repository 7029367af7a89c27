"""Kernels over exact numbers: all programs at once, whichever way each goes; residues where no order is asked for."""

import random
from fractions import Fraction

import numpy as np
import pytest

from chunkform.codegen.exact import residues
from chunkform.codegen.exact.entries import Residues
from chunkform.codegen.exact.jit_source import body_of
from chunkform.codegen.exact.meanings import BASE, NeedsOrder
from chunkform.codegen.exact.rationals import UNDEFINED, Rationals, array, in_field, same
from chunkform.codegen.exact.run_kernel import Argument, Tensor, run
from chunkform.codegen.ir.evaluate import PRIME
from chunkform.codegen.ir.kernel_ir import KernelFunction
from chunkform.errors import GateError


def kernel(text: str) -> KernelFunction:
    return KernelFunction("k", (), (), (), "", body_of(text))


def tensor(name: str, *values: object) -> Tensor:
    return Tensor(name, array([x if isinstance(x, int) else Fraction(x) for x in values]))


def left(text: str, programs: int, out: int, some: tuple[int, ...] | None = None, **given: Argument) -> list[object]:
    room = Tensor.room("out", out)
    run(kernel(text), programs, {**given, "out": room}, some=some)
    return room.cells.tolist()


def test_residues_are_those_of_fractions():
    draw = random.Random(0)

    def some(shape: tuple[int, ...]) -> np.ndarray:
        found = [Fraction(draw.randrange(-(2**70), 2**70), draw.randrange(1, 2**20)) for _ in range(np.prod(shape))]
        return array([UNDEFINED if draw.random() < 0.1 else x for x in found]).reshape(shape)

    for shape in ((3, 4), (9, 40)):  # few, and many
        a, b = some(shape), some(shape)
        x, y = residues.residues(a), residues.residues(b)
        for made, expected in (
            (residues.add(x, y), a + b),
            (residues.subtract(x, y), a - b),
            (residues.multiply(x, y), a * b),
            (residues.divide(x, y), a / b),
            (residues.negative(x), -a),
            (residues.total(x, 1), a.sum(1)),
            (residues.cumulative(x, 1), np.cumsum(a, 1)),
            (residues.product(x, y.T), a @ b.T),
        ):
            assert (made == residues.residues(expected)).all()
    ends = np.array([0, 1, PRIME - 1], dtype=np.int64).repeat(40)
    assert (residues.multiply(ends, ends) == np.array([0, 1, 1]).repeat(40)).all()
    assert (residues.add(ends, ends) == np.array([0, 2, PRIME - 2]).repeat(40)).all()


def test_exponentials_are_homomorphisms_and_two_is_no_decay():
    @in_field
    def check() -> None:
        found = Rationals().fn("exp2", array([Fraction(-3), Fraction(-2), Fraction(-1), Fraction(0)]))
        assert same(found[1] * found[2], found[0]) and found[3] == 1 and not same(found[2] * 2, 1)

    check()
    check.__wrapped__()


WAYS = """
p = tl.program_id(0)
kind = tl.load(kinds + p)
n = 0
if kind == 0:
    total = tl.load(x + p) * 2.0
    n = p
else:
    total = tl.load(x + p)
    if kind == 1:
        return
    only = total + 1.0
for i in range(p, tl.load(stops + p)):
    total += tl.load(x + i)
if kind != 0:
    total += only
tl.store(out + p, total if kind == 0 and p > 0 else -total)
"""


def test_programs_that_go_different_ways_make_what_each_makes_alone():
    given = {
        "kinds": tensor("kinds", 0, 1, 2, 0, 2, 0),
        "stops": tensor("stops", 3, 6, 2, 5, 6, 6),
        "x": tensor("x", "1/3", "2/3", "5", "7/2", "-1", "4"),
    }
    alone = [left(WAYS, 6, 6, (p,), **given)[p] for p in range(6)]
    together = left(WAYS, 6, 6, **given)
    assert alone[1] is UNDEFINED and all(map(same, alone, together))
    assert same(together[0], -(Fraction(2, 3) + Fraction(1, 3) + Fraction(2, 3) + 5))


def test_a_name_that_some_programs_assign_is_read_by_these_alone():
    text = "p = tl.program_id(0)\nif p < 2:\n    y = p\ntl.store(out + p, y + 0.0)"
    assert left(text, 2, 2) == [0, 1]
    with pytest.raises(GateError, match="y is read, and isn't assigned before"):
        left(text, 3, 3)


def test_a_program_loads_what_no_other_stores_whichever_comes_first():
    for place in ("p + 1", "p - 1"):
        text = f"p = tl.program_id(0)\ny = tl.load(out + {place}, mask=({place} >= 0) & ({place} < 3), other=0.0)\n"
        with pytest.raises(GateError, match="a program loads what another one stores"):
            left(text + "tl.store(out + p, y)", 3, 3)
    with pytest.raises(GateError, match="two stores go to one place"):
        left("p = tl.program_id(0)\ntl.store(out + p // 2, 1.0)", 3, 3)
    with pytest.raises(GateError, match="it stores beyond out"):
        left("p = tl.program_id(0)\ntl.store(out + p, 1.0)", 3, 2)


def test_what_asks_for_an_order_runs_over_fractions():
    text = "p = tl.program_id(0)\ny = tl.load(x + p)\ntl.store(out + p, tl.maximum(y, float('-inf')) + tl.abs(y))"
    assert left(text, 2, 2, x=tensor("x", "1/3", "-1/7")) == [Fraction(2, 3), 0]


def test_minus_infinity_has_an_order_and_an_exponential_among_residues():
    text = """
    p = tl.program_id(0)
    y = tl.load(x + p)
    far = tl.where(p < 1, y, float('-inf'))
    tl.store(out + p, tl.exp2(far) + tl.maximum(far, 2.0))
    """
    given = {"x": tensor("x", "-1", "5")}
    expected = left(text, 2, 2, **given)
    assert same(expected[0], Fraction(1, BASE) + 2) and same(expected[1], 2)
    entries = Residues()
    with pytest.raises(NeedsOrder):  # a launch runs over fractions then
        entries.binary("+", entries.of(1), entries.of(float("-inf")))


def test_numbers_are_the_same_by_their_residues():
    assert same(Fraction(1, 3), Fraction(1, 3) + PRIME) and not same(Fraction(1, 3), Fraction(1, 3) + PRIME + 1)
