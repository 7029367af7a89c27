"""What every test shares: a cache of their own, no GPU tests without a GPU, and no deadline for hypothesis."""

import contextlib
import os
import tempfile
import time
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # absent on some GPU machines, where only tests/gpu runs
    from hypothesis import settings

    # Derandomised, so that a failure repeats; without a deadline, since a first call compiles.
    settings.register_profile("chunkform", deadline=None, derandomize=True)
    settings.load_profile("chunkform")


KEPT = 3 * 24 * 3600  # seconds: what an older compiler printed isn't read again


def own_caches() -> None:
    """Lead the caches of chunkform and Triton to build/, which later sessions and the processes of this one share, and not to the
    user's own."""
    folder = Path(__file__).resolve().parents[1] / "build" / "test-cache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"chunkform_test_cache_{os.getuid()}"
    for file in (*folder.glob("*.*"), *folder.glob("__pycache__/*")):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > KEPT:
                file.unlink()
    os.environ["CHUNKFORM_CACHE"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


own_caches()


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output's width and colours are what a test says, not what is around it."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_tests = Path(__file__).parent / "gpu"
    for item in items:
        if gpu_tests in item.path.parents:
            item.add_marker("gpu")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
