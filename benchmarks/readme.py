"""What the README says of speed, and what the planner knows of it, made of results/gpu/speed.json.

python -m benchmarks.readme     # writes docs/images/time.png, the lines between README.md's markers, and the planner's table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chunkform.codegen.performance import measured_times
from chunkform.codegen.recurrence.emit import spec_hash
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import find

from .pairs import OURS, PASSES, median

ROOT = Path(__file__).resolve().parent.parent
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "images" / "time.png"
RESULTS = ROOT / "results" / "gpu" / "speed.json"
PARALLEL = ROOT / "results" / "gpu" / "context_parallel.json"
BEGIN, END = "<!-- measured: python -m benchmarks.readme -->", "<!-- /measured -->"

OPS = ("lightning_attention", "gated_delta_rule")
SHAPES = ("S4", "S2", "S5")  # one sequence, of 4 thousand to 131 thousand steps
TABLE_SHAPES = ("S1", "S2", "S5", "D256")
COLORS = ("#2a6fbb", "#c8553d")

Points = dict[str, list[tuple[int, float]]]


def main() -> None:
    results = json.loads(RESULTS.read_text())
    draw(results, PLOT)
    README.write_text(with_lines(README.read_text(), numbers(results)))
    PERFORMANCE.write_text(with_lines(PERFORMANCE.read_text(), table(results)))
    measured_times.TABLE.write_text(for_the_planner(results, json.loads(PARALLEL.read_text())))


def for_the_planner(results: dict[str, Any], parallel: dict[str, Any]) -> str:
    """Our training steps: by recurrence, (B, T, H, D) and milliseconds. Where calls may wait for the host, those of a replay.

    `parallel` has one GPU's, and those of its parts, of sequences that were measured on several.
    """
    replays = {
        (x["op"], x["shape"]): x["graph"]["forward_backward"]["replay"]["median"]
        for x in results["host"]
        if x["who"] == OURS and x["graph"].get("forward_backward", {}).get("works")
    }
    times: dict[str, Any] = {}

    def add(name: str, kind: str, sizes: list[int], both: float | None) -> None:
        of = times.setdefault(name, {"rows": [], "lasting": []})[kind]
        if both is not None and sizes not in (x[:4] for x in of):
            of.append([*sizes, round(both, 4)])

    for row in results["rows"]:
        if row["who"] == OURS:
            add(
                row["op"], "rows", row["sizes"], replays.get((row["op"], row["shape"]), median(row, "forward_backward"))
            )
    for row in parallel["rows"]:
        if row["gpus"] == 1:
            (b, t, *rest), kind = row["sizes"], "lasting" if row["decays"] == "lasting" else "rows"
            for parts, both in {"1": row["graph_ms"], **row["part_graph_ms"]}.items():
                add(row["op"], kind, [b, t // int(parts), *rest], both)
    about = {name: results["about"][name] for name in ("gpu", "date", "torch", "triton", "dtype")}
    entries = [
        f'  "{spec_hash(compile_spec(find(name)[0]))}": {{"name": "{name}"'
        + "".join(f', "{kind}": [{_laid_out(rows)}]' for kind, rows in x.items())
        + "}"
        for name, x in times.items()
    ]
    return f'{{\n "about": {json.dumps(about)},\n "times": {{\n' + ",\n".join(entries) + "\n }\n}\n"


def _laid_out(rows: list[Any]) -> str:
    return "\n" + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  " if rows else ""


# --- three numbers ------------------------------------------------------------------------------------------------------


def numbers(results: dict[str, Any]) -> str:
    """Three lines of Markdown: what was measured, with the hardware and the date."""
    about = results["about"]
    earlier = sorted({x["earlier"].split(",")[0] for x in results["rows"] if "earlier" in x})
    of_peers = f" (its times: {', '.join(earlier)})" if earlier else ""
    versions = f"torch {about['torch']}, Triton {about['triton']}, fla-core {about['fla-core']}{of_peers}"
    delta, lightning = _both(results, "gated_delta_rule", "S1"), _both(results, "lightning_attention", "S1")
    ours, theirs = _largest_errors(results, "gated_delta_rule", "1x256x16x128")
    return "\n".join(
        [
            f"- **{_faster(delta):.1f} times** as fast as flash-linear-attention in a training step of the gated delta rule, "
            f"and {_faster(lightning):.1f} times in one of lightning attention.",
            f"- **{_memory(delta):.0%}** of its memory for the gated delta rule, and {_memory(lightning):.0%} for "
            "lightning attention.",
            f"- **{ours:.1e}** is the largest relative error of the gated delta rule's outputs and gradients in bfloat16; "
            f"there it is {theirs:.1e}.",
            "",
            f"One {about['gpu']}, {about['date']}; {versions}; "
            "8 sequences of 4096 steps, 16 heads of 128 channels (errors: one sequence of 256 steps). "
            "[All numbers](results/gpu/speed.md), [how they are measured](benchmarks/README.md).",
        ]
    )


def with_lines(text: str, said: str) -> str:
    """A page with these lines between its markers."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"the page has no place for what was measured: {BEGIN} {END}")
    return f"{head}{BEGIN}\n{said}\n{END}{tail}"


