"""Spreads the processes of `pytest -n` over the machine's GPUs, collects the errors that tests record, and writes
results/gpu/errors.json and .md, with versions and date."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

_rows: list[dict[str, Any]] = []
ROOT = Path(__file__).parent.parent.parent
PARTS, RESULTS = ROOT / "build" / "gpu", ROOT / "results" / "gpu"


@pytest.fixture
def record() -> Callable[[list[Any]], None]:
    def add(rows: list[Any]) -> None:
        _rows.extend(asdict(r) for r in rows)

    return add


def pytest_sessionstart(session: pytest.Session) -> None:
    import torch

    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        # with one for each core in every process, they wait for one another: no test ended in minutes
        torch.set_num_threads(1)
    if worker and torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(worker.removeprefix("gw")) % torch.cuda.device_count())
    if not worker:
        for part in PARTS.glob("rows-*.json"):
            part.unlink()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Each process leaves its rows; the first one, which ends last, joins them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    PARTS.mkdir(parents=True, exist_ok=True)
    (PARTS / f"rows-{worker}.json").write_text(json.dumps(_rows))
    if worker == "main":
        rows = [r for part in sorted(PARTS.glob("rows-*.json")) for r in json.loads(part.read_text())]
        if rows:
            _write(rows)


def _write(rows: list[dict[str, Any]]) -> None:
    import torch
    import triton

    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
    rows.sort(key=lambda r: (r["recurrence"], r["dtype"], r["shape"], r["decay"], r["quantity"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    for r in rows:
        r["error"], r["rounding"] = float(f"{r['error']:.3g}"), float(f"{r['rounding']:.3g}")
        r.pop("config", None)
    lines = ",\n".join(json.dumps(r) for r in rows).replace("NaN", "null").replace("Infinity", "null")
    (RESULTS / "errors.json").write_text(f'{{"about": {json.dumps(about)}, "rows": [\n{lines}\n]}}\n')
    (RESULTS / "errors.md").write_text(_page(about, rows))


def _page(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """One line for each recurrence and dtype: the largest error and the largest multiple of what rounding alone makes."""
    lines = [
        "# Errors of the Triton kernels on a GPU",
        "",
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}, CUDA {about['cuda']}, {about['date']}. "
        "Made by `make test-gpu`; every number is in `errors.json`.",
        "",
        "Error: the norm of the difference to the float64 oracle over the oracle's norm. Rounding: the error that rounding "
        "inputs, incoming gradients and the result alone makes. Shapes are batch x steps x heads x width. "
        "`tests/gpu/test_errors.py` says what is allowed and why.",
        "",
        "| recurrence | dtype | quantities | within 1.2 of rounding | largest error | of | its rounding |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["recurrence"], r["dtype"]), []).append(r)
    for (name, dtype), group in groups.items():
        worst = max(group, key=lambda r: r["error"] if r["error"] == r["error"] else float("inf"))
        near = sum(r["error"] <= 1.2 * r["rounding"] for r in group)
        share = "" if dtype == "float32" else f"{near} of {len(group)}"
        lines.append(
            f"| {name} | {dtype} | {len(group)} | {share} | {worst['error']:.1e} | "
            f"{worst['quantity']}, {worst['decay']} decays, {worst['shape']} | {worst['rounding']:.1e} |"
        )
    return "\n".join(lines) + "\n"
