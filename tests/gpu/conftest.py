"""Collects the errors that tests record, and writes them under build/gpu/, one file for each process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

_rows: list[dict[str, Any]] = []
FOLDER = Path(__file__).parent.parent.parent / "build" / "gpu"


@pytest.fixture
def record() -> Callable[[list[Any]], None]:
    def add(rows: list[Any]) -> None:
        _rows.extend({**asdict(r), "ratio": r.ratio} for r in rows)

    return add


def pytest_sessionfinish() -> None:
    if _rows:
        FOLDER.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        (FOLDER / f"rows-{worker}.json").write_text(json.dumps(_rows))
