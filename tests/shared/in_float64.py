"""Models of transformers in float64, which of two float32 results is the nearer one: what is float32 in their files is widened.

python -m shared.in_float64 [NAME ..]        (in tests/) measures both from float64 at 150 tokens, and prints a table
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from chunkform.integrations.transformers import enable, models
from shared.tiny_models import MODELS, differences, tiny, tokens, trained

STEPS = 150
FILES = ("models", "integrations", "activations", "masking_utils", "modeling_rope_utils", "loss.loss_utils")
NARROW = {torch.float32: torch.float64}


class _Wide:
    """torch, whose float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def widened() -> Iterator[None]:
    """The library's own functions compute in float64 where they ask for float32."""
    files = tuple(f"transformers.{f}" for f in FILES)
    found = [m for n, m in sys.modules.items() if n.startswith(files) and getattr(m, "torch", None) is torch]
    narrow, to = torch.Tensor.float, torch.Tensor.to

    def wide(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        said = [NARROW.get(v, v) if isinstance(v, torch.dtype) else v for v in given]
        return to(x, *said, **{n: NARROW.get(v, v) if n == "dtype" else v for n, v in named.items()})

    torch.Tensor.float, torch.Tensor.to = torch.Tensor.double, wide
    for m in found:
        m.torch = _Wide()
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to = narrow, to
        for m in found:
            m.torch = torch


def from_float64(name: str, steps: int = STEPS, seed: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """|x - exact| / |exact| of logits, loss and each gradient: of the library's path in float32, and of ours."""
    model, ids = tiny(name, seed), tokens(2, steps)
    theirs = trained(model, ids)
    with enable(model):
        ours = trained(model, ids)
    exact = tiny(name, seed, torch.float64)
    exact.load_state_dict(model.state_dict())  # the same numbers, widened
    with contextlib.suppress(AttributeError, ValueError):
        exact.set_experts_implementation("eager")  # the grouped product has no float64
    with widened():
        right = trained(exact, ids)
    assert right["logits"].dtype == torch.float64
    first, second = (differences(right, {n: x.double() for n, x in found.items()}) for found in (theirs, ours))
    return first, second


def table() -> None:
    for name in sys.argv[1:] or [n for n in MODELS if n in models()]:
        theirs, ours = from_float64(name)
        for n in sorted(theirs, key=lambda n: max(theirs[n], ours[n]))[-1:]:
            print(f"| {name} | `{n}` | {theirs[n]:.1e} | {ours[n]:.1e} |", flush=True)


if __name__ == "__main__":
    table()
