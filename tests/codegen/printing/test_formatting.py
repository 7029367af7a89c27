"""Generated text is laid out for readers, and says the same as before."""

import ast
from pathlib import Path

import pytest

from chunkform.codegen.printing.formatting import AS_LAID, LINE, filled, formatted, in_lines

GENERATED = [p for p in (Path(__file__).parents[3] / "generated").glob("**/*.py") if p.stem != "__init__"]
NAMES = [f"argument_{n}" for n in range(20)]
MANY = ", ".join(NAMES)


def same(one: str, other: str) -> bool:
    return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))


def test_arguments_share_lines():
    text = formatted(f"x = f({MANY})\n")
    first, *inside, last = text.splitlines()
    assert (first, last) == ("x = f(", ")")
    assert len(inside) == 3 and all(len(line) <= LINE for line in inside)
    assert same(text, f"x = f({MANY})")


@pytest.mark.parametrize(
    "text",
    [
        f"x = f(\n    {MANY},\n    g({MANY}), y=[{MANY}], z={{1: ({MANY})}},\n)\n",
        f"x = f(\n    ({', '.join(NAMES[:8])},), ({NAMES[0]},),\n    " + f'"""of\nlines, (""", {MANY}\n)\n',
        f"x = f(\n    a,  # why, and (\n    b,\n    # so\n    {MANY},\n)  # at the end\n",
        f"def f({MANY}):\n    if {' and '.join(NAMES)}:\n        return ({MANY}), {NAMES[0]}[{MANY}]\n",
        f"from x import {MANY}\n",
    ],
)
def test_what_is_said_stays(text):
    assert same(formatted(text), text)


def test_a_comment_stays_beside_its_argument():
    lines = formatted(f"x = f(\n    a,  # why\n    b,\n    {MANY},\n)\n").splitlines()
    assert "    a,  # why" in lines


def test_what_a_printer_has_laid_out_stays():
    text = f"f(\n    a, a_stride,\n    b, b_stride,\n){AS_LAID}\ng({MANY})\n"
    done = formatted(text)
    assert done.startswith("f(\n    a, a_stride,\n    b, b_stride,\n)\ng(\n    argument_0, argument_1,")


def test_no_group_is_in_two_lines():
    groups = [((f"x{n}",), (f"x{n}_stride",)) for n in range(20)]
    lines = ["".join(x) for x in in_lines(groups, 60)]
    assert all(len(line) <= 60 for line in lines) and len(lines) < 10
    assert all(len(line.split()) % 2 == 0 for line in lines)
    assert " ".join(lines).split() == [f"{x}," for group in groups for (x,) in group]
    assert in_lines([(), (("a",),), ()]) == [("a", ",")]


@pytest.mark.parametrize("path", GENERATED, ids=lambda p: p.stem)
def test_generated_files_are_laid_out_so(path):
    text = path.read_text()
    assert AS_LAID.strip() not in text
    assert len(filled(text).splitlines()) > 0.96 * len(text.splitlines())  # groups stay apart, and nothing else
