"""Compiling the kernels of a pass side by side, ahead of its first run: Triton by itself compiles each when it is launched."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .launch import compiled_for
from .watch import watching

THREADS = min(8, os.cpu_count() or 1)

_seen: set[Any] = set()


def compile_first(owner: Any, tensors: Sequence[Tensor | None], run: Callable[[Any], Any]) -> None:
    """Compile what run(tensors) launches on a GPU, where no pass of this `owner` came here with tensors of these kinds."""
    device = next(x.device for x in tensors if x is not None)
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    kind = (owner, device, *(None if x is None else (x.dtype, x.shape[2:], x.data_ptr() & 15) for x in tensors))
    if kind in _seen:
        return
    _seen.add(kind)
    # what it computes means nothing, so that whatever it says of that doesn't either; the pass itself comes next
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile_ahead(lambda: run(tensors))


def compile_ahead(call: Callable[[], Any], threads: int = THREADS) -> int:
    """Run `call` with no kernel of ours launched, only compiled, so that what it computes means nothing. How many were compiled.

    A kernel that can't be compiled is left for its launch to complain of.
    """
    started: dict[Any, Future[None]] = {}
    device = torch.cuda.current_device()

    def compiled(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        with torch.cuda.device(device):
            kernel.warmup(*args, grid=grid, **options)

    def note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        key, done = compiled_for(kernel, args, options, device)
        if not done and key not in started:
            started[key] = pool.submit(compiled, kernel, grid, args, options)

    # so that a backward pass in it stays in this thread
    with ThreadPoolExecutor(threads) as pool, noting(note), torch.autograd.set_multithreading_enabled(False):
        call()
    return sum(made.exception() is None for made in started.values())


@contextlib.contextmanager
def noting(note: Callable[..., None]) -> Iterator[None]:
    """Have this thread call note(kernel, grid, arguments, options) instead of launching kernels."""
    before, watching.instead = watching.instead, note
    try:
        yield
    finally:
        watching.instead = before
