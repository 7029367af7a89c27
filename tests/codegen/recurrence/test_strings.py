"""The strings of a spec are data: whatever is in a doc or a source, the file of its op is what it was but for a docstring."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import spec_names

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.recurrence.emit import escaped, quoted
from chunkform.errors import SpecError
from chunkform.spec.language import Attention, Program, Recurrence

PARTS = ['"""', "'''", "\\", "{{ 1 }}", "{% x %}", "\n", "\r", "\0", "\x0c", "\u2028", "\ud800", "😀", '"', "#"]
TEXTS = st.text(st.characters(exclude_categories=()), max_size=60) | st.lists(st.sampled_from(PARTS)).map("".join)


@settings(deadline=None)
@given(TEXTS)
def test_a_docstring_says_its_text(text):
    for shown in (quoted(f"{text}\n    "), f'"""{escaped(text)}\n    """'):
        assert ast.literal_eval(shown) == f"{text}\n    "
        shown.encode()


@pytest.fixture(scope="module")
def compiled():
    found = []
    for spec in (spec_names.scanned, spec_names.pairs, spec_names.program):
        declared = spec(lambda role: role)
        found.append((kind_of(declared), kind_of(declared).compile_spec(declared)))
    return found


NASTY = [
    (r"Attention with $\xi_t$ and \N{x} \U", '""" + print(1) + """', 0),
    ('"""\nimport os\n"""', "\\", 1),
    ("{{ title }}{% raw %}\r\n\0\x1b[0m\u2028\ud800😀𔐀" + "long " * 2000, "{# x #}", 2),
    ("\\", "\n\n", 0),
    ('ends with a quote"', "''' # noqa", 1),
    ('"', "\x0c\f", 1),
]


@pytest.mark.parametrize(("doc", "source", "which"), NASTY)
def test_no_string_is_read_as_code(compiled, doc, source, which):
    kind, c = compiled[which]
    plain = kind.emit(c, tidy=False)
    c.spec.doc, c.spec.source = doc, source
    try:
        text = kind.emit(c, tidy=False)
    finally:
        c.spec.doc = c.spec.source = ""
    text.encode()
    assert ast.dump(_bare(text)) == ast.dump(_bare(plain))


def _bare(text):
    tree = ast.parse(text)
    for x in ast.walk(tree):
        if isinstance(x, ast.Module | ast.FunctionDef) and ast.get_docstring(x) is not None:
            x.body = x.body[1:]
    return tree


@pytest.mark.parametrize("kind", [Recurrence, Attention, Program])
def test_strings_are_strings(kind):
    with pytest.raises(SpecError, match="the doc of r must be a string, got None"):
        kind("r", doc=None)
