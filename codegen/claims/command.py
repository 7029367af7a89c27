"""`chunkform verify`: judge claims and show the verdicts. The command line calls `verify`; everything else is here to
help it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from chunkform.errors import ArgumentError, LoadError, nearest, page_of
from chunkform.runtime.launch.files import write_whole
from chunkform.spec.claims import documents
from chunkform.spec.language import find
from chunkform.spec.language.claims import Claim

from .alone import SECONDS, place, refused, verdicts_alone
from .derived_claims import Derived, adjoint_of, left_out
from .effort import NORMAL
from .files import claims_of_file
from .html_page import condition
from .verdict import COLOURS, Trouble, Verdict, summary


def verify(
    targets: Iterable[str] = (),
    document: str | None = None,
    verdict: str | None = None,
    json_path: str | os.PathLike | None = None,
    html_path: str | os.PathLike | None = None,
    console: Console | None = None,
    jobs: int | None = None,
    seconds: float = SECONDS,
    strict: bool = False,
    effort: float = NORMAL,
) -> int:
    """Judge the claims of spec files, or of catalogue names; without targets, of the five documents. Filters: a
    document's key or title, and a verdict. A claim takes at most `seconds` of the processor's time, and a search for what would
    be right about `effort`. Returns 1 where one that is shown fails, or one couldn't be judged (the verdict `error`), 3 where one
    depends with `strict`, and 0 otherwise; raises ChunkformError for bad input."""
    console = console or Console()
    claims = claims_of(targets)
    if document is not None:
        titles = list(dict.fromkeys(c.document or c.spec for c in claims))
        claims = [c for c in claims if matches(c, document)]
        if not claims:
            near = nearest(document, titles) or f"; there {'is' if len(titles) == 1 else 'are'} {'; '.join(titles)}"
            raise LoadError(f"no document with claims is called {document!r}{near}")
    if effort < 0:
        raise ArgumentError(f"effort must be a number of seconds from 0 on, got {effort:g}")
    verdicts = judged(claims, console, jobs, seconds, effort)
    shown = [v for v in verdicts if verdict is None or v.verdict == verdict]
    console.print(table(shown))
    console.print(summary(shown))
    if json_path is not None:
        write_whole(Path(json_path), as_json(shown))
    if html_path is not None:
        from .html_page import page

        write_whole(Path(html_path), page(shown, derived_for([v.claim for v in shown])))
    if any(v.verdict == "error" for v in verdicts) or any(v.verdict == "fails" for v in shown):
        return 1
    return 3 if strict and any(v.verdict == "depends" for v in shown) else 0


def claims_of(targets: Iterable[str]) -> list[Claim]:
    """The claims in a spec file, or about a spec of the catalogue; without targets, those of the five documents."""
    about = [c for d in documents() for c in d.claims]
    targets = list(targets)
    if not targets:
        return about
    found: list[Claim] = []
    for target in targets:
        direct = [c for c in about if c.spec == target]
        if direct:
            found += direct
            continue
        if target.endswith(".py") or os.sep in target:
            found += claims_of_file(target)
            continue
        own = [c for r in find(target) for c in r.claims]
        if not own:
            how = (
                f"write r.claim(...) in it, as the file does that `chunkform new NAME` writes; see {page_of('claims')}"
            )
            raise LoadError(f"{target} states no claims: {how}")
        found += own
    return found


def derived_for(claims: list[Claim]) -> list[Derived]:
    """What the machine derives about the claims' documents, or about the recurrences of a user's own claims."""
    judged_here = {id(c) for c in claims}
    keys = {d.key for d in documents() if any(id(c) in judged_here for c in d.claims)}
    found = [x for x in left_out() if x.document in keys] if keys else []
    for c in claims:
        r = c.setting.recurrence
        title = c.document or c.spec
        if r is not None and any(c is x for x in r.claims) and title not in {x.document for x in found}:
            with contextlib.suppress(Exception):  # what can't be derived isn't shown
                found += adjoint_of(title, r)
    return found


def matches(claim: Claim, document: str) -> bool:
    return claim.id.split(".")[0] == document or document.lower() in (claim.document or claim.spec).lower()


def judged(
    claims: list[Claim],
    console: Console | None = None,
    jobs: int | None = None,
    seconds: float = SECONDS,
    effort: float = NORMAL,
) -> list[Verdict]:
    """Verdicts in the order of the claims, one for each, whatever happens. Settings are judged in parallel, each by one verifier,
    as their claims share instances and definitions that were found wrong."""
    groups: dict[int, list[int]] = {}
    for i, c in enumerate(claims):
        groups.setdefault(id(c.setting), []).append(i)
    found: dict[int, Verdict] = {}
    with Progress(
        TextColumn("judging"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console or Console(quiet=True),
        transient=True,
        disable=console is None or not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(claims))
        work = Work(claims, seconds, effort, lambda i: progress.update(task, description=claims[i].id))
        for i, verdict in verdicts_of(work, list(groups.values()), jobs):
            found[i] = verdict
            progress.update(task, advance=1)
    return [found[i] for i in range(len(claims))]


@dataclass(frozen=True)
class Work:
    """The claims to be judged, what each may take, and who is told which is judged now."""

    claims: list[Claim]
    seconds: float
    effort: float
    told: Callable[[int], None]


def verdicts_of(work: Work, groups: list[list[int]], jobs: int | None) -> Iterator[tuple[int, Verdict]]:
    """(position, verdict) as they come; in several processes where there is enough to do."""
    jobs = min(jobs or os.cpu_count() or 1, len(groups))
    if jobs < 2 or len(work.claims) < 20 or "fork" not in multiprocessing.get_all_start_methods():
        for group in groups:
            yield from judge_group(work, group)
        return
    context = multiprocessing.get_context("fork")
    now, tell = context.Pipe(
        duplex=False
    )  # short messages are written whole, with no lock that a process could die with
    _WORK[:] = [replace(work, told=tell.send)]
    listener = threading.Thread(target=listen, args=(now, work.told), daemon=True)
    listener.start()
    lost = []
    with ProcessPoolExecutor(jobs, context) as pool:
        waiting = {pool.submit(_judge_in_worker, group): group for group in sorted(groups, key=len, reverse=True)}
        for future in as_completed(waiting):
            try:
                found = future.result()
            except Exception:  # its process has ended, and perhaps by another group's doing
                lost += waiting[future]
                continue
            for i, verdict in found:
                yield i, replace(verdict, claim=work.claims[i])
    for i in lost:
        yield i, _in_a_process(work, i)
    tell.send(None)
    listener.join(1)


def listen(now: Connection, told: Callable[[int], None]) -> None:
    """Hand on which claims the processes judge, until None comes."""
    with contextlib.suppress(EOFError):  # nobody is left who could tell
        while (i := now.recv()) is not None:
            told(i)


_WORK: list[Work] = []  # what a forked worker finds: claims hold specs, which are not sent between processes


def _judge_in_worker(group: list[int]) -> list[tuple[int, Verdict]]:
    return [(i, replace(v, claim=None)) for i, v in judge_group(_WORK[0], group)]  # type: ignore[arg-type]


def _in_a_process(work: Work, i: int) -> Verdict:
    """The verdict on one claim, in a process that no other needs."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        try:
            ((_, verdict),) = pool.submit(_judge_in_worker, [i]).result()
        except Exception as error:
            why = f"the process that judged it ended: {error}"
            claim = work.claims[i]
            return refused(claim, Trouble(why, place(claim), "fewer steps, or smaller sums"))
    return replace(verdict, claim=work.claims[i])


