"""Gates over residues compare large numbers in some order first, and over fractions only where that doesn't agree."""

import random
from fractions import Fraction

import numpy as np
import pytest

from chunkform.codegen.exact.memory import drawn
from chunkform.codegen.exact.rationals import Rationals, in_field, is_in_field, same
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.stepwise import kernel_gate
from chunkform.codegen.recurrence.stepwise.triton_form import sequential_triton
from chunkform.errors import GateError
from chunkform.spec.language import Max, Recurrence, hadamard

NUMBERS = Rationals()


def numbers(count: int) -> list[np.ndarray]:
    rng = random.Random(0)
    return [NUMBERS.taken(drawn(rng, (20,))) for _ in range(count)]


def compare(a: np.ndarray, b: np.ndarray) -> None:
    if not all(same(x, y) for x, y in zip(a, b, strict=True)):
        raise GateError("these differ")


def test_what_agrees_for_any_order_needs_no_fractions() -> None:
    ran = []

    @in_field
    def gate() -> None:
        ran.append(is_in_field())
        a, b, c = numbers(3)
        compare(NUMBERS.maximum(NUMBERS.maximum(a, b), c), NUMBERS.maximum(a, NUMBERS.maximum(c, b)))

    gate()
    assert ran == [True, True]


def test_what_counts_on_sums_that_keep_their_order_goes_over_fractions() -> None:
    ran = []

    @in_field
    def gate() -> None:
        ran.append(is_in_field())
        a, b, c = numbers(3)
        compare(NUMBERS.maximum(NUMBERS.add(a, c), NUMBERS.add(b, c)), NUMBERS.add(NUMBERS.maximum(a, b), c))

    gate()
    assert ran == [True, True, False]


def test_what_is_wrong_in_some_order_is_wrong() -> None:
    @in_field
    def gate() -> None:
        a, b = numbers(2)
        minus = NUMBERS.const(Fraction(-1))
        smallest = NUMBERS.mul(minus, NUMBERS.maximum(NUMBERS.mul(minus, a), NUMBERS.mul(minus, b)))
        compare(NUMBERS.maximum(a, b), smallest)

    with pytest.raises(GateError):
        gate()


def test_a_step_that_divides_by_its_state_beside_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions of its seventeenth step have 3^17 times the digits of the first."""
    r = Recurrence("divided")
    d = r.dims("d")
    x, y = r.inputs("x y", d)
    b, h = r.state("b", d), r.state("h", d)
    r.update(b, b.prev / (1 + b.prev**2) + x)
    r.update(h, Max(0.9 * h.prev, y) - hadamard(b.next, x))
    r.output("o", hadamard(h.next, y))
    ran, steps_of = [], kernel_gate.steps_of

    def of_residues(*given: object, **named: object) -> kernel_gate.Steps:
        ran.append(is_in_field())
        assert ran[-1], "fractions grow without end here"
        return steps_of(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(kernel_gate, "steps_of", of_residues)
    sequential_triton(compile_spec(r))
    assert ran
