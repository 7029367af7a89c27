"""The command line, as a user drives it: on the catalogue, on a spec file in a folder of theirs, and on broken specs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chunkform.codegen.checking import accuracy
from chunkform.codegen.commands.cli import app, declarations
from chunkform.codegen.commands.listing import names
from chunkform.codegen.performance.compile_report import InspectRow
from chunkform.codegen.recurrence import check as check_module

SPEC = '''"""A decayed sum."""

from chunkform.spec.language import Recurrence, tanh

r = Recurrence("mine")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
t, S, do, dq, dk, dS = r.quantities("t S do dq dk dS")
r.claim("dq", dq(t), S(t) * do(t))
r.claim("dk", dk(t), S(t) * do(t))
'''


def run(*words: object):
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def spec(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text(SPEC)
    return file


@pytest.fixture
def not_affine(spec) -> Path:
    spec.write_text(SPEC.split("t, S")[0].replace("k * v.T", "k * (v - tanh(S.prev.T * k)).T"))
    return spec


# --- new --------------------------------------------------------------------------------------------------------------


def test_new_writes_a_spec_that_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("new", "fresh").exit_code == 0
    assert run("explain", "fresh.py").exit_code == 0
    result = run("verify", "fresh.py", "--json", "verdicts.json")
    assert result.exit_code == 0, result.output
    assert [v["verdict"] for v in json.loads(Path("verdicts.json").read_text())] == ["holds"]


def test_new_does_not_overwrite(spec):
    before = spec.read_text()
    result = run("new", spec)
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert spec.read_text() == before


@pytest.mark.parametrize("name", ["not-a-name", "1st", "folder/two words"])
def test_new_wants_an_identifier(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("new", name)
    assert result.exit_code == 2 and "identifier" in result.stderr
    assert not list(tmp_path.iterdir())


def test_new_says_when_the_folder_is_missing(tmp_path):
    result = run("new", tmp_path / "nowhere" / "mine")
    assert result.exit_code == 2 and "can't write" in result.stderr


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_shows_the_derivation(spec):
    result = run("explain", spec)
    assert result.exit_code == 0, result.output
    for formula in ("dS_t = lam_{t+1} dS_{t+1} + q_t do_t^T", "dq_t = S_t do_t", "chunk-parallel"):
        assert formula in result.output


def test_explain_json_holds_what_is_promised(spec):
    result = run("explain", spec, "--json", "-")
    data = json.loads(result.stdout)
    assert data["name"] == "mine" and data["family"] == "chunk-parallel" and data["reason"] is None
    assert data["decay_shape"] == {"S": "scalar"}
    assert [r["read"] for r in data["reads"]] == ["S_t^T q_t"]
    assert [(w["left"], w["right"]) for w in data["writes"]] == [("k_t", "v_t")]
    for name in ("forward", "backward"):
        part = data[name]
        assert part["launches"] >= 1
        assert part["bytes_per_token"] > 0 and part["flops_per_token"] > 0
        assert part["sweeps"] and all({"outputs", "direction", "stored"} <= set(s) for s in part["sweeps"])
    assert [s["direction"] for s in data["forward"]["sweeps"]] == ["forwards"]
    assert "backwards" in [s["direction"] for s in data["backward"]["sweeps"]]


def test_explain_json_is_documented():
    documented = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    data = json.loads(run("explain", "gated_delta_rule", "--json", "-").stdout)
    fields = [*data, *data["forward"], *data["forward"]["sweeps"][0], *data["writes"][0], *data["reads"][0]]
    missing = [f for f in fields if f"`{f}`" not in documented]
    assert not missing


def test_explain_names_the_term_and_the_line_that_prevent_the_chunk_form(not_affine):
    result = run("explain", not_affine)
    assert result.exit_code == 0, result.output
    assert "sequential" in result.output and "tanh(S_{t-1}^T k_t)" in result.output
    assert "mine.py:11" in result.output and "r.update(S, lam * S.prev" in result.output
    data = json.loads(run("explain", not_affine, "--json", "-").stdout)
    assert data["family"] == "sequential" and "tanh" in data["reason"]
    assert data["reason_where"]["line"] == 11 and data["reason_where"]["file"] == str(not_affine)


def test_explain_prints_latex(spec):
    result = run("explain", spec, "--latex")
    assert r"\cfformula{\cfd \cfq_{t} = \cfS_{t} \cfd \cfo_{t},}" in result.stdout
    assert result.stdout.count("{") == result.stdout.count("}")


def test_costs_grow_with_width(spec):
    small, large = (
        json.loads(run("explain", spec, "--json", "-", "--width", w).stdout)["forward"]["flops_per_token"]
        for w in (32, 128)
    )
    assert large > 4 * small


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_the_false_claim(spec, tmp_path):
    report, page = tmp_path / "v.json", tmp_path / "v.html"
    result = run("verify", spec, "--json", report, "--html", page)
    assert result.exit_code == 1, result.output
    found = {v["id"]: v for v in json.loads(report.read_text())}
    assert found["dq"]["verdict"] == "holds"
    assert found["dk"]["verdict"] == "fails" and found["dk"]["counterexample"] is not None
    assert "<html" in page.read_text()


def test_verify_can_print_json_alone(spec):
    result = run("verify", spec, "--json", "-", "--verdict", "fails")
    assert [v["id"] for v in json.loads(result.stdout)] == ["dk"]
    assert run("verify", spec, "--verdict", "holds").exit_code == 0


def test_verify_of_a_spec_without_claims_says_so(not_affine):
    result = run("verify", not_affine)
    assert result.exit_code == 2 and "no claims" in result.stderr


def test_verify_knows_three_verdicts(spec):
    assert run("verify", spec, "--verdict", "maybe").exit_code == 2


# --- build ------------------------------------------------------------------------------------------------------------


def test_build_writes_and_checks(spec, tmp_path):
    out = tmp_path / "ops"
    assert run("build", spec, "--out", out, "--check").exit_code == 1  # missing
    made = run("build", spec, "--out", out)
    assert made.exit_code == 0 and "next: from mine import mine" in made.output
    text = (out / "mine.py").read_text()
    assert re.search(r"def mine\(\s*q: torch.Tensor,\s*k: torch.Tensor,\s*v: torch.Tensor,\s*log_lam:", text)
    assert run("build", spec, "--out", out, "--check").exit_code == 0
    (out / "mine.py").write_text(text + "\n# changed\n")
    assert f"Generated by `chunkform build mine.py --out {out}`" in text
    stale = run("build", spec, "--out", out, "--check")
    assert stale.exit_code == 1 and "stale" in stale.output


def test_build_keeps_files_that_it_did_not_write(spec):
    result = run("build", spec, "--out", spec.parent)  # where mine.py, the spec itself, lies
    assert result.exit_code == 2 and "wasn't generated" in result.stderr
    assert spec.read_text() == SPEC


def test_without_names_a_command_takes_all_that_list_shows():
    assert sorted(r.name for r in declarations(None)) == sorted(names())


def test_build_asks_where_to(spec):
    result = run("build", spec)
    assert result.exit_code == 2 and "--out" in result.stderr


# --- check, inspect ---------------------------------------------------------------------------------------------------


def test_check_passes_on_a_spec_file(spec, tmp_path):
    report = tmp_path / "c.json"
    result = run("check", spec, "--seeds", 1, "--steps", 70, "--width", 8, "--device", "cpu", "--json", report)
    assert result.exit_code == 0, result.output
    rows = json.loads(report.read_text())
    assert {"o", "final S", "dq", "dk", "dv", "dlog_lam", "d initial S"} <= {r["quantity"] for r in rows}
    assert all(r["ok"] and r["error"] <= r["bound"] for r in rows)


def test_check_fails_above_the_bound(spec, monkeypatch):
    import torch

    monkeypatch.setitem(check_module.BOUND, torch.float32, 1e-12)
    monkeypatch.setattr(accuracy, "AMPLIFIED", 0.0)
    result = run("check", spec, "--seeds", 1, "--steps", 20, "--width", 8, "--device", "cpu")
    assert result.exit_code == 1 and "too large" in result.output


def test_check_calls_an_op_in_each_pair_of_ways(spec, tmp_path):
    report = tmp_path / "c.json"
    result = run("check", spec, "--device", "cpu", "--json", report)
    assert result.exit_code == 0, result.output
    rows = json.loads(report.read_text())
    assert {r["dtype"] for r in rows} == {"float32", "float64", "bfloat16", "float16"}
    assert all(r["ok"] and r["cause"] == "" and r["call"]["T"] >= 0 for r in rows)


def test_check_says_what_failing_calls_have_in_common(spec, monkeypatch):
    import torch

    monkeypatch.setitem(check_module.BOUND, torch.float16, 1e-9)
    monkeypatch.setattr(accuracy, "AMPLIFIED", 0.0)
    result = run("check", spec, "--device", "cpu")
    assert result.exit_code == 1 and "mine fails wherever dtype is float16" in result.output
    assert f"again('{spec}', 'mine', {{'dtype': 'float16'}})" in result.output.replace("\n", "")


def test_a_check_says_that_it_was_stopped(spec):
    result = run("check", spec, "--device", "cpu", "--seconds", "0.001")
    assert result.exit_code == 0 and "mine: stopped after 1 of" in result.output


def test_check_knows_its_devices(spec):
    assert run("check", spec, "--device", "abacus").exit_code == 2


def test_inspect_fails_when_a_kernel_is_over_a_limit(monkeypatch, tmp_path):
    from chunkform.codegen.performance import compile_report as inspect_module

    good = InspectRow("sweep", "bfloat16", 64, "C=64", 128, 0, 1024, 8, 2, "")
    bad = InspectRow("sweep", "bfloat16", 128, "C=64", 255, 4096, 1024, 8, 2, "4096 bytes spilled, bound 512")
    monkeypatch.setattr(inspect_module, "inspect_op", lambda c, arch, dtypes, widths: [good])
    assert run("inspect", "linear_attention").exit_code == 0
    monkeypatch.setattr(inspect_module, "inspect_op", lambda c, arch, dtypes, widths: [good, bad])
    report = tmp_path / "i.json"
    result = run("inspect", "linear_attention", "--json", report)
    assert result.exit_code == 1 and "4096 bytes spilled" in result.output
    rows = json.loads(report.read_text())
    assert [r["ok"] for r in rows] == [True, False] and rows[0]["name"] == "linear_attention"


def test_inspect_tells_what_it_knows_when_it_is_stopped(monkeypatch, tmp_path):
    from chunkform.codegen.performance import compile_report as inspect_module

    def rows(c, arch, dtypes, widths):
        yield InspectRow("sweep", "bfloat16", 64, "C=64", 128, 0, 1024, 8, 2, "")
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_module, "inspect_op", rows)
    report = tmp_path / "i.json"
    result = run("inspect", "linear_attention", "--json", report)
    assert result.exit_code == 130 and "stopped after 1 kernel" in result.output
    assert [r["kernel"] for r in json.loads(report.read_text())] == ["sweep"]


@pytest.mark.parametrize("words", [("--arch", "h200"), ("--arch", "sm_1"), ("--arch", "sm_95"), ("--dtype", "int4")])
def test_inspect_knows_its_options(words):
    assert run("inspect", "linear_attention", *words).exit_code == 2


# --- bad input --------------------------------------------------------------------------------------------------------

BROKEN = {
    "dims": ("k * v.T", "v * k.T", "k * v.T"),
    "unknown name": ("k * v.T", "kk * v.T", "NameError"),
    "not causal": ("lam * S.prev", "lam * S.next", "S.next"),
    "never updated": ("r.update(S, lam * S.prev + k * v.T)\n", "", "never updated"),
    "used twice": ('r.inputs("v", e)', 'r.inputs("q", e)', "twice"),
    "no derivative": ("k * v.T", "sympy.gamma(lam) * k * v.T", "gamma"),
    "not Python": ("r.update(", "r.update((", "SyntaxError"),
}


@pytest.mark.parametrize("command", ["explain", "verify", "build", "check", "inspect"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_spec_gets_one_clear_error(command, fault, spec, tmp_path):
    old, new, _ = BROKEN[fault]
    text = SPEC.split("t, S")[0] if command != "verify" else SPEC
    spec.write_text("import sympy\n" + text.replace(old, new))
    options = ["--out", tmp_path / "ops"] if command == "build" else []
    result = run(command, spec, *options)
    if command == "verify" and fault == "no derivative":
        pytest.skip("claims are judged by running the spec, which needs no derivative of its own")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and "Traceback" not in result.output
    assert "mine.py" in result.stderr


def test_an_error_shows_the_line_of_the_spec(spec):
    spec.write_text(SPEC.replace("k * v.T", "v * k.T"))
    result = run("explain", spec)
    assert "mine.py:11" in result.stderr and "r.update(S, lam * S.prev + v * k.T)" in result.stderr


@pytest.mark.parametrize("name", ["no_such_spec", "no/such/file.py"])
def test_an_unknown_spec_is_named(name):
    result = run("explain", name)
    assert result.exit_code == 2 and name in result.stderr


def test_json_to_a_missing_folder_is_an_error(spec, tmp_path):
    for words in (("explain", spec, "--json"), ("verify", spec, "--json"), ("verify", spec, "--html")):
        for where in (tmp_path / "nowhere" / "x", tmp_path):
            result = run(*words, where)
            assert result.exit_code == 2 and "can't write" in result.stderr


def test_the_program_is_installed():
    done = subprocess.run(
        [sys.executable, "-m", "chunkform.codegen.commands.cli", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    for command in ("new", "verify", "explain", "build", "check", "inspect"):
        assert command in done.stdout
