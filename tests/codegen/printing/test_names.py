"""What is decided of names and of short values is decided on data."""

from fractions import Fraction

import pytest

from chunkform.codegen.ir.code import Literal, Name, Negative, Text, is_short
from chunkform.codegen.ir.expr import identifier
from chunkform.codegen.recurrence.triton.print.reserved import ends_as_arguments


@pytest.mark.parametrize(
    "name, ends",
    [("k_p", True), ("S_tail_map", True), ("k_by_head", True), ("p", False), ("by_head", False), ("k_pp", False)],
)
def test_how_a_name_ends(name, ends):
    assert ends_as_arguments(name) == ends


def test_names_and_plain_numbers_are_short():
    assert all(map(is_short, (Name("k"), Literal(0), Literal(0.5), Literal(1 / 3, Fraction(1, 3)))))
    assert not any(map(is_short, (Literal(-1.0), Literal(1e-9), Literal("tf32x3"), Negative(Name("k")), Text("k"))))


def test_a_name_has_no_other_signs():
    assert identifier("row in.0|b") == "row_in_0_b" and identifier("k_1") == "k_1"
