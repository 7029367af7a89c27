"""`chunkform verify paper.tex`: judge what a document displays, and report in its own order.

The command line calls `verify_papers`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chunkform.codegen.claims.command import COLOURS, escaped, judged, reason, summary
from chunkform.codegen.claims.effort import NORMAL
from chunkform.codegen.claims.verdict import Verdict
from chunkform.errors import ArgumentError, LoadError
from chunkform.runtime.launch.files import write_whole

from .annotate import annotated
from .build import read_paper
from .counts import counts_text, equation_text, kind_text
from .paper import Paper
from .readings import adopted

HOLDS, FAILS, DEPENDS = 0, 1, 3


def verify_papers(
    paths: Sequence[str],
    verdict: str | None = None,
    json_path: str | os.PathLike | None = None,
    html_path: str | os.PathLike | None = None,
    latex_path: str | os.PathLike | None = None,
    annotate_path: str | os.PathLike | None = None,
    strict: bool = False,
    console: Console | None = None,
    jobs: int | None = None,
    effort: float = NORMAL,
) -> int:
    """Judge the formulas of documents, with that effort for what would be right. Returns 1 where one fails or couldn't be
    judged; with `strict`, 3 where one depends; else 0.

    Raises:
        ChunkformError: a document or its header can't be read, or what is asked for needs something that it doesn't have.
    """
    console = console or Console()
    found: list[tuple[Paper, list[Verdict]]] = []
    for path in paths:
        paper = read_paper(path)
        if not paper.document.rows:
            raise LoadError(f"{path} displays no formula, neither between $$ and $$ nor in an equation environment")
        paper.claims, verdicts = adopted(paper, lambda claims: judged(claims, console, jobs, effort=effort))
        found.append((paper, verdicts))
        show(paper, verdicts, verdict, console)
    everything = [v for _, vs in found for v in vs]
    shown = [v for v in everything if verdict is None or v.verdict == verdict]
    if json_path is not None:
        write_whole(Path(json_path), as_json(found, verdict))
    if html_path is not None:
        from .page import page

        write_whole(Path(html_path), page(found))
    if annotate_path is not None:
        if len(found) != 1:
            raise ArgumentError("--annotate writes a copy of one document; give one")
        write_whole(Path(annotate_path), annotated(*found[0]))
    failed = any(v.verdict == "error" for v in everything) or any(v.verdict == "fails" for v in shown)
    if latex_path is not None:
        from .appendix import appendix

        try:
            write_whole(Path(latex_path), "".join(appendix(p, vs) for p, vs in found))
        except LoadError as error:
            if not failed:
                raise
            console.print(f"--latex wrote nothing: {escaped(str(error))}", style="red", highlight=False)
    if failed:
        return FAILS
    return DEPENDS if strict and any(v.verdict == "depends" for v in shown) else HOLDS


def write_headers(paths: Sequence[str], console: Console) -> None:
    """Write a first header beside each document, with what was guessed marked.

    Raises:
        LoadError: there is one already, or it can't be written.
    """
    from .first_header import first_header
    from .header import header_path, in_comment

    for path in paths:
        paper = read_paper(path)
        if in_comment(paper.document.source.text) is not None:
            raise LoadError(f"{path} has a header in a comment already; nothing was written")
        target = header_path(path)
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(first_header(paper))
        except FileExistsError as error:
            raise LoadError(f"{target} exists already; nothing was written") from error
        except OSError as error:
            raise LoadError(f"can't write {target}: {error.strerror or error}") from error
        console.print(
            f"wrote {escaped(str(target))}: correct it where it guesses, then chunkform verify {escaped(path)}",
            highlight=False,
        )


def watch_papers(
    paths: Sequence[str], console: Console, every: float = 0.5, rounds: int | None = None, **options: Any
) -> None:
    """Judge documents again whenever they or their headers change, until interrupted; `rounds` bounds how often."""
    from chunkform.errors import ChunkformError

    from .header import header_path

    before: tuple = ()
    while rounds is None or rounds > 0:
        now = tuple(_stamp(x) for p in paths for x in (Path(p), header_path(p)))
        if now == before:
            time.sleep(every)
            continue
        before = now
        try:
            verify_papers(paths, console=console, **options)
        except ChunkformError as error:
            console.print(escaped(str(error)), style="red", highlight=False)
        if rounds is not None:
            rounds -= 1
        console.print(f"watching {escaped(', '.join(paths))}", style="dim", highlight=False)


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_mtime_ns, found.st_size


# --- the report -----------------------------------------------------------------------------------------------------


def show(paper: Paper, verdicts: Sequence[Verdict], only: str | None, console: Console) -> None:
    """The document's rows in its order: verdicts, and what isn't judged with the reason."""
    console.print(f"[bold]{escaped(paper.document.source.title)}[/bold]  {escaped(paper.path)}", highlight=False)
    by_claim = {id(v.claim): v for v in verdicts}
    table = Table(show_lines=False, expand=False)
    table.add_column("line", no_wrap=True, justify="right")
    table.add_column("verdict", no_wrap=True)
    table.add_column("formula, and what would be right", overflow="fold")
    for r in paper.document.rows:
        mine = [by_claim[id(c)] for c in r.claims if id(c) in by_claim]
        for v in mine:
            if only is None or v.verdict == only:
                colour = COLOURS[v.verdict]
                told = reason(v)
                table.add_row(
                    str(r.line),
                    f"[{colour}]{v.verdict}[/{colour}]",
                    escaped(formula_text(v) + (f"\n{told}" if told else "")),
                )
        if not mine and only is None:
            said = r.reason or {
                "recurrence": "says what a step does",
                "definition": "a definition",
                "fact": "a shape",
                "condition": "a range",
                "remark": "a remark",
            }.get(r.kind, "")
            table.add_row(
                str(r.line),
                f"[dim]{kind_text(r.kind)}[/dim]",
                escaped(
                    f"{first_of(r.source.text)}\n{said}"
                    if r.kind in ("unread", "not judged")
                    else first_of(r.source.text)
                ),
            )
        for e, why in r.beside if only is None else ():
            table.add_row(str(r.line), "[dim]not judged[/dim]", escaped(f"{equation_text(e)}\n{why}"))
    console.print(table)
    for slip in paper.document.slips:
        console.print(f"slip at {slip.line}:{slip.column}: {escaped(slip.message)}", style="yellow", highlight=False)
    for said in paper.guesses:
        console.print(f"guessed: {escaped(said)}", style="dim", highlight=False)
    for said in dict.fromkeys(s.refused for s in paper.parts if s.refused):
        console.print(f"no recurrence: {escaped(said)}", style="yellow", highlight=False)
    console.print(counts_text(paper), highlight=False)
    console.print(summary(list(verdicts)), highlight=False)


def first_of(text: str, most: int = 110) -> str:
    """A row as it stands; of a long one what comes first, up to a space, and two dots."""
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " .."


def formula_text(v: Verdict) -> str:
    sides = getattr(v.claim.statement, "sides", None)
    return " = ".join(str(s) for s in sides) if sides else v.claim.latex


def as_json(found: Sequence[tuple[Paper, Sequence[Verdict]]], only: str | None) -> str:
    """Verdicts as `verify --json` has them, with the rows that aren't judged beside them."""
    out = []
    for paper, verdicts in found:
        by_claim = {id(v.claim): v for v in verdicts}
        for r in paper.document.rows:
            mine = [by_claim[id(c)] for c in r.claims if id(c) in by_claim]
            place = {"line": r.line, "column": r.source.column}
            out += [{**v.json(), **place} for v in mine if only is None or v.verdict == only]
            if not mine and only is None:
                out.append(
                    {
                        "id": f"{Path(paper.path).stem}:{r.line}",
                        "verdict": None,
                        "kind": kind_text(r.kind),
                        "reason": r.reason,
                        "latex": r.source.text,
                        **place,
                    }
                )
            unjudged = {"id": f"{Path(paper.path).stem}:{r.line}", "verdict": None, "kind": "not judged"}
            out += [
                {**unjudged, "reason": why, "latex": equation_text(e), **place} for e, why in r.beside if only is None
            ]
        out += [
            {"verdict": None, "kind": "slip", "reason": s.message, "line": s.line, "column": s.column}
            for s in paper.document.slips
            if only is None
        ]
    return json.dumps(out, indent=1, ensure_ascii=False) + "\n"
