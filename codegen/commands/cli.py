"""The command line, `chunkform`. Every command takes names of the catalogue or spec files anywhere on disk.

How they end, and what they write to, is in `terminal.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from chunkform.errors import BuildError, LoadError, NameError_, nearest, need_triton
from chunkform.runtime.launch.files import write_whole
from chunkform.version import __version__

from .listing import FAMILIES, instead, listed, matching, names, show
from .terminal import (
    EXIT_CODES,
    Commands,
    Quiet,
    Verbose,
    at_least,
    command,
    console,
    hint,
    is_quiet,
    plural,
    speak,
    writable,
    write_json,
    written,
    wrote,
)

if TYPE_CHECKING:
    from chunkform.spec.language import Declaration


WIDEST = 512  # of a kernel's rows; a head has 256

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def names_and_files(incomplete: str) -> list[str]:
    """What a shell offers for a SPEC: names of the catalogue, and spec files and folders below this one."""
    folder, _, start = incomplete.rpartition("/")
    found = [n for n in names() if n.startswith(incomplete)]
    with suppress(OSError):
        for path in sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir()):
            if path.name.startswith(start) and (path.suffix == ".py" or (path.is_dir() and path.name[0] not in "._")):
                found.append(f"{incomplete[: len(incomplete) - len(start)]}{path.name}{'/' if path.is_dir() else ''}")
    return found


Specs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC",
        help="names of the catalogue, or spec files; the whole catalogue, as `chunkform list` shows it, when left out",
        autocompletion=names_and_files,
    ),
]
JsonPath = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="write JSON there; - for stdout")]


WORST = (0, 3, 1)  # of what `verify` ends with, the worse behind


# --- commands ---------------------------------------------------------------------------------------------------------


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"chunkform {__version__}\n")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="the version, and nothing else", is_eager=True, callback=_version)
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a recurrence once: derive and prove its adjoint, find its chunk-parallel form, print fast Triton kernels."""
    speak(quiet, verbose)


@command(
    app,
    "chunkform list",
    "chunkform list delta",
    "chunkform list --family attention",
    "chunkform list --json -",
    name="list",
)
def show_catalogue(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="only ops whose name or description has all of these")
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(metavar="FAMILY", help=f"only {', '.join(FAMILIES)}", autocompletion=lambda: list(FAMILIES)),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """List the ops of the catalogue: how each is computed, what it takes, and what it is."""
    if family is not None and family not in FAMILIES:
        raise LoadError(f"--family is one of {', '.join(FAMILIES)}, got {family!r}{nearest(family, FAMILIES)}")
    found = matching(listed(), words or (), family)
    if json_path is not None:
        write_json(json_path, [x.to_json() for x in found])
    if str(json_path) != "-":
        show(found, console())
        hint(f"{plural(len(found), 'op')} of {len(names())}{'' if found else instead(words or ())}")


@command(app, "chunkform new my_recurrence", pages=("language", "recipes"))
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a Python identifier; a folder may stand before it")],
) -> None:
    """Write NAME.py, a spec to start from."""
    from chunkform.spec.language import Recurrence

    from ..printing.templates import render

    path = Path(name.removesuffix(".py") + ".py")
    try:
        Recurrence(path.stem)  # which refuses what can't be a name
    except NameError_ as error:
        raise NameError_(str(error).removeprefix(f"{error.where}: ")) from None
    if not path.is_absolute() and os.path.normpath(path).startswith(os.pardir):
        raise BuildError(f"can't write {path}: it isn't in this folder; write the whole path where that is meant")
    text = render("commands/new_spec.py.jinja", name=path.stem, file=path)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink()
                raise
    except FileExistsError as error:
        raise BuildError(f"{path} exists already; nothing was written") from error
    except (OSError, ValueError) as error:
        raise BuildError(f"can't write {path}: {getattr(error, 'strerror', None) or error}") from error
    hint(f"wrote {path}; next: chunkform explain {path}")


