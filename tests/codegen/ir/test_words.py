"""Code as words: each name says what it is, what functions take from outside is what Python finds, and other names change no more
than they should."""

import ast
from pathlib import Path

import pytest
from shared.definitions import read_definitions
from shared.outside import names_from_outside

from chunkform.codegen.ir.code import Attribute, Group, Starred
from chunkform.codegen.ir.launch_ir import entry, item, ref
from chunkform.codegen.ir.python_code import (
    Each,
    Fixed,
    Invoked,
    Lambda,
    Named,
    Spread,
    also,
    beside,
    choice,
    dictionary,
    either,
    isin,
    literal,
    made_by,
    method,
    said,
    several,
)
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


def test_names_in_expressions_say_what_they_are():
    x = Attribute(ref("q"), "mT")
    given = Named("size", dictionary([Spread(Fixed("given"))]))
    made = made_by("torch.einsum", said("ab,ij"), "dq_first", x, Starred(Fixed("lead")), given)
    assert made.text == 'torch.einsum("ab,ij", dq_first, q.mT, *lead, size={**given})' == "".join(made.words)
    assert kinds(made.words) == [
        (Read, "torch"), (Member, "einsum"), (Said, '"ab,ij"'), (Read, "dq_first"), (Read, "q"), (Member, "mT"),
        (Read, "lead"), (Keyword, "size"), (Read, "given"),
    ]  # fmt: skip
    assert made.names == {"q"}  # the others are fixed
    each = Each(Fixed("x"), ("x",), Fixed("y"), Fixed("x"))
    assert each.text == "[x for x in y if x]"
    assert kinds(each.words) == [(Read, "x"), (Bound, "x"), (Read, "y"), (Read, "x")]
    back = Lambda(("x",), made_by("f", "x"))
    assert back.text == "lambda x: f(x)" and kinds(back.words) == [(Bound, "x"), (Read, "f"), (Read, "x")]


def test_expressions_have_the_parentheses_that_they_need():
    q, n = ref("q"), Fixed("n")
    shown = {
        "q[:, -1]": q[:, -1], "q[..., n]": q[..., n], "q[::-1]": q[::-1], 'q["a"]': q["a"], "(q, n)": several(q, n),
        "(q,)": several(q),
        "q, n": beside(q, n), "f(q, n)": made_by("f", beside(q, n)), "(q + 1).sum(0)": method(q + 1, "sum", 0),
        "q is None or n in q or n": either(either(q.missing, isin(n, q)), n), "(q or n) and q": also(either(q, n), q),
        "(q if n else 1) + n": choice(q, n, 1) + n, "{}": dictionary([]), "f()()": Invoked(made_by("f")),
        '{"a": q, **n}': dictionary([("a", q), Spread(n)]), '("a", (1, None, ), )': literal(["a", (1, None)]),
        "{n: q for n, q in q}": Each(q, ("n", "q"), q, key="n"), "-(-q // n)": -Group(-q // n),
    }  # fmt: skip
    assert {x.text: x.text for x in shown.values()} == {text: text for text in shown}
    assert entry("saved", "S").names == {'saved["S"]'} == {entry("saved", "S").text}
    assert item("made", "S").names == {"made"}


def test_an_expression_is_no_string():
    for x in ("a +", "q.float()", "a, b", "f(x)"):
        with pytest.raises(ValueError, match="expected a name, got"):
            Fixed(x)
    with pytest.raises(TypeError, match="expected an expression, a string, an integer or a slice"):
        ref("q")[1.5]
    with pytest.raises(TypeError, match="is not iterable"):
        list(ref("q"))
    with pytest.raises(TypeError, match="would lose what it reads: q"):
        f"{ref('q')}"


def test_a_file_is_read_as_python_reads_it():
    assert [x.names for x in read_definitions("a = 1\nb, c = 2, 3\n")] == [("a",), ("b", "c")]
    with pytest.raises(SyntaxError):
        read_definitions("def f(:\n")
    assert ast.dump(ast.parse(TEXT)) == ast.dump(ast.parse(text_of(read_definitions(TEXT))))
