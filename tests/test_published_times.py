"""Times of published recurrences: what has none yet is told, and a run's rows are written where they belong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import published_times


def test_times_of_published_recurrences_are_written_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAGE", "DATA"):
        copy = tmp_path / getattr(published_times, name).name
        copy.write_text(getattr(published_times, name).read_text())
        monkeypatch.setattr(published_times, name, copy)
    assert published_times.missing() and set(published_times.missing()) <= published_times.recurrences().keys()
    name, rows = published_times.missing()[0], published_times.PAGE.read_text().count("\n")
    for shape, ms, row in (
        ("S1", [1.25, 100.04], "1.250, 100.0 |  |"),
        ("S2", [2.5, 3.0], "1.250, 100.0 | 2.500, 3.000 |"),
    ):
        (tmp_path / "run.json").write_text(json.dumps({"shape": shape, "ms": {name: ms}}))
        published_times.write(tmp_path / "run.json")
        page = published_times.PAGE.read_text()
        assert (
            f"| `{name}` | {row}\n" in page and page.count("\n") == rows + 1 and name not in published_times.missing()
        )
        assert json.loads(published_times.DATA.read_text())["ms"][name][shape] == ms
    timed = re.findall(r"^\| `(\w+)` \|", page[page.index("| `agalite` | 2") :], re.M)
    assert timed.index(name) > 0 and timed[timed.index(name) - 1] < name
    (tmp_path / "run.json").write_text(json.dumps({"shape": "S2", "ms": {"mamba_one_head": [1.0, 20.125]}}))
    before, title = page, published_times.SIZED["mamba_one_head"].title
    published_times.write(tmp_path / "run.json")
    page = published_times.PAGE.read_text()
    changed = [(a, b) for a, b in zip(before.splitlines(), page.splitlines(), strict=True) if a != b]
    assert len(changed) == 1 and changed[0][0].startswith(f"| {title} |")
    assert changed[0][1].split(" | ") == [*changed[0][0].split(" | ")[:2], "1.000, 20.125 |"]