@command(
    app,
    "chunkform verify my_recurrence.py",
    "chunkform verify --document mesa --verdict fails",
    "chunkform verify my_recurrence.py --json - --html verdicts.html",
    "chunkform verify rewritten.py --same-as my_recurrence.py",
    pages=("claims", "papers"),
)
def verify(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SPEC",
            help="spec files or names; the claims of the five documents when left out",
            autocompletion=names_and_files,
        ),
    ] = None,
    document: Annotated[
        str | None, typer.Option(help="only claims of this document: its key or a part of its title")
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="only those: holds, fails, depends or error")] = None,
    json_path: JsonPath = None,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="write a report as a page")] = None,
    effort: Annotated[float, at_least(0, "about how many seconds each search for what would be right may take")] = 3,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 3 where a claim depends, and none fails")] = False,
    header: Annotated[
        bool,
        typer.Option("--header", help="of a paper: write a first header beside it, guesses marked, and judge nothing"),
    ] = False,
    latex: Annotated[
        Path | None, typer.Option(metavar="PATH", help="of a paper: write the appendix of what is derived")
    ] = None,
    annotate: Annotated[
        Path | None, typer.Option(metavar="PATH", help="of a paper: write a copy of it with the verdicts")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="of a paper: judge again whenever it changes")] = False,
    same_as: Annotated[
        str | None, typer.Option(metavar="SPEC", help="compare with this spec: are they the same recurrence?")
    ] = None,
    names: Annotated[str, typer.Option(metavar="A=B,..", help="with --same-as: what is called otherwise there")] = "",
) -> None:
    """Judge claims: each holds, fails (with a counterexample and the nearest true formula), or depends.

    A paper (.tex, .md, .txt) is judged formula by formula.

    Exit code: 0, no claim fails; 1, one fails, or couldn't be judged; 2, bad input; 3, with --strict, one depends.
    """
    from ..claims.command import verify as judge_claims
    from ..paper.build import is_paper
    from .same import compare

    if verdict not in (None, "holds", "fails", "depends", "error"):
        near = nearest(verdict, ("holds", "fails", "depends", "error"))
        raise LoadError(f"--verdict is holds, fails, depends or error, got {verdict!r}{near}")
    if same_as is not None:
        raise typer.Exit(compare(specs or [], same_as, names, json_path, console(stderr=str(json_path) == "-")))
    if names:
        raise LoadError("--names says what is called otherwise in a second spec: give that with --same-as")
    papers = [s for s in specs or () if is_paper(s)]
    others = [s for s in specs or () if not is_paper(s)]
    of_papers = {"--header": header, "--latex": latex, "--annotate": annotate, "--watch": watch}
    asked = next((name for name, x in of_papers.items() if x), "")
    if asked and (others or not papers):
        raise LoadError(f"{asked} is for papers: files that end with .tex, .md or .txt")
    if papers and others and (json_path or html):
        raise LoadError("--json and --html report papers, or specs: give one kind of them")
    to_stdout = str(json_path) == "-"
    where = console(stderr=to_stdout)
    for path in (html, latex, annotate):
        writable(path)
    code = 0
    if papers:
        from ..paper.command import verify_papers, watch_papers, write_headers

        if header:
            write_headers(papers, where)
            raise typer.Exit(0)
        if watch:
            watch_papers(papers, where, html_path=html, latex_path=latex, annotate_path=annotate, effort=effort)
        with written(json_path) as target:
            code = verify_papers(papers, verdict, target, html, latex, annotate, strict, where, effort=effort)
    if others or not papers:
        with written(json_path) as target, redirect_stdout(sys.stderr):  # what specs print isn't ours
            code = max(
                (code, judge_claims(others, document, verdict, target, html, where, strict=strict, effort=effort)),
                key=WORST.index,
            )
    wrote(html, latex, annotate)
    raise typer.Exit(code)


