"""What every test shares: a cache of their own, no GPU tests without a GPU, a limit of what each takes of the processor, and no
deadline for hypothesis."""

import atexit
import contextlib
import gc
import os
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from shared.cpu import LIMIT, Recorder, refuse, seconds
from shared.forked import SELDOM

with contextlib.suppress(ImportError):  # absent on some GPU machines, where only tests/gpu runs
    from hypothesis import HealthCheck, settings

    # Derandomised, so that a failure repeats; without a deadline, since a first call compiles.
    slow = [HealthCheck.too_slow]  # as it is where other processes take the cores
    settings.register_profile("chunkform", deadline=None, derandomize=True, suppress_health_check=slow)
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
    for file in (*folder.glob("*.*"), *folder.glob("__pycache__/*"), *folder.glob("gates/*/*")):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > KEPT:
                file.unlink()
    os.environ["CHUNKFORM_CACHE"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


own_caches()
with contextlib.suppress(ImportError):  # as above
    from shared import fast_source, passed  # noqa: F401

    passed.install()
    passed.watch(pytest.MonkeyPatch)
gc.set_threshold(*SELDOM)  # as in every command: the compiler makes nodes by the million, and hardly a cycle


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output's width and colours are what a test says, not what is around it."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def others_left_alone() -> None:
    """What earlier tests have left stays: to look through it for cycles takes seconds."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-limit", type=float, default=LIMIT, help="seconds of the processor for each test; 0: no limit"
    )
    parser.addoption("--record", type=Path, metavar="FILE", help="write outcomes and seconds by file there")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # the last of all that is done: to free everything one by one takes seconds
        atexit.register(os._exit, 0)
    if (path := config.getoption("--record")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(Recorder(path, " ".join(config.invocation_params.args))))


class _Record:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.recorder.add(report)

    def pytest_sessionfinish(self) -> None:
        self.recorder.write()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from _timed(item, "setup")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _timed(item, "call")


def _timed(item: pytest.Item, when: str) -> Generator[None]:
    """Note what a part of a test takes of the processor, and refuse too much."""
    begun = seconds()
    yield
    taken = seconds() - begun
    item.user_properties.append((f"cpu {when}", taken))
    limit = item.config.getoption("--cpu-limit")
    free = (
        bool(item.get_closest_marker("long")) or "gpu" in item.path.parent.parts
    )  # there it compiles kernels for a GPU
    refuse("the test" if when == "call" else "what it needs", taken, limit, free)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules stay


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_tests = Path(__file__).parent / "gpu"
    for item in items:
        if gpu_tests in item.path.parents:
            item.add_marker("gpu")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if len(marked) < len(items):  # beside others they are left out: to skip two thousand takes seconds of each process
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
