"""Kernels of Triton launched one after the other through CUDA's driver, with a few words of memory written for all of them."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

try:
    from triton import knobs
except ImportError:  # then there is nothing to launch
    knobs = None

from .watch import Launch, Part, Unknown

CONFIG = struct.Struct(
    "@7IPPI0P"
)  # CUlaunchConfig: grid, block, bytes of shared memory, stream, attributes and their number
STREAM = 32  # where the stream is in it
SCALARS = dict(zip("i1 u1 i8 u8 i16 u16 i32 u32 i64 u64 fp32 fp64".split(), "bBbBhHiIqQfd", strict=True))
NO_CONTEXT = 201


def hooked() -> bool:
    """Does something, such as a profiler, ask Triton to tell it of launches?"""
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


@functools.cache
def _driver() -> Any:
    """The functions that are used here; None where the driver hasn't all of them."""
    if torch.version.cuda is None:
        return None
    try:
        found = ctypes.CDLL("libcuda.so.1")
        found.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
        found.cuFuncGetParamInfo.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        found.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return found


class Kernels:
    """Launches of compiled kernels, for other tensors in the slots of their `Part`s.

    Kernels take their parameters from one block of memory: an address for each tensor, then what stays the same.
    """

    def __init__(self, launches: Sequence[Launch], places: Mapping[int, tuple[int, int]], device: torch.device) -> None:
        """`places`: slots that lie in others, at so many bytes. Raises `Unknown` for a kernel that isn't as expected."""
        driver = _driver()
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
        self.slots = sorted({slot for slot, _ in addresses})
        self.begins: list[int] = []  # of the last time
        self.addresses = [(self.slots.index(slot), offset) for slot, offset in addresses]
        self.pack = struct.Struct(f"@{len(addresses)}Q").pack_into
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

    def __call__(self, slots: list[Any]) -> None:
        begins = [slots[n].data_ptr() for n in self.slots]
        if begins != self.begins:
            self.pack(self.memory, 0, *[begins[n] + offset for n, offset in self.addresses])
            self.begins = begins
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        if stream != self.stream:
            for at in self.configs:
                struct.pack_into("@P", self.memory, at, stream)
            self.stream = stream
        run = self.run
        for config, function, values in self.launches:
            code = run(config, function, values, None)
            if code:
                self._again(code, config, function, values)

    def _again(self, code: int, *launch: int) -> None:
        """After a launch that failed: once more where the thread knew no context yet."""
        if code == NO_CONTEXT:
            torch.cuda.mem_get_info(self.device)
            code = self.run(*launch, None)
        if code:
            text = ctypes.c_char_p()
            _driver().cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"a Triton kernel wasn't launched: {(text.value or b'').decode() or code}")


def parameters(x: Launch) -> list[tuple[str, Any]]:
    """What a compiled kernel takes, in order: (format, value), with a `Part` for a tensor."""
    m, found = x.compiled.metadata, []
    plain = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False, "global_scratch_size": 0}
    plain |= {"profile_scratch_size": 0}
    if any(getattr(m, n, value) != value for n, value in plain.items()):
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
    return [*found, ("@Q", 0), ("@Q", 0)]  # room for scratch memory, which isn't used


def check(function: int, sizes: list[int]) -> None:
    """Has a kernel parameters of these sizes, and then only addresses of scratch memory?"""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    found = []
    while len(found) < len(sizes) + 3:
        if _driver().cuFuncGetParamInfo(function, len(found), ctypes.byref(offset), ctypes.byref(size)):
            break
        found.append(size.value)
    if found[: len(sizes)] != sizes or found[len(sizes) :] not in ([], [8], [8, 8]):
        raise Unknown
