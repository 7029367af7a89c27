"""chunkform as users have it: built from a copy of the tree, and installed in an environment of its own, outside of it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


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
