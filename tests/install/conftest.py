"""One wheel, one sdist and one environment for all tests of this folder."""

from pathlib import Path

import pytest
from shared.wheel import wheel_of

from .environment import environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(tmp_path_factory)


@pytest.fixture(scope="session")
def tree(wheel: Path) -> Path:
    return wheel.parent / "tree"


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment in which the wheel is installed."""
    return environment(tmp_path_factory.mktemp("installed"), wheel)
