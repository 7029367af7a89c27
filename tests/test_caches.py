"""Tests keep what they compile in a folder of their own, and leave the user's alone."""

import os
import subprocess
import sys
from pathlib import Path

import chunkform
from chunkform.runtime.launch.files import cache_folder

ROOT = Path(__file__).parents[1]


def test_ops_are_kept_among_the_tests():
    r = chunkform.Recurrence("kept_by_the_tests")
    d = r.dims("d")
    x, h = r.inputs("x", d), r.state("h", d)
    r.update(h, r.decay("keep") * h.prev + x)
    r.output("y", h.next)
    chunkform.compile(r)
    assert list(cache_folder().glob("kept_by_the_tests_*.py"))
    assert Path.home() / ".cache" not in cache_folder().parents


def test_nothing_is_written_to_the_home_folder(tmp_path):
    env = {n: x for n, x in os.environ.items() if n not in ("CHUNKFORM_CACHE", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")}
    test = f"{Path(__file__)}::test_ops_are_kept_among_the_tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, env=env | {"HOME": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / ".cache" / "chunkform").exists() and not (tmp_path / ".triton").exists()
