"""Maxima in Triton's interpreter: prints what differs from torch.maximum where sizes are far apart, and what NaN is lost."""

import importlib.util
import os
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

import chunkform

HERE = Path(__file__).parent
found = importlib.util.spec_from_file_location("test_maximum", HERE.parent / "step" / "test_maximum.py")
assert found is not None and found.loader is not None
maxima = importlib.util.module_from_spec(found)
found.loader.exec_module(maxima)

if __name__ == "__main__":
    torch.manual_seed(0)
    op = chunkform.compile(maxima.mlstm())
    for mask in maxima.MASKS:
        given = [torch.randn(20, 4), torch.randn(20, 4), torch.randn(20, 3), torch.randn(20), -torch.rand(20)]
        given[3][2] = mask
        given[3][5:9], given[4][5:9] = given[3][5], 0.0  # ties
        exact, mine = ([x.to(t).requires_grad_() for x in given] for t in (torch.float64, torch.float32))
        wanted = maxima.mlstm_loop(*exact)
        got = op(*(x[None, :, None] for x in mine), backend="triton")[0][0, :, 0]
        pairs = zip(
            (got, *torch.autograd.grad(got.square().sum(), mine)),
            (wanted, *torch.autograd.grad(wanted.square().sum(), exact)),
            strict=True,
        )
        print([float((x - y).abs().max() / y.abs().max()) for x, y in pairs])
    lost = [x.detach().clone() for x in mine]
    lost[3][4] = float("nan")
    got = op(*(x[None, :, None] for x in lost), backend="triton")[0][0, :, 0]
    print([float(not got[4:].isnan().all())])
