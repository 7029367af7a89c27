"""Configurations that were measured: tables of them, and how `chunkform tune` chooses."""

import io
import json
import math
import os
from pathlib import Path

import pytest
import torch
from shared.forked import script
from typer.testing import CliRunner

from chunkform.codegen.commands import tune
from chunkform.codegen.commands.cli import app
from chunkform.codegen.commands.tune import Job, Tuned
from chunkform.errors import BackendError
from chunkform.runtime.launch import fingerprint, launch
from chunkform.runtime.launch import tuned_configs as tuned
from chunkform.spec.language import find

GPU = "NVIDIA H999"
HERE = Path(__file__).parent
TABLES = sorted(tuned.SHIPPED.glob("*.json"))


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """A cache folder, and a GPU as far as `choose` sees."""
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: GPU)
    monkeypatch.setattr(tune, "gpu_name", lambda: GPU)

    def forget():
        tuned.forget()
        launch.use_tables_anew()

    forget()
    yield forget
    forget()


def chosen(kernels="k", sizes=(128, 128), dtype=torch.bfloat16):
    return launch.choose(dtype, sizes, kernels)


def test_a_choice_holds_for_its_kernels_and_shape_class_alone(on_gpu):
    usual = chosen()
    other = launch.candidates(2, 128)[1]
    tuned.write(GPU, {"k": {"bfloat16-128": launch.fields_of(other)}})
    launch.use_tables_anew()
    assert chosen() == other
    assert chosen(sizes=(96, 40)) == chosen()  # of the same class
    assert chosen("other") == usual
    assert chosen("") == usual
    assert chosen(sizes=(64, 64)) == usual
    assert chosen(dtype=torch.float16) == usual  # whose numbers weren't compared
    assert chosen(dtype=torch.float32).itemsize == 4


def test_a_configuration_that_is_no_candidate_is_not_used(on_gpu):
    for fields in ({**launch.fields_of(chosen()), "chunk": 48}, {"chunk": 64}, {"unknown": 1}):
        tuned.write(GPU, {"k": {"bfloat16-128": fields}})
        launch.use_tables_anew()
        assert chosen() == launch.candidates(2, 128)[0]


def test_choices_are_added_to_a_table(on_gpu):
    path = tuned.write(GPU, {"k": {"bfloat16-128": {"chunk": 64}}})
    assert tuned.write(GPU, {"k": {"bfloat16-64": {"stages": 2}}, "m": {"float32-64": {"tile": 16}}}) == path
    assert json.loads(path.read_text())["choices"] == {
        "k": {"bfloat16-128": {"chunk": 64}, "bfloat16-64": {"stages": 2}},
        "m": {"float32-64": {"tile": 16}},
    }
    assert not list(path.parent.glob("*.part"))


def test_ones_own_table_comes_before_the_one_that_is_shipped(on_gpu, tmp_path):
    shipped = {**tuned.about(GPU), "torch": "another"}  # holds for any torch
    tuned.SHIPPED.mkdir()
    one, two, three = launch.candidates(2, 128)[1:4]
    choices = {"k": {"bfloat16-128": launch.fields_of(one), "bfloat16-64": launch.fields_of(two)}}
    functions = {"k": tuned.functions_of([])}
    (tuned.SHIPPED / "h999.json").write_text(json.dumps({"about": shipped, "choices": choices, "functions": functions}))
    on_gpu()
    assert (chosen(), chosen(sizes=(64, 64))) == (one, two)
    tuned.write(GPU, {"k": {"bfloat16-128": launch.fields_of(three)}})
    on_gpu()
    assert (chosen(), chosen(sizes=(64, 64))) == (three, two)


@pytest.mark.parametrize("key", ["gpu", "triton", "functions", None])
def test_a_table_of_another_gpu_triton_or_runtime_is_not_used(on_gpu, key):
    tuned.SHIPPED.mkdir()
    about, other = {**tuned.about(GPU)}, launch.candidates(2, 128)[1]
    functions = tuned.functions_of(["power", "inverse"])
    table = {"about": about, "choices": {"k": {"bfloat16-128": launch.fields_of(other)}}, "functions": {"k": functions}}
    if key == "functions":
        functions["key"] = "another"
    elif key:
        about[key] = "another"
    (tuned.SHIPPED / "x.json").write_text(json.dumps(table))
    on_gpu()
    assert chosen() == (launch.candidates(2, 128)[0] if key else other)


