"""What is made of the measurements: memory lower bounds, ratios, ours beside the peers'.

Results are plain data, as they stand in the JSON: {about, rows, errors, host, skipped}. A row is one op at one shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chunkform.runtime.op.op import Signature

from .inputs import Shape, extent

WIDE = 4  # bytes of a float32
PASSES = ("forward", "forward_backward")
OURS = "chunkform"


def lower_bound_bytes(signature: Signature, shape: Shape, element: int = 2) -> dict[str, int]:
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


def lower_bound_milliseconds(signature: Signature, shape: Shape, rate: float, element: int = 2) -> dict[str, float]:
    """The time of those bytes at a rate in bytes a second."""
    return {name: 1e3 * n / rate for name, n in lower_bound_bytes(signature, shape, element).items()}


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

    def over_lower_bound(self, name: str) -> float | None:
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
