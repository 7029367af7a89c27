"""What is made of the measurements: floors, ratios, tables for the terminal and in Markdown, and plots.

Results are plain data, as they stand in the JSON: {about, rows, errors, host}. A row is one op at one shape; see README.md here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chunkform.runtime.op import Signature

from .inputs import Shape, extent

WIDE = 4  # bytes of a float32
PASSES = ("forward", "forward_backward")
OURS = "chunkform"
ALLOWED = 1.3  # times the peer's error


# --- floors and ratios ------------------------------------------------------------------------------------------------


def floor_bytes(signature: Signature, shape: Shape, element: int = 2) -> dict[str, int]:
    """The bytes that each pass has to move: inputs are read once, outputs written once, by `element` bytes an entry.

    The backward pass reads the inputs and the outputs' gradients, and writes a gradient for each input. Log decays, parameters
    and their gradients are float32. `forward_backward` is the sum of both passes.
    """
    given = 0
    for a in signature.arguments:
        if a.kind != "constant":
            given += math.prod(extent(a, shape)) * (element if a.kind == "input" else WIDE)
    yielded = sum(shape.tokens * shape.width ** len(dims) * element for _, dims in signature.outputs)
    forward = given + yielded
    return {"forward": forward, "forward_backward": forward + given + yielded + given}


def floor_milliseconds(signature: Signature, shape: Shape, rate: float, element: int = 2) -> dict[str, float]:
    """The time of those bytes at a rate in bytes a second."""
    return {name: 1e3 * n / rate for name, n in floor_bytes(signature, shape, element).items()}


def median(row: dict[str, Any] | None, name: str) -> float | None:
    """Milliseconds of one pass, None where it wasn't measured."""
    times = (row or {}).get(name)
    return times["median"] if times else None


def ratio(above: float | None, below: float | None) -> float | None:
    """above / below, None where either is missing or not finite, or `below` is zero."""
    if above is None or below is None or not below or not math.isfinite(above) or not math.isfinite(below):
        return None
    return above / below


def geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [x for x in values if x is not None and x > 0]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


@dataclass(frozen=True)
class Pair:
    """Ours at one shape, and the peer's row there (an empty one where there is none)."""

    ours: dict[str, Any]
    peer: dict[str, Any]

    def speedup(self, name: str) -> float | None:
        """How many times as fast as the peer."""
        return ratio(median(self.peer, name), median(self.ours, name))

    def over_floor(self, name: str) -> float | None:
        return ratio(median(self.ours, name), self.ours.get("floor_ms", {}).get(name))

    def over_prediction(self, name: str) -> float | None:
        return ratio(median(self.ours, name), (self.ours.get("predicted_ms") or {}).get(name))

    def memory(self) -> float | None:
        """Our peak memory over the peer's, both passes."""
        peaks = [(x.get("peak_mib") or {}).get("forward_backward") for x in (self.ours, self.peer)]
        return ratio(*peaks)

    def rate(self, name: str) -> float | None:
        """Useful TFLOP/s, by the model's FLOPs."""
        flops, time = (self.ours.get("model_flops") or {}).get(name), median(self.ours, name)
        return None if flops is None or not time else flops / time / 1e9


def pairs(results: dict[str, Any]) -> list[Pair]:
    """Each of our rows with its peer's at the same shape."""
    theirs = {(x["op"], x["shape"]): x for x in results["rows"] if x["kind"] == "peer"}
    return [Pair(x, theirs.get((x["op"], x["shape"]), {})) for x in results["rows"] if x["kind"] == "ours"]


