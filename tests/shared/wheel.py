"""The wheel of this tree, built once for all tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .once import made_once

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIRECTORIES: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]  # import name -> directory


def wheel_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel; beside it, in `tree`, what it was built from: a copy, where an earlier version has left a file of its own."""

    def make(folder: Path) -> None:
        tree = folder / "tree"
        tree.mkdir()
        left = copied(tree) / "build" / "lib" / "chunkform" / "generated" / "of_an_earlier_version.py"
        left.parent.mkdir(parents=True)
        left.touch()
        built(tree, folder)

    (found,) = made_once(tmp_path_factory, "wheel", make).glob("*.whl")
    return found


def copied(tree: Path) -> Path:
    """What packages are built from. A copy: setuptools leaves build/ behind, and what lies there from earlier would go in."""
    for directory in DIRECTORIES.values():
        shutil.copytree(
            ROOT / directory, tree / directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    for file in ROOT.iterdir():
        if file.is_file() and (
            file.name in {"pyproject.toml", "setup.py", "MANIFEST.in"} or file.suffix in {".md", ".cff"}
        ):
            shutil.copy(file, tree)
    return tree


def built(tree: Path, out: Path, kind: str = "wheel") -> Path:
    """The wheel, or the sdist, of a tree; without a network."""
    hook = f"import setuptools.build_meta as b; print('built', b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", hook], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.rpartition("built ")[2].strip()
