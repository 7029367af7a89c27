"""`chunkform explain --passes` and `--after`, and CHUNKFORM_DUMP: each pass's result can be looked at, in order."""

import importlib
import json

import pytest
from typer.testing import CliRunner

from chunkform.codegen.attention import pipeline as of_attentions
from chunkform.codegen.commands.cli import app
from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.printing.code_passes import CODE_PASSES
from chunkform.codegen.printing.passes import recorded
from chunkform.codegen.programs import pipeline as of_programs
from chunkform.codegen.recurrence import pipeline as of_recurrences
from chunkform.codegen.recurrence.triton import PLAN_PASSES
from chunkform.errors import BuildError, GateError
from chunkform.spec.language import Recurrence, find, tanh

PRINTED = (*PLAN_PASSES, *CODE_PASSES)  # what is told when a recurrence, or a program of them, is printed
KINDS = {"gated_delta_rule": of_recurrences, "softmax_attention": of_attentions, "mesa_net": of_programs}


def explain(*words: str):
    return CliRunner().invoke(app, ["explain", *words])


def compiled(declaration):
    return kind_of(declaration).compile_spec(declaration)


def decayed_sum(nonlinear: bool = False, twice: bool = False) -> Recurrence:
    r = Recurrence("decayed_sum")
    d, e = r.dims("d e")
    q, k, v, lam = *r.inputs("q k", d), r.inputs("v", e), r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * (tanh(S.prev) if nonlinear else S.prev) + k * v.T)
    r.output("o", S.next.T * q)
    if twice:
        r.output("z", S.next.T * k)
    return r


def two_corrections() -> Recurrence:
    r = Recurrence("two_corrections")
    d, e = r.dims("d e")
    q, k, m = r.inputs("q k m", d)
    v, w = r.inputs("v w", e)
    S = r.state("S", d, e)
    once = r.let("once", S.prev + k * (v - S.prev.T * k).T)
    r.update(S, once + m * (w - once.T * m).T)
    r.output("o", S.next.T * q)
    return r


@pytest.mark.parametrize("name", KINDS)
def test_the_list_of_a_kind_is_what_is_run_and_shown(name):
    result = explain(name, "--passes", "--json", "-")
    data = json.loads(result.stdout)
    both = [*KINDS[name].PASSES, *(CODE_PASSES if KINDS[name] is of_attentions else PRINTED)]
    assert [p["name"] for p in data["passes"] if "/" not in p["name"]] == [p.name for p in both]
    assert all(p["seconds"] >= 0 and p["refused"] is None for p in data["passes"])
    c = compiled(find(name)[0])
    assert [g["name"] for p in data["passes"] if "/" not in p["name"] for g in p["gates"]] == [g.name for g in c.gates]


