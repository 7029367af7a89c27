"""The documentation as a site: built without a warning, whole, and readable without a network. `make docs` builds it, too."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shared.once import made_once

ROOT = Path(__file__).parents[2]
PUBLIC = ("chunkform", "chunkform.spec.language", "chunkform.runtime.nn", "chunkform.errors")
INTERNAL = {  # what stands in __all__ and is no name that a user writes
    "chunkform": {"__version__", "Attention", "Recurrence"},  # the last two are in chunkform.spec.language
    "chunkform.spec.language": {"Declaration", "Dim", "Equation", "Matrix"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made_once(tmp_path_factory, "site", build) / "html"


def build(folder: Path) -> None:
    if not (ROOT / "build" / "typing").exists():
        subprocess.run(["make", "-s", "build/typing"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "html")]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stdout + built.stderr


def pages(site: Path) -> dict[str, str]:
    return {p.relative_to(site).as_posix(): p.read_text(encoding="utf-8") for p in site.rglob("*.html")}


def test_no_page_fetches_anything(site):
    """Scripts, styles, fonts and pictures are the site's own; links that a reader may follow are others."""
    fetched = re.compile(
        r'<(?:script|img|iframe|link(?![^>]*rel="?canonical))[^>]*?(?:src|href)="?((?:https?:)?//[^" >]+)'
    )
    for name, text in pages(site).items():
        assert fetched.findall(text) == [], name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_what_a_page_needs_is_there(site):
    needed = re.compile(r'<(?:script|img|link)[^>]*?(?:src|href)="?([^":> ]+)')
    for name, text in pages(site).items():
        if name != "404.html":
            for target in needed.findall(text):
                assert (site / name).parent.joinpath(target.split("?")[0].split("#")[0]).exists(), f"{name}: {target}"


def test_formulas_are_mathml(site):
    text = (site / "how_it_works.html").read_text(encoding="utf-8")
    assert text.count("<math") > 5 and "arithmatex" not in text


def rows(text: str) -> list[str]:
    return re.findall(r"<tr>\s*<td.*?</tr>", text, re.DOTALL)


def test_a_table_of_sentences_or_formulas_is_stacked_on_narrow_screens(site):
    """Side by side, a formula and a sentence leave 400 pixels one word a line."""
    glossary = (site / "glossary.html").read_text(encoding="utf-8")
    assert glossary.count("<table data-stacked>") == glossary.count("<table") > 3
    assert all(row.count("data-label=") == row.count("<td") - 1 for row in rows(glossary))
    numbers = (site / "performance.html").read_text(encoding="utf-8")
    assert "data-stacked" not in numbers and len(rows(numbers)) > 20  # which are read down a column


def test_code_in_tables_breaks_between_words_and_has_plain_bars(site):
    text = (site / "catalogue.html").read_text(encoding="utf-8")
    assert "gradient_<wbr>descent_<wbr>squared" in text and '<span class="whole">S_{t-1}^T</span>' in text
    assert "|i - j|" in text and "\\|" not in text


def test_the_reference_starts_with_what_is_called(site):
    names = re.findall(r'id="chunkform\.(\w+)"', (site / "reference" / "python.html").read_text(encoding="utf-8"))
    assert names[:3] == ["compile", "explain", "verify"]


def test_search_finds_pages_and_functions(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {x["location"] for x in index["docs"]}
    assert {"using_ops.html", "limits.html", "reference/layers.html#chunkform.runtime.nn.Mixer"} <= places


def test_files_of_the_repository_are_pages(site):
    text = (site / "repository" / "spec" / "mesa.py.html").read_text(encoding="utf-8")
    assert "conjugate gradients" in text


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(site, module):
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        n for n, x in vars(found).items() if isinstance(x, type) and x.__module__ == module
    ]
    reference = "".join((site / "reference" / p).read_text(encoding="utf-8") for p in os.listdir(site / "reference"))
    missing = [
        n
        for n in names
        if n not in INTERNAL.get(module, ()) and not re.search(rf'id="{re.escape(module)}\S*\.{n}"', reference)
    ]
    assert missing == [], "give these a line in docs/reference"


def test_every_op_is_in_the_reference(site):
    text = (site / "reference" / "ops.html").read_text(encoding="utf-8")
    for path in (ROOT / "generated").glob("[!_]*.py"):
        assert f'id="{path.stem}"' in text
