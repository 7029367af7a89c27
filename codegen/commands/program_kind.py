"""What the commands do for a program; `kinds.py` describes these functions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from chunkform.runtime.launch.files import removed_at_exit
from chunkform.spec.language.program import Program

from ..checking.checked import DTYPES, Checked, Op
from ..programs.compiled import CompiledProgram
from ..programs.emit import emit, spec_hash, stub
from ..programs.explain import derivation, explanation, show, svg
from ..programs.latex import latex_document
from ..programs.pipeline import compile_program as compile_spec

if TYPE_CHECKING:
    from ..performance.compile_report import InspectRow
    from ..programs.situations import ProgramSubject
    from ..recurrence.check import Row

__all__ = [
    "check_one",
    "compile_spec",
    "conditions_of",
    "declared_hash",
    "derivation",
    "emit",
    "explanation",
    "inspect_one",
    "latex_document",
    "show",
    "spec_hash",
    "stub",
    "subject",
    "svg",
]


def declared_hash(p: Program) -> None:
    """None: what a program says is known once its equations are parted among ops, each of which is compiled."""


def check_one(p: Program, c: CompiledProgram, op: Op, seeds: int, steps: int, width: int, device: str) -> list[Checked]:
    """The largest errors of a program's op, the residuals of its solves, and what its iterations need."""
    return _worst(p, c, op, seeds, steps, width, device, lambda r: True)


def _worst(
    p: Program,
    c: CompiledProgram,
    op: Op,
    seeds: int,
    steps: int,
    width: int,
    device: str,
    wanted: Callable[[Row], bool],
) -> list[Checked]:
    from ..programs.check import check_program
    from ..recurrence.samples import Case

    found: list[Checked] = []
    for dtype in DTYPES[device]:
        worst: dict[str, Checked] = {}
        for seed in range(seeds):
            case = Case(steps=steps, width=width, dtype=dtype, device=device, seed=seed)
            for r in filter(wanted, check_program(c, op, case)):
                kind = str(dtype).removeprefix("torch.")
                made = Checked(p.name, r.quantity, kind, device, r.error, r.bound, r.allowed, r.ok)
                if r.quantity not in worst or made.badness > worst[r.quantity].badness:
                    worst[r.quantity] = made
        found += worst.values()
    return found


def subject(p: Program, c: CompiledProgram, op: Op, device: str) -> ProgramSubject:
    from ..programs.situations import ProgramSubject

    return ProgramSubject(p, c, op, device)


def conditions_of(p: Program, c: CompiledProgram, op: Op, device: str) -> list[Checked]:
    """The residuals of a program's solves, and what its iterations need."""
    return _worst(p, c, op, 1, 40, 32, device, lambda r: bool(r.solve))


def inspect_one(c: CompiledProgram, arch: str, dtypes: Iterable[str], widths: Iterable[int]) -> Iterator[InspectRow]:
    """A row for every kernel that a call of the program launches."""
    from ..performance.compile_report import launches_of, report_row

    module = generated_module(c)
    for dtype in dtypes:
        for width in widths:
            for x in launches_of(c, module, dtype, width):  # type: ignore[arg-type]
                yield report_row(x, arch, dtype, width, 0)


def generated_module(c: CompiledProgram) -> ModuleType:
    """The generated file as a module; Triton reads a kernel's source from its file."""
    folder = removed_at_exit("chunkform_program_")
    path = folder / f"program_{c.name}.py"
    path.write_text(emit(c, tidy=False), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"chunkform_program_{c.name}_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module
