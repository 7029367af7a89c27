"""Steps that put each column of their states through one matrix run over segments of the sequence, and no others do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from shared.forked import script

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.explain import reason_text
from chunkform.codegen.recurrence.gates.column_gate import gate_columns
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.step.column_maps import ColumnMaps, column_maps
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, diag, dot, hadamard, load, tanh

FILE = Path(__file__).parent / "specs" / "column_maps.py"
SPECS = {r.name: r for r in load(FILE)}
COLUMNS = {
    "signed_corrected": {"S": (1, 2)},
    "momentum_corrected": {"M": (1, 2), "W": (1, 2)},
    "several_corrected": {"S": (0, 2)},
    "rotated_corrected": {"A": (1, 2), "B": (0, 2)},
}


@pytest.mark.parametrize("name", SPECS)
def test_segments_of_the_sequence_are_joined_by_matrices(name: str) -> None:
    c, op = compile_spec(SPECS[name]), chunkform.compile(SPECS[name])
    assert c.family == "segment-parallel" and any(g.name == "columns" for g in c.gates)
    assert isinstance(c.entries, ColumnMaps) and c.entries.columns == COLUMNS[name]
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        rows = check_op(c, op, Case(batch=2, steps=70, width=4, dtype=dtype))
        assert {x.quantity: x.error for x in rows if not x.error < bound} == {}


def test_kernels_run_over_segments_also_of_packed_sequences(tmp_path: Path) -> None:
    """In Triton's interpreter; a state that is transposed, so that its rows go through a matrix."""
    done = script(Path(__file__).parents[1] / "segments_interpreted.py", str(FILE), "several_corrected", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 14 and {n: x for n, x in errors.items() if not x < 1e-5} == {}


def test_columns_that_have_numbers_of_their_own_are_no_such_maps() -> None:
    for strength in (False, True):
        r = Recurrence("own")
        d, e = r.dims("d e")
        k, b, S = r.inputs("k", d), r.inputs("b", e), r.state("S", d, e)
        read = S.prev.T * k
        r.update(S, S.prev - k * (hadamard(b, read) if strength else tanh(read)).T)
        r.output("o", S.next.T * k)
        assert column_maps(lower(r)) is None


@pytest.mark.parametrize(
    ("first", "why"), [(False, "all go through the same matrix"), (True, "sets a state's first value")]
)
def test_what_goes_step_by_step_though_it_is_affine_says_why_it_has_no_segments(first: bool, why: str) -> None:
    r = Recurrence("entries_corrected")
    d, e = r.dims("d e")
    k, A = r.inputs("k", d), r.parameter("A", d, e)
    S = r.state("S", d, e, initial=A) if first else r.state("S", d, e)
    r.update(S, hadamard(tanh(A), S.prev) - k * (S.prev.T * k).T)
    r.output("o", S.next.T * k)
    c = compile_spec(r)
    shown = reason_text(c).plain
    assert c.family == "sequential" and "the decay runs over both axes" in shown and why in shown


def test_a_state_without_columns_is_no_such_map() -> None:
    r = Recurrence("whole")
    d = r.dims("d")
    k, h = r.inputs("k", d), r.state("h", d)
    r.update(h, h.prev - k * dot(k, h.prev))
    r.output("o", h.next)
    assert column_maps(lower(r)) is None


def test_a_gate_refuses_columns_of_the_wrong_axis() -> None:
    r = Recurrence("square")
    d = r.dims("d")
    k, g, S = r.inputs("k", d), r.inputs("g", d), r.state("S", d, d)
    r.update(S, diag(g) * S.prev + k * (S.prev.T * k).T)
    r.output("o", S.next * k)
    step = lower(r)
    assert column_maps(step) == ColumnMaps({"S": (1, 2)}, (("S",),))
    with pytest.raises(GateError, match="columns"):
        gate_columns(step, ColumnMaps({"S": (0, 2)}, (("S",),)))
