"""The whole of chunkform on one new recurrence: `make demo`.

Takes `my_recurrence.py`, prints what was derived from it, proves that, judges its author's claims, writes its kernels, compares
them with the float64 oracle, trains a small character-level language model on the generated op, and writes out/index.html.

    python examples/demo.py [--text FILE] [--steps N] [--seconds S] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the core to others

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

from char_lm import CharacterModel, Text, read_text, sample, train
from report import Report, write_page

from chunkform.codegen.claims.command import judged, table
from chunkform.codegen.claims.verdict import Verdict, summary
from chunkform.codegen.commands.build import build
from chunkform.codegen.recurrence.check import Row, check_op
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.explain import show
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import Recurrence, load

SPEC = Path(__file__).resolve().parent / "my_recurrence.py"
console = Console() if Console().is_terminal else Console(width=160)


def main() -> None:
    arguments = parsed()
    start = time.perf_counter()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = read_text(arguments.text)

    (recurrence,) = load(SPEC)
    c = derived(recurrence)
    verdicts = judged_claims(recurrence)
    module, file = written(recurrence, out)
    rows = checked(c, module, device)
    report = Report(c, SPEC, verdicts, file, rows, text, device)
    trained(report, module, arguments.steps, arguments.seconds)
    page = write_page(report, out / "index.html")

    heading(f"Done in {time.perf_counter() - start:.0f} s")
    console.print(f"The derivation, the verdicts and the plots are in [bold]{shown(page)}[/]", highlight=False)
    if not report.succeeded:
        raise SystemExit(1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A new recurrence, from its equations to a trained model.")
    parser.add_argument("--text", type=Path, help="what to learn; Python's standard library when left out")
    parser.add_argument("--steps", type=int, default=300, help="how many training steps at most (%(default)s)")
    parser.add_argument("--seconds", type=float, default=75, help="how long to train at most (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where to write (%(default)s)")
    arguments = parser.parse_args()
    if arguments.text is not None and not arguments.text.is_file():
        parser.error(f"there is no file {arguments.text}")
    if arguments.steps < 1 or arguments.seconds <= 0:
        parser.error("--steps and --seconds must be positive")
    return arguments


def derived(recurrence: Recurrence) -> Compiled:
    """Compile; every pass is followed by a gate in exact arithmetic, which would refuse a wrong result."""
    heading("1  Derived and proved")
    begin = time.perf_counter()
    c = compile_spec(recurrence)
    show(c, console)
    gates = len(c.gates)
    console.print(f"\n{gates} gates passed, {time.perf_counter() - begin:.1f} s in all", style="green", highlight=False)
    return c


def judged_claims(recurrence: Recurrence) -> list[Verdict]:
    heading("2  Its author's claims, judged")
    verdicts = judged(recurrence.claims, console)
    console.print(table(verdicts))
    console.print(summary(verdicts), highlight=False)
    return verdicts


def written(recurrence: Recurrence, out: Path) -> tuple[ModuleType, Path]:
    """Write the generated file, and import it from there."""
    heading("3  Its kernels, written")
    (result,) = build([recurrence], out)
    lines = len(result.path.read_text().splitlines())
    console.print(f"{shown(result.path)}: {lines} lines", highlight=False)
    spec = importlib.util.spec_from_file_location(recurrence.name, result.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module, result.path


def checked(c: Compiled, module: ModuleType, device: str) -> list[Row]:
    """Every output and gradient against the float64 oracle; T = 150 is no multiple of a chunk."""
    heading("4  Its numbers, against the float64 oracle")
    op = getattr(module, c.name)
    rows = [row for seed in range(3) for row in check_op(c, op, Case(device=device, seed=seed))]
    shown_rows = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("quantity", "relative error, largest of 3 seeds", "bound", ""):
        shown_rows.add_column(name, justify="left" if name in ("quantity", "") else "right")
    for quantity in dict.fromkeys(r.quantity for r in rows):
        worst = max((r for r in rows if r.quantity == quantity), key=lambda r: r.error)
        mark = "[green]ok[/]" if worst.ok else "[red]too large[/]"
        shown_rows.add_row(quantity, f"{worst.error:.1e}", f"{worst.bound:.0e}", mark)
    console.print(shown_rows)
    return rows


def trained(report: Report, module: ModuleType, steps: int, seconds: float) -> None:
    """Train the language model; what is measured goes into the report."""
    text: Text = report.text
    heading("5  A language model that remembers with it")
    # The recurrence takes the sigmoid of b itself; its heads forget at rates from a few characters to hundreds.
    options: dict[str, Any] = dict(maps={"b": lambda x: x}, memory=(3.0, 400.0))
    model = CharacterModel(getattr(module, report.c.name), len(text.alphabet), **options).to(report.device)
    size = sum(p.numel() for p in model.parameters())
    console.print(
        f"{size:,} parameters, {len(text.training):,} characters of {text.source}, on {report.device}\n"
        f"without memory (character frequencies): {text.unigram:.2f} nats a character",
        highlight=False,
    )
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps)
        seen = "-"
        for p in train(model, text, steps, seconds):
            report.training.append(p)
            seen = f"{p.held_out:.2f}" if p.held_out is not None else seen
            bar.update(task, completed=p.step, description=f"loss {p.training:.2f}, held out {seen}")
        bar.update(task, total=p.step)
    report.sample = sample(model, text, "def ")
    colour = "green" if report.learned else "red"
    console.print(
        f"held-out loss [{colour}]{report.loss:.2f}[/] nats a character, against {text.unigram:.2f} without memory; "
        f"{report.training[-1].step} steps in {report.training[-1].seconds:.0f} s",
        highlight=False,
    )


def heading(title: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left", style="dim")


def shown(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    absolute = path.resolve()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


if __name__ == "__main__":
    main()
