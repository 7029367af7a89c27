"""The README's picture and numbers are those of results/gpu, and its links work from a package page."""

import email
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import readme
from chunkform.codegen.performance import measured_times

ROOT = Path(__file__).parents[2]
RESULTS = json.loads(readme.RESULTS.read_text())
HOST = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def test_the_numbers_are_what_was_measured():
    """Else: python -m benchmarks.readme"""
    for page, said in ((readme.README, readme.numbers(RESULTS)), (readme.PERFORMANCE, readme.table(RESULTS))):
        text = page.read_text()
        assert readme.with_lines(text, said) == text


def test_the_planner_knows_what_was_measured():
    """Else: python -m benchmarks.readme"""
    assert measured_times.TABLE.read_text() == readme.for_the_planner(RESULTS, json.loads(readme.PARALLEL.read_text()))


def test_the_plot_shows_what_was_measured():
    """Else: python -m benchmarks.readme"""
    with Image.open(readme.PLOT) as picture:
        drawn = json.loads(picture.info["Description"])
    assert drawn == json.loads(json.dumps(readme.series(RESULTS)))


def test_the_plot_can_be_drawn_anew(tmp_path):
    readme.draw(RESULTS, tmp_path / "time.png")
    with Image.open(tmp_path / "time.png") as picture:
        assert picture.width > 800


def test_a_page_without_a_place_for_numbers_is_refused():
    with pytest.raises(SystemExit, match="no place for what was measured"):
        readme.with_lines("# chunkform", "fast")


def test_the_first_screen_has_what_a_newcomer_wants():
    """Code, the plot, the numbers with hardware and date, and how to install it, in the first 50 lines."""
    screen = "\n".join(readme.README.read_text().splitlines()[:50])
    for wanted in (
        "```python",
        "docs/images/time.png",
        RESULTS["about"]["gpu"],
        RESULTS["about"]["date"],
        "pip install .",
        "3.13",
    ):
        assert wanted in screen


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """The wheel's: of setup.py and pyproject.toml alone, in a folder without packages."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("README.md", "setup.py"):
        (tree / name).write_text((ROOT / name).read_text())
    text = (ROOT / "pyproject.toml").read_text()
    text = re.sub(r"packages = \[.*?\]", "packages = []", text, count=1, flags=re.DOTALL)
    text = re.sub(r"version = \{ attr.*\}", 'version = { file = "VERSION" }', text)
    (tree / "VERSION").write_text("0.0.0")
    text = re.sub(r"\[tool\.setuptools\.package-dir\].*?\n\n", "", text, flags=re.DOTALL)
    (tree / "pyproject.toml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        tree,
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (x for x in file.namelist() if x.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(name))


def test_links_on_the_package_page_are_whole(metadata):
    page = metadata.get_payload()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 20
    for link in links:
        assert link.startswith(("https://", "#")), link
    assert f"({HOST}/raw/main/docs/images/time.png)" in page
    assert f"({HOST}/blob/main/CHANGELOG.md)" in page


def test_the_package_page_says_what_it_is(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"] and metadata["Requires-Python"]
    assert "Programming Language :: Python :: 3.13" in metadata.get_all("Classifier")
    assert f"Repository, {HOST}" in metadata.get_all("Project-URL")


def test_there_is_one_public_host():
    """pyproject.toml has it, and CITATION.cff the same."""
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^repository-code: (\S+)", citation, re.MULTILINE)[1] == HOST
    assert "PLACEHOLDER" in citation and "PLACEHOLDER" in (ROOT / "pyproject.toml").read_text()


def test_the_citation_names_this_version():
    import chunkform

    assert re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == chunkform.__version__
