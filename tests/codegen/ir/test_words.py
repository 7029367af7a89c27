"""Code as words: each name says what it is, what functions take from outside is what Python finds, and other names change no more
than they should."""

import ast
from pathlib import Path

import pytest
from shared.definitions import read_definitions
from shared.outside import names_from_outside

from chunkform.codegen.ir.launch_ir import Expr, joined, py, ref
from chunkform.codegen.ir.quoted import filled, quoted
from chunkform.codegen.ir.words import (
    Bound,
    Default,
    Defined,
    Keyword,
    Member,
    Read,
    Said,
    Word,
    apart,
    outside,
    reached,
    text_of,
)

GENERATED = Path(__file__).parents[3] / "generated"
TEXT = '''@jit(fast=[1e-06])
def f(a, b=c, *d):
    """Says f and g."""
    e = [g(x)["f"].f for x in a]  # of g
    def h(k):
        return lambda y: y + k
    return h(e, f=b)


g = f


def unused():
    return f
'''


def kinds(words):
    return [(type(x), str(x)) for x in words if isinstance(x, Word)]


def test_names_say_what_they_are():
    f, g, _ = read_definitions(TEXT)
    assert text_of((f, g)) == TEXT[: TEXT.index("def unused")]
    assert f.names == ("f",) and g.names == ("g",) and f.is_function and not g.is_function
    assert f.outside == {"jit", "c", "g"} and g.outside == {"f"}
    found = kinds(f.words)
    for kind, name in (
        (Keyword, "fast"), (Defined, "f"), (Bound, "a"), (Default, "b"), (Read, "c"), (Bound, "d"), (Read, "g"),
        (Said, '"f"'), (Member, "f"), (Said, "# of g"), (Bound, "h"), (Bound, "k"), (Bound, "y"), (Keyword, "f"),
    ):  # fmt: skip
        assert (kind, name) in found
    assert all(
        name not in ("e", "06", "for", "lambda") for kind, name in found if kind is not Bound and kind is not Read
    )


def test_other_names_leave_members_arguments_strings_and_what_is_bound():
    f, g, _ = read_definitions(TEXT)
    text = f.renamed({"f": "op_f", "g": "op_g", "e": "no", "x": "no"}).text
    assert text == (TEXT[: TEXT.index("g = f")].replace("def f(", "def op_f(").replace("g(x)", "op_g(x)"))
    assert g.renamed({"f": "op_f", "g": "op_g"}).alone().text == "op_g = op_f"


def test_what_roots_need_is_reached_in_its_order():
    some = read_definitions(TEXT)
    assert [x.names for x in reached(some, ["g"])] == [("f",), ("g",)]
    assert text_of(apart(reached(some, ["unused"]))).startswith("@jit") and "unused" in text_of(
        reached(some, ["unused"])
    )


@pytest.mark.parametrize("name", ["delta_rule", "mesa", "self_attention", "sherman_morrison"])
def test_what_functions_take_from_outside_is_what_python_finds(name):
    text = (GENERATED / f"{name}.py").read_text()
    some = read_definitions(text)
    assert text_of(some) == text and outside(some) == names_from_outside(text)


def test_templates_are_filled_with_names_parts_of_names_and_expressions():
    x = py("{}.mT", ref("q"))
    text = py('torch.einsum("{},ij", d{}_first, {}, *{}, {}={{**{}}})', "ab", "q", x, "lead", "size", "given")
    assert text.text == 'torch.einsum("ab,ij", dq_first, q.mT, *lead, size={**given})' == "".join(text.words)
    assert kinds(text.words) == [
        (Read, "torch"), (Member, "einsum"), (Said, '"ab,ij"'), (Read, "dq_first"), (Read, "q"), (Member, "mT"),
        (Read, "lead"), (Keyword, "size"), (Read, "given"),
    ]  # fmt: skip
    assert "".join(joined([Expr("a"), "b[0]"], " | ").words) == "a | b[0]"
    assert kinds(py('{}["{}"] = {}', "outputs", "o", "x[0]").words)[0] == (Read, "outputs")
    assert kinds(quoted("[x for x in y if x]")) == [(Read, "x"), (Bound, "x"), (Read, "y"), (Read, "x")]
    assert filled("{}", [("a", Read("b"))]) == ("a", "b")


@pytest.mark.parametrize("text", ["a +", "if x:"])
def test_what_is_no_python_is_refused(text):
    with pytest.raises(ValueError, match="expected an expression or a statement of Python, got"):
        quoted(text)


def test_a_file_is_read_as_python_reads_it():
    assert [x.names for x in read_definitions("a = 1\nb, c = 2, 3\n")] == [("a",), ("b", "c")]
    with pytest.raises(SyntaxError):
        read_definitions("def f(:\n")
    assert ast.dump(ast.parse(TEXT)) == ast.dump(ast.parse(text_of(read_definitions(TEXT))))
