"""Configurations of kernels that were measured on a GPU, with numbers that were right there: see `chunkform tune`.

A table is a JSON file of one GPU model: the versions that it holds for; for each op's kernels, by their hash, the fastest
configuration of each shape class; and which functions of the runtime these kernels call, with the hash of those, so that a
choice holds as long as neither has changed (`fingerprint.py`). Tables of one's own lie in the cache folder; others come with
chunkform. What is in neither has the default, which compiles on any CUDA GPU.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from .files import cache_folder, folder_made, write_whole
from .fingerprint import functions_key

Choices = dict[str, dict[str, dict[str, int | None]]]  # by the kernels' hash, and by shape class: fields of a Config
SHIPPED = Path(__file__).parent / "tables"


@functools.cache
def about(gpu: str) -> dict[str, str]:
    """What a table of a GPU model holds for: a compiler's faults come and go with its version."""
    import triton

    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__}


def functions_of(calls: Iterable[str]) -> dict[str, Any]:
    """Functions of the runtime that kernels call, as a table has them."""
    calls = sorted(calls)
    return {"calls": calls, "key": functions_key(calls)}


def holds(functions: dict[str, Any] | None) -> bool:
    """Are these functions what they were when a table was made?"""
    return functions is not None and functions["key"] == functions_key(functions["calls"])


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
    return _classes(torch.cuda.get_device_name(device), kernels).get(shape_class(dtype, largest))


@functools.cache
def _classes(gpu: str, kernels: str) -> dict[str, dict[str, int | None]]:
    """What was measured of kernels: one's own choices before those that come with chunkform."""
    found: dict[str, dict[str, int | None]] = {}
    for table in _tables(gpu):
        if kernels in table["choices"] and holds(table["functions"].get(kernels)):
            found |= table["choices"][kernels]
    return found


@functools.cache
def _tables(gpu: str) -> list[dict[str, Any]]:
    """The tables that hold here, one's own last; those that come with chunkform hold for any torch with the same Triton."""
    known = about(gpu)
    shipped = {n: x for n, x in known.items() if n != "torch"}
    tables = [*((read(path), shipped) for path in sorted(SHIPPED.glob("*.json"))), (read(path_of(gpu)), known)]
    return [t for t, wanted in tables if all(t["about"].get(n) == x for n, x in wanted.items())]


def forget() -> None:
    """Read tables anew when they are next asked for."""
    _tables.cache_clear()
    _classes.cache_clear()


def read(path: Path) -> dict[str, Any]:
    """A table; an empty one where there is none. One that can't be read is left alone, with a warning."""
    empty: dict[str, Any] = {"about": {}, "choices": {}, "functions": {}}
    try:
        table = json.loads(path.read_text())
        fields = [x for classes in table["choices"].values() for found in classes.values() for x in found.values()]
        if not isinstance(table["about"], dict) or not all(x is None or (type(x) is int and x > 0) for x in fields):
            raise ValueError("not a table of configurations")
        for x in table.setdefault("functions", {}).values():
            if not isinstance(x["key"], str) or not all(isinstance(n, str) for n in x["calls"]):
                raise ValueError("not the functions that kernels call")
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        warnings.warn(f"chunkform: {path} isn't used, as it can't be read: {error}", stacklevel=2)
        return empty
    return table


def write(
    gpu: str, choices: Choices, path: Path | None = None, calls: Mapping[str, Iterable[str]] | None = None
) -> Path:
    """Add choices to a table, one's own where no path is given, and use it from now on. Several processes may do so at once.
    calls: the functions of the runtime that each op's kernels call."""
    path = path_of(gpu) if path is None else path
    folder_made(path.parent)
    with FileLock(path.with_suffix(".lock")):
        table = read(path)
        same = table["about"] == about(gpu)
        kept: Choices = table["choices"] if same else {}
        functions: dict[str, Any] = table["functions"] if same else {}
        for kernels, classes in choices.items():
            own = functions_of((calls or {}).get(kernels, ()))
            kept[kernels] = (kept.get(kernels, {}) if functions.get(kernels) == own else {}) | classes
            functions[kernels] = own
        save(path, {"about": about(gpu), "choices": kept, "functions": functions})
    forget()
    return path


def save(path: Path, table: Mapping[str, object]) -> None:
    """Put a table in the place of what is there, at once."""
    write_whole(path, json.dumps(table, indent=1, sort_keys=True) + "\n")