def test_a_function_that_changes_takes_the_choices_of_those_kernels_alone_that_call_it(on_gpu, monkeypatch):
    """And one that is gone; not one that no kernel calls, nor a comment."""
    other = launch.candidates(2, 128)[1]
    choices = {n: {"bfloat16-128": launch.fields_of(other)} for n in ("k", "m")}
    own = fingerprint.this_runtime()
    tuned.write(GPU, choices, calls={"k": ["cumulate_kernel"], "m": ["join_kernel"]})

    def held(old, new):
        text = {p: own.read(p).replace(old, new) for p in own.paths.values()}
        changed = fingerprint.Runtime(text.__getitem__, text)
        monkeypatch.setattr(fingerprint, "this_runtime", lambda: changed)
        on_gpu()
        return [n for n in ("k", "m") if chosen(n) == other]

    assert held("nothing", "nothing") == ["k", "m"]
    assert held("LEAST_LOG2 = tl.constexpr(-160.0)", "LEAST_LOG2 = tl.constexpr(-150.0)") == ["m"]
    assert held("def is_zero(live, COUNT: tl.constexpr):", "def is_zero(live, COUNT):") == [
        "k"
    ]  # which join_kernel calls
    assert held("def cumulate_kernel(", "def another_kernel(") == ["m"]
    assert held("def over_rows(x, y, T, DT: tl.constexpr):", "def over_rows(x, y, U, DT: tl.constexpr):") == ["k", "m"]
    assert held("    return found == 0", "    # all\n    return found == 0") == ["k", "m"]


def test_choices_that_no_longer_hold_make_room_for_new_ones(on_gpu):
    one, two = (launch.fields_of(x) for x in launch.candidates(2, 128)[1:3])
    path = tuned.write(GPU, {"k": {"bfloat16-128": one}}, calls={"k": ["power"]})
    tuned.write(GPU, {"k": {"bfloat16-64": two}}, calls={"k": ["power"]})
    assert set(tuned.read(path)["choices"]["k"]) == {"bfloat16-128", "bfloat16-64"}
    tuned.write(GPU, {"k": {"bfloat16-64": two}}, calls={"k": ["power", "inverse"]})
    assert set(tuned.read(path)["choices"]["k"]) == {"bfloat16-64"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"about": {}, "choices": {"k": {"bfloat16-128": {"chunk": "64"}}}}', '{"about": 1}']
)
def test_a_damaged_table_is_left_alone_with_a_warning(on_gpu, text):
    path = tuned.path_of(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match=r"isn't used, as it can't be read"):
        assert chosen() == launch.candidates(2, 128)[0]
    assert path.read_text() == text


def test_without_a_gpu_configurations_are_the_defaults():
    assert chosen() == launch.candidates(2, 128)[0]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("largest", [16, 64, 128, 256])
def test_candidates_are_few_and_differ(itemsize, largest):
    found = launch.candidates(itemsize, largest)
    assert 2 <= len(found) == len(set(found)) <= 6
    assert all(64 % x.chunk == 0 and x.itemsize == itemsize for x in found)


# --- choosing ----------------------------------------------------------------------------------------------------------


def rows(*found):
    """Rows of (milliseconds, error, problem), the default first."""
    jobs = tune.jobs_of(tune.compile_spec(find("lightning_attention")[0]), "bfloat16", 128, (1, 64, 1))
    return [
        Tuned(j, "k", {"case 1: o": error}, ms, problem) for j, (ms, error, problem) in zip(jobs, found, strict=False)
    ]


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([(1.0, 3e-3, ""), (0.9, 3e-3, ""), (0.8, 3e-3, "")], 2),
        ([(1.0, 3e-3, ""), (0.995, 3e-3, "")], 0),  # no faster than timing can tell
        ([(1.0, 3e-3, ""), (0.5, 5e-3, "")], 0),  # larger errors
        ([(1.0, 3e-3, ""), (0.5, math.nan, "")], 0),
        ([(1.0, 3e-3, ""), (0.5, 3e-3, "above its bound")], 0),
        ([(1.0, 1e-9, ""), (0.5, 9e-7, "")], 1),  # errors of nothing but noise
        ([(None, 3e-3, "does not compile"), (0.5, 3e-3, "")], 1),
        ([(None, 3e-3, "does not compile"), (None, 3e-3, "dies")], None),
    ],
)
def test_the_fastest_whose_numbers_are_right_is_chosen(found, best):
    got = tune.chosen_of(rows(*found))
    assert [n for n, r in enumerate(got) if r.chosen] == ([] if best is None else [best])


def test_an_error_that_is_no_number_is_null_in_json():
    (r,) = rows((1.0, math.nan, ""))
    assert math.isnan(r.error)
    assert json.loads(json.dumps(r.json(), allow_nan=False))["error"] is None


