"""How commands end where something goes wrong: one clear sentence, an exit code that docs/command_line.md has, nothing left."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunkform.__main__ import program
from chunkform.codegen.commands import cli, terminal
from chunkform.codegen.commands.cli import app
from chunkform.errors import BuildError
from chunkform.runtime.launch.files import write_whole
from chunkform.spec.language import load
from chunkform.spec.language.alone import alone
from chunkform.supervised import KILLED

SPEC = '''"""Δ: a sum."""

from chunkform.spec.language import Recurrence

r = Recurrence("endings")
d = r.dims("d")
x = r.inputs("x", d)
h = r.state("h", d)
r.update(h, h.prev + x)
r.output("y", h.next)
t, x, dx, dy, dh = r.quantities("t x dx dy dh")
'''
CLAIM = 'r.claim("dx", dx(t), dh(t))\n'


def run(*words: object):
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def spec(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "endings.py"
    file.write_text(SPEC + CLAIM, encoding="utf-8")
    return file


def refused(result, code: int, *parts: str) -> None:
    """It ends with a code and one sentence, which has these parts."""
    assert result.exit_code == code, result.output
    assert result.stderr.count("error:") == 1 and "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


# --- specs that end the program, or print -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("raise SystemExit(0)", 2, "a spec declares, and doesn't end the program"),
        ("import sys; sys.exit('bye')", 2, "bye: a spec declares"),
        ("import os; os._exit(0)", 2, "os._exit(0): a spec declares, and doesn't end the program"),
        ("from os import abort; abort()", 2, "os.abort(): a spec declares"),
        ("import os; os.execl('/bin/true', 'true')", 2, "os.execv('/bin/true', ('true',)): a spec declares"),
        ("class X(Exception):\n    def __str__(self): raise ValueError\nraise X", 2, "X: which can't be told"),
        ("raise BaseException('odd')", 2, "BaseException: odd"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("x = (", 2, "SyntaxError"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "verify"])
def test_a_spec_that_ends_the_program(command, line, code, said, spec):
    spec.write_text(line + "\n")
    refused(run(command, spec), code, said)


def test_a_spec_that_is_ended_by_a_signal(spec):
    spec.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n" + SPEC, encoding="utf-8")
    ended = subprocess.run([sys.executable, "-m", "chunkform", "explain", str(spec)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: SIGKILL ended the program: a spec declares, and doesn't end the program")
    assert ended.stderr.endswith(f"\n  {spec}\n")


SUPERVISED = """
import os, signal, sys, threading, time
from pathlib import Path
from chunkform.supervised import running, supervised

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it

def program():
    print("begun", flush=True)
    {}

supervised(program)
print("gone on")
"""
IN_A_SPEC = "with running(Path('a.py')): "


def supervised_run(line: str, send: int = 0, group: bool = False, last: str = "begun"):
    """How a supervised process ends, which is sent a signal once it has begun, and has said the `last` word."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED.format(line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if send:
        assert process.stdout.readline() == "begun\n"
        assert last == "begun" or process.stdout.readline() == f"{last}\n"
        (os.killpg if group else os.kill)(process.pid, send)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.removeprefix("begun\n"), err


@pytest.mark.parametrize(
    ("line", "code", "out", "said"),
    [
        ("pass", 0, "gone on\n", ""),
        ("sys.exit(3)", 3, "", ""),
        ("sys.exit('why')", 1, "", "why\n"),
        ("raise SystemExit", 0, "", ""),
        (IN_A_SPEC + "pass", 0, "gone on\n", ""),
        (IN_A_SPEC + "signal.raise_signal(signal.SIGTERM)", 2, "", "error: SIGTERM ended the program: a spec declares"),
        (IN_A_SPEC + "__import__('ctypes').string_at(0)", 2, "", "error: SIGSEGV ended the program: a spec declares"),
        (
            IN_A_SPEC + "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(60)",
            2,
            "",
            "error: exit code 0 ended the program: a spec declares, and doesn't end the program\n  a.py\n",
        ),
        ("os.abort()", 4, "", "error: chunkform itself is at fault: it ended with SIGABRT. Please report"),
        ("os._exit(0)", 4, "", "error: chunkform itself is at fault: it ended with exit code 0. Please report"),
        (
            "os.kill(os.getpid(), 9)",
            137,
            "",
            "error: something ended the program with SIGKILL, as a system that is short",
        ),
    ],
)
def test_what_ends_the_program_without_a_word_is_told(line, code, out, said):
    ended = supervised_run(line)
    assert ended[:2] == (code, out) and ended[2].startswith(said) and (said or not ended[2])


