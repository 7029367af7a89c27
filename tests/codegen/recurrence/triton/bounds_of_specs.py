"""Kernels of specs in Triton's interpreter, at widths of several tiles: each access has to lie in its tensor.

TRITON_INTERPRET=1 python bounds_of_specs.py '["delta_rule", ..]'   # which kernels over chunks of each ran, or null
TRITON_INTERPRET=1 python bounds_of_specs.py '["delta_rule"]' forward_sweep_1 o_out   # this tensor is one number short
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from shared import bounds_interpreted
from shared.triton_errors import compiled, module, printable

from chunkform.codegen.recurrence.samples import Case, sample
from chunkform.runtime.launch.varlen import Packed

STEPS, WIDTH = 40, 128  # a chunk and a part of the next; two tiles of an axis, in two bytes


def both_passes(name: str, dtype: torch.dtype, packed: bool, states: bool) -> None:
    """The two passes, or the forward pass alone where nothing is kept for gradients."""
    c, m = compiled(name), module(name)
    s = sample(c, Case(batch=1, steps=STEPS, heads=1, width=WIDTH, dtype=dtype))
    if not states:
        s = replace(s, states=dict.fromkeys(s.states), final_cotangents=dict.fromkeys(s.final_cotangents))
    starts = Packed(torch.tensor([0, 0, 33, STEPS]), 3, STEPS) if packed else None
    first, last = (
        {n: None if x is None else x.repeat(3 if packed else 1, *[1] * (x.ndim - 1)) for n, x in of.items()}
        for of in (s.states, s.final_cotangents)
    )
    m.triton_forward(s.given, first, s.constants, starts, needs_backward=False, finals=False)
    saved: dict[str, Any] = m.triton_forward(s.given, first, s.constants, starts)[2]
    needs = frozenset([*s.given, *(s.states if states else ())])
    m.triton_backward(s.given, first, s.constants, saved, s.cotangents, last, needs, starts)


def shortened(name: str, kernel: str, argument: str) -> None:
    """The module's launches of a kernel from now on have one number less of an argument."""
    m = module(name)
    usual = m.launch

    def launch(launched: Any, grid: Any, *args: Any, **options: Any) -> None:
        if launched.fn.__name__ == kernel:
            at = launched.arg_names.index(argument)
            args = (*args[:at], args[at].flatten()[:-1], *args[at + 1 :])
        usual(launched, grid, *args, **options)

    m.launch = launch


def main(names: list[str], *planted: str) -> None:
    ran: dict[str, list[str] | None] = {}
    for name in names:
        if not printable(name):
            ran[name] = None
            continue
        if planted:
            shortened(name, *planted)
        bounds_interpreted.LAUNCHED.clear()
        both_passes(name, torch.bfloat16, packed=False, states=False)
        both_passes(name, torch.float32, packed=True, states=True)
        ran[name] = sorted(bounds_interpreted.LAUNCHED)
    print(json.dumps(ran))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), *sys.argv[2:])
