"""What kernels are taken to be: without comments and docstrings, and with all that they call."""

import ast
import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from shared.launches import recorded
from shared.op_cases import SPECS, problem, run

from chunkform.codegen.attention import check as attention
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.programs import check as programs
from chunkform.codegen.programs.oracle import sample
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.runtime.launch.fingerprint import (
    RUNTIME,
    Runtime,
    fingerprint,
    functions_key,
    is_jit,
    kernels_key,
    this_runtime,
)
from chunkform.spec.language import find
from chunkform.spec.language.load import CATALOGUE, load

GENERATED = Path(__file__).parents[3] / "generated"
NAMES = sorted(p.stem for p in GENERATED.glob("*.py") if p.stem != "__init__")
KERNEL = '''
@triton.jit(do_not_specialize=["T"])
def kernel(x, T, B: tl.constexpr):
    """Says what it does."""
    i = tl.arange(0, B)  # a comment
    tl.store(x + i, power(tl.load(x + i, mask=i < T), i < T), mask=i < T)
'''
FILE = f"""
import triton
from chunkform.runtime.chunk_kernels.decays import power, total_of
from chunkform.runtime.chunk_kernels.reductions import total

SIZE = tl.constexpr(4)

{KERNEL}

def forward(x):
    launch(kernel, "key", x)
    return total(x)

def backward(x):
    launch(kernel, "another key", x)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Says what it does.", "Says something else.", True),
        ("  # a comment", "", True),
        ("mask=i < T), i < T), mask=i < T)", "mask=i < T), i < T),\n        mask=i < T\n    )", True),
        ('    """Says what it does."""\n', "", True),
        ("i < T), i < T)", "i < T), i <= T)", False),
        ("B: tl.constexpr", "B", False),
        ('["T"]', "[]", False),
    ],
)
def test_kernels_are_what_they_say_to_triton(old, new, same):
    assert old in KERNEL
    assert (kernels_key([KERNEL]) == kernels_key([KERNEL.replace(old, new)])) == same


def test_a_file_is_its_kernels_and_what_its_functions_launch_and_call():
    whole = fingerprint(FILE)
    assert {"power", "total_kernel", "term"} <= set(whole.calls)
    assert "pair_kernel" not in whole.calls
    part = fingerprint(
        FILE, lambda f: any(isinstance(x, ast.Constant) and x.value == "another key" for x in ast.walk(f))
    )
    assert part.calls == ("power",)
    assert part.kernels == whole.kernels
    assert fingerprint(FILE.replace("return total(x)", "return x")).key != whole.key


def test_numbers_that_kernels_use_count():
    text = FILE.replace("tl.arange(0, B)", "tl.arange(0, SIZE)")
    assert fingerprint(text).kernels != fingerprint(text.replace("constexpr(4)", "constexpr(8)")).kernels
    assert fingerprint(FILE).kernels == fingerprint(FILE.replace("constexpr(4)", "constexpr(8)")).kernels


def test_a_function_that_is_gone_is_not_what_it_was():
    assert len({functions_key([]), functions_key(["gone"]), functions_key(["power"])}) == 3


IN_GLUON = [  # of functions that Triton compiles, and of those that it runs meanwhile
    ("chunk_kernels/placed_tiles.py", "1.0, 0.0).to(gl.bfloat16)", "0.0, 1.0).to(gl.bfloat16)"),
    ("chunk_kernels/placed_tiles.py", "min(32, columns // each)", "min(16, columns // each)"),
    ("chunk_kernels/warp_roles.py", "use_acc=False", "use_acc=True"),
    ("chunk_kernels/warp_roles.py", "min(128, columns * bits // 8)", "min(64, columns * bits // 8)"),
    ("chunk_kernels/warp_roles.py", "along = min(warps, rows // 16)", "along = min(warps, rows // 32)"),
]


@pytest.mark.parametrize(("file", "old", "new"), IN_GLUON)
def test_functions_of_kernels_in_gluon_count(file, old, new):
    def read(path: str) -> str:
        text = (RUNTIME / path).read_text()
        assert path != file or old in text
        return text.replace(old, new) if path == file else text

    text = (GENERATED / "gated_linear_attention.py").read_text()
    whole = fingerprint(text)
    assert fingerprint(text, runtime=Runtime(read, this_runtime().paths.values())).key != whole.key


def test_it_loads_neither_torch_nor_triton():
    code = (
        "import sys; from chunkform.runtime.launch.fingerprint import functions_key; functions_key(['power'])\n"
        "assert not {'torch', 'triton', 'sympy'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def launched(name: str, dtype: torch.dtype) -> set[str]:
    """The kernels that both passes of an op launch, of long sequences, packed ones and few heads."""
    spec = find(name)[0] if name in SPECS else load(CATALOGUE / f"{name}.py")[0]
    case = Case(batch=1, steps=300, heads=2, width=16, dtype=dtype)
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    with recorded() as launches:
        if name in SPECS:
            lengths = None if dtype == torch.bfloat16 else (70, 0, 3)
            p = problem(name, case, lengths=lengths, groups={next(iter(problem(name, case).given)): 1})
            run(p, backend="triton")
        elif spec.noun == "program":
            c = compile_program(spec)
            programs.run(c, op, sample(c, case), "triton")
        else:
            c = compile_attention(spec)
            own = attention.Case(batch=1, steps=70, heads=2, width=16, same=True, dtype=dtype)
            for causal in (False, True)[: 1 if spec.nodes is not None else 2]:
                attention.run(c, op, attention.sample(c, replace(own, causal=causal)), causal, "triton")
    return {x.kernel for x in launches}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_an_op_launches_is_in_its_fingerprint(name, monkeypatch):
    for module in this_runtime().modules():  # imported later, their functions would be interpreted in all later tests
        importlib.import_module(f"chunkform.runtime.{module.replace('/', '.')}")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = (GENERATED / f"{name}.py").read_text()
    own = {x.name for x in ast.parse(text).body if is_jit(x)}
    found = launched(name, torch.bfloat16 if NAMES.index(name) % 3 else torch.float32)
    calls = fingerprint(text).calls
    assert found
    assert found <= own | set(calls)
    for x in calls:
        assert any(this_runtime().is_jit(m, x) for m in this_runtime().modules()), f"the text of {x} doesn't count"
