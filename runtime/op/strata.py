"""What strata of an op share: what each keeps for the backward pass, and gradients that several add to."""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def kept(stratum: int, saved: Tensors) -> Tensors:
    """What a stratum keeps, under names of its own."""
    return {f"{stratum} {name}": x for name, x in saved.items()}


def kept_of(stratum: int, saved: Tensors) -> Tensors:
    """What this stratum has kept."""
    stem = f"{stratum} "
    return {name.removeprefix(stem): x for name, x in saved.items() if name.startswith(stem)}


class Gradients:
    """Gradients by name, each the sum over the strata that read it, in float32 at least, and rounded once."""

    def __init__(self) -> None:
        self.sums: Tensors = {}
        self.initial: Tensors = {}

    def add(self, found: tuple[Tensors, Tensors]) -> None:
        """A stratum's gradients, and those of its initial states."""
        for name, x in found[0].items():
            if name in self.sums:
                wide = torch.promote_types(torch.promote_types(x.dtype, self.sums[name].dtype), torch.float32)
                self.sums[name] = self.sums[name].to(wide) + x.to(wide)
            else:
                self.sums[name] = x
        self.initial |= found[1]

    def take(self, name: str) -> Tensor | None:
        """The whole gradient of what an earlier stratum has handed on; None where nobody needs it."""
        return self.sums.pop(name, None)

    def of(self, given: Tensors) -> Tensors:
        """The gradients of arguments, in their dtypes."""
        return {name: x.to(given[name].dtype) for name, x in self.sums.items()}
