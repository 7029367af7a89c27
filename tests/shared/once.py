"""What all workers of a test run need is made by one of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker fills by `make`; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / name
    with FileLock(f"{folder}.lock"):
        done = folder / "done"
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(folder)
            done.touch()
    return folder