def judge_group(work: Work, group: list[int]) -> Iterator[tuple[int, Verdict]]:
    """One setting's claims; definitions first, so that claims that use one can be read with it repaired."""
    order = sorted(group, key=lambda i: not work.claims[i].defines)

    def claims() -> Iterator[Claim]:
        for i in order:
            work.told(i)
            yield work.claims[i]

    yield from zip(order, verdicts_alone(claims(), work.seconds, work.effort), strict=True)


def table(verdicts: list[Verdict]) -> Table:
    """The verdicts as a table for the terminal."""
    t = Table(show_lines=False, expand=False)
    t.add_column("claim", no_wrap=True)
    t.add_column("verdict", no_wrap=True)
    t.add_column("why, and what would be right", overflow="fold")
    for v in verdicts:
        colour = COLOURS[v.verdict]
        t.add_row(v.claim.id, f"[{colour}]{v.verdict}[/{colour}]", escaped(reason(v)))
    return t


def escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def reason(v: Verdict) -> str:
    """One or a few lines: the counterexample, the repair, the conditions."""
    lines = []
    if v.error is not None:
        lines.append(v.error.text())
    if v.counterexample is not None:
        lines.append(v.counterexample.text())
    if v.repairs:
        under = f" (if {v.repair_reading})" if v.repair_reading else ""
        lines.append(f"nearest true formula: {v.repaired}{under}")
        lines.append(f"  by: {'; '.join(v.repairs[0].edits)}")
    elif v.verdict == "fails" and v.searched:
        lines.append(unrepaired(v))
    for c in v.conditions:
        lines.append(condition(c))
    return "\n".join(lines)


def unrepaired(v: Verdict) -> str:
    """That there is no repair, and how far the search went; or what a definition says, which is no repair."""
    if v.defined:
        return f"by definition: {v.defined}"
    if v.search is None or v.search.complete:
        return "no repair found within two edits"
    more = max(1, 10 * v.search.effort)
    return f"no repair found before the search's budget ended (--effort {v.search.effort:g}; --effort {more:g} looks further)"


def as_json(verdicts: list[Verdict]) -> str:
    """The stable form, a list of objects."""
    return json.dumps([v.json() for v in verdicts], indent=1, ensure_ascii=False) + "\n"