@pytest.mark.parametrize("name", KINDS)
def test_files_hold_what_explain_prints(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_DUMP", str(tmp_path))
    compiled(find(name)[0])
    monkeypatch.delenv("CHUNKFORM_DUMP")
    files = sorted(tmp_path.rglob("*.txt"))
    with recorded(texts=True) as records:
        compiled(find(name)[0])
    shown = {"/".join((*r.place, f"{r.number:02}_{r.name}.txt")): r.text for r in records}
    found = {f.relative_to(tmp_path).as_posix(): f.read_text().split("\n\n", 1)[1] for f in files}
    assert found == shown and all(found.values())
    last = KINDS[name].PASSES[-1]
    assert explain(name, "--after", last.name).stdout == shown[f"{name}/{len(KINDS[name].PASSES):02}_{last.name}.txt"]


def test_a_program_has_the_passes_of_its_operations():
    text = explain("mesa_net", "--after", "o/normalize").stdout
    assert text.startswith("form: normal form") and "reads:" in text


def test_what_a_pass_made_can_be_read():
    text = explain("gated_delta_rule", "--after", "normalize").stdout
    assert "decay = alpha_t" in text and "left = beta_t k_t   over d" in text
    assert explain("gated_delta_rule", "--after", "stabilize").stdout == "stabilized: as after lower\n"


def test_code_is_printed_as_a_pass_over_it_leaves_it():
    """Kernels over chunks, kernels of the recurrent form, kernels of attentions, and those of a program's operations."""
    text = explain("linear_attention", "--after", "in_slices").stdout
    assert "def forward_sweep_1(" in text and "def backward_whole(" in text and "def step_kernel(" in text
    logistic = code_of("gradient_descent_logistic")
    assert (
        "def sequential_forward_kernel(" in logistic["guarded"] != logistic["prefetched"]
        and logistic["freed"].isascii()
    )
    pairs = code_of("softmax_attention")
    assert "def rows_kernel(" in pairs["in_slices"] and "def triton_forward(" in pairs["freed"]
    program = code_of("mesa_net")
    assert "# x_system\n" in program["prefetched"] and "def solves(" in program["prefetched"]
    assert "def triton_solve(" in program["wanted"] and "# o\n" in program["wanted"]


def code_of(name: str) -> dict[str, str]:
    """What each pass over code makes of an op of the catalogue."""
    c = compiled(find(name)[0])
    with recorded(texts=True) as records:
        kind_of(find(name)[0]).emit(c, tidy=False)
    return {x.name: x.text for x in records}


def test_plans_of_kernels_are_shown_pass_by_pass():
    texts = code_of("gated_delta_rule")
    plans = [texts[p.name] for p in PLAN_PASSES]
    assert all(x.startswith("plan:") and "sweep" in x for x in plans) and len(set(plans)) == 3  # two of them change it
    assert "backward_sweep_1" in texts["in_slices"]


def test_a_pass_after_the_plan_is_a_file_of_its_own():
    for p in CODE_PASSES:
        assert p.run.__module__.rpartition(".")[2] == p.name


def test_files_hold_what_passes_over_code_make(tmp_path, monkeypatch):
    r, spec = decayed_sum(), kind_of(decayed_sum())
    c = spec.compile_spec(r)
    monkeypatch.setenv("CHUNKFORM_DUMP", str(tmp_path))
    spec.emit(c, tidy=False)
    monkeypatch.delenv("CHUNKFORM_DUMP")
    files = [f.name[3:-4] for f in sorted((tmp_path / "decayed_sum").glob("*.txt"))]
    assert files == [p.name for p in PRINTED]
    with recorded(texts=True) as records:
        spec.emit(c, tidy=False)
    texts = [f.read_text().split("\n\n", 1)[1] for f in sorted((tmp_path / "decayed_sum").glob("*.txt"))]
    assert texts == [x.text for x in records] and all("def " in x for x in texts[len(PLAN_PASSES) :])


def test_names_made_of_hashes_are_numbered_alike_in_all_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_DUMP", str(tmp_path))
    compiled(find("gated_delta_rule")[0])
    form, plan = ((tmp_path / "gated_delta_rule" / f).read_text() for f in ("05_normalize.txt", "07_plan.txt"))
    (write,) = [line.strip() for line in form.splitlines() if "leaf = x" in line]
    assert write in plan


def test_where_a_pass_refuses_its_file_says_why_and_other_forms_are_sought(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_DUMP", str(tmp_path))
    compiled(decayed_sum())  # whose later files aren't left behind
    with recorded() as records:
        assert compiled(decayed_sum(nonlinear=True)).family == "sequential"
    before, others = ["lower", "stabilize", "decays", "adjoint", "normalize"], {"scans", "strata", "stratum", "frame"}
    assert [r.name for r in records][:5] == before and {r.name for r in records[5:]} <= others
    assert "NotAffine: " in (tmp_path / "decayed_sum" / "05_normalize.txt").read_text()
    assert not list((tmp_path / "decayed_sum").glob("*plan*"))


def test_a_pass_that_was_not_run_is_refused_with_the_reason(tmp_path):
    result = explain("gradient_descent_logistic", "--after", "plan")
    assert result.exit_code == 2
    assert "normalize, scans" in result.stderr and "got 'plan'" in result.stderr
    assert "normalize, which refused: " in result.stderr
    assert "did you mean plan?" in explain("retention", "--after", "plann").stderr


@pytest.mark.parametrize("words", [("--after", "plan", "--passes"), ("--passes", "--latex")])
def test_options_that_print_something_else_are_refused(words):
    result = explain("retention", *words)
    assert result.exit_code == 2 and "and nothing else, got" in result.stderr


def test_substeps_have_passes_of_their_own():
    with recorded(texts=True) as records:
        compiled(two_corrections())
    paths = [r.path for r in records]
    assert "substep/normalize" in paths and paths.index("substep") < paths.index("substep/normalize")
    assert next(r for r in records if r.path == "substep").text == "substep: compiled by passes of its own\n"


def test_what_a_gate_refuses_is_shown_and_trials_are_not(tmp_path, monkeypatch):
    """The smaller specs that are tried after an error don't take the place of what the spec's own passes made."""
    fault = importlib.import_module("chunkform.codegen.recurrence.compiler_fault")
    monkeypatch.setattr(fault, "SECONDS", 0.5)
    monkeypatch.setenv("CHUNKFORM_DUMP", str(tmp_path))

    def refuse(*_):
        raise GateError("changed the meaning")

    monkeypatch.setattr(of_recurrences, "gate_adjoint", refuse)
    with recorded() as records, pytest.raises(GateError):
        compiled(decayed_sum(twice=True))
    assert [x.name for x in records] == ["lower", "stabilize", "decays", "adjoint"]
    assert "dlog_lam = " in (text := (tmp_path / "decayed_sum" / "04_adjoint.txt").read_text()) and "dz" in text


def test_printing_code_tells_passes_over_code_alone():
    """Printers run the others again, with names in letters of their own."""
    c = compiled(decayed_sum())
    with recorded() as records:
        kind_of(c.spec).emit(c, tidy=False)
    assert [x.name for x in records] == [p.name for p in PRINTED]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("CHUNKFORM_DUMP", str(file))
    with pytest.raises(BuildError, match="file"):
        compiled(decayed_sum())
