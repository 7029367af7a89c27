"""Both passes of an op at each level of narrower tiles, interpreted; run by test_narrow.py."""

import importlib
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from chunkform.runtime.launch import launch
from chunkform.runtime.launch.narrowing import NARROWEST, narrowed


def main(name: str) -> None:
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    signature = importlib.import_module(f"chunkform.generated.{name}").SIGNATURE
    sizes = {"B": 1, "T": 40, "H": 1}
    g = torch.Generator().manual_seed(0)
    given = {}
    for a in signature.tensors:
        x = torch.randn([sizes.get(d, 36) for d in a.layout], generator=g) / 6
        given[a.key] = (-x.abs() if a.kind.startswith("decay") else x.abs() if not a.dims else x).requires_grad_()
    wanted = passes(op, given, "torch")
    seen = set()

    for level in range(NARROWEST + 1):
        with narrowed(level):
            seen.add(launch.choose(torch.float32, (36, 36)))
            found = passes(op, given, "triton")
        for n, (x, y) in enumerate(zip(found, wanted, strict=True)):
            error = (x - y).norm() / y.norm().clamp(min=1e-6)
            assert error < 1e-4, (name, level, n, float(error))
    assert len(seen) == NARROWEST + 1


def passes(op, given, backend):
    *outputs, state = op(**given, output_final_state=True, backend=backend)
    total = sum((x * torch.arange(x.numel()).view(x.shape).cos()).sum() for x in (*outputs, state))
    return [*outputs, state, *torch.autograd.grad(total, list(given.values()))]


main(sys.argv[1])
