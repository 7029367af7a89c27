"""Kernels of Triton launched one after the other through CUDA's driver, with a few words of memory written for all of them.

Several are one graph of the driver's, which launches them in the time of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

try:
    from triton import knobs
except ImportError:  # then there is nothing to launch
    knobs = None

from .recorder import Launch, Part, Unknown

CONFIG = struct.Struct(
    "@7IPPI0P"
)  # CUlaunchConfig: grid, block, bytes of shared memory, stream, attributes and their number
STREAM = 32  # where the stream is in it
NODE = struct.Struct(
    "@P7I4P"
)  # CUDA_KERNEL_NODE_PARAMS: function, grid, block, bytes of shared memory, parameters, and three that aren't used
SCALARS = dict(zip("i1 u1 i8 u8 i16 u16 i32 u32 i64 u64 fp32 fp64".split(), "bBbBhHiIqQfd", strict=True))
NO_CONTEXT = 201
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def hooked() -> bool:
    """Does something, such as a profiler, ask Triton to tell it of launches?"""
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


@functools.cache
def libcuda() -> Any:
    """The functions that are used here; None where the driver hasn't all of them."""
    if torch.version.cuda is None:
        return None
    try:
        found = ctypes.CDLL("libcuda.so.1")
        found.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
        found.cuFuncGetParamInfo.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        found.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.c_void_p]
        address = ctypes.c_void_p
        found.cuGraphCreate.argtypes = [address, ctypes.c_uint]
        found.cuGraphAddKernelNode_v2.argtypes = [address, address, address, ctypes.c_size_t, address]
        found.cuGraphInstantiateWithFlags.argtypes = [address, address, ctypes.c_ulonglong]
        found.cuGraphExecKernelNodeSetParams_v2.argtypes = [address] * 3
        found.cuGraphLaunch.argtypes = [address] * 2
        found.cuGraphExecDestroy.argtypes = found.cuGraphDestroy.argtypes = [address]
        found.cuThreadExchangeStreamCaptureMode.argtypes = [address]
    except (OSError, AttributeError):
        return None
    return found


class Addresses:
    """Where tensors begin: numbers at the start of the memory that kernels read; `begins` are those of the last time."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        """`places`: slots, at so many bytes."""
        self.slots = sorted({slot for slot, _ in places})
        self.begins: list[int] = []
        self.offsets = [(self.slots.index(slot), offset) for slot, offset in places]
        self.pack = struct.Struct(f"@{len(places)}Q").pack_into


class Kernels:
    """Launches of compiled kernels, for other tensors in the slots of their `Part`s.

    Kernels take their parameters from one block of memory: an address for each tensor, then what stays the same.
    """

    def __init__(self, launches: Sequence[Launch], places: Mapping[int, tuple[int, int]], device: torch.device) -> None:
        """`places`: slots that lie in others, at so many bytes. Raises `Unknown` for a kernel that isn't as expected."""
        driver = libcuda()
        if driver is None:
            raise Unknown
        self.run, self.device = driver.cuLaunchKernelEx, device.index
        self.compiled = [x.compiled for x in launches]  # which keep the kernels loaded
        addresses: dict[tuple[int, int], int] = {}
        numbers: list[tuple[str, Any]] = []
        wanted: list[list[tuple[str, int]]] = []
        for x in launches:
            wanted.append([])
            for kind, value in parameters(x):
                if isinstance(value, Part):
                    slot, base = places.get(value.slot, (value.slot, 0))
                    wanted[-1].append(("address", addresses.setdefault((slot, base + value.offset), len(addresses))))
                else:
                    wanted[-1].append(("number", len(numbers)))
                    numbers.append((kind, value))
        self.addresses = Addresses([*addresses])
        size = 8 * (len(addresses) + len(numbers) + sum(len(x) for x in wanted)) + CONFIG.size * len(launches)
        self.memory = ctypes.create_string_buffer(size)
        begin = ctypes.addressof(self.memory)
        at = {("address", n): 8 * n for n in range(len(addresses))}
        for n, (kind, value) in enumerate(numbers):
            at["number", n] = 8 * (len(addresses) + n)
            struct.pack_into(kind, self.memory, at["number", n], value)
        end = 8 * (len(addresses) + len(numbers))
        self.stream, self.configs = 0, []
        self.launches = []
        for x, names in zip(launches, wanted, strict=True):
            struct.pack_into(f"@{len(names)}P", self.memory, end, *(begin + at[n] for n in names))
            config = end + 8 * len(names)
            m = x.compiled.metadata
            grid = (*x.grid, 1, 1)[:3]
            CONFIG.pack_into(self.memory, config, *grid, 32 * m.num_warps, 1, 1, m.shared, 0, 0, 0)
            self.configs.append(config + STREAM)
            self.launches.append((begin + config, x.compiled.function, begin + end))
            end = config + CONFIG.size
        self.graph: Graph | None = None
        self.home: int | None = None  # the stream that the graph is launched on

    def __call__(self, slots: list[Tensor]) -> None:
        own = self.addresses
        begins = [slots[n].data_ptr() for n in own.slots]
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        if begins != own.begins:
            own.pack(self.memory, 0, *[begins[n] + offset for n, offset in own.offsets])
            own.begins = begins
            if self.graph is not None:
                self.graph.changed = True
        if stream == self.home and not _captured(stream):
            self.graph.launch(stream)  # type: ignore[union-attr]
            return
        if stream != self.stream:
            for at in self.configs:
                struct.pack_into("@P", self.memory, at, stream)
            self.stream = stream
        run = self.run
        for launch in self.launches:
            code = run(*launch, None)
            if code:
                attempt(code, self.device, run, *launch, None)
        if self.home is None and len(self.launches) > 1 and not _captured(stream):
            with _beside_captures():
                self.graph = graph_of(self.launches, self.memory, self.device)
            self.home = -1 if self.graph is None else stream


