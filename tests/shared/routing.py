"""Which experts a model chooses, and the same model with the choices of another run.

A router takes the k largest of its scores. Where two of them are nearly equal, another rounding of anything before it chooses
another expert, and what comes out of that layer for that token is another number altogether.

python -m shared.routing [MODEL ..]     (in tests/) prints how far models are under autocast with generated ops and without
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shared.tiny_models import MODELS, differences, tiny, tokens, trained


class Choices(TorchFunctionMode):
    """Records the places of each `topk` in `made`. With those of another run it takes these; `other` counts what it wouldn't."""

    def __init__(self, fixed: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self.fixed, self.other, self.all = fixed, 0, 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if function not in (torch.topk, torch.Tensor.topk):
            return found
        places = found[1]
        self.all += places[..., 0].numel()
        self.made.append(places)
        if self.fixed is None:
            return found
        wanted = self.fixed[len(self.made) - 1]
        self.other += int((places.sort(-1).values != wanted.sort(-1).values).any(-1).sum())
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
        return torch.return_types.topk((args[0].gather(dim, wanted), wanted))


def in_bfloat16(model: Any, ids: Tensor, fixed: Sequence[Tensor] | None = None) -> tuple[dict[str, Tensor], Choices]:
    """What `trained` has under autocast, and which experts were chosen."""
    with Choices(fixed) as choices, torch.autocast("cpu", torch.bfloat16):
        return trained(model, ids), choices


def in_float32(model: Any, ids: Tensor) -> tuple[dict[str, Tensor], Choices]:
    with Choices() as choices:
        return trained(model, ids), choices


def together(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits, and all gradients as one tensor."""
    gradients = [x.flatten() for n, x in found.items() if n not in ("logits", "loss")]
    return {"logits": found["logits"], "gradients": torch.cat(gradients)}


def table() -> None:
    from chunkform.integrations.transformers import enable

    print("| model | apart | tokens of other experts | apart with the same experts | library's from float32 | ours |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        model, ids = tiny(name), tokens(2, 40)
        exact, right = in_float32(model, ids)
        before, choices = in_bfloat16(model, ids)
        theirs, _ = in_bfloat16(model, ids, right.made)
        with enable(model):
            free, _ = in_bfloat16(model, ids)
            same, counted = in_bfloat16(model, ids, choices.made)
            ours, _ = in_bfloat16(model, ids, right.made)
        apart = [(before, free), (before, same), (exact, theirs), (exact, ours)]
        first, *others = (f"{differences(a, b)['logits']:.1e}" for a, b in apart)
        experts = f"{counted.other} of {counted.all}" if counted.all else ""
        print(f"| {name} | {first} | {experts} | {' | '.join(others)} |", flush=True)


if __name__ == "__main__":
    table()
