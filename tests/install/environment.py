"""chunkform as users have it: built from a copy of the tree, and installed in an environment of its own, outside of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIRECTORIES: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]  # import name -> directory


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


def environment(folder: Path, package: Path) -> Path:
    """The Python of a fresh environment in which a package is installed; what it depends on is this environment's."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    offline = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--no-compile",
    ]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *offline, str(package)]
    others = [x for x in sys.path if x.endswith("site-packages") and not (Path(x) / "chunkform").exists()]
    (site / "borrowed.pth").write_text("\n".join(others) + "\n")
    (folder / "bin" / "ruff").symlink_to(
        Path(sys.executable).with_name("ruff").resolve()
    )  # which formats what is built
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python