@command(
    app,
    "chunkform explain gated_delta_rule",
    "chunkform explain my_recurrence.py --latex > derivation.tex",
    "chunkform explain mesa_net --svg graph.svg",
    "chunkform explain retention --json - | jq .family",
    "chunkform explain gated_delta_rule --passes",
    "chunkform explain gated_delta_rule --after normalize",
    pages=("how_it_works", "inside"),
)
def explain(
    spec: Annotated[
        str,
        typer.Argument(metavar="SPEC", help="a name of the catalogue, or a spec file", autocompletion=names_and_files),
    ],
    json_path: JsonPath = None,
    latex: Annotated[bool, typer.Option("--latex", help="print the derivation as LaTeX, and nothing else")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="PATH", help="draw a program's graph of ops there")] = None,
    width: Annotated[int, at_least(1, "the size of every dim that costs are counted for")] = 64,
    chunk: Annotated[int, at_least(1, "the steps of a chunk that costs are counted for")] = 64,
    after: Annotated[
        str | None, typer.Option(metavar="PASS", help="print what this pass made, and nothing else; see --passes")
    ] = None,
    passes: Annotated[bool, typer.Option("--passes", help="list the passes in order, with their times")] = False,
) -> None:
    """Show the derived adjoint, the read-write form, the form over chunks, the sweeps and what they cost."""
    from .inside import alone, show_after, show_passes
    from .kinds import kind_of

    writable(svg)
    writable(json_path)
    if after is not None:
        alone("--after", {"--passes": passes, "--json": json_path, "--latex": latex, "--svg": svg})
        show_after(declarations([spec]), after)
        return
    if passes:
        alone("--passes", {"--latex": latex, "--svg": svg})
        to_stdout = str(json_path) == "-"
        data = show_passes(declarations([spec]), None if to_stdout else console())
        if json_path is not None:
            write_json(json_path, data[0] if len(data) == 1 else data)
        return
    found = [(kind_of(r), kind_of(r).compile_spec(r)) for r in declarations([spec])]
    if svg is not None:
        drawn = [kind.svg(c) for kind, c in found if hasattr(kind, "svg")]
        if len(drawn) != 1:
            raise LoadError(f"--svg draws the graph of one program; {spec} holds {len(drawn)}")
        write_whole(svg, drawn[0])
        wrote(svg)
    if json_path is not None:
        data = [kind.explanation(c, width, chunk) for kind, c in found]
        write_json(json_path, data[0] if len(data) == 1 else data)
        if str(json_path) == "-":
            return
    for kind, c in found:
        if latex:
            sys.stdout.write(kind.latex_document(c))
        else:
            kind.show(c, console(), width, chunk)


@command(
    app,
    "chunkform build my_recurrence.py --out ops",
    "chunkform build --check --quiet",
    pages=("adding_a_recurrence",),
)
def build(
    specs: Specs = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="where to; in a checkout, its generated/ when left out")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; fail when a file is stale, missing or orphaned")
    ] = False,
) -> None:
    """Write the generated file of each spec."""
    from chunkform.spec.language.load import CATALOGUE

    from .build import Built
    from .build import build as build_files

    if out is None:
        for name in specs or ():
            if name.endswith(".py") and CATALOGUE not in Path(name).resolve().parents:
                raise BuildError(f"{name} isn't of the catalogue: say where its op goes, as in --out generated")
    chosen = declarations(specs) if specs else None
    with progress("building", len(chosen) if chosen is not None else None) as step:

        def done(b: Built) -> None:
            step(b.name)

        results = build_files(chosen, out, check, done)
    bad = [b for b in results if not b.ok]
    table = plain_table("name", "file", "status")
    for b in bad if is_quiet() else results:
        table.add_row(b.name, escape(str(b.path)), f"[{'green' if b.ok else 'red'}]{b.status}[/]")
    if table.row_count:
        console().print(table)
    if bad:
        theirs = "its spec says" if len(bad) == 1 else "their specs say"
        again = " ".join(["chunkform build", *(specs or ()), *([] if out is None else ["--out", str(out)])])
        hint(
            f"{len(bad)} of {plural(len(results), 'file')} {'is' if len(bad) == 1 else 'are'} not what {theirs}; run: {again}"
        )
        raise typer.Exit(1)
    if out is not None and not check and (made := next((b for b in results if b.name != "types"), None)):
        inside = not out.is_absolute() and ".." not in out.parts
        place = ".".join([*(out.parts if inside else ()), made.path.stem])
        hint(f"next: from {place} import {made.name}")


