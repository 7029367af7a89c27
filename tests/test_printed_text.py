"""The compiler decides nothing by reading what it has printed: where it searches text, or parses it, is listed here, and why."""

import ast
import re
from pathlib import Path

import pytest

from chunkform.codegen.ir.python_code import Fixed

ROOT = Path(__file__).parents[1]
ROOMS = ("attention", "exact", "ir", "performance", "printing", "programs", "recurrence")  # that make code
READERS = {"re", "ast", "symtable", "tokenize"}  # modules that search text or parse it
WHY = {
    # formulas and pictures, for people
    "attention/derivation.py": "numbers at the ends of names in LaTeX",
    "ir/data_text.py": "names made of hashes, in what `explain --after` shows",
    "ir/latex_page.py": "breaks in LaTeX",
    "ir/latex_width.py": "how wide LaTeX is",
    "ir/math_svg.py": "gaps in LaTeX",
    "ir/notation.py": "how high LaTeX is",
    "ir/symbols.py": "names of a spec: a letter and its number",
    "ir/written.py": "exponents in LaTeX",
    "programs/draw.py": "the size of a picture that Graphviz has made",
    "programs/latex.py": "names in LaTeX",
    "programs/sentences.py": "terms as their author wrote them",
    # names
    "ir/letters.py": "names of a spec, in letters in which nothing else is written",
    "recurrence/gates/symbolic_proof.py": "small numbers as powers of ten, in what a refusal shows",
    # text of others
    "exact/jit_source.py": "functions of the runtime, whose source the gates run",
    "performance/compile_report.py": "what Triton and ptxas have made",
    # whole files, once all is decided
    "printing/formatting.py": "how a finished file is laid out: which arguments share a line",
}


def readers(path: Path) -> bool:
    """Does a module import one that searches text, or parses it?"""
    for x in ast.walk(ast.parse(path.read_text())):
        if isinstance(x, ast.Import) and READERS & {n.name for n in x.names}:
            return True
        if isinstance(x, ast.ImportFrom) and not x.level and x.module in READERS:
            return True
    return False


def test_text_is_read_where_it_says_why():
    found = {
        path.relative_to(ROOT / "codegen").as_posix()
        for room in ROOMS
        for path in (ROOT / "codegen" / room).rglob("*.py")
        if readers(path)
    }
    assert sorted(found - WHY.keys()) == [], "decide on the data, or say here which text it is that is read, and why"
    assert sorted(WHY.keys() - found) == [], "no longer read: leave it out of the list"


def test_expressions_are_no_strings():
    """Names of expressions are names: what isn't one is refused where it is made, so that no text passes for an expression."""
    for text in ("a + b", "f(x)", 'x["a"]', "a, b", "1", ""):
        with pytest.raises(ValueError, match="expected a name, got"):
            Fixed(text)


def test_kinds_of_variables_are_told_as_a_whole():
    """No kind is known by how its name begins or ends: `codegen/ir/step_program.py` says which are decays, or parameters."""
    parts = re.compile(r"(kind|attrs\[0\])\.(startswith|endswith)\(\"(decay|parameter)\"\)")
    found = [p.name for room in ROOMS for p in (ROOT / "codegen" / room).rglob("*.py") if parts.search(p.read_text())]
    assert found == []
    assert parts.search('x.attrs[0].startswith("decay")') and parts.search('v.kind.endswith("parameter")')


def test_a_module_that_reads_is_seen(tmp_path):
    for text, reads in (("import re\n", True), ("from ast import parse\n", True), ("from .re import x\n", False)):
        (tmp_path / "m.py").write_text(text)
        assert readers(tmp_path / "m.py") == reads
