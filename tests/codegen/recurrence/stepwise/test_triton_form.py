"""The Triton form under the interpreter, and its compiled kernels for a GPU that need not be there."""

import functools
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from shared.forked import script
from shared.recurrent_programs import arguments, compiled, printed, specs
from shared.spec_files import SPECS, read
from shared.structures import few_of, sweep

from chunkform.codegen.ir.code import Literal
from chunkform.codegen.ir.words import text_of
from chunkform.codegen.printing.code_passes import rounds_at_once
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.stepwise import sequential_triton
from chunkform.errors import GateError
from chunkform.runtime.torch_form.recurrent import narrow, parts_at_most

triton = pytest.importorskip("triton")
TESTS = Path(__file__).parents[3]


FEW = few_of(tuple(specs()))


@functools.cache
def interpreted(names: tuple[str, ...]) -> dict:
    """What `interpret.py` found; it raises where a result is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        ran = script(Path(__file__).with_name("interpret.py"), folder, *names)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", sweep(specs()))
def test_agrees_with_the_oracle(name) -> None:
    others = tuple(x for x in specs() if x not in FEW)
    assert interpreted(FEW if name in FEW else others)[name]["error"] < 1e-5


def test_functions_are_accurate_to_their_last_digits() -> None:
    assert {n: x for n, x in interpreted(FEW)["functions"].items() if not x < 1e-6} == {}


# --- compiling for a GPU --------------------------------------------------------------------------------------------


def launches(name: str, size: int, folder: Path) -> list:
    """(kernel, arguments, options) of both passes, without running them."""
    c = compiled(name)
    module = printed(c, folder, triton=True)
    calls: list = []
    module.launch = lambda kernel, grid, *args, **options: calls.append((kernel, args, options))
    given, states, constants, _, _ = arguments(c, 2, 33, 4, dict.fromkeys("demn", size))
    kinds = {v.name: v.kind for v in c.step.variables}
    given = {n: x.bfloat16() if kinds[n] == "input" else x for n, x in given.items()}
    _, _, saved = module.triton_forward(given, states, constants)
    module.triton_backward(given, states, constants, saved, {}, {}, frozenset(given))
    return calls


def resources(kernel, args: tuple, options: dict) -> tuple[int, int]:
    """(registers, bytes spilled) of a kernel compiled for sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = dict(options)
    settings = {n: options.pop(n) for n in ("num_warps", "num_stages") if n in options}
    types = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
    signature, constants, attributes = {}, {}, {}
    for i, (name, value) in enumerate(zip(kernel.arg_names, args)):
        if isinstance(value, torch.Tensor):
            signature[name] = types[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value is None or (value == 1 and not {"heads", "steps", "segment", "lines"} & {name}):
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = "i32"
    for name, value in options.items():
        signature[name], constants[name] = "constexpr", value
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=settings)
    return assembled(built.asm["ptx"])


def assembled(ptx: str) -> tuple[int, int]:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        for tool in ("ptxas", "ptxas-blackwell"):
            if not (tools / tool).exists():
                continue
            command = [str(tools / tool), "-v", "-arch=sm_90a", file.name, "-o", os.devnull]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode == 0:
                registers = re.search(r"Used (\d+) registers", ran.stderr)
                spilled = re.search(r"(\d+) bytes spill stores", ran.stderr)
                return int(registers[1]), int(spilled[1])
    pytest.skip("no assembler for sm_90 beside triton")


@pytest.mark.parametrize(
    "name", [pytest.param("sherman_morrison", marks=pytest.mark.long), "gradient_descent_logistic"]
)
@pytest.mark.parametrize("size, bound", [(64, 0), pytest.param(128, 512, marks=pytest.mark.long)])
def test_the_state_stays_in_registers(name, size, bound, tmp_path) -> None:
    for kernel, args, options in launches(name, size, tmp_path):
        registers, spilled = resources(kernel, args, options)
        assert registers <= 255 and spilled <= bound, (kernel.fn.__name__, registers, spilled)


