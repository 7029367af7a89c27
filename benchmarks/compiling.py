"""Compiling the kernels of some calls side by side, ahead of them: Triton by itself compiles one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


def compile_ahead(call: Callable[[], Any], threads: int) -> int:
    """Run `call` with no kernel of ours launched, only compiled; what it computes means nothing. How many were compiled."""
    import chunkform.runtime.launch as launching
    import chunkform.runtime.replay as replay

    original = launching.launch
    started: dict[Any, Future[Any]] = {}
    device = torch.cuda.current_device()

    def compiled(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        with torch.cuda.device(device):
            kernel.warmup(*args, grid=grid, **options)

    def note(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        kinds = tuple(x.dtype if isinstance(x, torch.Tensor) else type(x) for x in args)
        key = (kernel.__name__, kernel.__module__, kinds, *options.items())
        if 0 not in grid and key not in started:
            started[key] = pool.submit(compiled, kernel, grid, args, options)

    on, replay.ON = replay.ON, False
    with ThreadPoolExecutor(threads) as pool:
        _put(original, note)
        try:
            call()
        finally:
            _put(note, original)
            replay.ON = on
    for made in started.values():
        made.result()
    return len(started)


def _put(old: Any, new: Any) -> None:
    """Have all modules use `new` for `old`: those too that were imported meanwhile."""
    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is old:
            module.launch = new  # type: ignore[attr-defined]
