"""The record of what passed on a GPU, and at which text of the kernels; and the processes that share the GPU tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import memcheck, verified
from benchmarks.verified import Outcome

ROOT = Path(__file__).parents[1]
ABOUT = {"gpu": "H999", "torch": "2", "triton": "3", "cuda": "13", "python": "3.12"}


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """A catalogue of two ops."""
    kernel = "@triton.jit\ndef kernel(x):\n    store(x)\n\n\n"
    (tmp_path / "one.py").write_text(kernel + "def run():\n    choose(some.dtype, 1)\n    kernel(1)\n")
    (tmp_path / "two.py").write_text(kernel + "OP = AttentionOp(kernel)\n")
    monkeypatch.setattr(verified, "GENERATED", tmp_path)
    verified.key_of.cache_clear()
    yield tmp_path
    verified.key_of.cache_clear()


def passed(op, file, *tests, ok=True):
    return [Outcome(op, file, t, ok) for t in tests]


ALL = [
    *passed("one", "test_fuzz.py", "a"),
    *passed("one", "test_decode.py", "b", "c"),
    *passed("one", "test_errors.py", "d"),
]


def test_pieces_add_up_and_a_failure_takes_an_op_out(generated, tmp_path):
    path = tmp_path / "out" / "verified.json"
    verified.add(ALL[:2], ABOUT, path)
    assert verified.stale(verified.read(path)) == {"one": "not run: test_errors.py", "two": "not run"}
    verified.add(ALL[2:], ABOUT | {"gpu": "another"}, path)
    assert verified.stale(verified.read(path)) == {"two": "not run"}
    entry = json.loads(path.read_text())["ops"]["one"]
    assert entry["counts"] == {"test_decode.py": 2, "test_errors.py": 1, "test_fuzz.py": 1}
    assert entry["gpus"] == ["H999", "another"]
    verified.add(passed("one", "test_decode.py", "b", ok=False), ABOUT, path)
    assert "failed on" in verified.stale(verified.read(path))["one"]
    verified.add(passed("one", "test_decode.py", "b"), ABOUT, path)
    assert verified.stale(verified.read(path)) == {"two": "not run"}
    verified.add(passed("no op of the catalogue", "test_decode.py", "b"), ABOUT, path)
    assert set(verified.read(path)) == {"one"}


def test_other_kernels_or_versions_begin_anew(generated, tmp_path):
    path = tmp_path / "out" / "verified.json"
    verified.add([*ALL, *passed("two", "test_attention.py", "e")], ABOUT, path)
    assert verified.stale(verified.read(path)) == {}
    assert "all 2 ops" in verified.sentence(verified.read(path)) and "5 tests" in verified.sentence(verified.read(path))
    file = generated / "one.py"
    file.write_text(file.read_text().replace("    store(x)", "    # a comment\n    store(x)"))
    verified.key_of.cache_clear()
    assert verified.stale(verified.read(path)) == {}
    file.write_text(file.read_text().replace("store(x)", "store(x + 1)"))
    verified.key_of.cache_clear()
    assert "have changed" in verified.stale(verified.read(path))["one"]
    assert "1 of 2 ops" in verified.sentence(verified.read(path))
    verified.add(ALL[:1], ABOUT, path)
    assert verified.read(path)["one"]["counts"] == {"test_fuzz.py": 1}
    verified.add(passed("two", "test_attention.py", "f"), ABOUT | {"triton": "4"}, path)
    assert verified.read(path)["two"]["counts"] == {"test_attention.py": 1}


def test_what_has_passed_is_left_out_of_the_next_piece(generated, tmp_path):
    path = tmp_path / "out" / "verified.json"
    verified.add(
        [*ALL, *passed("two", "test_errors.py", "d"), *passed("one", "test_fuzz.py", "g", ok=False)], ABOUT, path
    )
    assert verified.passed_before(verified.read(path), ABOUT) == {
        "test_fuzz.py::a", "test_decode.py::b", "test_decode.py::c", "test_errors.py::d"
    }  # fmt: skip
    assert verified.passed_before(verified.read(path), ABOUT | {"torch": "3"}) == set()
    file = generated / "two.py"
    file.write_text(file.read_text().replace("store(x)", "store(x + 1)"))
    verified.key_of.cache_clear()
    assert "test_errors.py::d" not in verified.passed_before(
        verified.read(path), ABOUT
    )  # as it concerns that op as well


def test_the_readme_says_what_is_recorded():
    """Else: make verified ARGS=--readme"""
    text = verified.README.read_text()
    assert verified.with_sentence(text, verified.sentence(verified.read())) == text


def test_what_is_recorded_is_of_this_catalogue():
    assert set(verified.read()) <= {*verified.names(), verified.OTHERS}
    for name in verified.names():
        assert all((ROOT / "tests" / "gpu" / f).exists() for f in verified.needed(name))


# --- processes side by side ---------------------------------------------------------------------------------------------

TESTS = """
import os, pytest

@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
@pytest.mark.parametrize("n", range(3))
def test_each(name, n):
    with open("ran.txt", "a") as file:
        print(name, n, file=file)
    if (name, n) == ("b", 1):
        with open("lost.txt", "w") as file:
            print(os.getpid(), file=file, end="")
    assert (name, n) != ("b", 1)
"""


@pytest.mark.long
def test_each_test_is_run_once_and_a_lost_gpu_costs_no_other(tmp_path):
    """Under the conftest of tests/gpu, with a GPU that is lost after one test, and comes back in another process."""
    folder = tmp_path / "tests" / "gpu"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(TESTS)
    own = (ROOT / "tests" / "gpu" / "conftest.py").read_text()
    stub = """

def _about():
    return {"gpu": "H999", "torch": "2", "triton": "3", "cuda": "13", "python": "3.12"}

def _lost():
    lost = Path("lost.txt")
    return lost.exists() and lost.read_text() == str(os.getpid())

verified.RECORD = Path("verified.json")
verified.add.__defaults__ = (verified.RECORD,)
"""
    (folder / "conftest.py").write_text(own + stub)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: alone\n")
    script = (ROOT / "tests" / "gpu" / "side_by_side.py").read_text()
    (folder / "side_by_side.py").write_text(script)

    def run(*words):
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        command = [sys.executable, str(folder / "side_by_side.py"), "--processes", "2", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)

    done = run("--seconds", "0")
    assert done.returncode == 1 and "go on with --unverified" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "ran.txt").exists()
    done = run()
    assert done.returncode == 1, done.stdout + done.stderr
    ran = sorted((tmp_path / "ran.txt").read_text().split("\n"))
    assert ran == sorted(["", *(f"{name} {n}" for name in "abcd" for n in range(3))]), done.stdout
    assert "ended with 75" in done.stdout


# --- the memory checker -------------------------------------------------------------------------------------------------

SAID = """CALLED {"calls": [], "launched": []}
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at forward_prologue_1+0x2f0 in file.py:654
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x0 is out of bounds
=========
========= Invalid __global__ read of size 4 bytes
=========     at forward_prologue_1+0x2f0 in file.py:654
=========     by thread (1,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""


def test_what_the_memory_checker_says_is_told_once():
    assert memcheck.errors_in(SAID) == [
        "Invalid __global__ read of size 4 bytes at forward_prologue_1+.. in file.py:654"
    ]
    assert memcheck.errors_in("========= ERROR SUMMARY: 0 errors\n") == []
