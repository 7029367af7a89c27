"""How much of the processor tests take: a limit for each, and a record of a whole run.

pytest --cpu-limit 60                 a test that takes longer fails, unless it is marked `long` or needs a GPU; 0: none does
pytest --record build/tests.json   what was run, when, by what, and the seconds of each file
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from . import forked

LIMIT = 60.0  # seconds: three times what the longest takes on an idle core
ROOT = Path(__file__).resolve().parents[2]


def seconds() -> float:
    """Of the processor that this process has taken, with what it has waited for and the scripts that were forked for it."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system + sum(forked.TAKEN)


def refuse(what: str, taken: float, limit: float, is_long: bool) -> None:
    """Fail where something takes too long to run each time."""
    if limit and taken > limit and not is_long:
        pytest.fail(
            f"{what} took {taken:.0f} s of the processor, at most {limit:.0f}: make it smaller, or mark it `long` and keep "
            "something cheaper of its kind",
            pytrace=False,
        )


class Recorder:
    """Counts outcomes and adds up seconds by file; writes them when all is done, beside those of other runs at the same commit,
    so that pieces add up."""

    def __init__(self, path: Path, command: str) -> None:
        self.path, self.command = path, command
        self.outcomes: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.failed: list[str] = []

    def add(self, report: pytest.TestReport) -> None:
        self.files[report.nodeid.partition("::")[0]] += dict(report.user_properties).get(f"cpu {report.when}", 0.0)
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)

    def write(self) -> None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        said = json.loads(self.path.read_text()) if self.path.exists() else {}
        earlier = said.get("runs", []) if said.get("commit") == commit else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"commit": commit, "runs": [*earlier, self._run()]}, indent=1) + "\n")

    def _run(self) -> dict[str, object]:
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "command": self.command,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "triton", "pytest")},
            "outcomes": dict(sorted(self.outcomes.items())),
            "failed": sorted(self.failed),
            "seconds of the processor": round(sum(self.files.values())),
            "by file": {n: round(s, 1) for n, s in self.files.most_common()},
        }
