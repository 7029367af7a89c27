"""`chunkform check` and `chunkform inspect` over a list of recurrences, and their tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.markup import escape
from rich.table import Table

from chunkform.errors import BackendError
from chunkform.spec.language import Declaration, find
from chunkform.spec.language.load import CATALOGUE, PUBLISHED

from ..checking.accuracy import AMPLIFIED, Judged
from ..checking.calls import SECONDS, Report, Subject, call, check_calls, reproduction
from ..checking.checked import DTYPES, Checked
from .compile import compile_module
from .kinds import kind_of

if TYPE_CHECKING:
    from ..performance.compile_report import InspectRow


def check_all(
    specs: Iterable[Declaration],
    seeds: int = 3,
    steps: int = 150,
    width: int = 32,
    device: str | None = None,
    done: Callable[..., None] = lambda name, part=1.0: None,
    quick: bool = True,
    seconds: float | None = None,
) -> tuple[list[Checked], list[Report]]:
    """The errors of each op, in the order of the specs, and what was called. `device` is cuda where there is one.

    `quick`: random arguments of one shape, as often as `seeds` says. Else each pair of choices of how an op is called, for no
    more than `seconds` each; `done` is told of parts of an op as well.
    """
    has_cuda = torch.cuda.is_available()
    device = device or ("cuda" if has_cuda else "cpu")
    if device not in DTYPES:
        raise BackendError(f"the device is cpu or cuda, got {device!r}")
    if device == "cuda" and not has_cuda:
        raise BackendError("this machine has no CUDA device: check with --device cpu")
    found: list[Checked] = []
    reports: list[Report] = []
    for r in specs:
        kind = kind_of(r)
        c, op = kind.compile_spec(r), getattr(compile_module(r), r.name)
        if quick:
            found += kind.check_one(r, c, op, seeds, steps, width, device)
            done(r.name)
            continue
        subject = kind.subject(r, c, op, device)
        limit = SECONDS[device] if seconds is None else seconds

        def told(n: int, of: int, name: str = r.name) -> None:
            done(f"{name}: {n} of {of} calls", 1.0 / of)

        report = check_calls(subject, limit, told)
        found += checked(r, report, subject, device)
        found += kind.conditions_of(r, c, op, device)
        reports.append(report)
    return found, reports


def subject_of(r: Declaration, device: str) -> Subject:
    """A declaration with its op, as `check_calls` takes it."""
    return kind_of(r).subject(r, kind_of(r).compile_spec(r), getattr(compile_module(r), r.name), device)


def checked(r: Declaration, report: Report, subject: Subject, device: str) -> list[Checked]:
    """The worst of each quantity and dtype, with the cause of its failures."""
    file = Path(r.where.file)
    spec = r.name if file.parent in (CATALOGUE, PUBLISHED) else str(file)
    worst: dict[tuple[str, str], Checked] = {}
    for t in report.calls:
        cause = next((x for x in report.causes if not t.ok and x.holds(t.row)), None)
        told = ("", "") if cause is None else (cause.words, reproduction(cause, subject.factors, spec, r.name, device))
        rows = [(n, j, "") for n, j in t.found.items()]
        if t.raised:
            rows = [("the call", Judged(0, math.inf, 0.0), t.raised)]
        for n, j, raised in rows:
            words, python = ("", "") if j.ok else told
            dtype = t.row["dtype"]
            made = Checked(
                r.name, n, dtype, device, j.error, j.bound, j.allowed, j.ok, j.head, t.row, raised, words, python
            )
            key = (n, dtype)
            if key not in worst or made.badness > worst[key].badness:
                worst[key] = made
    return list(worst.values())


def again(spec: str, name: str, choices: Mapping[str, Any], device: str = "cpu") -> list[str]:
    """One call of a spec's op, with the first choice of each factor that `choices` leaves out: a line for each quantity."""
    (r,) = (x for x in find(spec) if x.name == name)
    subject = subject_of(r, device)
    t = call(subject, {n: some[0] for n, some in subject.factors.items()} | dict(choices))
    if t.raised:
        return [t.raised]
    return [
        f"{n}: head {j.head}: error {j.error:.1e}, allowed {j.allowed:.1e}{'' if j.ok else ': too large'}"
        for n, j in t.found.items()
    ]