def error_ratios(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Errors of ours beside the peer's, where both compute the same function at the same inputs."""
    theirs = {(x["op"], x["shape"]): x for x in results["errors"] if x["who"] != OURS}
    found = []
    for x in results["errors"]:
        if x["who"] != OURS:
            continue
        other = theirs.get((x["op"], x["shape"]), {})
        same = other.get("computes") == x["computes"]
        for quantity, error in x["errors"].items():
            peers = other.get("errors", {}).get(quantity) if same else None
            found.append(
                {
                    "op": x["op"],
                    "shape": x["shape"],
                    "quantity": quantity,
                    "ours": error,
                    "peer": peers,
                    "who": other.get("who") if same else None,
                    "ratio": ratio(error, peers),
                }
            )
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


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
    made = (_speed, _means, _model, _resources, _errors, _host, _others, _missing)
    return [s for s in (make(results) for make in made) if s.rows]


def _speed(results: dict[str, Any]) -> Sheet:
    rows = []
    for p in pairs(results):
        cells = [p.ours["op"], p.ours["shape"]]
        for name in PASSES:
            cells += [number(median(p.ours, name), 3), number(p.over_floor(name))]
        cells += [_who(p.peer)]
        for name in PASSES:
            cells += [number(median(p.peer, name), 3), number(p.speedup(name))]
        rows.append(tuple(cells))
    return Sheet(
        "Speed",
        "Medians in milliseconds; / floor is our time over the floor; times faster is the peer's time over ours.",
        ("op", "shape", "fwd", "/ floor", "f+b", "/ floor", "peer", "its fwd", "x faster", "its f+b", "x faster"),
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


def _model(results: dict[str, Any]) -> Sheet:
    rows = []
    for p in pairs(results):
        cells = [p.ours["op"], p.ours["shape"]]
        for name in PASSES:
            floor = p.ours.get("floor_ms", {}).get(name)
            predicted = (p.ours.get("predicted_ms") or {}).get(name)
            cells += [number(floor, 3), number(predicted, 3), number(median(p.ours, name), 3)]
            cells += [number(p.over_prediction(name)), number(p.rate(name), 0)]
        rows.append(tuple(cells))
    return Sheet(
        "The model",
        "Milliseconds: the floor, what codegen/predict.py says for an H200, and what was measured, with its ratio to the "
        "prediction. TFLOP/s: the chunk form's products, by the model's count, over the measured time.",
        (
            "op",
            "shape",
            *("fwd floor", "predicted", "measured", "/ predicted", "TFLOP/s"),
            *("f+b floor", "predicted", "measured", "/ predicted", "TFLOP/s"),
        ),
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


# --- plots ------------------------------------------------------------------------------------------------------------


def plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """time.png (time against T, at the same B, H and D) and floor.png (time over the floor); what there is data for."""
    import matplotlib

    matplotlib.use("Agg")
    made = (_time_plot(results, folder / "time.png"), _floor_plot(results, folder / "floor.png"))
    return [path for path in made if path is not None]


def _time_plot(results: dict[str, Any], path: Path) -> Path | None:
    import matplotlib.pyplot as plt

    families: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for x in results["rows"]:
        batch, _, heads, width = x["sizes"]
        if x["status"] == "measured" and x["kind"] != "reference":
            families.setdefault((batch, heads, width), []).append(x)
    if not families:
        return None
    family, rows = max(families.items(), key=lambda item: len({x["sizes"][1] for x in item[1]}))
    if len({x["sizes"][1] for x in rows}) < 2:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(12, 5), sharex=True)
    ops = list(dict.fromkeys(x["op"] for x in rows))
    for axis, name in zip(axes, PASSES, strict=True):
        for x_op in ops:
            for kind, style in (("ours", "-o"), ("peer", "--x")):
                points = sorted(
                    (x["sizes"][1], median(x, name))
                    for x in rows
                    if x["op"] == x_op and x["kind"] == kind and median(x, name)
                )
                if points:
                    label = x_op if kind == "ours" else None
                    axis.loglog(*zip(*points, strict=True), style, color=f"C{ops.index(x_op)}", label=label)
        axis.set(title=_said(name), xlabel="T", ylabel="milliseconds")
        axis.grid(True, which="both", alpha=0.3)
    axes[0].legend(title="solid: ours; dashed: the peer", fontsize="small")
    figure.suptitle("Time against T at B = {}, H = {}, D = {}".format(*family))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _floor_plot(results: dict[str, Any], path: Path) -> Path | None:
    import matplotlib.pyplot as plt

    found = [p for p in pairs(results) if p.over_floor("forward") is not None]
    if not found:
        return None
    figure, axes = plt.subplots(2, 1, figsize=(max(7.0, 0.6 * len(found) + 2), 8), sharex=True)
    labels = [f"{p.ours['op']}\n{p.ours['shape']}" for p in found]
    for axis, name in zip(axes, PASSES, strict=True):
        floors = [p.ours["floor_ms"][name] for p in found]
        for offset, side, rows in ((-0.2, "ours", [p.ours for p in found]), (0.2, "peer", [p.peer for p in found])):
            heights = [ratio(median(x, name), floor) or 0.0 for x, floor in zip(rows, floors, strict=True)]
            if any(heights):
                axis.bar([i + offset for i in range(len(found))], heights, 0.4, label=side)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(title=_said(name), ylabel="time / floor")
        axis.legend()
    axes[1].set_xticks(range(len(found)), labels, rotation=60, ha="right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _said(name: str) -> str:
    return name.replace("_", " + ")
