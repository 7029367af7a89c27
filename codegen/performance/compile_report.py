"""Compile every kernel of an op without a GPU, and report registers, spills, shared memory and tensor-core instructions.

The op's own functions run on tensors without data, so that each kernel is compiled exactly as it would be launched: with the
configuration, the dtypes and the divisibilities of a real call.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from chunkform.errors import CompilerError
from chunkform.runtime.chunk_kernels.split_precision import in_pairs_on
from chunkform.runtime.launch.assumed_card import Card, assuming_card
from chunkform.runtime.launch.files import removed_at_exit
from chunkform.runtime.launch.launch import assuming_roles
from chunkform.runtime.launch.narrowing import NARROWEST, narrowed
from chunkform.runtime.launch.parallel_compile import noting

from ..ir.expr import dim_of
from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.triton import scanned

R = TypeVar("R")
SHARED, RESERVED = 233472, 1024  # bytes of shared memory of a multiprocessor of sm_90, of which each program takes some
SMALL = {
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_120": 99,
    "sm_121": 99,
}  # KiB that a program may use there
SHARED_LIMIT = SHARED - RESERVED  # that a program may use
# Bytes of spill stores or loads that a kernel may have, by the bytes of its operands. A product in float32 takes three passes
# over split operands, which no tile of 256 channels keeps in registers: float32 is for checks, two bytes are for training.
SETTINGS = (
    "num_warps",
    "num_stages",
    "maxnreg",
    "enable_fp_fusion",
)  # of a launch, which are no arguments of its kernel
ROLES_ON = "sm_90"  # what runs kernels whose warps have roles,
STAGES = 2  # and the fewest of their stages that a table names
SWITCHES = ("SMALL_RANGE", "YIELD", "TAIL")  # of a launch of sweeps, by which there are several of a kernel,
OF_SCANS = ("RESULTS", "KIND", "FORWARD", "STAGES")  # and of one of scans: of a segment's map, or of results
SWEPT, SCANNED = "segments_for", "scan_segments"  # what says into how many segments sequences are cut
SECONDS = 120  # of a processor, for one kernel
SPILL_LIMIT = {2: 1280, 4: 16384}
REGISTERS = 262144  # bytes of registers of one multiprocessor: a program whose states alone take them must spill
WIDTHS = (128, 256)  # one of each class of `runtime/launch/launch.py`
ARCHITECTURES = tuple(
    f"sm_{n}" for n in (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
)  # others end LLVM, and Python with it
DTYPES = ("bfloat16", "float32")  # float16 is compiled as bfloat16 is


@dataclass(frozen=True)
class InspectRow:
    """One kernel in one configuration. `problem` is empty where all limits are kept."""

    kernel: str
    dtype: str
    width: int
    config: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_core: int  # wgmma and mma instructions
    dots: int
    problem: str

    @property
    def ok(self) -> bool:
        return not self.problem

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def inspect_op(
    c: Compiled,
    arch: str = "sm_90",
    dtypes: tuple[str, ...] = DTYPES,
    widths: tuple[int, ...] = WIDTHS,
    module: object = None,
) -> Iterator[InspectRow]:
    """A row for every kernel that a call of the op launches, as it is compiled. `module` is the generated one; by default it is
    built anew."""
    module = module or generated_module(c)
    for dtype in dtypes:
        for width in widths:
            yield from _rows_at(c, module, arch, dtype, width)


def _rows_at(c: Compiled, module: Any, arch: str, dtype: str, width: int) -> list[InspectRow]:
    """The rows of a dtype and a width; on a GPU of less shared memory than sm_90 has, as a call launches kernels there: with
    narrower tiles where the first ones don't fit."""
    rows: list[InspectRow] = []
    for level in range(NARROWEST + 1 if arch in SMALL else 1):
        with assuming_card(card_of(arch)), narrowed(level):
            found = launches_of(c, module, dtype, width, roles=arch == ROLES_ON)
            rows = [report_row(x, arch, dtype, width, _held(c, x)) for x in found]
        if all(row.shared_bytes <= shared_limit(arch) for row in rows):
            break
    return rows