@command(
    app,
    "chunkform check my_recurrence.py",
    "chunkform check gated_delta_rule --quick --device cpu",
    "chunkform check my_recurrence.py --seconds 300 --json errors.json",
    pages=("ci",),
)
def check(
    specs: Specs = None,
    quick: Annotated[bool, typer.Option("--quick", help="calls of one shape only, in a few seconds")] = False,
    seconds: Annotated[
        float | None, at_least(0, "the longest that one op may take; 60, and 600 on a GPU, when left out")
    ] = None,
    seeds: Annotated[int | None, at_least(1, "of a quick check: how many random inputs; 3")] = None,
    steps: Annotated[int | None, at_least(0, "of a quick check: the length T; 150")] = None,
    width: Annotated[int | None, at_least(1, "of a quick check: the first dim, the next are larger; 32")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one when left out")] = None,
    json_path: JsonPath = None,
) -> None:
    """Compare each generated op with the float64 oracle: outputs, last states and every gradient, on this machine's device.

    An op is called so that each pair of choices occurs: dtypes, lengths, widths, packed sequences, fewer heads, initial states,
    decays, layouts, options. What failing calls have in common is named, with Python that makes the smallest one again.

    Exit code: 0, all errors are within their bounds; 1, one is not, or a call failed; 2, the input is wrong.
    """
    from .check import calls_text, causes_text, check_all, check_table

    writable(json_path)
    chosen = declarations(specs)
    quick = quick or any(x is not None for x in (seeds, steps, width))
    with progress("checking", len(chosen)) as step:
        rows, reports = check_all(
            chosen, seeds or 3, 150 if steps is None else steps, width or 32, device, step, quick, seconds
        )
    bad = [r for r in rows if not r.ok]
    if json_path is not None:
        write_json(json_path, [r.json() for r in rows])
    if str(json_path) != "-":
        shown = bad if is_quiet() else rows
        if shown:
            console().print(check_table(shown))
        for report in () if is_quiet() else reports:
            console().print("\n".join([calls_text(report), *causes_text(report)]), highlight=False, markup=False)
        for python in dict.fromkeys(r.python for r in bad if r.python):
            console().print(f"\n{python}", highlight=False, markup=False)
        above = "above its bound" if len(bad) == 1 else "above their bounds"
        hint(f"{plural(len(rows), 'error')} measured, {len(bad)} {above}")
    if bad:
        raise typer.Exit(1)


@command(
    app,
    "chunkform inspect gated_delta_rule",
    "chunkform inspect my_recurrence.py --arch sm_80 --dtype bfloat16 --width 64 --width 128",
)
def inspect(
    specs: Specs = None,
    arch: Annotated[str, typer.Option(help="the GPU architecture, such as sm_80, sm_90 or sm_100")] = "sm_90",
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be given several times")] = None,
    width: Annotated[
        list[int] | None, at_least(1, "only this size of the dims; may be given several times", most=WIDEST)
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Compile every kernel and configuration without a GPU: registers, spills, shared memory, tensor-core instructions."""
    need_triton()
    from .check import inspect_all, inspect_table

    writable(json_path)
    chosen = declarations(specs)
    rows, stopped = [], False
    try:
        with progress("compiling", len(chosen)) as step:
            for found in inspect_all(chosen, arch, dtype, width, step):
                rows.append(found)
    except KeyboardInterrupt:  # what is known is told
        stopped = True
    if json_path is not None:
        write_json(json_path, [{"name": name, "arch": arch, **row.as_dict()} for name, row in rows])
    if str(json_path) != "-":
        console().print(inspect_table(rows))
    if stopped:
        console(stderr=True).print(f"stopped after {plural(len(rows), 'kernel')}", style="red", highlight=False)
        raise typer.Exit(130)
    bad = sum(not row.ok for _, row in rows)
    if bad:
        console(stderr=True).print(
            f"{bad} of {plural(len(rows), 'kernel')} {'is' if bad == 1 else 'are'} over a limit",
            style="red",
            highlight=False,
        )
        raise typer.Exit(1)


@command(app, "chunkform plan gated_delta_rule --gpus 16 --seq 1048576", pages=("context_parallel",))
def plan(
    specs: Specs = None,
    gpus: Annotated[int, at_least(1, "rows for 1, 2, 4, .. up to so many")] = 8,
    seq: Annotated[int, at_least(1, "steps of the whole sequence")] = 131072,
    heads: Annotated[int, at_least(1, "heads")] = 8,
    batch: Annotated[int, at_least(1, "sequences")] = 1,
    width: Annotated[int, at_least(1, "size of every dim")] = 128,
    per_node: Annotated[int, at_least(1, "GPUs of a node")] = 8,
    link: Annotated[float, at_least(1e-3, "GB/s that reach a GPU from others of its node")] = 340.0,
    network: Annotated[float, at_least(1e-3, "GB/s that reach a GPU from other nodes")] = 45.0,
    link_latency: Annotated[float, at_least(0, "microseconds of a hop in a node")] = 3.0,
    network_latency: Annotated[float, at_least(0, "microseconds of a hop between nodes")] = 8.0,
    lasting: Annotated[
        bool, typer.Option("--lasting", help="decays that forget little, of which kernels can leave nothing out")
    ] = False,
    json_path: JsonPath = None,
) -> None:
    """Sequences in segments on many GPUs: bytes exchanged, and the time of a layer's forward and backward, by a model."""
    from chunkform.spec.language import Recurrence

    from ..performance.sequence_parallel import Links, as_data, link_plan, sizes_up_to, table
    from ..recurrence.pipeline import compile_spec
    from ..recurrence.predict import H200

    chosen = [r for r in declarations(specs) if isinstance(r, Recurrence)]
    compiled = [compile_spec(r) for r in chosen]
    if not specs:
        compiled = [c for c in compiled if c.forward is not None]
    links = Links(per_node, 1e9 * link, 1e-6 * link_latency, 1e9 * network, 1e-6 * network_latency)
    shape = (batch, seq, heads, width)
    steps = [link_plan(c, shape, n, links, lasting=lasting) for c in compiled for n in sizes_up_to(gpus)]
    if json_path is not None:
        write_json(json_path, as_data(steps, shape, links, H200))
    if str(json_path) != "-":
        title = f"(B, T, H, D) = {shape}, bf16, forward + backward on {H200.name}, predicted"
        console().print(table(steps, title))


@command(app, "chunkform tune gated_delta_rule", "chunkform tune my_recurrence.py --width 128 --dtype bfloat16")
def tune(
    specs: Specs = None,
    width: Annotated[
        list[int] | None,
        at_least(1, "size of every dim; may be given several times; 64, 128 and 256 when left out", most=WIDEST),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="may be given several times; bfloat16 when left out")] = None,
    batch: Annotated[int, at_least(1, "sequences; with heads, enough to fill the GPU")] = 8,
    seq: Annotated[int, at_least(1, "steps of a sequence")] = 4096,
    heads: Annotated[int, at_least(1, "heads")] = 16,
    table: Annotated[
        Path | None, typer.Option(metavar="PATH", help="add the choices there, and not to your own")
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Measure a few configurations of chunk-parallel kernels on this GPU; later calls use the fastest whose numbers are right."""
    need_triton()
    from .tune import tune_all, tuned_table

    writable(json_path)
    chosen = declarations(specs)
    with progress("measuring", None) as step:
        rows, path = tune_all(chosen, width, dtype, (batch, seq, heads), table, step)
    if json_path is not None:
        write_json(json_path, [r.json() for r in rows])
    if str(json_path) != "-":
        console().print(tuned_table(rows))
        hint(f"{plural(sum(r.chosen for r in rows), 'choice')} in {path}")


# --- what they share --------------------------------------------------------------------------------------------------


def declarations(specs: Iterable[str] | None) -> list[Declaration]:
    """What names and files mean; the catalogue when there are none."""
    from chunkform.spec.language import find
    from chunkform.spec.language.load import everything

    from ..paper.build import is_paper, recurrence_of

    with redirect_stdout(sys.stderr):  # what specs print isn't ours
        found = (
            [r for name in specs for r in ([recurrence_of(name)] if is_paper(name) else find(name))]
            if specs
            else everything()
        )
    names = [r.name for r in found]
    for name in names:
        if names.count(name) > 1:
            raise LoadError(f"two of the specs are named {name!r}")
    return found


def plain_table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


@contextmanager
def progress(verb: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A progress bar on the terminal's stderr; yields the function that says what was finished, or which part of it."""
    stderr = console(stderr=True)
    bar = Progress(
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal or is_quiet(),
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda name, part=1.0: bar.update(task, advance=part, description=name)


if __name__ == "__main__":
    app()
