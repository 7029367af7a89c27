"""One wheel, one sdist and one environment for all tests of this folder."""

from pathlib import Path

import pytest

from .environment import built, copied, environment


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment in which the wheel is installed."""
    return environment(tmp_path_factory.mktemp("installed"), wheel)
