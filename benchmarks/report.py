"""The report: tables for the terminal and in Markdown. README.md beside this says what their columns mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from .goals import GOALS
from .pairs import PASSES, Pair, error_ratios, geometric_mean, median, pairs

ALLOWED = 1.3  # times the peer's error


@dataclass(frozen=True)
class Sheet:
    """A table: title, what its columns mean, headings, rows of cells."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def number(x: float | None, digits: int = 2) -> str:
    return "" if x is None else f"{x:,.{digits}f}"


def sheets(results: dict[str, Any]) -> list[Sheet]:
    """Every table that isn't empty."""
    made = (_speed, _goals, _means, _model, _kernels, _resources, _errors, _host, _others, _missing)
    return [s for s in (make(results) for make in made) if s.rows]


def _speed(results: dict[str, Any]) -> Sheet:
    rows = []
    for p in pairs(results):
        cells = [p.ours["op"], p.ours["shape"]]
        for name in PASSES:
            cells += [number(median(p.ours, name), 3), number(p.over_lower_bound(name))]
        cells += [_who(p.peer)]
        for name in PASSES:
            cells += [number(median(p.peer, name), 3), number(p.speedup(name))]
        rows.append(tuple(cells))
    return Sheet(
        "Speed",
        "Medians in milliseconds; / bound is our time over the memory lower bound; times faster is the peer's time over ours.",
        ("op", "shape", "fwd", "/ bound", "f+b", "/ bound", "peer", "its fwd", "x faster", "its f+b", "x faster"),
        rows,
    )


def _who(row: dict[str, Any]) -> str:
    if not row:
        return ""
    marks = ["" if row["same"] else "another function", "an earlier run" if row.get("earlier") else ""]
    marks += [row["status"] if row["status"] in ("failed", "skipped") else ""]
    said = ", ".join(m for m in marks if m)
    return row["who"] + (f" ({said})" if said else "")


def _means(results: dict[str, Any]) -> Sheet:
    rows = []
    by_op: dict[str, list[Pair]] = {}
    for p in pairs(results):
        by_op.setdefault(p.ours["op"], []).append(p)
    for op, found in by_op.items():
        cells = [op]
        for name in PASSES:
            known = [x for x in (p.speedup(name) for p in found) if x is not None]
            cells += [number(geometric_mean(known)), number(min(known, default=None)), str(len(known))]
        if any(cells[1::3]):
            rows.append(tuple(cells))
    return Sheet(
        "Times faster than the peer, over shapes",
        "Geometric mean, the least, and over how many shapes.",
        ("op", "fwd mean", "least", "shapes", "f+b mean", "least", "shapes"),
        rows,
    )


def _goals(results: dict[str, Any]) -> Sheet:
    rows = []
    for goal in GOALS:
        found = goal.measured(results)
        worst = goal.worst(found)
        if worst is not None:
            met = {True: "yes", False: "NO", None: "so far"}[goal.met(found)]
            rows.append((goal.op, goal.what, goal.needed, f"{worst[1]:,.2f} ({worst[0]})", met))
    return Sheet(
        "What is aimed at",
        "The worst that was measured, and where; 'so far' where not everything that a goal asks for was measured.",
        ("op", "what", "needed", "worst", "met"),
        rows,
    )


def _model(results: dict[str, Any]) -> Sheet:
    rows = []
    for p in pairs(results):
        cells = [p.ours["op"], p.ours["shape"]]
        for name in PASSES:
            bound = p.ours.get("floor_ms", {}).get(name)
            predicted = (p.ours.get("predicted_ms") or {}).get(name)
            cells += [number(bound, 3), number(predicted, 3), number(median(p.ours, name), 3)]
            cells += [number(p.over_prediction(name)), number(p.rate(name), 0)]
        rows.append(tuple(cells))
    return Sheet(
        "The model",
        "Milliseconds: the memory lower bound, what codegen/recurrence/predict.py says for an H200, and what was measured, with "
        "its ratio to the prediction. TFLOP/s: the chunk form's products, by the model's count, over the measured time.",
        (
            "op",
            "shape",
            *("fwd bound", "predicted", "measured", "/ predicted", "TFLOP/s"),
            *("f+b bound", "predicted", "measured", "/ predicted", "TFLOP/s"),
        ),
        rows,
    )


def _kernels(results: dict[str, Any]) -> Sheet:
    rows, seen = [], set()
    for row in (p.ours for p in pairs(results)):
        profile = (row.get("kernels") or {}).get("forward_backward")
        if profile is None or row["op"] in seen:
            continue
        seen.add(row["op"])
        spent = sum(us for _, us in profile["by_name"].values())
        for name, (times, us) in list(profile["by_name"].items())[:8]:
            share = f"{us / spent:.0%}" if spent else ""
            rows.append((row["op"], row["shape"], name[:60], str(times), number(us, 0), share))
    return Sheet(
        "Where our time goes",
        "The longest kernels of one forward + backward at each op's first shape, by torch's profiler, with a warm cache; the "
        "JSON has every row's, the peers' too.",
        ("op", "shape", "kernel", "times", "us", "share"),
        rows,
    )