def card_of(arch: str) -> Card:
    """The GPU that calls are inspected for."""
    number = int(arch.removeprefix("sm_"))
    return Card((number // 10, number % 10), shared_limit(arch))


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a program may use."""
    return SMALL[arch] * 1024 if arch in SMALL else SHARED_LIMIT


# --- what a call launches -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelLaunch:
    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]


def generated_module(c: Compiled) -> Any:
    """The Triton section of the op as a module; Triton reads a kernel's source from its file."""
    from ..recurrence.emit import emit

    return module_of(c.name, emit(c, tidy=False))


def module_of(name: str, text: str) -> Any:
    folder = removed_at_exit("chunkform_inspect_")
    path = folder / f"inspect_{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"chunkform_inspect_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def launches_of(
    c: Compiled, module: Any, dtype: str, width: int | Mapping[str, int], roles: bool = False
) -> list[KernelLaunch]:
    """The launches of a forward and a backward call, on tensors without data. Each kernel once.

    `width`: of all dims, or by dim. `roles`: kernels with roles as well, once for calls that record no gradient, and once for
    those that do, where these may launch them.
    """
    import torch

    p = c.step
    kind = getattr(torch, dtype)
    batch, steps, heads = 2, 8192, 4  # so long that a segment's tail is swept first
    found: dict[str, KernelLaunch] = {}

    def record(kernel: Any, grid: Any, args: Any, options: Any) -> None:
        key = " ".join([kernel.fn.__name__, *(str(options.get(n, "")) for n in (*SWITCHES, "READ", *OF_SCANS))])
        found.setdefault(key, KernelLaunch(kernel, args, options))

    def empty(lead: tuple[int, ...], axes: tuple[str, ...], wide: bool = False) -> Any:
        shape = (*lead, *(width if isinstance(width, int) else width[dim_of(a)] for a in axes))
        return torch.empty(shape, dtype=torch.float32 if wide else kind, device="meta")

    given, constants = {}, {}
    for v in p.variables:
        if v.kind == "constant":
            constants[v.name] = v.number
        else:
            given[v.name] = empty((batch, steps, heads) if v.per_step else (heads,), v.axes, v.kind != "input")
    states = {s.name: empty((batch, heads), s.axes, True) for s in p.states}
    cotangents = {n: empty((batch, steps, heads), axes) for n, axes in p.output_axes.items()}
    needs = frozenset([*given, *states])
    for scans in (
        (2, 1) if hasattr(module, SCANNED) else (2,)
    ):  # which are cut into segments, or go over whole sequences
        with replaced_launches(module, record, scans=scans):
            _, _, saved = module.triton_forward(given, states, constants)
            module.triton_backward(given, states, constants, saved, cotangents, dict(states), needs)
    backward = (cotangents, dict(states), needs)
    return [*found.values(), *(_with_roles(module, given, states, constants, backward) if roles else ())]


def _with_roles(module: Any, given: Any, states: Any, constants: Any, backward: Any) -> list[KernelLaunch]:
    """The kernels with roles of a forward call that records no gradient, and of one that does, with its backward pass; and of
    both where sequences are whole."""
    found: dict[Any, KernelLaunch] = {}
    calls = ((False, 2), (True, 2), (False, 1), (True, 1))
    for recording, segments in calls if any(map(is_gluon, vars(module).values())) else ():

        def record(kernel: Any, grid: Any, args: Any, options: Any, recording: bool = recording) -> None:
            if is_gluon(kernel):
                found.setdefault((kernel, recording), KernelLaunch(kernel, args, options))

        with replaced_launches(module, record, segments), assuming_roles(STAGES):
            _, _, saved = module.triton_forward(given, states, constants, needs_backward=recording)
            if recording:
                module.triton_backward(given, states, constants, saved, *backward)
    return list(found.values())


@contextmanager
def replaced_launches(module: Any, record: Any, segments: int = 2, scans: int = 1) -> Iterator[None]:
    """Where a kernel would be launched, `record` is called instead; a module's functions cut sequences into `segments`, those of
    scans into `scans`."""
    before = {n: getattr(module, n) for n in (SWEPT, SCANNED) if hasattr(module, n)}
    for n in before:
        setattr(module, n, lambda *_, n=n: segments if n == SWEPT else scans)
    try:
        with noting(record):
            yield
    finally:
        for n, x in before.items():
            setattr(module, n, x)


def _held(c: Compiled, launched: KernelLaunch) -> int:
    """Bytes of the states that one program of a sequential kernel keeps: those of chunk-parallel kernels are always tiles."""
    if c.forward is not None or c.strata or scanned(c):
        return 0
    blocks = [[launched.options[f"block_{dim_of(a)}"] for a in s.axes] for s in c.step.states]
    return sum(4 * math.prod(block) for block in blocks)


# --- compiling ------------------------------------------------------------------------------------------------------


def report_row(
    launched: KernelLaunch, arch: str, dtype: str, width: int, held: int, beside: bool = False
) -> InspectRow:
    """The row of a launch. `beside`: its products on tensor cores are to run beside each other, as where warps have roles, and
    waits that the assembler adds are a problem."""
    options = dict(launched.options)
    settings: dict[str, Any] = {n: options.pop(n, None) for n in SETTINGS}
    settings = {n: x for n, x in settings.items() if x is not None}
    words = [f"C={options['C']}"] if "C" in options else []
    words += [f"{n}={options[n]}" for n in SWITCHES if n in options]
    words += [f"{n}={options[n]}" for n in OF_SCANS if n in options and not options.keys().isdisjoint(OF_SCANS[:2])]
    words += [f"stages={options['STAGES']}"] if is_gluon(launched.kernel) and "STAGES" in options else []
    words += [f"{n.removeprefix('block_')}={x}" for n, x in options.items() if n.startswith(("block_", "tile_"))]
    config = " ".join(
        [*words, *(f"{n.removeprefix('num_')}={x}" for n, x in settings.items() if n != "enable_fp_fusion")]
    )
    name = launched.kernel.fn.__name__

    def counted() -> tuple[Resources, int, int, int, int]:
        """What the assembler says, shared memory, products, those on no tensor core, and instructions of tensor cores."""
        in_pairs_on(card_of(arch).capability)  # in this process alone
        compiled = compiled_kernel(launched, options, settings, arch)
        ptx = compiled.asm["ptx"]
        dots = re.findall(r"^.*(?:tt\.dot|warp_group_dot) .*$", compiled.asm["ttgir"], re.M)
        dots = [d for d in dots if not _as_float32(d)]
        slow = [d for d in dots if not re.search(r"->\s*tensor<[^>]*#mma", d)]
        instructions = len(re.findall(r"wgmma\.mma_async|\bmma\.sync", ptx))
        return resources_of(assembled(ptx, arch)), compiled.metadata.shared, len(dots), len(slow), instructions

    try:
        needed, shared, dots, slow, instructions = apart(counted)
    except Exception as error:  # whatever the compiler raises is a problem of this row
        return InspectRow(name, dtype, width, config, 0, 0, 0, 0, 0, f"does not compile for {arch}: {sentence(error)}")
    problems = []
    if slow or (dots and not instructions):
        problems.append(f"{slow} of {dots} products use no tensor core")
    several = "YIELD" in options and dtype != "float32" and arch == "sm_90" and not is_gluon(launched.kernel)
    programs = _programs(settings) if several else 1
    most = SHARED // programs - RESERVED if programs > 1 else shared_limit(arch)
    if shared > most:
        problems.append(f"{shared} bytes of shared memory, limit {most}")
    limit = SPILL_LIMIT[4 if dtype == "float32" else 2]
    if needed.spills > limit and held < REGISTERS:
        problems.append(f"{needed.spills} bytes spilled, bound {limit}")
    if (beside or is_gluon(launched.kernel)) and needed.waits:
        problems.append(f"the assembler adds waits between products: {', '.join(needed.waits)}")
    taken = needed.registers, needed.spills, shared, instructions, dots
    return InspectRow(name, dtype, width, config, *taken, "; ".join(problems))


def _as_float32(dot: str) -> bool:
    """Is a product asked for with all bits of float32, which no tensor core gives?"""
    return "inputPrecision" not in dot and re.search(r":\s*tensor<[^>,]*xf32,", dot) is not None


def sentence(error: Exception) -> str:
    """What a compiler complains of, in one line: the first that says error."""
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    said = next((x for x in lines if re.search(r"\berror\s*:", x)), lines[0] if lines else type(error).__name__)
    return re.sub(r"^.*?\berror\s*:\s*", "", said)[:160]


def apart(run: Callable[[], R], seconds: int = SECONDS) -> R:
    """run() in a process of its own, which may take so much of a processor's time, and which ctrl-C ends at once: a compiler
    hears of neither by itself."""
    pipe, end = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        quiet = os.open(os.devnull, os.O_WRONLY)  # a compiler that fails prints all that it was given
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            end.send((True, run()))
        except Exception as error:
            end.send((False, str(error)))

    with warnings.catch_warnings():  # a child that only compiles takes no lock that another thread may hold
        warnings.simplefilter("ignore", DeprecationWarning)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    end.close()
    try:
        fine, found = pipe.recv()
    except EOFError:
        process.join()
        ended = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        why = f"it takes more than {seconds} s" if ended else f"the compiler ended with {process.exitcode}"
        fine, found = False, why
    finally:
        process.kill()
        process.join()
        pipe.close()
    if not fine:
        raise CompilerError(found)
    return found


def _programs(settings: dict[str, Any]) -> int:
    """How many programs of a sweep a multiprocessor is to hold: of 8 warps together, or as many as have registers."""
    warps, most = settings["num_warps"], settings.get("maxnreg")
    return max(1, 8 // warps if most is None else REGISTERS // (4 * 32 * warps * most))


def compiled_kernel(launched: KernelLaunch, options: dict[str, Any], settings: dict[str, Any], arch: str) -> Any:
    """The kernel compiled for these arguments, as Triton's own launcher would specialise them."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if is_gluon(launched.kernel):
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    kernel = launched.kernel
    values = dict(zip(kernel.arg_names, launched.args, strict=False)) | options
    types = {
        torch.float32: "*fp32",
        torch.bfloat16: "*bf16",
        torch.float16: "*fp16",
        torch.int8: "*i8",
        torch.int32: "*i32",
        torch.int64: "*i64",
    }
    fixed = {p.name for p in kernel.params if p.is_constexpr}
    plain = {p.name for p in kernel.params if p.do_not_specialize}
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for n, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in fixed or value is None or (isinstance(value, int) and value == 1 and name not in plain):
            signature[name] = "constexpr"
            constants[n,] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = types[value.dtype]
            attributes[n,] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32"
            if value % 16 == 0 and name not in plain:
                attributes[n,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), options=settings)


def is_gluon(kernel: object) -> bool:
    """Is it a kernel in Gluon, as those are whose warps have roles?"""
    return bool(getattr(kernel, "is_gluon", bool)())


def assembled(ptx: str, arch: str) -> str:
    """What the assembler says of a kernel."""
    target = re.search(r"\.target (sm_\w+)", ptx)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [assembler(arch), "-v", f"--gpu-name={target[1] if target else arch}", str(path), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerError(done.stderr or f"the assembler ended with {done.returncode}")
        return done.stderr


@dataclass(frozen=True)
class Resources:
    """What a kernel takes. `waits`: the warnings that products on tensor cores are put in a row, such as C7512 and C7515, or that
    all are waited for early, C7517. C7519, an arrival more, costs nothing."""

    registers: int
    spills: int  # bytes of stores or loads, the larger
    waits: tuple[str, ...]


def resources_of(report: str) -> Resources:
    """This, as the assembler reports it."""
    registers = [int(x) for x in re.findall(r"Used (\d+) registers", report)]
    spills = [int(x) for x in re.findall(r"(\d+) bytes spill (?:stores|loads)", report)]
    waits = sorted(set(re.findall(r"\((C751[0-8])\)", report)))
    return Resources(max(registers, default=0), max(spills, default=0), tuple(waits))


def assembler(arch: str = "sm_90") -> str:
    """The ptxas that Triton brings for an architecture."""
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    new = int(arch.removeprefix("sm_")) >= 100
    for name in ("ptxas-blackwell", "ptxas") if new else ("ptxas", "ptxas-blackwell"):
        if (folder / name).exists():
            return str(folder / name)
    return "ptxas"