@pytest.mark.parametrize("size", [200, pytest.param(256, marks=pytest.mark.long)])
def test_a_state_too_wide_for_registers_is_taken_by_rows(size, tmp_path) -> None:
    found = launches("sherman_morrison", size, tmp_path)
    assert [kernel.fn.__name__.endswith("_rows_kernel") for kernel, _, _ in found] == [True, True]
    for kernel, args, options in found:
        _, spilled = resources(kernel, args, options)
        assert spilled == 0, (kernel.fn.__name__, spilled)


@pytest.mark.parametrize(
    "name",
    ["everything", "running_maximum"]
    + [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("momentum", "tanh_layer", "channels", "ratios", "two_sided")
    ],
)
def test_odd_kernels_compile(name, tmp_path) -> None:
    for kernel, args, options in launches(name, 12, tmp_path):
        registers, _ = resources(kernel, args, options)
        assert registers <= 255


def test_tiles_are_narrow_where_steps_are_taken_several_at_once_and_only_there() -> None:
    """So that many programs are under way: a selective scan's exponentials keep a warp busy."""
    found = {r.name: compile_spec(r) for r in read(SPECS / "entries.py") if r.name in ("mamba1", "mamba3_mimo")}
    sources = {n: text_of(sequential_triton(c)) for n, c in found.items()}
    assert "tile_of(size_c, block_n, narrow(2048, block_n), 1)" in sources["mamba1"]
    assert sources["mamba1"].count("# round 4 of 4") == 3
    assert "narrow(" not in sources["mamba3_mimo"]  # whose steps take matrices
    assert [narrow(2048, others) for others in (1, 16, 64, 128)] == [64, 128, 512, 2048]


def test_steps_that_take_a_function_of_each_entry_load_ahead_and_have_powers_of_two() -> None:
    """A selective scan's exponentials fill the time that memory takes; each loads once what its place in the next block takes."""
    (c,) = (compile_spec(r) for r in read(SPECS / "entries.py") if r.name == "mamba1")
    source = text_of(sequential_triton(c))
    assert source.count("# each round loads what it takes in the next block") == 3
    assert "tl.exp2(-(1.4426950408889634 * dt)[:, None] * A)" in source and "tl.exp(" not in source
    assert "x_1 = tl.load(x_there + 1 * x_stride1, mask=in_c, other=0.0)" in source
    assert "parts_at_most(size_c, block_n)" in source
    logistic = text_of(sequential_triton(compiled("gradient_descent_logistic")))  # functions of vectors alone
    assert "next block" not in logistic and "most=8" in logistic and "# round 2 of" in logistic
    assert [parts_at_most(2048, n) for n in (1, 16, 64, 1024)] == [2048, 128, 32, 8]


@pytest.mark.parametrize("wrong", ["_moved_by", "_slopes"])
def test_a_load_from_elsewhere_is_refused(wrong, monkeypatch) -> None:
    (r,) = (r for r in read(SPECS / "entries.py") if r.name == "mamba1")
    right = getattr(rounds_at_once, wrong)

    def doubled(*given):
        found = right(*given)
        if isinstance(found, dict):
            return {n: Literal(2) * x for n, x in found.items()}
        return None if found is None else Literal(2) * found

    monkeypatch.setattr(rounds_at_once, wrong, doubled)
    with pytest.raises(GateError):
        sequential_triton(compile_spec(r))


def test_products_of_matrices_run_on_tensor_cores() -> None:
    """As products on others take so much text and so many registers that compiling takes minutes."""
    found = {r.name: r for r in read(TESTS / "codegen" / "recurrence" / "step" / "specs" / "column_maps.py")}
    source = text_of(sequential_triton(compile_spec(found["several_corrected"])))
    assert source.count("tl.dot(") == source.count('input_precision="tf32x3"') > 5
