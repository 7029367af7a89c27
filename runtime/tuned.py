"""Configurations of kernels that were measured on a GPU, with numbers that were right there: see `chunkform tune`.

A table is a JSON file of one GPU model: the versions that it holds for, and for each op's kernels, by their hash, the fastest
configuration of each shape class. Tables of one's own lie in the cache folder; others come with chunkform. What is in neither has
the default, which compiles on any CUDA GPU.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

Choices = dict[str, dict[str, dict[str, int | None]]]  # by the kernels' hash, and by shape class: fields of a Config
SHIPPED = Path(__file__).parent / "tables"
SHARED = ("kernels.py", "pieces.py", "rounding.py")  # functions that generated kernels share


def cache_folder() -> Path:
    """$CHUNKFORM_CACHE, or chunkform/ in the user's cache directory."""
    chosen = os.environ.get("CHUNKFORM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chunkform"


@functools.cache
def about(gpu: str) -> dict[str, str]:
    """What a table of a GPU model holds for: a compiler's faults come and go with its version, and kernels share functions."""
    import triton

    shared = b"".join((Path(__file__).parent / name).read_bytes() for name in SHARED)
    key = hashlib.sha256(shared).hexdigest()[:16]
    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "shared": key}


def shape_class(dtype: torch.dtype, largest: int) -> str:
    """The dtype, and the largest dim, padded; never T."""
    return f"{str(dtype).removeprefix('torch.')}-{largest}"


def path_of(gpu: str) -> Path:
    """One's own table of a GPU model, for these versions."""
    known = about(gpu)
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
    return cache_folder() / "tables" / f"{re.sub(r'[^a-z0-9]+', '_', gpu.lower())}_{key}.json"


def lookup(kernels: str, dtype: torch.dtype, largest: int, device: int) -> dict[str, int | None] | None:
    """Fields of the configuration that was measured for an op's kernels on this device, if any."""
    return _choices(torch.cuda.get_device_name(device)).get(kernels, {}).get(shape_class(dtype, largest))


@functools.cache
def _choices(gpu: str) -> Choices:
    """One's own choices before those that come with chunkform, which hold for any torch with the same Triton."""
    known = about(gpu)
    found: Choices = {}
    tables = [(path, {n: x for n, x in known.items() if n != "torch"}) for path in sorted(SHIPPED.glob("*.json"))]
    for path, wanted in [*tables, (path_of(gpu), known)]:
        table = read(path)
        if all(table["about"].get(n) == x for n, x in wanted.items()):
            for kernels, classes in table["choices"].items():
                found[kernels] = found.get(kernels, {}) | classes
    return found


def read(path: Path) -> dict[str, Any]:
    """A table; an empty one where there is none. One that can't be read is left alone, with a warning."""
    empty: dict[str, Any] = {"about": {}, "choices": {}}
    try:
        table = json.loads(path.read_text())
        fields = [x for classes in table["choices"].values() for found in classes.values() for x in found.values()]
        if not isinstance(table["about"], dict) or not all(x is None or (type(x) is int and x > 0) for x in fields):
            raise ValueError("not a table of configurations")
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        warnings.warn(f"chunkform: {path} isn't used, as it can't be read: {error}", stacklevel=2)
        return empty
    return table


def write(gpu: str, choices: Choices, path: Path | None = None) -> Path:
    """Add choices to a table, one's own where no path is given, and use it from now on. Several processes may do so at once."""
    path = path_of(gpu) if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        table = read(path)
        kept: Choices = table["choices"] if table["about"] == about(gpu) else {}
        for kernels, classes in choices.items():
            kept[kernels] = kept.get(kernels, {}) | classes
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(json.dumps({"about": about(gpu), "choices": kept}, indent=1, sort_keys=True) + "\n")
        os.replace(file.name, path)
    _choices.cache_clear()
    return path
