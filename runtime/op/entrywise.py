"""Does each entry of a step's next states follow from that entry alone, beside the step's inputs?

    S_t = lam_t S_{t-1} + k_t v_t^T                       yes
    S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T    no: every entry of a column is in the sum that is taken from it

Where it does, the warps of a program never wait for each other before they store, and a program better has a head whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .signature import Signature

SIZE = 3  # of each dim

TorchStep = Callable[
    [dict[str, Tensor], dict[str, Tensor], dict[str, float], dict[str, Tensor], dict[str, Tensor]], None
]


def is_entrywise(signature: Signature, torch_step: TorchStep) -> bool:
    """Found with random numbers: one entry at a time is changed, and only that one of the next states may change."""
    draw = torch.Generator().manual_seed(0)

    def random(dims: Sequence[str]) -> Tensor:
        shape = (1, 1, *([SIZE] * len(dims)))
        return 0.25 + torch.rand(shape, dtype=torch.float64, device="cpu", generator=draw) / 2

    given = {a.name: random(a.dims) * (-1 if a.kind.startswith("decay") else 1) for a in signature.tensors}
    constants = {a.name: 0.5 if a.default is None else float(a.default) for a in signature.constants}
    states = {n: random(dims) for n, dims in signature.states}

    def after(changed: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs, following = ({n: random(d) for n, d in them} for them in (signature.outputs, signature.states))
        torch_step(dict(given), changed, constants, outputs, following)
        return following

    with torch.no_grad(), torch.device("cpu"):
        before = after(dict(states))
        for name, state in states.items():
            for place in range(state.numel()):
                other = state.clone()
                other.view(-1)[place] += 0.125
                found = after(states | {name: other})
                if any(_elsewhere(before[n], x, place if n == name else None) for n, x in found.items()):
                    return False
    return True


def _elsewhere(x: Tensor, y: Tensor, place: int | None) -> bool:
    """Do these differ at any other place?"""
    differ = (x != y).flatten()
    if place is not None:
        differ[place] = False
    return bool(differ.any())
