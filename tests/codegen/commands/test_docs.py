"""What the documentation says is true: its code runs, its commands work, its tables are what the code says.

`python tests/codegen/commands/test_docs.py` writes the tables of the catalogue anew, the README's and that of docs/catalogue.md.
"""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunkform.codegen.attention.derivation import formulas
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.commands.cli import app
from chunkform.codegen.commands.listing import names
from chunkform.codegen.recurrence.notation.derivation import step_formulas
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Attention, Recurrence, catalogue

ROOT = Path(__file__).parents[3]
README, CATALOGUE = ROOT / "README.md", ROOT / "docs" / "catalogue.md"
PAGES = sorted(
    [
        README,
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "notes").glob("*.md"),
    ]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(\| `chunkform\.generated` .*\n\|---.*\n)((?:\|.*\n|<!--.*\n)*)")


def test_pages_count_the_ops_of_the_catalogue():
    """What the README, the first page and the changes say that there is, `chunkform list` shows."""
    said = [
        *re.findall(r"\[(\d+) ops\]\(docs/catalogue\.md\)", README.read_text()),
        *re.findall(r"catalogue\.md\) has (\d+) of them", (ROOT / "docs" / "index.md").read_text()),
        *re.findall(r"^\*\*(\d+) ops\.", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE),
    ]
    assert said == [str(len(names()))] * 3


LONG = ("inside.md",)  # what it says of passes, tests/codegen/commands/test_inside.py runs as well


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.long] if p.name in LONG else []) for p in PAGES], ids=lambda p: p.name
)
def test_code_runs_in_the_order_of_the_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / "cache"))
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            run_python(text, page, tmp_path)
        elif language == "bash":
            for line in text.strip().splitlines():
                words = line.split()
                assert words[0] == "chunkform", f"{page.name}: {line}"
                result = CliRunner().invoke(app, words[1:])
                fails = words[1] == "verify" and " fails " in result.stdout
                assert result.exit_code == int(fails), f"{page.name}: {line}\n{result.output}"


def run_python(text: str, page: Path, folder: Path) -> None:
    """Run a block; one that begins with a file's name is that file, and holds a recurrence."""
    if named := re.match(r"# (\w+\.py)\n", text):
        (folder / named[1]).write_text(text)
    space: dict = {"__name__": "__docs__"}
    exec(compile(text, f"{page.name}", "exec"), space)
    for r in (x for x in space.values() if isinstance(x, Recurrence)):
        assert compile_spec(r).family == "chunk-parallel"


def test_the_readme_needs_twelve_lines_to_an_op():
    first = next(text for language, text in BLOCK.findall((ROOT / "README.md").read_text()) if language == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 12


def test_the_errors_in_the_documentation_are_real(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "language.md").read_text()
    blocks = BLOCK.findall(page)
    spec = next(text for language, text in blocks if language == "python")
    shown = next(text for language, text in blocks if language == "text")
    (tmp_path / "decayed_sum.py").write_text(spec.replace("lam * S.prev + k * v.T", "lam * S.prev + v * k.T"))
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "decayed_sum.py")])
    for line, said in zip(shown.splitlines(), result.stderr.splitlines(), strict=True):
        assert said.startswith(line.removesuffix("...")), said


def test_links_lead_somewhere():
    for page in [*PAGES, *(ROOT / "docs" / "tutorials").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_word_of_the_language_is_documented():
    from chunkform.spec import language

    page = (ROOT / "docs" / "language.md").read_text()
    internal = {
        "Declaration",
        "Dim",
        "Equation",
        "Matrix",
        "State",
        "Variable",
        "catalogue",
        "find",
        "latex",
        "load",
        "text",
    }
    missing = [name for name in language.__all__ if name not in internal and not re.search(rf"\b{name}\b", page)]
    methods = [
        n
        for n in vars(Recurrence)
        if not n.startswith("_") and n not in ("validate", "equation", "define", "parameter", "noun", "wide")
    ]
    missing += [name for name in methods if f"r.{name}" not in page]
    assert not missing


# --- the tables of the catalogue --------------------------------------------------------------------------------------


def catalogue_rows(specs: str) -> dict[str, str]:
    """One row for each recurrence and attention: its op, its step, and how it runs. `specs` is the specs' folder."""
    rows = {}
    for r in catalogue():
        c = compile_spec(r)
        step = "<br>".join(f"`{f.plain}`" for f in step_formulas(c))
        family = "in parallel" if c.family == "chunk-parallel" else "recurrent form"
        rows[r.name] = f"| [`{r.name}`]({specs}/{r.name}.py) | {step} | {family} |\n"
    for a in catalogue(Attention):
        energy, _, *rest = formulas(compile_attention(a))
        shown = "<br>".join(f"`{x}`" for x in (energy, *rest)).replace("|", "\\|")
        rows[a.name] = f"| [`{a.name}`]({specs}/{a.name}.py) | {shown} | by pairs, in blocks |\n"
    return rows


def test_the_tables_of_the_catalogue_are_true():
    """Each row is what the compiler finds. A new recurrence needs no row: it touches no file but its own."""
    for page, specs, least in ((README, "spec", 5), (CATALOGUE, "../spec", 20)):
        found = TABLE.search(page.read_text())
        assert found is not None and found[2].count("\n") >= least
        assert set(found[2].splitlines(True)) <= set(catalogue_rows(specs).values()), (
            "run: python tests/codegen/commands/test_docs.py"
        )


def write_tables() -> None:
    """The README keeps its choice of ops."""
    rows = catalogue_rows("spec")
    text = README.read_text()
    kept = re.findall(r"^\| \[`(\w+)`\]\(spec/", TABLE.search(text)[2], re.MULTILINE)
    README.write_text(TABLE.sub(lambda m: m[1] + "".join(rows[n] for n in kept), text))
    whole = "".join(catalogue_rows("../spec").values())
    CATALOGUE.write_text(TABLE.sub(lambda m: m[1] + whole, CATALOGUE.read_text(), count=1))


if __name__ == "__main__":
    write_tables()
