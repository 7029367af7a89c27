"""Runs the printed Triton kernels under Triton's interpreter: a program of its own, as the interpreter is chosen at import.

python -m sequential.interpret FOLDER
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import importlib
import json
import sys
import time
from pathlib import Path

import mpmath
import torch
from sequential.programs import arguments, compare, compiled, printed, specs

from chunkform.codegen.functions import TABLE

SIZES = {"d": 5, "e": 3, "m": 3, "n": 5}
TOLERANCE = 1e-5


def agreement(c, module) -> dict[str, float]:
    """Errors for several lengths, also where tiles are so small that there are several."""
    errors: dict[str, float] = {}
    whole = getattr(module, "tile_of", None)
    for batch, steps, heads, tiles, start in (
        (1, 0, 1, whole, True),
        (2, 1, 1, small_tiles, True),
        (1, 5, 1, whole, False),
        (1, 5, 2, small_tiles, True),
    ):
        module.tile_of = tiles
        args = arguments(c, batch, steps, heads, SIZES, start=start)
        errors |= compare(c, module.triton_forward, module.triton_backward, args, TOLERANCE)
    return errors


def small_tiles(size: int, others: int, entries: int, smallest: int = 1, most: int = 0) -> int:
    return max(2, smallest)


def strides(c, module) -> None:
    """Tensors that lie in memory otherwise give the same numbers."""
    args = arguments(c, 2, 3, 2, SIZES)
    given, states, constants, cotangents, finals = args
    turned = {n: x.mT.contiguous().mT if x.dim() > 1 else x for n, x in given.items()}
    turned = {n: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 2 else x for n, x in turned.items()}
    assert any(not x.is_contiguous() for x in turned.values())
    wide = {n: torch.stack([x, x], -1)[..., 0] for n, x in cotangents.items()}
    compare(c, module.triton_forward, module.triton_backward, (turned, states, constants, wide, finals), TOLERANCE)


def half(c, module) -> None:
    """float16 inputs: outputs and gradients in float16, computed in float32."""
    given, states, constants, cotangents, finals = arguments(c, 1, 4, 1, SIZES)
    kinds = {v.name: v.kind for v in c.step.variables}
    given = {n: x.half() if kinds[n] == "input" else x for n, x in given.items()}
    cotangents = {n: x.half() for n, x in cotangents.items()}
    compare(c, module.triton_forward, module.triton_backward, (given, states, constants, cotangents, finals), 2e-3)


def missing_gradients(c, module) -> None:
    """Gradients that don't come in count as zeros; those not needed aren't returned."""
    given, states, constants, _, _ = arguments(c, 1, 2, 1, SIZES)
    _, _, saved = module.triton_forward(given, states, constants)
    first = next(iter(given))
    gradients, initial = module.triton_backward(given, states, constants, saved, {}, {}, frozenset({first}))
    assert set(gradients) == {first} and not initial
    assert not gradients[first].any()


def resets(c, module) -> None:
    """A log decay of -inf is a decay of zero: it forgets, and gives no NaN where the mathematics has none."""
    if c.name == "sherman_morrison":  # which divides by it
        return
    args = arguments(c, 1, 4, 1, SIZES)
    given = args[0]
    for v in c.step.variables:
        if v.is_decay and v.per_step:
            given[v.name][:, 1] = -torch.inf
            given[v.name][:, 2] = -1e4
    compare(c, module.triton_forward, module.triton_backward, args, 5 * TOLERANCE)


def functions(folder: Path) -> dict[str, float]:
    """The largest relative error of each scalar function's printed form."""
    names = [n for n in TABLE]
    lines = ["import triton", "import triton.language as tl", "", ""]
    for n in names:
        body = TABLE[n].triton.format("x")
        lines += [
            "@triton.jit",
            f"def {n}_kernel(x_at, y_at):",
            "    i = tl.arange(0, 16)",
            "    x = tl.load(x_at + i)",
        ]
        lines += [f"    tl.store(y_at + i, {body})", "", ""]
    (folder / "functions_of_table.py").write_text("\n".join(lines))
    sys.path.insert(0, str(folder))
    module = importlib.import_module("functions_of_table")
    x = torch.tensor([-80, -30, -16.5, -15, -3, -1, -0.6, -0.5, -1e-3, 0, 1e-4, 0.3, 0.7, 5, 17, 80])
    errors = {}
    for n in names:
        at = x.abs() + 1e-6 if n == "log" else x
        y = torch.empty_like(at)
        getattr(module, f"{n}_kernel")[(1,)](at, y)
        with mpmath.workdps(60):
            right = torch.tensor([float(TABLE[n].mpmath(mpmath.mpf(v.item()))) for v in at], dtype=torch.float64)
        errors[n] = ((y.double() - right).abs() / right.abs().clamp(min=1e-30)).max().item()
    return errors


def main(folder: Path) -> None:
    report = {"functions": functions(folder)}
    for name in specs():
        began = time.time()
        c = compiled(name)
        module = printed(c, folder, triton=True)
        errors = agreement(c, module)
        for check in (strides, half, missing_gradients, resets):
            check(c, module)
        report[name] = {"error": max(errors.values()), "seconds": round(time.time() - began, 2)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