@pytest.mark.parametrize("group", [False, True])
def test_signals_are_passed_on(group):
    """Those that the program is sent itself, and those that its whole group is."""
    asleep = "\n    try: print('asleep', flush=True); time.sleep(60)"
    asleep += "\n    except KeyboardInterrupt: time.sleep(0.3); sys.exit(130)"
    assert supervised_run(asleep, signal.SIGINT, group, "asleep") == (130, "", "")
    assert supervised_run("time.sleep(60)", signal.SIGTERM, group) == (-signal.SIGTERM, "", "")
    assert supervised_run(IN_A_SPEC + "time.sleep(60)", signal.SIGTERM, group) == (-signal.SIGTERM, "", "")


def test_a_program_does_not_outlive_who_waits_for_it():
    """Its end closes the pipe that it has."""
    assert supervised_run("time.sleep(60)", signal.SIGKILL) == (-signal.SIGKILL, "", "")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 160 GB")])
def test_too_little_memory_is_said_in_a_sentence(error, spec, monkeypatch):
    def short(*_):
        raise error

    monkeypatch.setattr(cli, "declarations", short)
    refused(run("explain", spec), 2, "there isn't enough memory for this (")


def test_a_width_that_no_kernel_has(spec):
    refused(run("inspect", spec, "--width", 100000), 2, "--width must be at most 512, got 100000")


def test_a_spec_that_does_not_end_is_told_with_its_line(spec, monkeypatch):
    monkeypatch.setattr(sys.modules[load.__module__], "SLOW", 0.5)
    spec.write_text("import time\nwhile True:\n    time.sleep(1.0)\n    break\n" + SPEC, encoding="utf-8")
    result = run("explain", spec)
    assert result.exit_code == 0
    assert "endings.py:3: UserWarning: this has run for 0.5 s" in result.stderr and "Ctrl-C ends it" in result.stderr


@pytest.mark.parametrize("name", ["loop.py", "pipe.py"])
def test_what_is_no_file_of_text(name, spec):
    """A link to itself, and a pipe."""
    path = spec.parent / name
    path.symlink_to(name) if name == "loop.py" else os.mkfifo(path)
    refused(run("explain", path), 2, f"{name} is no file of text: name one that a spec is in")


def test_what_a_spec_prints_stays_out_of_the_output(spec):
    spec.write_text(SPEC + CLAIM + 'print("by the spec")\n', encoding="utf-8")
    for command in ("explain", "verify"):
        result = run(command, spec, "--json", "-")
        assert json.loads(result.stdout) and "by the spec" in result.stderr