def _both(results: dict[str, Any], op: str, shape: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our row and the peer's."""
    rows = _rows(results, op, shape)
    return rows["ours"], rows["peer"]


def _rows(results: dict[str, Any], op: str, shape: str) -> dict[str, dict[str, Any]]:
    """What was measured of an op at a shape, by kind."""
    return {
        x["kind"]: x for x in results["rows"] if x["op"] == op and x["shape"] == shape and x["status"] == "measured"
    }


def _faster(rows: tuple[dict[str, Any], dict[str, Any]]) -> float:
    ours, theirs = (x["forward_backward"]["median"] for x in rows)
    return theirs / ours


def _memory(rows: tuple[dict[str, Any], dict[str, Any]]) -> float:
    ours, theirs = (x["peak_mib"]["forward_backward"] for x in rows)
    return ours / theirs


def _largest_errors(results: dict[str, Any], op: str, shape: str) -> tuple[float, float]:
    """Ours and the peer's, over the quantities that both have."""
    rows = {x["who"] == OURS: x["errors"] for x in results["errors"] if (x["op"], x["shape"]) == (op, shape)}
    common = set(rows[True]) & set(rows[False])
    return max(rows[True][x] for x in common), max(rows[False][x] for x in common)


# --- a table ------------------------------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """A row for each op and shape in Markdown: milliseconds of both passes, and what the peer takes over that."""
    lines = [
        "| op | sequences x steps x heads x channels | forward | times faster | training step | times faster | memory |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for x in results["rows"]:
        if x["kind"] != "ours" or x["shape"] not in TABLE_SHAPES:
            continue
        rows = _rows(results, x["op"], x["shape"])
        ours, theirs = rows["ours"], rows.get("peer")
        same = theirs is not None and theirs["same"]
        cells = [x["op"].replace("_", " "), " x ".join(f"{n:,}" for n in x["sizes"])]
        for name in PASSES:
            taken = median(ours, name) or 0.0
            faster = f"{(median(theirs, name) or 0.0) / taken:.1f}" if same else ""
            cells += [f"{taken:.2f}", faster]
        cells.append(f"{_memory((ours, theirs)):.2f}" if same else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- the plot -----------------------------------------------------------------------------------------------------------


def series(results: dict[str, Any]) -> dict[str, Points]:
    """For each pass and side of each op: (T, milliseconds)."""
    found: dict[str, Points] = {name: {} for name in PASSES}
    for name in PASSES:
        for op in OPS:
            for at, kind in enumerate(("ours", "peer")):
                pairs = [_both(results, op, shape)[at] for shape in SHAPES]
                found[name][f"{op} {kind}"] = [(x["sizes"][1], round(median(x, name) or 0.0, 3)) for x in pairs]
    return found


def draw(results: dict[str, Any], path: Path) -> None:
    """Time against T, forward and with backward; the file's metadata holds the points that were drawn."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = series(results)
    about = results["about"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.0), sharex=True, layout="constrained")
    for axis, name, title in zip(axes, PASSES, ("forward", "forward and backward"), strict=True):
        for op, color in zip(OPS, COLORS, strict=True):
            for kind, style, who in (("ours", "-o", "chunkform"), ("peer", "--x", "flash-linear-attention")):
                label = f"{op.replace('_', ' ')}, {who}"
                axis.loglog(*zip(*points[name][f"{op} {kind}"], strict=True), style, color=color, label=label)
        steps = [t for t, _ in points[name][f"{OPS[0]} ours"]]
        axis.set_xticks(steps, [f"{t:,}" for t in steps], minor=False)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g} ms")
        axis.set(title=title, xlabel="steps T (16 heads of 128 channels; the longest: 8 heads)")
        axis.xaxis.label.set_fontsize("small")
        axis.grid(True, alpha=0.3)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    figure.suptitle(f"One sequence in bfloat16 on one {about['gpu']}, {about['date']}", fontsize="medium")
    figure.savefig(path, dpi=150, metadata={"Description": json.dumps(points), "Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
