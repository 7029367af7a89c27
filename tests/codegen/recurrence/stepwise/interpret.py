"""Runs the printed Triton kernels under Triton's interpreter: a program of its own, as the interpreter is chosen at import.

PYTHONPATH=tests python tests/codegen/recurrence/stepwise/interpret.py FOLDER
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
from shared.recurrent_programs import arguments, compare, compiled, printed

from chunkform.codegen.ir.code import Name
from chunkform.codegen.ir.functions import TABLE, TRITON
from chunkform.codegen.ir.spellings import spelt
from chunkform.runtime.launch.varlen import Packed

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


def same(left: dict, right: dict, what: str) -> None:
    for n, x in right.items():
        assert left[n].shape == x.shape, (what, n, left[n].shape, x.shape)
        torch.testing.assert_close(left[n], x, rtol=1e-5, atol=1e-6, msg=f"{what} {n}")


def packed(c, module) -> None:
    """Sequences one after the other, some empty, give what each gives alone."""
    lengths = [2, 0, 4]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    given, _, constants, cotangents, _ = arguments(c, 1, sum(lengths), 2, SIZES)
    _, states, _, _, finals = arguments(c, len(lengths), 1, 2, SIZES)
    needs = frozenset({*given, *states})
    together = Packed(starts, len(lengths), sum(lengths))
    outputs, last, saved = module.triton_forward(given, states, constants, together)
    gradients, initial = module.triton_backward(given, states, constants, saved, cotangents, finals, needs, together)
    timeless = {v.name for v in c.step.variables if not v.per_step}
    sums: dict = {}
    for n in range(len(lengths)):
        own = slice(int(starts[n]), int(starts[n + 1]))
        args = {k: x if k in timeless else x[:, own] for k, x in given.items()}
        some = {k: x[n : n + 1] for k, x in states.items()}
        out, end, kept = module.triton_forward(args, some, constants)
        incoming = {k: x[:, own] for k, x in cotangents.items()}
        ends = {k: x[n : n + 1] for k, x in finals.items()}
        grads, first = module.triton_backward(args, some, constants, kept, incoming, ends, needs)
        same({k: x[:, own] for k, x in outputs.items()}, out, "packed output")
        same({k: x[n : n + 1] for k, x in last.items()}, end, "packed final")
        same({k: x[n : n + 1] for k, x in initial.items()}, first, "packed initial gradient")
        same(
            {k: gradients[k][:, own] for k in grads if k not in timeless},
            {k: x for k, x in grads.items() if k not in timeless},
            "packed gradient",
        )
        for k in timeless & grads.keys():
            sums[k] = sums.get(k, 0.0) + grads[k]
    same(gradients, sums, "packed gradient")


def groups(c, module) -> None:
    """Arguments with fewer heads are as good as repeated ones; their gradients have all heads, in float32."""
    given, states, constants, cotangents, finals = arguments(c, 2, 3, 4, SIZES)
    axis = {v.name: 2 if v.per_step else 0 for v in c.step.variables}
    few = {n: x.narrow(axis[n], 0, (4, 2, 1)[i % 3]) for i, (n, x) in enumerate(given.items())}
    full = {n: x.repeat_interleave(4 // x.shape[axis[n]], axis[n]) for n, x in few.items()}
    needs = frozenset({*given, *states})
    results = []
    for args in (few, full):
        outputs, last, saved = module.triton_forward(args, states, constants)
        results.append(
            (outputs, last, *module.triton_backward(args, states, constants, saved, cotangents, finals, needs))
        )
    for found, value in zip(*results, strict=True):
        same(found, value, "groups")


def inference(c, module) -> None:
    """Without a backward pass to come nothing is kept, and the numbers are the same."""
    given, states, constants, _, _ = arguments(c, 2, 7, 1, SIZES)
    outputs, last, _ = module.triton_forward(given, states, constants)
    out, end, saved = module.triton_forward(given, states, constants, needs_backward=False)
    assert saved == {}
    assert all(torch.equal(out[n], x) for n, x in outputs.items())
    assert all(torch.equal(end[n], x) for n, x in last.items())


def by_rows(c, module) -> None:
    """States in memory, worked on two rows at a time."""
    usual = module.too_wide, module.rows_of_tile
    module.too_wide, module.rows_of_tile = (lambda entries: True), (lambda width, rows: 2)
    for batch, steps, start in ((2, 1, True), (1, 5, False), (1, 0, True)):
        args = arguments(c, batch, steps, 2, SIZES, start=start)
        compare(c, module.triton_forward, module.triton_backward, args, 2 * TOLERANCE)
    packed(c, module)
    module.too_wide, module.rows_of_tile = usual


def functions(folder: Path) -> dict[str, float]:
    """The largest relative error of each scalar function's printed form."""
    names = [n for n in TABLE]
    lines = ["import triton", "import triton.language as tl", "", ""]
    for n in names:
        body = spelt(n, Name("x"), TRITON).text
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
        at = {"log": x.abs() + 1e-6, "log1p": x / 80.5}.get(n, x)
        y = torch.empty_like(at)
        getattr(module, f"{n}_kernel")[(1,)](at, y)
        with mpmath.workdps(60):
            right = torch.tensor([float(TABLE[n].mpmath(mpmath.mpf(v.item()))) for v in at], dtype=torch.float64)
        errors[n] = ((y.double() - right).abs() / right.abs().clamp(min=1e-30)).max().item()
    return errors


MORE = {  # dear ones, for a few recurrences that have between them all there is
    "tanh_layer": (packed, groups),
    "channels": (packed, groups),
    "moving_averages": (packed, groups),
    "sherman_morrison": (packed, groups, by_rows),
    "two_sided": (by_rows,),
}


def main(folder: Path, names: list[str]) -> None:
    report = {"functions": functions(folder)}
    for name in names:
        began = time.time()
        c = compiled(name)
        module = printed(c, folder, triton=True)
        errors = agreement(c, module)
        for check in (strides, half, missing_gradients, resets, inference, *MORE.get(name, ())):
            check(c, module)
        report[name] = {"error": max(errors.values()), "seconds": round(time.time() - began, 2)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
