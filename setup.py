"""What pyproject.toml can't say: the README on a package page, where links must lead to the public repository; and that what an
earlier `pip install .` has left in build/ isn't installed again."""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
HOST = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def whole_link(found: re.Match[str]) -> str:
    """A link or picture of the README, which names a file of the repository, as a whole address."""
    mark, words, target = found.groups()
    return f"{mark}[{words}]({HOST}/{'raw' if mark else 'blob'}/main/{target})"


def readme() -> str:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", whole_link, text)


class Anew(build_py):
    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib) / "chunkform", ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": Anew}, long_description=readme(), long_description_content_type="text/markdown")
