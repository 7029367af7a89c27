"""The tutorials do what they say, from the first block to the last. They train models, so `make test-all` runs them."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunkform.codegen.commands.cli import app

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_a_tutorial_works(page, tmp_path, monkeypatch):
    """Blocks of Python share their names, as in one session; what is shown of an output is in it, line by line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / "cache"))
    space: dict = {"__name__": "__docs__"}
    said = ""
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "bash":
            said = "".join(map(command, text.strip().splitlines()))
        elif language == "text":
            for line in text.strip().splitlines():
                assert re.search(pattern(line), said), f"{page.name} shows what isn't printed: {line}\n{said}"
        elif named := re.match(r"# (\w+\.py)\n", text):
            Path(named[1]).write_text(text)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page.name, "exec"), space)
            said = out.getvalue()


def command(line: str) -> str:
    words = line.split()
    assert words[0] == "chunkform", line
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code in (0, 1), f"{line}\n{result.output}"
    return result.output


def pattern(line: str) -> str:
    """A line as it stands, whatever spaces there are, and anything in the place of three dots."""
    return ".*".join(r"\s+".join(map(re.escape, x.split())) for x in line.split("..."))


def test_a_line_is_found_whatever_its_spaces():
    assert re.search(pattern("dk   holds"), "  dk holds")
    assert re.search(pattern("worst ... ok"), "worst 1e-7 ok")
    assert not re.search(pattern("dk fails"), "dk holds")


def test_there_are_three():
    assert {"new_recurrence", "derivations", "from_fla"} <= {p.stem for p in TUTORIALS}
