"""Pieces of a sequence in Triton's interpreter, whose sweeps begin where anything is left: where nothing is forgotten, their
bits are those of sweeps over all steps.

python lasting.py NAME..     # prints for each op and case how many tensors differ, as JSON
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from torch import Tensor

STEPS, PIECES = 140, 2


@triton.jit
def everything(sums, rests, stride, x, x_ok, begin, stop, count, C: tl.constexpr, FORWARD: tl.constexpr):
    """As `lasting`, where all steps count."""
    return count


@triton.jit
def a_chunk_less(sums, rests, stride, x, x_ok, begin, stop, count, C: tl.constexpr, FORWARD: tl.constexpr):
    return count - 1


@functools.cache
def results(name: str, instead: Any, shift: float) -> list[Tensor]:
    """The output, the final state and all gradients."""
    from chunkform.runtime.op import op as op_module

    module: Any = importlib.import_module(f"chunkform.generated.{name}")
    usual, module.lasting = module.lasting, instead or module.lasting
    module.segments_for = lambda places, programs: PIECES
    op_module.chosen_backend = lambda *_, **__: "triton"
    torch.manual_seed(0)
    sizes = {"B": 1, "T": STEPS, "H": 1}
    given = {}
    for a in module.OP.signature.arguments:
        x = torch.randn([sizes.setdefault(d, 16) for d in a.layout])
        given[a.name] = (
            torch.nn.functional.logsigmoid(x + shift) if a.kind.startswith("decay") else x
        ).requires_grad_()
    o, final = module.OP(given, torch.randn(1, 1, 16, 16), True)
    (o * torch.randn_like(o)).sum().backward()
    module.lasting = usual
    return [o.detach(), final.detach(), *(x.grad for x in given.values())]


def apart(name: str, instead: Any, shift: float) -> int:
    return sum(
        not torch.equal(x, y) for x, y in zip(results(name, None, shift), results(name, instead, shift), strict=True)
    )


if __name__ == "__main__":
    found = {}
    for name in sys.argv[1:]:
        cases = {"lasting": (everything, 9.0), "none": (everything, float("inf")), "a chunk less": (a_chunk_less, 9.0)}
        found[name] = {case: apart(name, *what) for case, what in cases.items()}
    print(json.dumps(found))
