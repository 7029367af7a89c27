"""Kernels that are printed once, and operators of Triton's interpreter straight in NumPy."""

import importlib
import inspect
import json

import pytest
from shared import fast_source
from shared.forked import script

ONCE = """
import os, sys
from shared import forked, passed, printed, triton_errors
import chunkform.codegen.recurrence.triton.kernels.fused_backward as fused

asked = []

def printing(c):
    asked.append(c.name)
    return "text\\n"

printing.__module__ = "chunkform.codegen.of_this_test"  # as a function of the compiler
c = triton_errors.compiled("retention")
for path in passed.folder().glob(f"{passed.content((printing, c.step))}*"):
    path.unlink()
assert printed.is_as_imported()
assert {printed.kept(c, printing) for _ in range(3)} == {"text\\n"} and asked == ["retention"]
usual = fused.pays
fused.pays = lambda *_: True
assert not printed.is_as_imported()
printed.kept(c, printing)
assert len(asked) == 2  # by another compiler
fused.pays = usual
printed.kept(c, printing)
assert len(asked) == 2
fused.more = 1
printed.kept(c, printing)
assert len(asked) == 3
del fused.more
kept = triton_errors.module("retention").__file__
os.environ["CHUNKFORM_TEST_GATES"] = "all"
triton_errors.module.cache_clear()
again = triton_errors.module("retention").__file__
assert kept != again and open(kept).read() == open(again).read()
"""


def run(tmp_path, text):
    path = tmp_path / "run.py"
    path.write_text(text)
    done = script(path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_is_printed_is_read_again_unless_something_of_the_compiler_was_replaced(tmp_path):
    run(tmp_path, ONCE)


KERNEL = """
import itertools, json, sys
import numpy as np, torch, triton, triton.language as tl
{first}

@triton.jit
def shifted(x):
    return x[:, None] - x[None, :]

@triton.jit
def kernel(x, n, out, whole, long, yes, N: tl.constexpr):
    i = tl.arange(0, N)
    place = i[:, None] * N + i[None, :]
    a, b = tl.load(x + place), tl.load(x + N * N + place)
    row, one = tl.load(x + i), tl.load(x)
    k, m = tl.load(n + place), tl.load(n + i)
    wide = m.to(tl.int64)
    half = a.to(tl.float16)
    tl.store(out + 0 * N * N + place, a + b - a * row[None, :])
    tl.store(out + 1 * N * N + place, 1 - a * 0.5 + one - 2 * row[:, None] / (b + 3.0))
    tl.store(out + 2 * N * N + place, shifted(row) - -0.0)
    tl.store(out + 3 * N * N + place, half * half + 0.1 - half)
    tl.store(out + 4 * N * N + place, -0.0 * a + (row[:, None] * 0 + 1e-40))
    tl.store(whole + place, (k - 3) * 7 + m[:, None] * N - 1 + (5 - k))
    tl.store(long + place, wide[:, None] * k * 2**20 + (2**33 - wide[None, :]) - k)
    tl.store(yes + 0 * N * N + place, (a > b) & (k <= m[None, :]) | (a == b))
    tl.store(yes + 1 * N * N + place, (wide[:, None] != k) & (one < a) & (k >= 2))
    tl.store(yes + 2 * N * N + place, (0.25 > a) & (3 < m)[None, :] | (a != a))

@triton.jit
def overflows(n, out):
    tl.store(out, tl.load(n) + (2**31 - 1))

@triton.jit
def steps(f, x, g, y):
    return tl.where(f > 0, f * g, g), tl.maximum(g * x + y, y)

@triton.jit
def longest(f, x, g, y):
    return tl.where(y > x, g, f), tl.maximum(x, y)

@triton.jit
def scanned(x, out, N: tl.constexpr, AXIS: tl.constexpr, BACK: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    f, y = tl.associative_scan((tl.load(x + place), tl.load(x + N * N + place)), AXIS, steps, reverse=BACK)
    tl.store(out + place, f)
    tl.store(out + N * N + place, y)
    g, z = tl.reduce((tl.load(x + place), y), AXIS, longest)
    h, w = tl.reduce((tl.load(x + place), y), AXIS, longest, keep_dims=True)
    tl.store(out + 2 * N * N + tl.arange(0, N), g)
    tl.store(out + 2 * N * N + N + tl.arange(0, N), z)
    tl.store(out + 3 * N * N + place, h + 2 * w)
    u = tl.associative_scan((tl.load(x + tl.arange(0, N)), tl.load(x + tl.arange(0, N))), 0, steps)
    tl.store(out + 4 * N * N + tl.arange(0, N), u[1])

@triton.jit
def misfits(x, out, N: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, 2 * N)
    tl.store(out + i, tl.load(x + i) + tl.load(x + j))

@triton.jit
def halves(x, n, out):
    tl.store(out, tl.load(x + tl.load(n)) + x)

torch.manual_seed(0)
N = 8
x, n = torch.randn(2, N, N), torch.randint(0, 9, (N, N), dtype=torch.int32)
x[0, 0, 1:4] = torch.tensor([float("nan"), float("inf"), -0.0])
x[1, 0, 3] = 0.0
out, whole, long = torch.zeros(5, N, N), torch.zeros(N, N, dtype=torch.int32), torch.zeros(N, N, dtype=torch.int64)
yes = torch.zeros(3, N, N, dtype=torch.bool)
kernel[(1,)](x, n, out, whole, long, yes, N)
found = [out.numpy().view("int32").tolist(), whole.tolist(), long.tolist(), yes.tolist()]
for axis, back in itertools.product((0, 1), (False, True)):
    out.zero_()
    scanned[(1,)](x, out, N, axis, back)
    found.append(out.numpy().view("int32").tolist())
for bad, given in ((overflows, (n + 1, whole)), (misfits, (x, out, N)), (halves, (x, n, out))):
    try:
        bad[(1,)](*given)
        found.append(whole.tolist())
    except Exception as error:
        found.append(str(error))
print(json.dumps(found))
"""


PLAIN = """
from shared import fast_interpreter, fast_scans
fast_interpreter.operator = lambda name, plain: plain
fast_scans.ScanOps.generic_scan, fast_scans.ReduceOps.generic_reduce = fast_scans._scan, fast_scans._reduce
"""


def test_operators_straight_in_numpy_are_tritons_bit_for_bit(tmp_path):
    first = "from shared import fast_interpreter"
    fast = run(tmp_path, KERNEL.format(first=first))
    plain = run(tmp_path, KERNEL.format(first=PLAIN))
    assert json.loads(plain) == json.loads(fast)
    assert [x.split("(")[0] for x in json.loads(fast)[-2:]] == ["ValueError", "IncompatibleTypeErrorImpl"]


@pytest.mark.parametrize(
    "name", ["runtime.chunk_kernels.decays", "runtime.chunk_kernels.warp_roles", "generated.gated_delta_rule"]
)
def test_sources_of_functions_are_those_that_inspect_finds(name):
    module = importlib.import_module(f"chunkform.{name}")
    found = [getattr(x, "fn", x) for x in vars(module).values() if hasattr(x, "fn") or inspect.isfunction(x)]
    assert len(found) > 10
    for x in found:
        assert fast_source.getsourcelines(x) == inspect.getsourcelines(x)
