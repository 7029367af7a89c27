"""Plots of the results: time against T, and time over the lower bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .pairs import PASSES, median, pairs, ratio


def draw_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """time.png (time against T, at the same B, H and D) and lower_bound.png (time over the lower bound); what there is data
    for."""
    import matplotlib

    matplotlib.use("Agg")
    made = (_time_plot(results, folder / "time.png"), _lower_bound_plot(results, folder / "lower_bound.png"))
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


def _lower_bound_plot(results: dict[str, Any], path: Path) -> Path | None:
    import matplotlib.pyplot as plt

    found = [p for p in pairs(results) if p.over_lower_bound("forward") is not None]
    if not found:
        return None
    figure, axes = plt.subplots(2, 1, figsize=(max(7.0, 0.6 * len(found) + 2), 8), sharex=True)
    labels = [f"{p.ours['op']}\n{p.ours['shape']}" for p in found]
    for axis, name in zip(axes, PASSES, strict=True):
        bounds = [p.ours["floor_ms"][name] for p in found]
        for offset, side, rows in ((-0.2, "ours", [p.ours for p in found]), (0.2, "peer", [p.peer for p in found])):
            heights = [ratio(median(x, name), bound) or 0.0 for x, bound in zip(rows, bounds, strict=True)]
            if any(heights):
                axis.bar([i + offset for i in range(len(found))], heights, 0.4, label=side)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(title=_said(name), ylabel="time / memory lower bound")
        axis.legend()
    axes[1].set_xticks(range(len(found)), labels, rotation=60, ha="right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _said(name: str) -> str:
    return name.replace("_", " + ")
