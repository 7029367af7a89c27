"""What the commands share that compare kernels whose warps have roles with those without, on a GPU of compute capability 9.0."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton

from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch import replay

RECORD = Path(__file__).parent.parent / "results" / "gpu" / "roles.json"
ALLOWED, ROUNDING = 1.15, 1e-4  # errors over those without roles, and what is nothing beside them
Row = dict[str, Any]
Rows = list[Row]


def command(
    name: str,
    doc: str | None,
    key: str,
    measured: Callable[[], tuple[Rows, Rows]],
    said: Callable[[Row], tuple[str, list[str]]],
) -> None:
    """Compare, time, and put what was found into the record under a key; ends with exit status 1 where something stands against
    the kernel. `measured`: errors and times; `said`: a table of what was found, and what stands against it."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORD, help="the JSON that what was found is put into")
    a = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit(f"{name} needs a GPU of compute capability 9.0")
    if not triton.__version__.startswith(warp_roles.TESTED):
        raise SystemExit(f"{name} needs Triton {' or '.join(warp_roles.TESTED)}, got {triton.__version__}")
    torch.cuda.init()
    errors, times = measured()
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    found = {"date": date.today().isoformat(), "about": about, "errors": errors, "times": times}
    table, problems = said(found)
    print(table)
    record = json.loads(a.out.read_text()) if a.out.exists() else {}
    a.out.write_text(json.dumps(record | {key: found}, indent=1) + "\n")
    print(*problems, sep="\n")
    raise SystemExit(bool(problems))


@contextmanager
def meanwhile(**values: Any) -> Iterator[None]:
    """What `warp_roles` has under these names is this meanwhile, and no launch is replayed."""
    before, on = {n: getattr(warp_roles, n) for n in values}, replay.ON
    replay.ON = False
    for n, x in values.items():
        setattr(warp_roles, n, x)
    try:
        yield
    finally:
        for n, x in before.items():
            setattr(warp_roles, n, x)
        replay.ON = on


def larger_errors(rows: Rows, words: tuple[str, ...]) -> Iterator[str]:
    """Those that are larger with roles, each behind the `words` of its row."""
    for row in rows:
        for what, x in row["with roles"].items():
            without = row["without"][what]
            if not x <= ALLOWED * without + ROUNDING:
                yield f"{' '.join(row[n] for n in words)}: {what} {x:.2e}, without roles {without:.2e}"
