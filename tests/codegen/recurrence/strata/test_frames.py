"""States in a frame that moves with them: which are, their numbers, what a wrong frame is told, and angles over many steps."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from shared.forked import script
from shared.spec_files import SPECS as FOLDER
from shared.spec_files import read

import chunkform
from chunkform.codegen.ir.expr import mul
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.gates.frame_gate import gate_frame
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import GateError

HERE = Path(__file__).parent
SPECS = {r.name: r for r in (*read(FOLDER / "frames.py"), *read(FOLDER / "entries.py"))}
FRAMED = [r.name for r in read(FOLDER / "frames.py")] + ["gateloop", "mamba3_complex", "gla_signed"]
FEW = ("turned_delta_rule", "turned_heads", "gateloop", "signed_values", "gates_to_zero", "signed_before")
INTERPRETED = ("gateloop", "gla_signed")
OTHERS = {r.name for r in read(FOLDER / "entries.py")}


@cache
def compiled(name: str) -> Compiled:
    return compile_spec(SPECS[name])


@cache
def op(name: str) -> Any:
    return chunkform.compile(SPECS[name])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in FRAMED])
def test_units_are_scanned_and_then_there_is_a_form_over_chunks(name: str) -> None:
    c = compiled(name)
    assert c.frame is not None and {g.name for g in c.gates} >= {"frame", "strata"}
    assert (
        set(c.strata[0].compiled.step.updates) == {*c.frame.hidden} and c.strata[1].compiled.family == "chunk-parallel"
    )
    assert [triton_section(p.compiled).stepwise for p in c.strata] == [None, None]


def test_an_angle_for_every_entry_has_no_frame() -> None:
    """In which reads and writes would be of one rank."""
    c = compiled("turned_entries")
    assert c.frame is None and c.family == "segment-parallel"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in FRAMED])
def test_numbers_are_those_of_the_plain_loop(name: str) -> None:
    f64 = torch.float64
    cases = [Case(batch=1, steps=130, width=8, dtype=f64), Case(steps=1, width=8, dtype=f64, initial=False)]
    cases += [Case(steps=100, width=8, dtype=f64, packed="several"), Case(steps=0, width=8, dtype=f64)]
    for case in cases:
        worst = max(check_op(compiled(name), op(name), case), key=lambda r: r.error)
        assert worst.error < 1e-13, worst
    for dtype in (torch.float32, torch.bfloat16):
        bad = [r for r in check_op(compiled(name), op(name), Case(batch=1, steps=70, width=8, dtype=dtype)) if not r.ok]
        assert not bad, bad


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in INTERPRETED else pytest.mark.long) for n in FRAMED])
def test_kernels_have_the_numbers_of_the_plain_loop(name: str, tmp_path: Path) -> None:
    """In Triton's interpreter, whole and packed."""
    file = FOLDER / ("entries.py" if name in OTHERS else "frames.py")
    done = script(HERE / "frames_interpreted.py", str(file), name)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout)
    assert errors and {n: x for n, x in errors.items() if not x < 2e-6} == {}


def test_a_wrong_frame_is_refused() -> None:
    c = compiled("gateloop")
    assert c.frame is not None
    gate_frame(c.step, c.frame)
    (angle,), step = c.frame.hidden, c.frame.step
    slower = dataclasses.replace(step, updates=step.updates | {angle: mul(2, step.updates[angle])})
    unturned = {n: step.state(n).leaf for n in c.frame.moved}
    for wrong in ({"step": slower}, {"ends": unturned}):
        with pytest.raises(GateError, match="`frame`"):
            gate_frame(c.step, dataclasses.replace(c.frame, **wrong))


def test_angles_keep_their_digits_over_many_steps() -> None:
    """What was written first and has turned ever since, and the last state. Sums in float32 would be off by 1e-2."""
    steps, f = 2 * 10**5, op("mamba3_complex")
    g = torch.Generator().manual_seed(0)
    B1, B2, C1, C2, th, x = (torch.randn(1, steps, 1, 2, generator=g) for _ in range(6))
    B1[:, 9:], B2[:, 9:] = 0.0, 0.0
    given = (B1, B2, C1, C2, 1 + th.abs(), x, torch.zeros(1, steps, 1))
    found, ends = f(*given, output_final_state=True)
    expected, last = f(*(y.double() for y in given), output_final_state=True)
    for y, z in ((found, expected), *zip(ends, last, strict=True)):
        assert float((y - z).abs().max() / z.abs().max()) < 1e-6


def test_steps_go_on_from_the_last_state() -> None:
    torch.manual_seed(0)
    f = op("gateloop")
    q, k, th = torch.randn(3, 1, 40, 2, 4)
    v, log_a = torch.randn(1, 40, 2, 3), -torch.rand(1, 40, 2, 4)
    whole, last = f(q, k, v, th, log_a, output_final_state=True)
    _, state = f(*(x[:, :39] for x in (q, k, v, th, log_a)), output_final_state=True)
    o, state = f.step(state, *(x[:, 39] for x in (q, k, v, th, log_a)))
    torch.testing.assert_close(o, whole[:, 39], rtol=1e-4, atol=1e-5)
    for x, y in zip(state, last, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
