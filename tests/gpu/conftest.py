"""What the GPU tests share: which processes run which, and what they leave.

Errors that tests record go into results/gpu/errors.json and .md; what passed, with the text of the kernels that it passed for,
into results/gpu/verified.json. Processes that run side by side (`side_by_side.py`) share the tests by groups: each takes the next
group that none has taken, and one whose GPU refuses to go on leaves the rest of its group to another.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from benchmarks import verified

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "results" / "gpu"
WORKER = os.environ.get("PYTEST_XDIST_WORKER") or os.environ.get("CHUNKFORM_WORKER", "")
LOST = 75  # how a process ends that can do nothing more on its GPU

_rows: list[dict[str, Any]] = []
_outcomes: list[verified.Outcome] = []
_called: set[str] = set()  # the ops that the running test has called


@pytest.fixture
def record() -> Callable[[list[Any]], None]:
    def add(rows: list[Any]) -> None:
        _rows.extend(asdict(r) for r in rows)

    return add


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unverified",
        action="store_true",
        help="leave out tests that results/gpu/verified.json has for today's kernels",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: times something or fills the GPU's memory: runs when nothing else does")


def pytest_sessionstart(session: pytest.Session) -> None:
    import torch

    if WORKER:
        # with one for each core in every process, they wait for one another: no test ended in minutes
        torch.set_num_threads(1)
    if WORKER and torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(WORKER.removeprefix("gw")) % torch.cuda.device_count())
    _hear_of_calls()


def _hear_of_calls() -> None:
    """Note which ops are called."""
    from chunkform.runtime.attention.op import AttentionOp
    from chunkform.runtime.op.decode import Step
    from chunkform.runtime.op.op import Op

    def heard(method: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if not torch.compiler.is_compiling():
                _called.add(self.signature.name.removesuffix(".step"))
            return method(self, *args, **options)

        return call

    for kind in (AttentionOp, Op, Step):
        kind.__call__ = heard(kind.__call__)  # type: ignore[method-assign]


# --- which tests -----------------------------------------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--unverified"):
        done = verified.passed_before(verified.read(), _about())
        items[:] = [x for x in items if x.nodeid.removeprefix("tests/gpu/") not in done]


def group_of(item: pytest.Item) -> str:
    """Tests that one process runs, as they have kernels in common, or what they wait for."""
    words = [item.path.name]
    if "compiled" in getattr(item, "fixturenames", ()):  # which is made for the whole file
        return words[0]
    params = (getattr(item, "callspec", None) and item.callspec.params) or {}  # type: ignore[attr-defined]
    words += [str(params[n]) for n in ("name", "dtype", "backend", "seed") if n in params] or [item.name]
    return " ".join(words)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """The groups that this process gets hold of, up to the time that there is."""
    folder, until = os.environ.get("CHUNKFORM_CLAIMS"), float(os.environ.get("CHUNKFORM_UNTIL", "inf"))
    if not folder or session.testsfailed or session.config.option.collectonly:
        return None
    for name, items in groups_of(session.items).items():
        claim = Path(folder) / hashlib.sha256(name.encode()).hexdigest()[:16]
        if time.time() > until:
            claim.with_suffix(".left").touch()
        elif _taken(claim):
            _run_group(session, items, claim, until)
            _leave()
    return True


def groups_of(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Tests by groups: those of the catalogue first, and of these those that go on for long."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(group_of(item), []).append(item)
    catalogue, long = set(verified.names()), ("test_context_parallel.py", "test_fuzz.py", "test_programs.py")

    def order(name: str) -> tuple[bool, bool]:
        return not (catalogue & set(name.split()) or name.startswith(long)), not name.startswith(long)

    return {name: found[name] for name in sorted(found, key=order)}


def _run_group(session: pytest.Session, items: list[pytest.Item], claim: Path, until: float) -> None:
    """The tests of a group that no process has begun; where the GPU refuses to go on, the rest is for another process."""
    begun = claim.with_suffix(".begun")
    known = set(begun.read_text().splitlines()) if begun.exists() else set()
    left = [x for x in items if x.nodeid not in known]
    for item, following in zip(left, [*left[1:], None], strict=True):
        if time.time() > until:
            claim.with_suffix(".left").touch()
            item.session._setupstate.teardown_exact(None)
            return
        with begun.open("a") as file:
            print(item.nodeid, file=file)
        failed = session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed > failed and _lost():
            claim.unlink()
            pytest.exit("the GPU refuses to go on in this process", returncode=LOST)


def _taken(claim: Path) -> bool:
    """Is it ours now?"""
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _lost() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


# --- what became of them -----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _called.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.skipped or (report.passed and report.when != "call"):
        return report
    params = (getattr(item, "callspec", None) and item.callspec.params) or {}  # type: ignore[attr-defined]
    ops = (_called | {x for x in params.values() if isinstance(x, str)}) & set(verified.names()) or {verified.OTHERS}
    file, _, test = item.nodeid.removeprefix("tests/gpu/").partition("::")
    _outcomes.extend(verified.Outcome(op, file, test, report.passed) for op in ops)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        _leave()


def _leave() -> None:
    """Add rows and outcomes to what there is."""
    if _outcomes:
        verified.add(_outcomes, _about())
        _outcomes.clear()
    if _rows:
        with FileLock(Path(tempfile.gettempdir()) / "chunkform-errors.lock"):
            _write(_rows)
        _rows.clear()


def _about() -> dict[str, str]:
    import torch
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


def _write(rows: list[dict[str, Any]]) -> None:
    """Rows in the place of those of the same recurrence, dtype and case; other versions' give way to them."""
    about = {"date": datetime.date.today().isoformat(), **_about()}
    about.pop("python")
    path = RESULTS / "errors.json"
    known = json.loads(path.read_text()) if path.exists() else {"about": {}, "rows": []}
    if all(known["about"].get(n) == about[n] for n in ("torch", "triton", "cuda")):
        place = {_place(r) for r in rows}
        rows = [*rows, *(r for r in known["rows"] if _place(r) not in place)]
        about["gpu"] = " and ".join(sorted({*known["about"]["gpu"].split(" and "), about["gpu"]}))
    rows.sort(key=lambda r: (*_place(r), r["quantity"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    for r in rows:
        r["error"], r["rounding"] = (None if r[n] is None else float(f"{r[n]:.3g}") for n in ("error", "rounding"))
        r.pop("config", None)
    lines = ",\n".join(json.dumps(r) for r in rows).replace("NaN", "null").replace("Infinity", "null")
    path.write_text(f'{{"about": {json.dumps(about)}, "rows": [\n{lines}\n]}}\n')
    (RESULTS / "errors.md").write_text(_page(about, rows))


def _place(r: dict[str, Any]) -> tuple[Any, ...]:
    return r["recurrence"], r["dtype"], r["shape"], r["decay"]


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
        worst = max(group, key=lambda r: float("inf") if r["error"] in (None, float("nan")) else r["error"])
        near = sum(r["error"] is not None and r["error"] <= 1.2 * r["rounding"] for r in group)
        share = "" if dtype == "float32" else f"{near} of {len(group)}"
        lines.append(
            f"| {name} | {dtype} | {len(group)} | {share} | {worst['error']:.1e} | "
            f"{worst['quantity']}, {worst['decay']} decays, {worst['shape']} | {worst['rounding']:.1e} |"
        )
    return "\n".join(lines) + "\n"