def test_the_program_can_be_interrupted_while_it_is_imported(monkeypatch, capsys):
    class Interrupting:
        @staticmethod
        def find_spec(name, *_):
            if name == cli.__name__:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, cli.__name__)
    monkeypatch.delattr(sys.modules[cli.__package__], "cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 130 and capsys.readouterr().err == "error: interrupted\n"


def test_a_fault_of_ours_says_so(spec, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(cli, "declarations", broken)
    result = run("explain", spec)
    assert result.exit_code == 4 and "Traceback" in result.stderr
    assert "chunkform itself is at fault: ZeroDivisionError: oh. Please report it" in result.stderr


# --- new --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lambda", "class.py", "../x", "sub/../../x", "a" * 300, "", "a\0b"])
def test_new_writes_nothing_that_explain_refuses(name, tmp_path, spec):
    spec.unlink()
    (tmp_path / "sub").mkdir()
    refused(run("new", name), 2)
    assert not list(tmp_path.parent.glob("x*")) and sorted(p.name for p in tmp_path.iterdir()) == ["sub"]


def test_new_leaves_nothing_on_a_full_disk(spec, tmp_path, monkeypatch):
    with limited(100):
        refused(run("new", "fresh"), 2, "can't write fresh.py: File too large")
    assert not (tmp_path / "fresh.py").exists()


# --- files and folders that can't be written --------------------------------------------------------------------------


class limited:
    """Inside, files can't be longer than so many bytes, as on a full disk."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("words", [("explain", "--json"), ("verify", "--json"), ("verify", "--html")])
def test_a_full_disk(words, spec):
    command, option = words
    refused(run(command, spec, option, "/dev/full"), 2, "can't write /dev/full: No space left on device")


def test_what_is_written_is_whole_or_not_there(tmp_path):
    file = tmp_path / "a.txt"
    with limited(100), pytest.raises(BuildError, match=r"can't write .*a.txt: File too large"):
        write_whole(file, "x" * 1000)
    assert not list(tmp_path.iterdir())
    write_whole(file, "before")
    os.chmod(file, 0o600)
    link = tmp_path / "link.txt"
    link.symlink_to(file)
    with limited(100), pytest.raises(BuildError):
        write_whole(file, "x" * 1000)
    assert file.read_text() == "before"
    write_whole(link, "after")
    assert link.is_symlink() and file.read_text() == "after" and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("out", ["endings.py", "endings.py/ops", "/dev/null/x"])
def test_build_to_what_is_no_folder(out, spec):
    refused(run("build", spec, "--out", out), 2, out, "folder")


def test_build_leaves_nothing_on_a_full_disk(spec, tmp_path):
    with limited(2000):
        refused(run("build", spec, "--out", "ops"), 2, "can't write ops/endings.py: File too large")
    assert not list((tmp_path / "ops").iterdir())


@pytest.mark.parametrize("cache", ["a file", "full"])
def test_a_cache_that_cannot_be_written_is_a_temporary_folder(cache, spec, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / cache))
    code = "import chunkform; a, b = (chunkform.compile('endings.py') for _ in range(2)); assert a is b; print(a.__module__)"
    if cache == "full":
        code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); {code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"TMPDIR": "."}
    )
    if cache == "full":  # as is the temporary folder here
        assert done.returncode == 1 and "BuildError: can't write" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning") == 1 and "set CHUNKFORM_CACHE to a folder" in done.stderr
    assert not list(tmp_path.glob("chunkform_cache_*"))


# --- the output -------------------------------------------------------------------------------------------------------


def shell(line: str):
    whole = f"set -o pipefail; {line}".replace("chunkform", f"{sys.executable} -m chunkform.codegen.commands.cli")
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("chunkform new fresh > /dev/full", 2, "the output: No space left on device"),
        ("chunkform --help > /dev/full", 2, "the output: No space left on device"),
        ("chunkform explain endings.py --latex | true", 141, ""),
        ("chunkform explain endings.py --json - >&-", 2, "can't write to stdout, which is closed"),
        ("chunkform new fresh <&- >&-", 0, ""),
    ],
)
def test_an_output_that_cannot_be_written(line, code, said, spec):
    done = shell(line)
    assert done.returncode == code and said in done.stderr
    assert done.stderr.count("\n") == bool(said), done.stderr


def test_an_output_in_ascii(spec):
    ascii_only = CliRunner(charset="ascii")
    assert r"\u0394: a sum." in ascii_only.invoke(app, ["explain", str(spec)]).stdout
    assert json.loads(ascii_only.invoke(app, ["explain", str(spec), "--json", "-"]).stdout)["doc"] == "Δ: a sum."


def test_lines_are_as_wide_as_columns_says(spec, monkeypatch):
    whole = run("explain", spec).stdout.splitlines()
    for columns in ("40", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        for command in ("explain", "verify"):
            assert max(map(len, run(command, spec).stdout.splitlines())) <= int(columns)
    monkeypatch.setenv("COLUMNS", "0")
    assert run("explain", spec).stdout.splitlines() == whole
    assert max(map(len, whole)) > 100  # piped without it, lines aren't wrapped


def test_exit_codes_are_documented():
    page = (Path(__file__).parents[3] / "docs" / "command_line.md").read_text(encoding="utf-8")
    documented = {int(x) for x in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    codes = {
        terminal.WELL,
        terminal.NOT_SO,
        terminal.BAD_INPUT,
        terminal.DEPENDS,
        terminal.AT_FAULT,
        terminal.INTERRUPTED,
        terminal.PIPE,
        KILLED,
    }
    assert documented == codes
    assert {int(x) for x in re.findall(r"\b\d+\b", terminal.EXIT_CODES)} == codes


def test_files_that_threads_run_at_once_leave_what_ends_a_process():
    before, begin, entered, leave = os._exit, threading.Event(), threading.Event(), threading.Event()

    def run():
        begin.wait()
        with alone():
            entered.set()
            leave.wait()

    other = threading.Thread(target=run)
    other.start()
    with alone():
        begin.set()
        assert entered.wait(timeout=10)
    leave.set()
    other.join()
    assert os._exit is before
