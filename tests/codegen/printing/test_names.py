"""What is decided of names and of short values is decided on data."""

import ast
from fractions import Fraction

from chunkform.codegen.ir.code import Literal, Name, Negative
from chunkform.codegen.ir.code_parts import is_short
from chunkform.codegen.ir.expr import identifier, leaf
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import triton_form
from chunkform.codegen.recurrence.triton.kernels.arguments import names_of_arguments
from chunkform.codegen.recurrence.triton.print.names import Names
from chunkform.spec.language import Recurrence


def test_names_and_plain_numbers_are_short():
    assert all(map(is_short, (Name("k"), Literal(0), Literal(0.5), Literal(1 / 3, Fraction(1, 3)))))
    assert not any(map(is_short, (Literal(-1.0), Literal(1e-9), Literal("tf32x3"), Negative(Name("k")))))


def test_a_name_has_no_other_signs():
    assert identifier("row in.0|b") == "row_in_0_b" and identifier("k_1") == "k_1"


def test_names_of_a_spec_are_none_that_kernels_make_of_others():
    """As they are, a name that begins as another is told from what kernels make of that; in letters of their own none need be."""
    r = Recurrence("r")
    d, e = r.dims("d d_ok")
    k, q = r.inputs("k k_t", d)
    v = r.inputs("k_p", e)
    S = r.state("S", d, e)
    r.update(S, S.prev + k * v.T)
    r.output("o", S.next.T * q)
    c = compile_spec(r)
    names = Names(c)
    assert [names(leaf("input", n, ())) for n in ("k", "k_p", "k_t")] == ["k", "k_p_", "k_t_"]
    for f in triton_form(c).built:
        given = [p.name for line in f.parameters for p in line]
        assert len(set(given)) == len(given)
    text = emit(c, tidy=False)
    found = [x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)]
    assert all(len({*given}) == len(given) for x in found for given in [[y.arg for y in x.args.args]])
    assert any({"k_p", "k_p_p"} <= {y.arg for y in x.args.args} for x in found)  # the name as it is, where that is free


def test_products_are_called_as_no_argument_may_be():
    assert {"k_p", "k_b", "k_tail_map", "k_by_head", "k"} <= names_of_arguments(
        "k"
    ) and "k_v" not in names_of_arguments("k")
