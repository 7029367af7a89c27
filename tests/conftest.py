"""What every test shares: GPU tests are skipped without a GPU, and hypothesis keeps no deadline."""

import contextlib
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # absent on some GPU machines, where only tests/gpu runs
    from hypothesis import settings

    # Derandomised, so that a failure repeats; without a deadline, since a first call compiles.
    settings.register_profile("chunkform", deadline=None, derandomize=True)
    settings.load_profile("chunkform")


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
