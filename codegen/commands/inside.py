"""`chunkform explain SPEC --passes` and `--after PASS`: what the compiler does, pass by pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from chunkform.errors import ChunkformError, LoadError, nearest
from chunkform.spec.language.declaration import Declaration

from ..printing.passes import Record, recorded
from .kinds import kind_of


def show_after(declarations: Iterable[Declaration], name: str) -> None:
    """Print what a pass made of each declaration that it was run for, also where a later pass ends in an error."""
    runs = [_run(d, texts=True) for d in declarations]
    found = [r for records, _ in runs for r in records if r.path == name]
    for record in found:
        if len(found) > 1:
            sys.stdout.write(f"# {record.place[0]}\n")
        sys.stdout.write(record.text)
    failed = [error for _, error in runs if error is not None]
    if failed:
        raise failed[0]
    if not found:
        raise LoadError(_why_not(runs, name))


def show_passes(declarations: Iterable[Declaration], console: Console | None) -> list[dict[str, Any]]:
    """Print the passes of each declaration in order, with their times; the same as data."""
    data = []
    for d in declarations:
        records, error = _run(d, texts=False)
        data.append({"name": d.name, "passes": [_data(r) for r in records]})
        if console is not None:
            console.print(_table(d, records))
        if error is not None:
            raise error
    return data


def _run(d: Declaration, texts: bool) -> tuple[list[Record], ChunkformError | None]:
    """The passes that were run, those over code with them, and the error that ended them."""
    with recorded(texts) as records:
        try:
            kind = kind_of(d)
            kind.emit(kind.compile_spec(d), tidy=False)
        except ChunkformError as error:
            return records, error
    return records, None


def _why_not(runs: list[tuple[list[Record], ChunkformError | None]], name: str) -> str:
    paths = list(dict.fromkeys(r.path for records, _ in runs for r in records))
    refused = next((r for records, _ in runs for r in records if r.failed is not None), None)
    ended = f"; the passes ended with {refused.path}, which refused: {refused.failed}" if refused is not None else ""
    return f"--after is one of {', '.join(paths)}, got {name!r}{nearest(name, paths) or ended}"


def _data(r: Record) -> dict[str, Any]:
    return {
        "name": r.path,
        "what": r.what,
        "seconds": r.seconds,
        "gates": [{"name": g.name, "what": g.what, "points": g.points, "seconds": g.seconds} for g in r.gates],
        "refused": None if r.failed is None else str(r.failed),
    }


def _table(d: Declaration, records: list[Record]) -> Table:
    table = Table(title=d.name, title_justify="left", header_style="dim", box=None, padding=(0, 3, 0, 0))
    table.add_column("pass")
    table.add_column("ms", justify="right")
    table.add_column("its gates, ms", justify="right")
    table.add_column("what it makes")
    for r in records:
        gates = f"{1e3 * sum(g.seconds for g in r.gates):,.1f}" if r.gates else ""
        what = r.what if r.failed is None else f"refused: {r.failed}"
        table.add_row(r.path, f"{1e3 * r.seconds:,.1f}", gates, what)
    return table


def alone(option: str, others: Mapping[str, object]) -> None:
    """Refuse options of `explain` that print something else than `option` does."""
    given = [name for name, x in others.items() if x]
    if given:
        raise LoadError(f"{option} prints passes and nothing else, got {' and '.join(given)} beside it")
