"""What is decided of names and of short values is decided on data."""

from fractions import Fraction

from chunkform.codegen.ir.code import Literal, Name, Negative
from chunkform.codegen.ir.code_parts import is_short
from chunkform.codegen.ir.expr import identifier
from chunkform.codegen.recurrence.triton.kernels.arguments import names_of_arguments


def test_names_and_plain_numbers_are_short():
    assert all(map(is_short, (Name("k"), Literal(0), Literal(0.5), Literal(1 / 3, Fraction(1, 3)))))
    assert not any(map(is_short, (Literal(-1.0), Literal(1e-9), Literal("tf32x3"), Negative(Name("k")))))


def test_a_name_has_no_other_signs():
    assert identifier("row in.0|b") == "row_in_0_b" and identifier("k_1") == "k_1"


def test_products_are_called_as_no_argument_may_be():
    assert {"k_p", "k_b", "k_tail_map", "k_by_head", "k"} <= names_of_arguments(
        "k"
    ) and "k_v" not in names_of_arguments("k")
