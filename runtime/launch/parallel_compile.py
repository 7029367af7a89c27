"""Compiling the kernels of a pass side by side, before its first run: Triton by itself compiles each when it is launched."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .launch import compiled_for, prepare
from .recorder import KernelArgument, KernelOption, watching

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

THREADS = min(32, 2 * (os.cpu_count() or 1))

SEEN: set[Any] = set()
_under_way: dict[Any, Future[None]] = {}  # what is being compiled, for whoever needs it as well
_lock = threading.RLock()


def compile_first(
    owner: object,
    tensors: Sequence[Tensor | None],
    run: Callable[[Any], Any],
    then: Callable[[Any], Any] | None = None,
) -> None:
    """Compile what run(tensors) launches on a GPU, where no pass of this `owner` came here with tensors of these kinds.

    What then(its result) launches is compiled meanwhile, and isn't waited for.
    """
    device = next(x.device for x in tensors if x is not None)
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    kind = (owner, device, *(None if x is None else (x.dtype, x.shape[2:], x.data_ptr() & 15) for x in tensors))
    if kind in SEEN:
        return
    SEEN.add(kind)
    # what it computes means nothing, so that whatever it says of that doesn't either; the pass itself comes next
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile_ahead(lambda: run(tensors), then=then)


def compile_ahead(call: Callable[[], Any], threads: int = THREADS, then: Callable[[Any], Any] | None = None) -> int:
    """Run `call`, and `then` with its result, with no kernel of ours launched, only compiled, so that what they compute means
    nothing. How many were compiled for `call`, which are waited for.

    A kernel that can't be compiled is left for its launch to complain of.
    """
    wanted: dict[Any, Future[None]] = {}
    device = torch.cuda.current_device()
    prepare(device)

    def compiled(
        kernel: JITFunction, grid: tuple[int, ...], args: tuple[KernelArgument, ...], options: dict[str, KernelOption]
    ) -> None:
        with torch.cuda.device(device):
            made = kernel.warmup(*args, grid=grid, **options)
            getattr(made, "run", None)  # asked for it, Triton compiles what launches the kernel, in C, and loads both

    def note(
        kernel: JITFunction, grid: tuple[int, ...], args: tuple[KernelArgument, ...], options: dict[str, KernelOption]
    ) -> None:
        key, done = compiled_for(kernel, args, options, device)
        if done or key in wanted:
            return
        with _lock:
            made = _under_way.get(key)
            if made is None:
                made = _under_way[key] = pool.submit(compiled, kernel, grid, tuple(map(_without_data, args)), options)
                made.add_done_callback(lambda _: _under_way.pop(key, None))
        wanted[key] = made

    waited: Iterable[Future[None]] = wanted.values()
    pool = ThreadPoolExecutor(threads)
    try:
        # so that a backward pass in it stays in this thread
        with noting(note), torch.autograd.set_multithreading_enabled(False):
            result = call()
            waited = list(wanted.values())
            if then is not None:
                with contextlib.suppress(Exception):
                    then(result)
    finally:
        pool.shutdown(wait=False)
        made = sum(x.exception() is None for x in waited)
    return made


def _without_data(x: object) -> Any:
    """An argument that a kernel is compiled for as for this one, which holds no memory."""
    if isinstance(x, Tensor) and not x.data_ptr() & 15:
        return torch.empty(0, dtype=x.dtype, device="meta")
    return x


@contextlib.contextmanager
def noting(note: Callable[..., None]) -> Iterator[None]:
    """Have this thread call note(kernel, grid, arguments, options) instead of launching kernels."""
    before, watching.instead = watching.instead, note
    try:
        yield
    finally:
        watching.instead = before
