"""Runs attentions in Triton's interpreter, which must be chosen before Triton is imported, so in a process of its own.

TRITON_INTERPRET=1 python interpret.py '{"names": [...], "cases": [...]}'   # prints the rows as JSON

With "beside", numbers of rows and keys are channels beside products in float32 too, which the interpreter is exact in. With
"unmoved", matrices of keys stay on the keys' side. With "fit", tiles fit shared memory from that level on (`runtime/op/fits.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.attentions import everything
from triton.runtime.errors import OutOfResources

from chunkform.codegen.attention.check import Case, check_op, head_axis, run, sample
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.commands.compile import compile_module
from chunkform.runtime.attention import launch as attention_triton
from chunkform.runtime.launch.narrowing import level


def main(job: dict) -> list[dict]:
    rows = []
    if job.get("beside"):
        attention_triton.BESIDE = (torch.bfloat16, torch.float32)
    if job.get("fit"):
        attention_triton.launch = from_level(job["fit"])
    known = {a.name: a for a in everything()}
    for name in job["names"]:
        a = known[name]
        c, module = compile_attention(a), compile_module(a)
        if job.get("unmoved"):
            module.OP = dataclasses.replace(module.OP, moved=None)
        op = getattr(module, name)
        for case in job["cases"]:
            if a.nodes is not None and case.get("causal"):
                continue
            dtype = getattr(torch, case.get("dtype", "float32"))
            for r in check_op(c, op, Case(**{**case, "dtype": dtype}), "triton"):
                rows.append({"name": name, "quantity": r.quantity, "error": r.error, "allowed": r.allowed, "ok": r.ok})
        if name == "masked":
            rows += minus_infinity(c, op) + helpers()
    return rows


def from_level(fit: int) -> Callable[..., None]:
    """A launch that fails where tiles are wider than those of this level."""
    launch = attention_triton.launch

    def launched(*arguments: object, **options: object) -> None:
        if level() < fit:
            raise OutOfResources(360448, 101376, "shared memory")
        launch(*arguments, **options)

    return launched


def helpers() -> list[dict]:
    """The kernels around the tile's: inner products, sums of weighted features, more than one launch takes, and of products."""
    one_pass, row_products = attention_triton.one_pass, attention_triton.row_products
    B, T, H, X = 2, 37, 3, 20
    x, y = torch.randn(B, T, H, X).transpose(1, 2), torch.randn(B, H, T, X)
    vector, c = torch.randn(H, X), torch.randn(B, H, T)
    terms = [(c, x), (None, y), (c, vector), (None, 2 * y), (2 * c, x)]
    expected = 3 * c[..., None] * x + c[..., None] * vector[:, None] + 3 * y
    u, w, v = torch.randn(B, T, H, 9).transpose(1, 2), torch.randn(H, X, 9).mT, torch.randn(H, X, X)
    product, like = torch.einsum("bhta,hax->bhtx", u, w), torch.empty(B, T, H, X)
    both, products_and = product + torch.einsum("bhta,hax->bhtx", y, v), attention_triton.products_and
    found = {
        "one product": (products_and([(u, w)], None, like).transpose(1, 2), product),
        "two products and a term": (products_and([(u, w), (y, v)], x, like).transpose(1, 2), both + x),
        "row_products": (row_products(x, y), (x * y).sum(-1)),
        "one_pass": (one_pass(terms, torch.empty(B, T, H, X)).transpose(1, 2), expected),
    }
    errors = {n: relative_error(a, b, 2 if a.ndim == 4 else 1) for n, (a, b) in found.items()}
    return [{"name": n, "quantity": "all", "error": e, "allowed": 1e-5, "ok": e < 1e-5} for n, e in errors.items()]


def minus_infinity(c, op) -> list[dict]:
    """The kernels beside the torch form where columns are -inf, for one head everywhere."""
    s = sample(c, Case(batch=1, steps=20, keys=70, width=8))
    m = s.given["m"].clone()
    m[:, ::3] = -math.inf
    m[0, :, 1] = -math.inf
    s = dataclasses.replace(s, given={**s.given, "m": m})
    rows = []
    for causal in (False, True):
        ours, reference = (run(c, op, s, causal, backend) for backend in ("triton", "torch"))
        for n, ref in reference.items():
            ref, value = ref.nan_to_num(nan=math.inf, neginf=-9.0), ours[n].nan_to_num(nan=math.inf, neginf=-9.0)
            error = relative_error(value, ref, head_axis(c, n))
            rows.append(
                {"name": "masked", "quantity": f"-inf: {n}", "error": error, "allowed": 1e-5, "ok": error < 1e-5}
            )
    return rows


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