def causes_text(report: Report) -> list[str]:
    """What failing calls have in common, and the smallest one, in lines for the terminal."""
    lines = []
    for x in report.causes:
        t = x.smallest
        lines.append(f"{report.name} {x.words}")
        if t.raised:
            lines.append(f"  the smallest such call ends in {t.raised}")
        else:
            j = t.found[t.worst]
            bad = sum(not y.ok for y in t.found.values())
            others = f", and {bad - 1} other quantities" if bad > 1 else ""
            lines.append(
                f"  in the smallest such call {t.worst}, head {j.head}: error {j.error:.1e}, allowed {j.allowed:.1e}{others}"
            )
    return lines


def calls_text(report: Report) -> str:
    """How much was called."""
    if report.whole:
        return f"{report.name}: {report.rows} calls, in which each pair of choices occurs"
    share = int(100 * report.pairs / max(1, report.of))
    return (
        f"{report.name}: stopped after {len(report.calls)} of {report.rows} calls, in which {share}% of the pairs of choices "
        "occur: --seconds gives it longer"
    )


def check_table(rows: Iterable[Checked]) -> Table:
    """One line for each op and dtype: its worst quantity, or every one that is above its bound. Where a problem is
    ill-conditioned, with what rounding makes of its definition, of which a multiple is allowed."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("op", "dtype", "device", "worst error", "of", "allowed", ""):
        table.add_column(name, justify="right" if name in ("worst error", "allowed") else "left", overflow="fold")
    groups: dict[tuple[str, str, str], list[Checked]] = {}
    for r in rows:
        groups.setdefault((r.name, r.dtype, r.device), []).append(r)
    for (name, dtype, device), group in groups.items():
        bad = [r for r in group if not r.ok]
        for r in bad or [max(group, key=lambda r: r.badness)]:
            mark = "[green]ok[/]" if r.ok else "[red]too large[/]"
            if r.ok and r.allowed > r.bound:
                mark += f": rounding alone makes {r.allowed / AMPLIFIED:.1e} of it"
            table.add_row(name, dtype, device, f"{r.error:.1e}", r.quantity, f"{r.allowed:.1e}", mark)
    return table


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspect_all(
    specs: Iterable[Declaration],
    arch: str,
    dtypes: Iterable[str] | None = None,
    widths: Iterable[int] | None = None,
    done: Callable[..., None] = lambda name, part=1.0: None,
) -> Iterator[tuple[str, InspectRow]]:
    """(name of the op, one kernel in one configuration), for every kernel that a call of each op launches, as it is compiled;
    `done` is told of kernels as well."""
    from ..performance import compile_report as inspect

    if arch not in inspect.ARCHITECTURES:
        raise BackendError(f"the architecture is one of {', '.join(inspect.ARCHITECTURES)}, got {arch!r}")
    chosen = tuple(dtypes or inspect.DTYPES)
    if unknown := set(chosen) - set(inspect.DTYPES):
        raise BackendError(f"the dtype is one of {', '.join(inspect.DTYPES)}, got {', '.join(sorted(unknown))}")
    for r in specs:
        kind = kind_of(r)
        done(r.name, 0.0)
        for row in kind.inspect_one(kind.compile_spec(r), arch, chosen, tuple(widths or inspect.WIDTHS)):
            done(f"{r.name}: {row.kernel} in {row.dtype} at {row.width} is compiled", 0.0)
            yield r.name, row
        done(r.name)


def inspect_table(rows: Iterable[tuple[str, InspectRow]]) -> Table:
    """One line for each kernel and configuration."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("op", "kernel", "dtype", "width", "configuration", "registers", "spills", "shared", "tensor core", ""):
        table.add_column(
            name, justify="right" if name in ("width", "registers", "spills", "shared", "tensor core") else "left"
        )
    for name, r in rows:
        table.add_row(
            name,
            r.kernel,
            r.dtype,
            str(r.width),
            r.config,
            str(r.registers),
            str(r.spill_bytes),
            str(r.shared_bytes),
            f"{r.tensor_core} for {r.dots} products",
            "[green]ok[/]" if r.ok else f"[red]{escape(r.problem)}[/]",
        )
    return table
