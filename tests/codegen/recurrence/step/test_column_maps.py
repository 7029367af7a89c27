"""Steps that put each column of their states through one matrix run over segments of the sequence, and no others do."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from shared.forked import script
from shared.spec_files import read

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.explain import reason_text
from chunkform.codegen.recurrence.gates.column_gate import gate_columns
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.step.column_maps import ColumnMaps, column_maps
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, diag, dot, hadamard, ones, tanh

FILE = Path(__file__).parent / "specs" / "column_maps.py"
SPECS = {r.name: r for r in read(FILE)}
COLUMNS = {
    "signed_corrected": {"S": (1, 2)},
    "momentum_corrected": {"M": (1, 2), "W": (1, 2)},
    "several_corrected": {"S": (0, 2)},
    "rotated_corrected": {"A": (1, 2), "B": (0, 2)},
    "vector_memory": {"h": (None, 1)},
    "each_other": {"a": (None, 1), "b": (None, 1), "c": (None, 0)},
    "corrected_from_a_start": {"S": (1, 2)},
}
FRAMED = ("signed_corrected", "corrected_from_a_start")  # which have a form over chunks in a frame, and maps beside it
STEPS = {"vector_memory": 400, "each_other": 700}  # where a map takes a run for each entry of a vector


@pytest.mark.parametrize("name", SPECS)
def test_segments_of_the_sequence_are_joined_by_matrices(name: str) -> None:
    c, op = compile_spec(SPECS[name]), chunkform.compile(SPECS[name])
    assert c.family == ("strata" if name in FRAMED else "segment-parallel")
    assert any(g.name == "columns" for g in c.gates)
    assert isinstance(c.entries, ColumnMaps) and c.entries.columns == COLUMNS[name]
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        rows = check_op(c, op, Case(batch=2, steps=STEPS.get(name, 70), width=4, dtype=dtype))
        assert {x.quantity: x.error for x in rows if not x.error < bound} == {}


@pytest.mark.parametrize(
    ("name", "results"), [("several_corrected", 14), pytest.param("each_other", 20, marks=pytest.mark.long)]
)
def test_kernels_run_over_segments_also_of_packed_sequences(name: str, results: int, tmp_path: Path) -> None:
    """In Triton's interpreter; a state that is transposed, so that its rows go through a matrix, and vectors and a number."""
    done = script(Path(__file__).parents[1] / "segments_interpreted.py", str(FILE), name, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout)
    assert len(errors) == results and {n: x for n, x in errors.items() if not x < 1e-5} == {}


def test_columns_that_have_numbers_of_their_own_are_no_such_maps() -> None:
    for strength in (False, True):
        r = Recurrence("own")
        d, e = r.dims("d e")
        k, b, S = r.inputs("k", d), r.inputs("b", e), r.state("S", d, e)
        read = S.prev.T * k
        r.update(S, S.prev - k * (hadamard(b, read) if strength else tanh(read)).T)
        r.output("o", S.next.T * k)
        assert column_maps(lower(r)) is None


def test_what_goes_step_by_step_though_it_is_affine_says_why_it_has_no_segments() -> None:
    r = Recurrence("entries_corrected")
    d, e = r.dims("d e")
    k, A = r.inputs("k", d), r.parameter("A", d, e)
    S = r.state("S", d, e)
    r.update(S, hadamard(tanh(A), S.prev) - k * (S.prev.T * k).T)
    r.output("o", S.next.T * k)
    c = compile_spec(r)
    shown = reason_text(c).plain
    assert c.family == "sequential" and "the decay runs over both axes" in shown
    assert "all go through the same matrix" in shown


def test_a_vector_is_one_column_and_a_matrix_is_not() -> None:
    r = Recurrence("whole")
    d = r.dims("d")
    k, h = r.inputs("k", d), r.state("h", d)
    r.update(h, h.prev - k * dot(k, h.prev))
    r.output("o", h.next)
    assert column_maps(lower(r)) == ColumnMaps({"h": (None, 1)}, (("h",),))
    r = Recurrence("both")
    d = r.dims("d")
    k, h, S = r.inputs("k", d), r.state("h", d), r.state("S", d, d)
    r.update(h, S.prev.T * k)
    r.update(S, hadamard(k * h.prev.T, S.prev) + k * h.prev.T)
    r.output("o", h.next)
    assert column_maps(lower(r)) is None


@pytest.mark.parametrize("steps", [40, 150])  # whole, and over segments
def test_a_start_that_is_made_of_parameters_has_their_gradients(steps: int) -> None:
    """Entry by entry; the columns of `corrected_from_a_start` are above."""
    r = Recurrence("entries_from_a_start")
    d, e = r.dims("d e")
    k, g = r.inputs("k g", d)
    v = r.inputs("v", e)
    c = r.parameter("c", d)
    S = r.state("S", d, e, initial=c * ones(e).T)
    r.update(S, hadamard(tanh(g * v.T), S.prev) + k * v.T)
    r.output("o", S.next.T * k)
    found, op = compile_spec(r), chunkform.compile(r)
    assert found.family == "segment-parallel"
    rows = check_op(found, op, Case(batch=1, steps=steps, width=3, dtype=torch.float64, initial=False))
    assert {x.quantity: x.error for x in rows if not x.error < 1e-13} == {}
    assert any(x.quantity == "dc" for x in rows)
    given = {n: torch.randn(1, steps, 2, 3, dtype=torch.float64) for n in "kgv"}
    ends, results = (0, steps // 3, steps // 3, steps), []
    for packed in (True, False):
        start = torch.ones(2, 3, dtype=torch.float64).requires_grad_()
        if packed:
            o = op(**given, c=start, cu_seqlens=torch.tensor(ends))[0]
        else:
            o = torch.cat([op(**{n: x[:, a:b] for n, x in given.items()}, c=start)[0] for a, b in pairwise(ends)], 1)
        o.square().sum().backward()
        results.append((o, start.grad))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


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