def _resources(results: dict[str, Any]) -> Sheet:
    rows = []
    for p in pairs(results):
        cells = [p.ours["op"], p.ours["shape"]]
        for x in (p.ours, p.peer):
            peak = (x.get("peak_mib") or {}).get("forward_backward")
            cells += [number(peak, 0), _launches(x), number(x.get("first_call_s", {}).get("forward_backward"), 1)]
        cells.insert(5, number(p.memory()))
        if any(cells[2:]):
            rows.append(tuple(cells))
    return Sheet(
        "Memory, launches, first call",
        "Peak memory of forward + backward above the inputs, in MiB, and ours over the peer's. Kernel launches: forward / "
        "forward + backward. First call: seconds of the first forward and the first forward + backward together in this "
        "process, with compilation and tuning (see the notes for what was cached).",
        (
            "op",
            "shape",
            *("peak", "launches", "first call"),
            *("/ peer's peak", "its peak", "its launches", "its first call"),
        ),
        rows,
    )


def _launches(row: dict[str, Any]) -> str:
    found = [(row.get("kernels") or {}).get(name) for name in PASSES]
    if not any(found):
        return ""
    return " / ".join("?" if x is None else str(x["launches"]) for x in found)


def _errors(results: dict[str, Any]) -> Sheet:
    rows = []
    for x in error_ratios(results):
        verdict = "" if x["ratio"] is None else "yes" if x["ratio"] <= ALLOWED else "NO"
        cells = (
            f"{x['ours']:.1e}",
            x["who"] or "",
            "" if x["peer"] is None else f"{x['peer']:.1e}",
            number(x["ratio"]),
        )
        rows.append((x["op"], x["shape"], x["quantity"], *cells, verdict))
    return Sheet(
        "Errors",
        "||value - reference|| / ||reference|| against the recurrence in float64, on the same inputs; ours over the peer's, and "
        f"whether that is at most {ALLOWED}. d stands for a gradient.",
        ("op", "shape", "quantity", "ours", "peer", "its error", "ours / its", f"<= {ALLOWED}"),
        rows,
    )


def _host(results: dict[str, Any]) -> Sheet:
    rows = []
    for x in results["host"]:
        graphs = []
        for name in PASSES:
            g = (x.get("graph") or {}).get(name)
            graphs.append(
                "" if g is None else f"yes, {number(median(g, 'replay'), 3)} ms" if g["works"] else g["reason"]
            )
        rows.append((x["op"], x["who"], x["shape"], *(number(x["host_us"].get(n), 0) for n in PASSES), *graphs))
    return Sheet(
        "The host, and CUDA graphs",
        "Microseconds that the host takes to enqueue a call; whether a call can be captured, and the median of a replay.",
        ("op", "who", "shape", "fwd us", "f+b us", "fwd graph", "f+b graph"),
        rows,
    )


def _others(results: dict[str, Any]) -> Sheet:
    rows = [
        (x["who"], x["shape"], *(number(median(x, n), 3) for n in PASSES), x["note"])
        for x in results["rows"]
        if x["kind"] == "reference"
    ]
    return Sheet("For reference", "Medians in milliseconds.", ("what", "shape", "fwd", "f+b", "note"), rows)


def _missing(results: dict[str, Any]) -> Sheet:
    rows = []
    for x in [*results["rows"], *results["errors"], *results["host"]]:
        rows += [(x["op"], x["shape"], x["who"], what, why) for what, why in x.get("failures", {}).items()]
    rows += [("", "", "", what, why) for what, why in results.get("skipped", {}).items()]
    return Sheet("Not measured", "What failed or was left out, and why.", ("op", "shape", "who", "what", "why"), rows)


def show(results: dict[str, Any], console: Console) -> None:
    """Every table, in the terminal."""
    for sheet in sheets(results):
        table = Table(*sheet.columns, title=sheet.title, caption=sheet.about, title_justify="left", box=None)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
        console.print()


def markdown(results: dict[str, Any]) -> str:
    """The report as Markdown."""
    about = results["about"]
    lines = ["# Speed on a GPU", "", about["said"], ""]
    lines += [f"- {note}" for note in about["notes"]] + [""]
    for sheet in sheets(results):
        lines += [f"## {sheet.title}", "", sheet.about, ""]
        lines += ["| " + " | ".join(sheet.columns) + " |", "|" + "---|" * len(sheet.columns)]
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in sheet.rows] + [""]
    return "\n".join(lines)
