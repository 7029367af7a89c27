"""Statements of generated files cite the formulas at the file's head, by numbers that are theirs."""

import re
from pathlib import Path

import pytest

FILES = [
    p
    for p in sorted((Path(__file__).parents[2] / "generated").glob("**/*.py"))
    if "\n# Over a chunk of C steps, backward\n" in p.read_text()
]
FORMULA = re.compile(r"^#     \((\d+)\) (.*)", re.MULTILINE)
CITED = re.compile(
    r"# (?:\.\.\. \+ )?\((\d+)\)(?: (d\w+)(?=:|$))?", re.MULTILINE
)  # and of which gradient it is, where it is one


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_is_cited_is_what_is_made(path):
    head, text = path.read_text().split("\nimport torch\n")
    formulas = {int(n): formula for n, formula in FORMULA.findall(head)}
    assert list(formulas) == list(range(1, len(formulas) + 1))
    over_chunks = {int(n) for n, _ in FORMULA.findall(head[head.index("\n# Over a chunk") :])}
    cited = [(int(n), name) for n, name in CITED.findall(text)]
    assert cited and {n for n, _ in cited} <= over_chunks
    for n, name in cited:  # the symbol of a matrix is that of its rows in capitals
        left = formulas[n].partition(" = ")[0]
        assert (
            not name or re.match(rf"{name}\b", left, re.I) or re.search(rf"\) {left}_t = {name}_t$", head, re.I | re.M)
        )


def test_there_are_some():
    assert len(FILES) > 15
