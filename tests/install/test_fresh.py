"""The wheel and the sdist install and work in fresh environments, outside of the checkout, with this Python.

Other Pythons: `make test-wheels PYTHONS="3.12 3.13"` (tests/install/wheels.py), which needs a network.
"""

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from shared.forked import code
from shared.wheel import PROJECT, ROOT, built

SMOKE = Path(__file__).with_name("smoke.py")


def run(python: Path, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {n: x for n, x in os.environ.items() if n not in ("PYTHONPATH", "COLUMNS")}
    env |= {"CHUNKFORM_CACHE": str(folder / "cache"), **more}
    return subprocess.run([str(python), *words], cwd=folder, capture_output=True, text=True, env=env)


@pytest.fixture(scope="session")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree, tmp_path_factory.mktemp("sdist"), "sdist")


def test_the_wheel_works_in_a_fresh_environment(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, str(SMOKE), str(ROOT))
    assert done.returncode == 0 and done.stdout.endswith("works\n"), done.stderr


def test_the_program_is_on_the_path(python: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(python.parent / "chunkform"), "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("chunkform ")


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (p for p in tmp_path.iterdir() if p.is_dir())
    (tmp_path / "out").mkdir()
    again = built(folder, tmp_path / "out")
    names = [{n for n in zipfile.ZipFile(x).namelist() if n.startswith("chunkform/")} for x in (wheel, again)]
    assert names[0] == names[1] and len(names[0]) > 100
    for name in ("chunkform/generated/__init__.pyi", "chunkform/py.typed"):
        assert zipfile.ZipFile(wheel).read(name) == zipfile.ZipFile(again).read(name)


@pytest.mark.long
def test_build_writes_nothing_into_an_installed_package(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-m", "chunkform", "build", "retention")
    assert done.returncode == 2 and done.stdout == "", done.stdout
    assert "say where the files go, as in --out ops" in done.stderr and "site-packages" in done.stderr
    done = run(python, tmp_path, "-m", "chunkform", "build", "retention", "--out", "ops")
    assert done.returncode == 0 and (tmp_path / "ops" / "retention.py").is_file(), done.stderr


CODE = """import sys
sys.modules["triton"] = None
import chunkform
for line in (
    "from chunkform.generated import retention",
    "import chunkform.generated.retention",
    "import chunkform.runtime.nn",
    "chunkform.compile('retention')",
):
    try:
        exec(line)
    except ImportError as error:
        print(type(error).__name__, error)
print(chunkform.explain("retention").family)
"""


def test_without_triton_the_compiler_works_and_ops_say_what_is_missing(tmp_path: Path) -> None:
    done = code(CODE, CHUNKFORM_CACHE=str(tmp_path / "cache"))
    *refused, family = done.stdout.splitlines()
    assert family == "chunk-parallel", done.stderr
    assert len(refused) == 4 and all(x.startswith("MissingError ops need Triton 3.6 or later") for x in refused)


def test_pythons_that_are_declared_are_those_that_are_tried() -> None:
    told = {x.rpartition(" ")[2] for x in PROJECT["project"]["classifiers"] if "Python :: 3." in x}
    assert told == {"3.11", "3.12", "3.13"} and PROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in (ROOT / "docs" / "versions.md").read_text()
