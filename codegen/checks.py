"""`chunkform check` and `chunkform inspect` over a list of recurrences, and their tables for the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from rich.markup import escape
from rich.table import Table

from chunkform.errors import BackendError
from chunkform.spec.language import Declaration, Recurrence

from .check import Case, check_op
from .compile import compile_module
from .kinds import kind_of
from .pipeline import compile_spec

if TYPE_CHECKING:
    from .inspect import InspectRow

DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}


@dataclass(frozen=True)
class Checked:
    """The worst relative error of one quantity of an op over the seeds, in one dtype.

    `allowed` is the bound, or more where the problem itself is ill-conditioned: then rounding its inputs alone changes the
    result by more than the bound. It is infinite where the definition overflows in this dtype.
    """

    name: str
    quantity: str
    dtype: str
    device: str
    error: float
    bound: float
    allowed: float
    ok: bool

    def json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return {n: None if isinstance(x, float) and not math.isfinite(x) else x for n, x in data.items()}

    @property
    def badness(self) -> tuple[bool, float]:
        ratio = self.error / self.allowed
        return not self.ok, math.inf if math.isnan(ratio) else ratio


def check_all(
    specs: Iterable[Declaration],
    seeds: int = 3,
    steps: int = 150,
    width: int = 32,
    device: str | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> list[Checked]:
    """The errors of each op, in the order of the specs. `device` is cuda where there is one."""
    has_cuda = torch.cuda.is_available()
    device = device or ("cuda" if has_cuda else "cpu")
    if device not in DTYPES:
        raise BackendError(f"the device is cpu or cuda, got {device!r}")
    if device == "cuda" and not has_cuda:
        raise BackendError("this machine has no CUDA device: check with --device cpu")
    found = []
    for r in specs:
        found += kind_of(r).check_one(r, seeds, steps, width, device)
        done(r.name)
    return found


def check_recurrence(r: Recurrence, seeds: int, steps: int, width: int, device: str) -> list[Checked]:
    """The largest errors of a recurrence's op."""
    c = compile_spec(r)
    op = getattr(compile_module(r), r.name)
    found: list[Checked] = []
    for dtype in DTYPES[device]:
        worst: dict[str, Checked] = {}
        for seed in range(seeds):
            case = Case(steps=steps, width=width, dtype=dtype, device=device, seed=seed)
            for row in check_op(c, op, case):
                kind = str(dtype).removeprefix("torch.")
                made = Checked(r.name, row.quantity, kind, device, row.error, row.bound, row.allowed, row.ok)
                if row.quantity not in worst or made.badness > worst[row.quantity].badness:
                    worst[row.quantity] = made
        found += worst.values()
    return found


def check_table(rows: Iterable[Checked]) -> Table:
    """One line for each op and dtype: its worst quantity, or every one that is above its bound."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("op", "dtype", "device", "worst error", "of", "allowed", ""):
        table.add_column(name, justify="right" if name in ("worst error", "allowed") else "left")
    groups: dict[tuple[str, str, str], list[Checked]] = {}
    for r in rows:
        groups.setdefault((r.name, r.dtype, r.device), []).append(r)
    for (name, dtype, device), group in groups.items():
        bad = [r for r in group if not r.ok]
        for r in bad or [max(group, key=lambda r: r.badness)]:
            mark = "[green]ok[/]" if r.ok else "[red]too large[/]"
            table.add_row(name, dtype, device, f"{r.error:.1e}", r.quantity, f"{r.allowed:.1e}", mark)
    return table


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspect_all(
    specs: Iterable[Declaration],
    arch: str,
    dtypes: Iterable[str] | None = None,
    widths: Iterable[int] | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> list[tuple[str, InspectRow]]:
    """(name of the op, one kernel in one configuration), for every kernel that a call of each op launches."""
    from . import inspect

    if not re.fullmatch(r"sm_\d+", arch):
        raise BackendError(f"the architecture is sm_80, sm_90, ..., got {arch!r}")
    chosen = tuple(dtypes or inspect.DTYPES)
    if unknown := set(chosen) - set(inspect.DTYPES):
        raise BackendError(f"the dtype is one of {', '.join(inspect.DTYPES)}, got {', '.join(sorted(unknown))}")
    rows = []
    for r in specs:
        kind = kind_of(r)
        found = kind.inspect_one(kind.compile_spec(r), arch, chosen, tuple(widths or inspect.WIDTHS))
        rows += [(r.name, row) for row in found]
        done(r.name)
    return rows


def inspect_table(rows: Iterable[tuple[str, InspectRow]]) -> Table:
    """One line for each kernel and configuration."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("op", "kernel", "dtype", "width", "configuration", "registers", "spills", "shared", "tensor core", ""):
        table.add_column(
            name, justify="right" if name in ("width", "registers", "spills", "shared", "tensor core") else "left"
        )
    for name, r in rows:
        table.add_row(
            name,
            r.kernel,
            r.dtype,
            str(r.width),
            r.config,
            str(r.registers),
            str(r.spill_bytes),
            str(r.shared_bytes),
            f"{r.tensor_core} for {r.dots} products",
            "[green]ok[/]" if r.ok else f"[red]{escape(r.problem)}[/]",
        )
    return table
