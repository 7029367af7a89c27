"""The kernels of solves: their numbers in Triton's interpreter, and what they need on sm_90."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared.forked import script
from shared.program_specs import PROGRAMS

from chunkform.codegen.commands.program_kind import inspect_one
from chunkform.codegen.programs import cg_kernel
from chunkform.codegen.programs.emit import emit
from chunkform.codegen.programs.op_sources import kernel_ways, triton_texts
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.triton import section
from chunkform.spec.language import Program, cg, eye, sigmoid
from chunkform.spec.language.load import CATALOGUE, load

HERE = Path(__file__).parent


def test_numbers_in_the_interpreter():
    done = script(HERE / "interpret.py")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 7
    bounds = {
        case: 2e-3 if case.startswith("float16") else 2e-5 for case in found
    }  # in float16, what is left soon underflows
    wrong = {(case, n): e for case, errors in found.items() for n, e in errors.items() if not e < bounds[case]}
    assert not wrong


@pytest.mark.long
def test_the_kernels_of_solves_fit_a_hopper_gpu():
    """What spills is what is computed once, ahead of the loop over steps; see docs/programs.md."""
    (p,) = load(CATALOGUE / "mesa_net.py")
    rows = [r for r in inspect_one(compile_program(p), "sm_90", ("bfloat16",), (128,)) if "x_system_solves" in r.kernel]
    (row,) = rows
    assert row.ok, row.problem
    assert row.dots == 3 and row.tensor_core >= 3
    assert row.spill_bytes <= 800 and row.shared_bytes <= 80 * 1024


def test_solves_that_have_a_kernel_use_it():
    text = emit(compile_program(PROGRAMS["two solves"]()), tidy=False)
    start = text.index("def triton_forward")
    assert text.count("triton_x_system_solve(", start) == 4  # two solves, forward and backward
    assert "conjugate_gradients(" not in text[start:]


def test_what_a_solve_finds_goes_on_in_float32():
    (p,) = load(CATALOGUE / "mesa_net.py")
    text = emit(compile_program(p), tidy=False)
    start = text.index("def triton_forward")
    assert text.count('"x": x_fine}', start) == 2  # the read-out, forward and backward
    assert "rounded_and_rest(x, DT)" in text  # in two parts
    assert 'gradients["k"] = dk.to(' not in text[:start]  # its parts are added up before they are rounded
    (p,) = load(CATALOGUE / "mesa.py")
    text = emit(compile_program(p), tidy=False)
    assert "x_fine" not in text  # nothing reads it on


def test_nothing_is_computed_for_the_gradient_of_the_vector_that_a_matrix_multiplies():
    text = emit(compile_program(PROGRAMS["cg"]()), tidy=False)
    backward = text[text.index("def triton_x_system_backward") :]
    assert '"p" in needs' not in backward[: backward.index("\ndef ", 10)] and "dp" not in backward


def test_a_product_that_is_not_chunk_parallel_says_why():
    p = Program("forgetful_solve")
    d = p.dims("d")
    q, u = p.inputs("q u", d)
    H = p.state("H", d, d)
    p.update(H, sigmoid(u.T * H.prev * u) * H.prev + u * u.T)
    p.output("o", p.solve("x", H.next + eye(d), q, cg(40)))
    assert "isn't chunk-parallel" in kernel_ways(compile_program(p).graph).reasons["x_system"]


def test_a_product_whose_sweep_needs_a_prologue_says_so():
    c = compile_program(PROGRAMS["channel decay"]())
    assert "needs a prologue" in kernel_ways(c.graph).reasons["x_system"]


def test_why_kernels_go_another_way_is_known_before_anything_is_printed(monkeypatch):
    graphs = [compile_program(PROGRAMS[name]()).graph for name in ("cg", "channel decay")]
    printed = [triton_texts(g) for g in graphs]
    for name in ("kernel_definition", "launch_definition"):
        monkeypatch.setattr(cg_kernel, name, None)
        monkeypatch.setattr(section, name, None)
    for g, texts in zip(graphs, printed, strict=True):
        ways = kernel_ways(g)
        assert (ways.reasons, ways.fine) == (texts.reasons, texts.fine)