def _captured(stream: int) -> bool:
    """Is a stream, the current one, being captured? The default stream never is."""
    return stream != 0 and torch._C._cuda_isCurrentStreamCapturing()


def attempt(code: int, device: int, function: Any, *values: Any) -> None:
    """After a call that failed with a code: once more where the thread knew no context yet."""
    if code == NO_CONTEXT:
        torch.cuda.mem_get_info(device)
        code = function(*values)
    if code:
        text = ctypes.c_char_p()
        libcuda().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"a Triton kernel wasn't launched: {(text.value or b'').decode() or code}")


class Graph:
    """Launches as one graph, whose launches follow each other whatever their streams. `nodes` read their parameters when set."""

    def __init__(self, executable: int, nodes: list[tuple[int, int]], memory: object, device: int) -> None:
        driver = libcuda()
        self.executable, self.nodes, self.memory, self.device = executable, nodes, memory, device
        self.set, self.run = driver.cuGraphExecKernelNodeSetParams_v2, driver.cuGraphLaunch
        self.changed = False  # have the parameters, since they were set?

    def launch(self, stream: int) -> None:
        executable = self.executable
        if self.changed:
            for node, values in self.nodes:
                code = self.set(executable, node, values)
                if code:
                    attempt(code, self.device, self.set, executable, node, values)
            self.changed = False
        code = self.run(executable, stream)
        if code:
            attempt(code, self.device, self.run, executable, stream)


def graph_of(launches: Sequence[tuple[int, int, int]], memory: object, device: int) -> Graph | None:
    """A graph of launches, whose values lie in `memory` as for `Kernels`; None where the driver makes none."""
    driver, graph, executable = libcuda(), ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuGraphCreate(ctypes.byref(graph), 0):
        return None
    values = ctypes.create_string_buffer(NODE.size * len(launches))
    handles = (ctypes.c_void_p * len(launches))()
    at = ctypes.addressof(handles)
    nodes = []
    for n, (config, function, parameters) in enumerate(launches):
        *sizes, _, _, _ = CONFIG.unpack(ctypes.string_at(config, CONFIG.size))
        NODE.pack_into(values, NODE.size * n, function, *sizes, parameters, 0, 0, 0)
        own = ctypes.addressof(values) + NODE.size * n
        before = (at + 8 * (n - 1), 1) if n else (None, 0)
        if driver.cuGraphAddKernelNode_v2(at + 8 * n, graph, *before, own):
            driver.cuGraphDestroy(graph)
            return None
        nodes.append((handles[n] or 0, own))
    if driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0):
        driver.cuGraphDestroy(graph)
        return None
    found = Graph(executable.value or 0, nodes, (memory, values), device)
    weakref.finalize(found, _destroy, executable, graph).atexit = False
    return found


def _destroy(executable: object, graph: object) -> None:
    with _beside_captures():
        libcuda().cuGraphExecDestroy(executable)
        libcuda().cuGraphDestroy(graph)


@contextlib.contextmanager
def _beside_captures() -> Iterator[None]:
    """What takes or frees memory would end what another thread captures otherwise."""
    mode = ctypes.c_int(RELAXED)
    libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # which gives the mode that there was
    try:
        yield
    finally:
        libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def parameters(x: Launch) -> list[tuple[str, Any]]:
    """What a compiled kernel takes, in order: (format, value), with a `Part` for a tensor."""
    m = x.compiled.metadata
    found: list[tuple[str, Any]] = []
    plain = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False, "profile_scratch_size": 0}
    if any(getattr(m, n, value) != value for n, value in plain.items()):
        raise Unknown
    if len(x.scratch) != (getattr(m, "global_scratch_size", 0) > 0):
        raise Unknown
    values = dict(zip(x.kernel.arg_names, x.args, strict=False)) | x.options
    for name, kind in x.compiled.src.signature.items():
        value = values[name]
        if kind == "constexpr":
            continue
        if isinstance(value, Part) and kind.startswith("*"):
            found.append(("@Q", value))
        elif kind in SCALARS and isinstance(value, int | float):
            found.append((f"@{SCALARS[kind]}", value))
        else:
            raise Unknown
    check(x.compiled.function, [struct.calcsize(kind) for kind, _ in found])
    return [*found, ("@Q", x.scratch[0] if x.scratch else 0), ("@Q", 0)]  # room for scratch memory, of the two kinds


def check(function: int, sizes: list[int]) -> None:
    """Has a kernel parameters of these sizes, and then only addresses of scratch memory?"""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    found: list[int] = []
    while len(found) < len(sizes) + 3:
        if libcuda().cuFuncGetParamInfo(function, len(found), ctypes.byref(offset), ctypes.byref(size)):
            break
        found.append(size.value)
    if found[: len(sizes)] != sizes or found[len(sizes) :] not in ([], [8], [8, 8]):
        raise Unknown