def test_a_problem_is_shown_as_it_is():
    from rich.console import Console

    console = Console(width=250, record=True, file=io.StringIO())
    console.print(tune.tuned_table(rows((None, 3e-3, "KeyError: [/red] tl.dot[0]"))))
    assert "KeyError: [/red] tl.dot[0]" in console.export_text()


def test_choices_are_written_where_later_calls_find_them(on_gpu, monkeypatch):
    made = rows((1.0, 3e-3, ""), (0.5, 3e-3, ""))
    monkeypatch.setattr(tune, "measure", lambda groups, done: [made])
    found, path = tune.tune_all(find("lightning_attention"), [128])
    assert [r.chosen for r in found] == [False, True]
    assert path == tuned.path_of(GPU)
    on_gpu()
    assert chosen("k") == made[1].job.config
    result = CliRunner().invoke(app, ["tune", "lightning_attention", "--width", "128", "--json", "-"])
    assert result.exit_code == 0
    assert [r["chosen"] for r in json.loads(result.stdout)] == [False, True]
    result = CliRunner().invoke(app, ["tune", "lightning_attention", "--width", "128"])
    assert "chosen" in result.output
    assert "1 choice in" in result.output


def test_a_configuration_that_raises_or_dies_leaves_the_others(monkeypatch):
    assert tune.in_processes(math.sqrt, [4.0, -1.0], 2) == {4.0: 2.0, -1.0: "ValueError: math domain error"}
    assert tune.in_processes(os._exit, [3, 4], 2) == {3: "its process died", 4: "its process died"}


def test_a_configuration_is_checked_against_the_oracle(tmp_path):
    code = (
        "import json; from chunkform.codegen.commands import tune; from chunkform.runtime.launch.launch import candidates\n"
        "from chunkform.spec.language import find\n"
        "tune.DEVICE = 'cpu'\n"
        "where = str(find('lightning_attention')[0].where.file)\n"
        "job = tune.Job(where, 'lightning_attention', 'float32', 24, candidates(4, 32)[0], (1, 40, 1))\n"
        "r = tune.checked(job); print(json.dumps([r.kernels, r.errors, r.problem, r.calls]))"
    )
    (tmp_path / "checked.py").write_text(code)
    done = script(tmp_path / "checked.py")
    assert done.returncode == 0, done.stderr[-2000:]
    kernels, errors, problem, calls = json.loads(done.stdout)
    assert (len(kernels), problem) == (16, "")
    assert "cumulate_kernel" in calls and "tl" not in calls
    assert {n.split(": ")[0] for n in errors} == {"case 1", "case 2", "case 3"}
    assert {n.split(": ")[1] for n in errors} >= {"o", "dq", "dk", "dv", "dlog_lam"}
    assert max(errors.values()) < 1e-4


# --- errors ------------------------------------------------------------------------------------------------------------


def test_tuning_without_a_gpu_is_refused():
    with pytest.raises(BackendError, match="torch sees none"):
        tune.tune_all(find("lightning_attention"), [64])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "int8"], "the dtype is one of bfloat16, float16, float32, got int8"),
        (["--seq", "0"], "--seq must be at least 1, got 0"),
        (["--width", "0"], "--width must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(words, message):
    result = CliRunner().invoke(app, ["tune", "lightning_attention", *words])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_what_has_no_kernels_over_chunks_is_refused():
    with pytest.raises(BackendError, match="nothing to tune"):
        tune.tune_all([*find("softmax_attention"), *find("gradient_descent_logistic")], [64])


def test_a_job_says_where_its_spec_is():
    (job, *_) = tune.jobs_of(tune.compile_spec(find("retention")[0]), "float32", 64, (1, 64, 1))
    assert isinstance(job, Job)
    assert [r.name for r in find(job.file)] == ["retention"]


def test_tables_are_shipped():
    assert "h200" in {path.stem for path in TABLES}


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_a_table_that_is_shipped_says_what_it_holds_for_and_holds_candidates(path):
    table = tuned.read(path)
    assert set(table["about"]) == {"gpu", "torch", "triton"}
    generated = [file.read_text() for file in (HERE.parents[2] / "generated").glob("*.py")]
    assert table["choices"] and table["choices"].keys() == table["functions"].keys()
    for kernels in table["choices"]:  # else nothing of it is used: tune anew, or `python -m benchmarks.rekey`
        own = [text for text in generated if f'"{kernels}"' in text]
        assert own, f"kernels that are gone: {kernels}"
        assert tuned.functions_of(tune.calls_of(own[0], kernels)) == table["functions"][kernels]
    for classes in table["choices"].values():
        for place, fields in classes.items():
            dtype, largest = place.rsplit("-", 1)
            known = launch.configurations(getattr(torch, dtype), int(largest))
            assert fields in [launch.fields_of(x) for x in known]
