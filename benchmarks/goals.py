"""The speeds that this project aims at on one H200, one row each, and whether a run's results meet them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .pairs import OURS, Pair, error_ratios, geometric_mean, median, pairs, ratio

Measured = dict[str, float]  # by where it was measured


@dataclass(frozen=True)
class Goal:
    """`what`, at each of `shapes` (every measured one where there are none), at least or at most `limit`; or their mean."""

    op: str
    what: str
    limit: float
    shapes: tuple[str, ...] = ()
    mean: bool = False

    @property
    def at_most(self) -> bool:
        return MEASURES[self.what][1]

    @property
    def needed(self) -> str:
        sign = "<=" if self.at_most else ">="
        where = ", ".join(self.shapes) or "every shape measured"
        return f"{sign} {self.limit:g}, {'geometric mean of' if self.mean else 'at'} {where}"

    def measured(self, results: dict[str, Any]) -> Measured:
        found = MEASURES[self.what][0](results, self.op)
        return {where: x for where, x in found.items() if x is not None and (where in self.shapes or not self.shapes)}

    def met(self, found: Measured) -> bool | None:
        """None where it can't be told yet: something that it asks for wasn't measured, and nothing misses it."""
        if self.mean and found:
            found = {"mean": geometric_mean(found.values()) or 0.0} if set(found) == set(self.shapes) else {}
        missed = [x for x in found.values() if (x > self.limit if self.at_most else x < self.limit)]
        complete = bool(found) and (self.mean or set(self.shapes) <= set(found))
        return False if missed else True if complete else None

    def worst(self, found: Measured) -> tuple[str, float] | None:
        """Where it is worst, and how much; the mean of what there is for a goal of means."""
        if not found:
            return None
        if self.mean:
            return ", ".join(found), geometric_mean(found.values()) or 0.0
        where = (max if self.at_most else min)(found, key=lambda x: found[x])
        return where, found[where]


def _of_pairs(value: Callable[[Pair], float | None]) -> Callable[[dict[str, Any], str], dict[str, Any]]:
    return lambda results, op: {p.ours["shape"]: value(p) for p in pairs(results) if p.ours["op"] == op}


def _beside(other: str, name: str) -> Callable[[dict[str, Any], str], dict[str, Any]]:
    """Our time over that of another op of ours at the same shape."""

    def value(results: dict[str, Any], op: str) -> dict[str, Any]:
        times = {(p.ours["op"], p.ours["shape"]): median(p.ours, name) for p in pairs(results)}
        return {s: ratio(t, times.get((other, s))) for (o, s), t in times.items() if o == op}

    return value


def _per_flop(name: str) -> Callable[[dict[str, Any], str], dict[str, Any]]:
    """Time per FLOP over that at S1."""

    def value(results: dict[str, Any], op: str) -> dict[str, Any]:
        rates = {p.ours["shape"]: p.rate(name) for p in pairs(results) if p.ours["op"] == op}
        return {shape: ratio(rates.get("S1"), rate) for shape, rate in rates.items()}

    return value


def _error(results: dict[str, Any], op: str) -> dict[str, Any]:
    return {f"{x['quantity']} {x['shape']}": x["ratio"] for x in error_ratios(results) if x["op"] == op}


def _host(name: str) -> Callable[[dict[str, Any], str], dict[str, Any]]:
    return lambda results, op: {
        x["shape"]: x["host_us"].get(name) for x in results["host"] if x["op"] == op and x["who"] == OURS
    }


def _graph(results: dict[str, Any], op: str) -> dict[str, Any]:
    return {
        f"{x['shape']}, {name}": float(g["works"])
        for x in results["host"]
        if x["op"] == op and x["who"] == OURS
        for name, g in x.get("graph", {}).items()
        if g is not None
    }


# What can be asked for: how it is measured, and whether it is to be at most the limit (or at least).
MEASURES: dict[str, tuple[Callable[[dict[str, Any], str], dict[str, Any]], bool]] = {
    "times faster, forward": (_of_pairs(lambda p: p.speedup("forward")), False),
    "times faster, forward + backward": (_of_pairs(lambda p: p.speedup("forward_backward")), False),
    "over the lower bound, forward": (_of_pairs(lambda p: p.over_lower_bound("forward")), True),
    "over the lower bound, forward + backward": (_of_pairs(lambda p: p.over_lower_bound("forward_backward")), True),
    "peak memory over the peer's": (_of_pairs(lambda p: p.memory()), True),
    "over our gated delta rule, forward": (_beside("gated_delta_rule", "forward"), True),
    "over our gated delta rule, forward + backward": (_beside("gated_delta_rule", "forward_backward"), True),
    "time per FLOP over S1's, forward": (_per_flop("forward"), True),
    "time per FLOP over S1's, forward + backward": (_per_flop("forward_backward"), True),
    "error over the peer's": (_error, True),
    "host microseconds, forward": (_host("forward"), True),
    "host microseconds, forward + backward": (_host("forward_backward"), True),
    "captured in a CUDA graph": (_graph, False),
}


def _both(op: str, what: str, forward: float, both: float, *shapes: str) -> tuple[Goal, Goal]:
    return Goal(op, f"{what}, forward", forward, shapes), Goal(op, f"{what}, forward + backward", both, shapes)


_FIVE = ("S1", "S2", "S3", "S4", "S5")
_OPS = (
    "lightning_attention",
    "gated_linear_attention",
    "gated_delta_rule",
    "inverse_attention",
    "kimi_delta_attention",
)
GOALS = (
    *_both("lightning_attention", "times faster", 2.0, 2.0, *_FIVE),
    Goal("lightning_attention", "times faster, forward + backward", 3.0, _FIVE, mean=True),
    *_both("lightning_attention", "over the lower bound", 1.5, 2.2, "S1"),
    Goal("lightning_attention", "peak memory over the peer's", 0.5),
    *_both("gated_linear_attention", "times faster", 2.5, 2.5, "S1", "S2"),
    Goal("gated_linear_attention", "peak memory over the peer's", 0.5),
    *_both("gated_delta_rule", "times faster", 2.4, 2.0, "S1"),
    *_both("gated_delta_rule", "times faster", 3.0, 2.5, "S2", "S4"),
    Goal("gated_delta_rule", "peak memory over the peer's", 1.0),
    *_both("inverse_attention", "over our gated delta rule", 1.15, 1.15),
    *_both("kimi_delta_attention", "times faster", 2.0, 2.5, "S1", "S2"),
    Goal("kimi_delta_attention", "peak memory over the peer's", 0.5),
    *(g for op in _OPS for g in _both(op, "times faster", 1.0, 1.0, "D256", "D96") if op != "inverse_attention"),
    *(g for op in _OPS for g in _both(op, "time per FLOP over S1's", 2.0, 2.0, "D256", "D96")),
    *(Goal(op, "error over the peer's", 1.3) for op in _OPS if op != "inverse_attention"),
    *(g for op in _OPS for g in _both(op, "host microseconds", 60.0, 120.0, "S4, T=256")),
    *(Goal(op, "captured in a CUDA graph", 1.0) for op in _OPS),
)
