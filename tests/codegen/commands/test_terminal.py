"""What every command has: help with examples, a version, completion, and as much said as was asked for."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import chunkform
from chunkform.codegen.checking.checked import Checked
from chunkform.codegen.claims.verdict import summary
from chunkform.codegen.commands.check import check_table
from chunkform.codegen.commands.cli import app
from chunkform.codegen.commands.listing import FAMILIES, listed
from chunkform.codegen.commands.terminal import paragraphs
from chunkform.spec.language import Declaration, catalogue
from chunkform.spec.language.load import published

COMMANDS = ("list", "new", "verify", "explain", "build", "check", "inspect", "plan", "tune")


def run(*words: object):
    return CliRunner().invoke(app, [str(w) for w in words])


# --- help, version, completion ----------------------------------------------------------------------------------------


def test_commands_are_all_here():
    assert {c.name or c.callback.__name__ for c in app.registered_commands} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_examples_that_are_spelt_right(command):
    result = run(command, "-h")
    assert result.exit_code == 0 and result.output == run(command, "--help").output
    assert "<bool>" not in result.output
    shown = " ".join(result.output.partition("Examples:")[2].split())
    examples = re.findall(r"chunkform (?:(?!chunkform ).)+", shown)
    assert examples
    for example in examples:
        words = re.split(r" [|>] ", example)[0].split()
        assert words[1] == command
        for option in (w for w in words if w.startswith("--")):
            assert option in result.output.partition("Examples:")[0], example


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_help_is_as_wide_as_columns_says(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (("-h",), *((c, "-h") for c in COMMANDS)):
        assert max(map(len, run(*words).output.splitlines())) <= columns


@pytest.mark.parametrize("command", COMMANDS)
def test_no_number_of_an_option_is_negative(command):
    numbers = re.findall(r"(--[a-z-]+)\s+(?:-\w\s+)?<[a-z\[]*(?:int|float)", run(command, "-h").output)
    assert numbers or command in ("list", "new", "build")
    for option in numbers:
        result = run(command, "delta_rule", option, "-1")
        assert result.exit_code == 2 and option in result.output, (option, result.output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "."), "is a folder"),
        (("explain", "picture.png"), "isn't text"),
        (("verify", "delta_rule", "--names", "a=b"), "--same-as"),
        (("verify", "--document", "xyz"), "there are Inverse attention"),
    ],
)
def test_input_that_is_no_spec_or_asks_for_nothing(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("picture.png").write_bytes(b"\x89PNG\0")
    result = run(*words)
    assert result.exit_code == 2 and said in " ".join(result.output.split())


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_names_are_whole_however_narrow_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert "gradient_descent_squared_weight_decay" in run("list").output


def test_the_version():
    assert run("--version").output == f"chunkform {chunkform.__version__}\n" == run("-V").output


def test_python_runs_it_as_a_module():
    done = subprocess.run([sys.executable, "-m", "chunkform", "--version"], capture_output=True, text=True)
    assert done.stdout == f"chunkform {chunkform.__version__}\n" and done.stderr == ""


def completed(line: str, folder: Path) -> list[str]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_CHUNKFORM_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "chunkform"], capture_output=True, text=True, env=os.environ | words, cwd=folder
    )
    return done.stdout.split()


def test_a_shell_completes_names_and_files(tmp_path):
    (tmp_path / "gadget.py").write_text("")
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / "one.py").write_text("")
    assert completed("chunkform explain ga", tmp_path) == [
        "gated_delta_product",
        "gated_delta_rule",
        "gated_linear_attention",
        "gated_oja_rule",
        "gadget.py",
        "gates/",
    ]
    assert completed("chunkform build gates/", tmp_path) == ["gates/one.py"]
    assert completed("chunkform che", tmp_path) == ["check"]
    assert "attention" in completed("chunkform list --family a", tmp_path)


# --- list -------------------------------------------------------------------------------------------------------------


def test_the_list_is_the_catalogue():
    assert [x.name for x in listed()] == sorted(r.name for r in (*catalogue(Declaration), *published(Declaration)))
    for x in listed():
        assert x.doc and x.arguments and x.family in FAMILIES


@pytest.mark.parametrize("word, said", [("gatd", "did you mean gated?"), ("zzzz", "chunkform list has them all")])
def test_a_list_of_nothing_says_what_there_is(word, said):
    assert said in run("list", word).output


def test_a_long_name_is_broken_and_not_cut():
    row = Checked("gradient_descent_squared_weight_decay", "dlog_keep", "float32", "cpu", 2.5e-07, 1e-05, 1e-05, True)
    narrow = io.StringIO()
    Console(file=narrow, width=80).print(check_table([row]))
    first = [line[:24].split(" ")[0] for line in narrow.getvalue().splitlines()[1:]]
    assert "".join(first) == row.name


def test_help_breaks_lines_where_the_terminal_ends():
    assert paragraphs("One.\n\n    Two, which\n    goes on.\n") == "One.\n\nTwo, which goes on."


def test_the_list_is_narrowed_down():
    found = json.loads(run("list", "delta", "--json", "-").stdout)
    assert [x["name"] for x in found] == [x.name for x in listed() if "delta" in f"{x.name} {x.doc}".lower()]
    assert next(x for x in found if x["name"] == "gated_delta_rule") == {
        "name": "gated_delta_rule",
        "family": "chunk-parallel",
        "arguments": ["q", "k", "v", "beta", "log_alpha"],
        "doc": "The gated delta rule (Yang et al. 2024, arXiv 2412.06464): decay, then the delta rule.",
    }
    programs = run("list", "--family", "program", "-q").output
    assert re.findall(r"^(mesa\w*)", programs, re.MULTILINE) == ["mesa", "mesa_net", "mesa_neumann"]
    assert "op" not in run("list", "nothing of this name", "-q").output
    refused = run("list", "--family", "programme")
    assert refused.exit_code == 2 and "did you mean program?" in refused.stderr


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gated_delta", "gated_delta_rule"), ("Retention", "retention"), ("linear_atention", "linear_attention")],
)
def test_a_misspelt_name_gets_the_nearest(name, meant):
    result = run("explain", name)
    assert result.exit_code == 2 and name in result.stderr
    assert re.search(rf"did you mean [^?]*\b{meant}\b", result.stderr)


def test_a_misspelt_file_and_a_name_like_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decayed_sum.py").write_text("")
    assert "did you mean decayed_sum.py?" in run("explain", "decayed_sums.py").stderr
    assert "chunkform list" in run("explain", "xyzzy").stderr


# --- how much is said -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before", "after"])
def test_quiet_and_verbose(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def told(option, *words):
        return run(option, *words) if where == "before" else run(*words, option)

    assert told("--quiet", "new", "fresh").output == ""
    assert (tmp_path / "fresh.py").exists()
    assert "next: chunkform explain" in run("new", "other").output
    loud = told("-v", "explain", "fresh.py")
    assert "gate adjoint passed" in loud.stderr and "gate" not in run("explain", "fresh.py").stderr
    assert "random points" in told("-vv", "explain", "fresh.py").stderr
    assert json.loads(told("-v", "explain", "fresh.py", "--json", "-").stdout)["name"] == "fresh"


def test_a_quiet_build_names_what_is_stale_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fresh", "stale"):
        run("new", name)
    assert run("build", "fresh.py", "stale.py", "--out", "ops", "-q").output == ""
    (tmp_path / "ops" / "stale.py").write_text((tmp_path / "ops" / "stale.py").read_text() + "\n")
    result = run("build", "fresh.py", "stale.py", "--out", "ops", "--check", "-q")
    assert result.exit_code == 1 and "stale" in result.output and "fresh" not in result.output
    loud = run("build", "fresh.py", "stale.py", "--out", "ops", "--check").output
    assert "1 of 2 files is not what its spec says; run: chunkform build fresh.py stale.py --out ops" in loud


class Judged:
    def __init__(self, verdict: str, repairs: int = 0) -> None:
        self.verdict, self.repairs = verdict, [None] * repairs


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], "0 claims"),
        ([Judged("depends")], "1 claim: 1 depends"),
        ([Judged("holds"), Judged("holds"), Judged("fails", 1)], "3 claims: 2 hold, 1 fails; it has a repair"),
        ([Judged("fails"), Judged("error")], "2 claims: 1 fails, 1 couldn't be judged; no repair was found"),
        ([Judged("fails"), Judged("fails", 2)], "2 claims: 2 fail; 1 of the 2 that fail has a repair"),
        ([Judged("fails", 1)] * 2 + [Judged("fails")], "3 claims: 3 fail; 2 of the 3 that fail have a repair"),
        ([Judged("fails")] * 2, "2 claims: 2 fail; none of the 2 that fail have a repair"),
    ],
)
def test_counts_are_said_as_a_person_would(verdicts, said):
    assert summary(verdicts) == said


def test_an_error_above_its_bound_that_is_allowed_is_told_why() -> None:
    rows = [
        Checked("op", "dq", "float32", "cpu", 1.0, 1e-5, 4.0, True),
        Checked("op", "dk", "float64", "cpu", 1e-12, 1e-10, 1e-10, True),
        Checked("op", "dv", "bfloat16", "cpu", 9.0, 1e-2, 4.0, False),
    ]
    plain = Console(width=200, file=io.StringIO())
    plain.print(check_table(rows))
    first, second, third = (x.strip() for x in plain.file.getvalue().splitlines()[1:])
    assert "ok: rounding alone makes 1.0e+00 of it" in first
    assert "rounding" not in second + third
