"""The peers' autotuning, made bearable: the same configurations, compiled side by side, and choices kept from earlier runs.

Peers that tune themselves compile each configuration of each kernel in turn, which takes fla one to three minutes an op. Nothing
here changes which configurations they may choose from.
"""

from __future__ import annotations

import math
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

SUFFIX = ".autotune.json"


def side_by_side(threads: int, warmup: int, repeat: int) -> None:
    """Let Triton's tuner compile its configurations in `threads` threads, and time each for `repeat` milliseconds."""
    import triton
    from triton.runtime.autotuner import Autotuner

    triton.knobs.autotuning.cache = True  # keep choices on disk
    original = Autotuner._bench

    def compile_ahead(tuner: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> None:
        with (
            ThreadPoolExecutor(threads) as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True),
        ):
            for config in tuner.prune_configs(meta):
                with suppress(Exception):  # the tuner meets it again, and knows what to do
                    tuner.fn.run(*args, **{**meta, **config.all_kwargs(), "warmup": True})

    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if getattr(tuner, "_ahead_for", None) is not tuner.nargs:  # the first configuration of this call
            tuner._ahead_for = tuner.nargs
            with suppress(Exception):
                compile_ahead(tuner, args, meta)
        return original(tuner, *args, config=config, **meta)

    def do_bench(call: Any, quantiles: Any) -> Any:
        return triton.testing.do_bench(call, warmup=warmup, rep=repeat, quantiles=quantiles)

    if threads > 1:
        Autotuner._bench = bench
    Autotuner.do_bench = property(lambda tuner: tuner._do_bench or do_bench)


def first_that_runs() -> None:
    """Let Triton's tuner take the first configuration that runs, without timing any: where only results are asked for.

    Choices go to no cache, so that nothing else takes them for tuned ones.
    """
    from triton.runtime.autotuner import Autotuner

    original = Autotuner._bench

    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if getattr(tuner, "_settled_for", None) is tuner.nargs:  # an earlier configuration of this call has run
            return [math.inf] * 3
        found = original(tuner, *args, config=config, **meta)
        if math.isfinite(found[0]):
            tuner._settled_for = tuner.nargs
        return found

    def once(call: Any, quantiles: Any) -> list[float]:
        call()
        return [0.0] * 3

    def uncached(tuner: Any, key: Any, configs: Any, benchmark: Any) -> bool:
        benchmark()
        return False

    Autotuner._bench, Autotuner.check_disk_cache = bench, uncached
    Autotuner.do_bench = property(lambda tuner: once)


def restore(archive: Path) -> int:
    """Put choices kept by `keep` into Triton's cache; their number. Triton uses only those made for this GPU and version."""
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.isfile() and m.name.endswith(SUFFIX)]
        tar.extractall(_cache(), members=members, filter="data")
    return len(members)


def keep(archive: Path) -> int:
    """Write every choice in Triton's cache into an archive; their number."""
    found = sorted(_cache().glob(f"*/*{SUFFIX}"))
    with tarfile.open(archive, "w:gz") as tar:
        for path in found:
            tar.add(path, path.relative_to(_cache()))
    return len(found)


def _cache() -> Path:
    import triton

    folder = Path(triton.knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
