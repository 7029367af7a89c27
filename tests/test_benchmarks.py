"""The GPU benchmark's own logic, on a CPU: memory lower bounds, ratios, tables, failures, budgets, earlier peers."""

import inspect
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from shared.spec_files import read_all
from typer import Typer
from typer.testing import CliRunner

from benchmarks import (
    around,
    compile_time,
    decode,
    drift,
    first_calls,
    gpu,
    host,
    kernels,
    loss_curves,
    pairs,
    peers,
    places,
    report,
    rounding,
    serving,
    serving_peers,
    timing,
    transformers_models,
    tuning,
)
from benchmarks.goals import GOALS, MEASURES, Goal
from benchmarks.inputs import SHAPES, Shape, draw, parse_shape
from benchmarks.peers import Peer
from chunkform.generated import lightning_attention, retention
from chunkform.runtime.launch import replay
from chunkform.runtime.op.op import Argument, Signature
from chunkform.spec.language import Recurrence
from chunkform.spec.language.load import published

pytestmark = pytest.mark.usefixtures("others_left_alone")  # memory is given back before each measurement
MIXED = Signature(
    name="mixed",
    arguments=(
        Argument("q", "input", ("d",)),
        Argument("A", "input", ("d", "e")),
        Argument("beta", "input"),
        Argument("lam", "decay", ("d",)),
        Argument("gamma", "decay parameter"),
        Argument("c", "constant", default=1.0),
    ),
    states=(("S", ("d", "e")),),
    outputs=(("o", ("e",)), ("p", ())),
)


def run(*words: str, monkeypatch: pytest.MonkeyPatch | None = None, rows: tuple[Peer, ...] | None = None):
    """The program on a CPU, at one small shape."""
    app = Typer()
    app.command()(gpu.main)
    if monkeypatch is not None and rows is not None:
        monkeypatch.setattr(gpu, "FLA", rows)
    tiny = ["--device", "cpu", "--quick", "--shapes", "1x24x2x16", "--ops", "lightning_attention"]
    return CliRunner().invoke(app, [*tiny, *words], catch_exceptions=False)


def results_in(folder: Path) -> dict:
    return json.loads((folder / "speed.json").read_text())


# --- peers made up for the tests --------------------------------------------------------------------------------------


def twice(a, b, c, decay, times):
    """Computes lightning attention by our torch form, in the peer's own names."""
    (o,) = peers.ours("lightning_attention").call({"q": a, "k": b, "v": c, "log_lam": decay})
    return times * o / times, None


def refuses(**_):
    raise RuntimeError("not on this GPU\nsecond line")


NAMES = {"a": "q", "b": "k", "c": "v", "decay": "log_lam"}


@pytest.fixture
def made_up(monkeypatch):
    """A module of peers: rows that name it by `made_up:function`."""
    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(twice=twice, refuses=refuses))
    good = Peer("lightning_attention", "made_up:twice", NAMES, fixed={"times": 2.0})
    bad = Peer("lightning_attention", "made_up:refuses", {})
    absent = Peer("lightning_attention", "made_up_and_absent:nothing", {})
    return SimpleNamespace(good=good, bad=bad, absent=absent)


# --- lower bounds -----------------------------------------------------------------------------------------------------------


def test_the_lower_bound_of_simple_attention_is_four_tensors_forward_and_seven_backward():
    s1 = SHAPES["S1"]
    signature = peers.ours("lightning_attention").signature
    tensor, decay = 2 * 8 * 4096 * 16 * 128, 4 * 8 * 4096 * 16
    bound = pairs.lower_bound_bytes(signature, s1)
    assert bound == {"forward": 4 * tensor + decay, "forward_backward": 11 * tensor + 3 * decay}
    # PERFORMANCE: at 4.26 TB/s a forward of 0.413 ms is 3.3 times the lower bound, and 2.039 ms of both passes 5.9 times
    times = pairs.lower_bound_milliseconds(signature, s1, 4.26e12)
    assert 0.413 / times["forward"] == pytest.approx(3.3, abs=0.05)
    assert 2.039 / times["forward_backward"] == pytest.approx(5.9, abs=0.05)


def test_the_lower_bound_counts_every_kind_of_argument_by_its_own_size():
    shape = Shape("", 2, 3, 5, 7)
    n = 2 * 3 * 5
    given = (
        n * 7 * 2 + n * 49 * 2 + n * 2 + n * 7 * 4 + 5 * 4
    )  # q, A, beta, log_lam, log_gamma; a constant is no tensor
    yielded = n * 7 * 2 + n * 2
    assert pairs.lower_bound_bytes(MIXED, shape)["forward"] == given + yielded
    assert pairs.lower_bound_bytes(MIXED, shape)["forward_backward"] == 3 * given + 2 * yielded


def test_the_lower_bound_is_what_the_drawn_tensors_hold():
    shape = Shape("", 2, 3, 5, 7)
    given, cotangents = draw(MIXED, shape, device="cpu", dtype=torch.bfloat16)
    held = sum(x.nbytes for x in (*given.values(), *cotangents))
    assert pairs.lower_bound_bytes(MIXED, shape)["forward"] == held


def test_inputs_repeat_with_the_seed_and_keep_their_ranges():
    shape = Shape("", 1, 50, 2, 16)
    one, two, other = (draw(MIXED, shape, device="cpu", dtype=torch.float32, unit=("q",), seed=s)[0] for s in (0, 0, 1))
    assert all(torch.equal(one[k], two[k]) for k in one) and not torch.equal(one["A"], other["A"])
    assert torch.allclose(one["q"].norm(dim=-1), torch.ones(1, 50, 2))
    assert one["beta"].min() > 0 and one["beta"].max() < 1 and one["log_lam"].max() < 0


def test_shapes_are_named_or_spelled():
    assert parse_shape("S2") is SHAPES["S2"]
    assert parse_shape("1x8192x4x96") == Shape("1x8192x4x96", 1, 8192, 4, 96)
    with pytest.raises(ValueError, match="got 'S9'"):
        parse_shape("S9")


# --- ratios -----------------------------------------------------------------------------------------------------------


def row(who="chunkform", kind="ours", forward=1.0, both=4.0, op="x", shape="S1", **more):
    return {
        "op": op,
        "shape": shape,
        "sizes": [1, 2, 3, 4],
        "who": who,
        "kind": kind,
        "computes": "x",
        "same": True,
        "note": "",
        "status": "measured",
        "forward": {"median": forward},
        "forward_backward": {"median": both},
        "floor_ms": {"forward": 0.5, "forward_backward": 1.0},
        **more,
    }


def everything(**more):
    about = {"said": "a GPU", "notes": ["lifted"], "gpu": "a GPU"}
    return {"about": about, "rows": [], "errors": [], "host": [], "skipped": {}, **more}


def test_ratios_are_none_where_a_side_is_missing():
    assert pairs.ratio(3.0, 2.0) == 1.5
    for above, below in ((None, 1.0), (1.0, None), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)):
        assert pairs.ratio(above, below) is None
    assert pairs.geometric_mean([2.0, 8.0, None]) == pytest.approx(4.0)
    assert pairs.geometric_mean([None]) is None


def test_a_pair_compares_times_lower_bound_prediction_and_memory():
    ours = row(peak_mib={"forward_backward": 100.0}, predicted_ms={"forward": 0.8}, model_flops={"forward": 5e11})
    theirs = row("fla", "peer", forward=3.0, both=6.0, peak_mib={"forward_backward": 400.0})
    (pair,) = pairs.pairs(everything(rows=[theirs, ours]))
    assert (pair.speedup("forward"), pair.speedup("forward_backward")) == (3.0, 1.5)
    assert (pair.over_lower_bound("forward"), pair.over_lower_bound("forward_backward")) == (2.0, 4.0)
    assert pair.over_prediction("forward") == pytest.approx(1.25) and pair.over_prediction("forward_backward") is None
    assert pair.memory() == 0.25
    assert pair.rate("forward") == pytest.approx(500.0)  # 5e11 FLOPs in a millisecond


def test_errors_are_compared_only_where_both_compute_the_same():
    def checked(who, computes, error):
        return {"op": "x", "shape": "S1", "who": who, "computes": computes, "errors": {"o": error, "dq": 2 * error}}

    ours = checked("chunkform", "x", 3e-3)
    (o, dq) = pairs.error_ratios(everything(errors=[ours, checked("fla", "x", 2e-3)]))
    assert o["ratio"] == pytest.approx(1.5) and dq["peer"] == 4e-3
    for r in pairs.error_ratios(everything(errors=[ours, checked("fla", "y", 2e-3)])):
        assert r["ratio"] is None and r["peer"] is None


def test_tables_say_what_failed_and_mark_what_is_not_alike():
    profile = {"launches": 3, "copies": 0, "by_name": {"sweep": [1, 75.0], "sums": [2, 25.0]}}
    rows = [
        row(failures={"forward, graph": "RuntimeError: no"}, kernels={"forward_backward": profile}),
        row("fla", "peer", same=False, earlier="2026-01-01"),
        row("sdpa", "reference"),
    ]
    host = [{"op": "x", "shape": "S4", "who": "chunkform", "host_us": {"forward": 50.0}, "graph": {}}]
    errors = [{"op": "x", "shape": "S1", "who": "chunkform", "computes": "x", "errors": {"o": 1e-3}}]
    text = report.markdown(everything(rows=rows, host=host, errors=errors, skipped={"later": "no time"}))
    for said in (
        "fla (another function, an earlier run)",
        "RuntimeError: no",
        "no time",
        "lifted",
        "sdpa",
        "1.0e-03",
        "75%",
    ):
        assert said in text
    for sheet in report.sheets(everything(rows=rows, host=host, errors=errors)):
        assert {len(r) for r in sheet.rows} == {len(sheet.columns)}


def test_a_goal_is_met_missed_or_not_yet_told():
    def results(**times):
        rows = [row(forward=1.0, shape=s) for s in times] + [
            row("fla", "peer", forward=t, shape=s) for s, t in times.items()
        ]
        return everything(rows=rows)

    goal = Goal("x", "times faster, forward", 2.0, ("S1", "S2"))
    for times, met in (
        ({"S1": 3, "S2": 2}, True),
        ({"S1": 3}, None),
        ({"S1": 1.9}, False),
        ({"S3": 1}, None),
        ({}, None),
    ):
        found = goal.measured(results(**times))
        assert goal.met(found) is met
    assert goal.worst({"S1": 3.0, "S2": 2.5}) == ("S2", 2.5)
    mean = Goal("x", "times faster, forward", 2.0, ("S1", "S2"), mean=True)
    assert mean.met({"S1": 1.0, "S2": 4.0}) is True and mean.met({"S1": 1.0, "S2": 3.9}) is False
    assert mean.met({"S1": 9.0}) is None
    least = Goal("x", "over the lower bound, forward", 1.5)
    assert least.at_most and least.met({"S1": 1.5}) is True and least.met({"S1": 1.4, "S2": 1.6}) is False


def test_goals_of_each_kind_are_read_from_results():
    ours = [
        row(op=o, forward=t, shape=s)
        for o, t, s in (("gated_delta_rule", 2.0, "S1"), ("x", 3.0, "S1"), ("x", 1.0, "D96"))
    ]
    for r, flops in zip(ours, (1e12, 1e12, 1e11), strict=True):
        r["model_flops"] = {"forward": flops}
    graph = {"forward": {"works": True}, "forward_backward": {"works": False}}
    host = [{"op": "x", "who": "chunkform", "shape": "S4", "host_us": {"forward": 50.0}, "graph": graph}]
    found = everything(rows=ours, host=host)

    def measured(what):
        return Goal("x", what, 1.0).measured(found)

    assert measured("over our gated delta rule, forward") == {"S1": 1.5}
    assert measured("time per FLOP over S1's, forward")["D96"] == pytest.approx(10 / 3)
    assert measured("host microseconds, forward") == {"S4": 50.0}
    assert measured("captured in a CUDA graph") == {"S4, forward": 1.0, "S4, forward_backward": 0.0}
    assert {g.what for g in GOALS} == set(MEASURES)


# --- the program ------------------------------------------------------------------------------------------------------


def test_a_dry_run_measures_ours_and_writes_everything(tmp_path):
    result = run("--no-peers", "--shapes", "1x24x2x16,1x40x2x16", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = results_in(tmp_path)
    assert [r["status"] for r in found["rows"]] == ["measured", "measured"]
    assert all(r["forward"]["median"] > 0 and r["forward_backward"]["median"] > 0 for r in found["rows"])
    assert all(r["predicted_ms"]["forward"] > 0 for r in found["rows"])
    (checked,) = found["errors"]  # one for each width
    assert set(checked["errors"]) == {"o", "dq", "dk", "dv", "dlog_lam"} and max(checked["errors"].values()) < 1e-2
    assert found["about"]["copy_rate"] > 0 and not found["skipped"]
    assert {p.name for p in tmp_path.iterdir()} == {"speed.json", "speed.md", "time.png", "lower_bound.png"}
    assert "lightning_attention" in result.output


def test_a_peer_that_fails_is_recorded_and_the_others_go_on(tmp_path, made_up, monkeypatch):
    rows = (made_up.bad, made_up.absent, made_up.good)
    result = run("--out", str(tmp_path), monkeypatch=monkeypatch, rows=rows)
    assert result.exit_code == 0, result.output
    found = results_in(tmp_path)
    bad = next(r for r in found["rows"] if r["who"] == "refuses")
    assert bad["status"] == "failed" and bad["failures"]["forward"] == "RuntimeError: not on this GPU"
    assert "made_up_and_absent" in found["skipped"]["nothing beside lightning_attention"]
    good = next(r for r in found["rows"] if r["who"] == "twice")
    assert good["status"] == "measured" and good["forward"]["median"] > 0
    theirs, ours = (next(e["errors"] for e in found["errors"] if e["who"] == who) for who in ("twice", "chunkform"))
    assert theirs["o"] == pytest.approx(ours["o"], rel=0.5)  # its arguments reached it in the right places
    assert "not on this GPU" in (tmp_path / "speed.md").read_text()


@pytest.mark.long
def test_a_peer_beside_two_of_our_ops_is_measured_once(tmp_path, made_up, monkeypatch):
    nearest = Peer("inverse_attention", "made_up:twice", NAMES, computes="lightning_attention", fixed={"times": 2.0})
    ops = ("--ops", "lightning_attention,inverse_attention")
    run(*ops, "--no-errors", "--out", str(tmp_path), monkeypatch=monkeypatch, rows=(made_up.good, nearest))
    one, other = (r for r in results_in(tmp_path)["rows"] if r["kind"] == "peer")
    assert (one["op"], one["same"], other["op"], other["same"]) == (
        "lightning_attention",
        True,
        "inverse_attention",
        False,
    )
    assert one["forward"] == other["forward"]
    assert "twice (another function)" in (tmp_path / "speed.md").read_text()


def test_a_spent_budget_starts_nothing_and_says_so(tmp_path, made_up, monkeypatch):
    result = run("--budget", "0", "--out", str(tmp_path), monkeypatch=monkeypatch, rows=(made_up.good,))
    assert result.exit_code == 0, result.output
    found = results_in(tmp_path)
    assert not found["rows"] and len(found["skipped"]) == 2
    assert "Not everything was measured: the time budget was spent." in found["about"]["notes"]


@pytest.mark.long
def test_earlier_peers_are_taken_and_marked(tmp_path, made_up, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    run("--out", str(first), monkeypatch=monkeypatch, rows=(made_up.good,))
    reused = ("--peers-from", str(first / "speed.json"), "--out", str(second))
    run(*reused, "--no-peers", monkeypatch=monkeypatch, rows=(made_up.good,))
    (peer,) = (r for r in results_in(second)["rows"] if r["kind"] == "peer")
    (before,) = (r for r in results_in(first)["rows"] if r["kind"] == "peer")
    assert peer["forward"] == before["forward"] and peer["earlier"]
    assert "an earlier run" in (second / "speed.md").read_text()
    run(*reused, "--no-peers", "--decay", "slow", monkeypatch=monkeypatch, rows=(made_up.good,))
    assert all(r["kind"] == "ours" for r in results_in(second)["rows"])  # another distribution of decays: not the same


def test_a_lost_gpu_ends_the_session(monkeypatch, tmp_path, made_up):
    def synchronize(device):
        if called_by("attempt"):  # after a failure
            raise RuntimeError("an illegal memory access was encountered")

    def called_by(name):
        return inspect.stack()[2].function == name

    monkeypatch.setattr(timing, "synchronize", synchronize)
    result = run("--out", str(tmp_path), monkeypatch=monkeypatch, rows=(made_up.bad, made_up.good))
    assert result.exit_code == 0, result.output
    found = results_in(tmp_path)
    assert [r["who"] for r in found["rows"]] == ["chunkform", "refuses"]
    assert any("the GPU was lost to refuses" in note for note in found["about"]["notes"])


@pytest.mark.parametrize(
    "words",
    [("--ops", "nonsense"), ("--shapes", "S9"), ("--decay", "quick"), ("--dtype", "int8"), ("--peers-from", "absent")],
)
def test_bad_options_are_refused_by_name(words):
    result = run(*words)
    assert result.exit_code == 2 and words[0] in result.output


def test_every_peer_is_given_arguments_that_we_have():
    for peer in peers.FLA:
        signature = peers.ours(peer.recurrence).signature
        keys = {a.key for a in signature.arguments}
        assert set(peer.arguments.values()) == keys, (
            peer
        )  # all of them: nothing that ours computes with is kept from it


def test_the_hosts_time_is_measured_with_and_without_replays(tmp_path):
    app = Typer()
    app.command()(host.main)
    words = ["--device", "cpu", "--ops", "lightning_attention", "--shapes", "1x24x2x16", "--calls", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "host.json")])
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "host.json").read_text())["rows"]
    assert min(x for x in row.values() if not isinstance(x, str)) > 0
    assert replay.ON


@pytest.mark.long
def test_first_calls_are_measured_in_processes_of_their_own(tmp_path):
    app = Typer()
    app.command()(first_calls.main)
    words = ["--device", "cpu", "--ops", "lightning_attention", "--shapes", "1x24x2x16"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "first.json")])
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "first.json").read_text())["rows"]
    assert row.keys() == {"op", "shape", "forward", "forward_backward", "second"}
    assert min(row["forward"], row["forward_backward"]) > 0


def test_candidates_of_a_configuration_are_read_or_refused() -> None:
    assert kernels.parsed("now") == kernels.parsed("out/before") == {}
    assert kernels.parsed("chunk=64:tile=128:warps=8") == {"chunk": 64, "tile": 128, "warps": 8}
    for wrong in ("chunk", "chunk=", "chunk=0", "chunks=64", "itemsize=4"):
        with pytest.raises(typer.BadParameter, match="expected FIELD=NUMBER"):
            kernels.parsed(wrong)


def test_a_folder_of_candidates_must_have_the_ops(tmp_path) -> None:
    app = Typer()
    app.command()(kernels.main)
    result = CliRunner().invoke(app, ["--ops", "mesa", "--configs", f"now,{tmp_path}"])
    assert result.exit_code == 2 and "mesa.py" in result.output


def test_errors_of_a_candidate_that_is_not_a_number_are_the_largest(capsys) -> None:
    row = {"op": "o", "config": "now", "us": 1.0, "kernels": {"k": 1.0}, "errors": {"s": {"a": 0.5, "b": float("nan")}}}
    kernels.show([row, {"op": "o", "config": "chunk=64", "problem": "out of resources"}])
    shown = capsys.readouterr().out
    assert "nan" in shown and "out of" in shown


# --- errors in 16 bits --------------------------------------------------------------------------------------------------


def test_errors_of_the_eager_run_are_those_of_rounding() -> None:
    """Of each quantity, also of a decay that has one number for each head; without a GPU nothing else runs."""
    s = retention.__globals__["OP"].signature
    found = {r.quantity: r for r in rounding.rows_of("retention", retention, s, torch.bfloat16, "cpu", 40, 16)}
    assert found.keys() == {"o", "final S", "dq", "dk", "dv", "dlog_gamma"}
    assert all(r.error is None and 1e-4 < r.eager < 1e-1 for r in found.values() if r.quantity != "final S"), found


def test_the_table_has_every_recurrence() -> None:
    found = {r["op"] for r in json.loads((rounding.ROOT / "results" / "gpu" / "rounding.json").read_text())["rows"]}
    specs = [*read_all().values(), *published()]
    assert {r.name for r in specs if isinstance(r, Recurrence)} <= found


def test_draws_are_compared_as_one() -> None:
    """One number whose true value is small by chance doesn't stand for the others."""
    few = rounding.Runs(torch.tensor([[1.01]]), torch.tensor([[1.02]]), torch.tensor([[1.0]]))
    far = rounding.Runs(torch.tensor([[1e-3]]), torch.tensor([[2e-3]]), torch.tensor([[0.0]]))
    own, eager = rounding.errors_in(rounding.Runs.together([few, far]))
    assert own == pytest.approx(math.hypot(0.01, 1e-3), rel=1e-3) and eager == pytest.approx(
        math.hypot(0.02, 2e-3), rel=1e-3
    )


# --- published recurrences --------------------------------------------------------------------------------------------


def test_peers_of_published_recurrences_take_what_the_specs_give():
    specs = {r.name: r for r in published()}
    assert {p.ours for p in peers.PUBLISHED} <= set(specs)
    for p in peers.PUBLISHED:
        keys = {f"log_{v.name}" if v.kind.startswith("decay") else v.name for v in specs[p.ours].variables}
        assert set(p.arguments.values()) == keys, p.ours
        assert set(peers.UNIT.get(p.ours, ())) <= keys


def test_a_spec_file_is_measured_like_an_op_of_the_catalogue(monkeypatch):
    monkeypatch.setattr(peers, "OTHERS", {})
    monkeypatch.setattr(gpu.accuracy, "OTHERS", peers.OTHERS)
    tiny = ["--device", "cpu", "--quick", "--shapes", "1x40x2x16", "--no-peers", "--no-reference", "--dtype", "float32"]
    app = Typer()
    app.command()(gpu.main)
    done = CliRunner().invoke(app, [*tiny, "--ops", str(gpu.PUBLISHED_SPECS / "hgrn.py")], catch_exceptions=False)
    assert done.exit_code == 0 and "hgrn" in done.output and "dlog_g" in done.output
    refused = CliRunner().invoke(app, [*tiny, "--ops", "nowhere.py"])
    assert refused.exit_code == 2 and "nowhere.py" in refused.output


# --- loss curves ------------------------------------------------------------------------------------------------------


def test_curves_of_two_libraries_are_held_to_the_spread_of_two_seeds(tmp_path):
    setup = loss_curves.Setup("cpu", steps=3, width=64, layers=1, batch=2, length=32, characters=20_000)
    own = [loss_curves.trained(setup, "chunkform", seed) for seed in (0, 1)]
    assert own[0].training != own[1].training
    near = [replace(r, library="fla", training=[x + 1e-3 for x in r.training]) for r in own]
    far = [replace(r, library="fla", training=[x + 10 for x in r.training]) for r in own]
    assert loss_curves.compared([*own, *near])["within the spread"]
    assert not loss_curves.compared([*own, *far])["within the spread"]
    again = loss_curves.trained(setup, "chunkform", 0)
    assert again.training == own[0].training
    short = replace(far[0], training=own[0].training[:2], held_out={2: 5.0})
    for r in own:
        r.held_out[2] = 5.0
    assert loss_curves.compared([*own, short])["steps"] == 2  # a run that ended early: as far as all go
    assert loss_curves.compared([*own, short])["within the spread"]
    loss_curves.draw([*own, *near], tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").stat().st_size > 1000


@pytest.mark.parametrize("op", loss_curves.OPS)
def test_a_run_ends_after_its_seconds(op, monkeypatch):
    monkeypatch.setattr(loss_curves, "EVERY", 2)
    setup = loss_curves.Setup("cpu", 6, width=64, layers=1, batch=1, length=32, characters=20_000, op=op, seconds=0)
    run = loss_curves.trained(setup, "chunkform", 0)
    assert len(run.training) == 2 and list(run.held_out) == [2]


def test_the_first_configuration_that_runs_is_taken_untimed(monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.runtime.autotuner import Autotuner, OutOfResources

    for name in ("_bench", "do_bench", "check_disk_cache"):
        monkeypatch.setattr(Autotuner, name, Autotuner.__dict__[name])  # put back afterwards

    class Kernel:
        def __init__(self):
            self.runs, self.fn = [], lambda n, SIZE: None

        def run(self, n, *, SIZE, num_warps=4, **_):
            self.runs.append(SIZE)
            if SIZE > 50:
                raise OutOfResources(SIZE, 50, "registers")

    kernel = Kernel()
    configs = [triton.Config({"SIZE": size}) for size in (100, 40, 20)]
    tuner = Autotuner(kernel, ["n", "SIZE"], configs, ["n"], None, None, cache_results=True)
    tuning.first_that_runs()
    for n in (1, 1, 2):
        tuner.run(n)
    assert kernel.runs == [100, 40, 40, 40, 100, 40, 40]  # found and run; run; another key: found and run


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_fla_is_timed_in_serving_only_where_it_agrees(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for fla's function, whose outputs are ours, or 5 % more."""

    def fused_recurrent_simple_gla(
        g: torch.Tensor, scale: float, **given: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        o, state = lightning_attention(log_lam=g, **given)
        return factor * scale * o, state

    stand_in = ModuleType("fla.ops.simple_gla")
    stand_in.fused_recurrent_simple_gla = fused_recurrent_simple_gla  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops", "fla.ops.simple_gla"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    many = {n: torch.randn(2, 3, 2, 16) / 4 for n in "qkv"} | {"log_lam": -torch.rand(2, 3, 2)}
    if factor == 1.0:
        serving_peers.check("lightning_attention", lightning_attention, many)
        timed = list(
            serving_peers.alone(
                "lightning_attention",
                lightning_attention,
                {n: x[:, 0] for n, x in many.items()},
                [torch.zeros(2, 2, 16, 16)],
            )
        )
        assert [(len(rounds), moved) for _, rounds, moved in timed] == [(1, 2 * 4096 + 4 * 256 + 16)] * 2
        return
    with pytest.raises(AssertionError, match=r"lightning_attention: outputs: fla's are 5.0e-02 from ours"):
        serving_peers.check("lightning_attention", lightning_attention, many)


@pytest.mark.parametrize("file", ["drift.json", "drift_float32.json"])
def test_the_tables_of_drift_have_every_recurrence(file: str) -> None:
    measured = json.loads((Path(__file__).parents[1] / "results/cpu" / file).read_text())["errors"]
    assert list(measured) == drift.recurrences()


WRITING = (around, compile_time, decode, drift, first_calls, host, kernels, serving, transformers_models)


@pytest.mark.parametrize("module", WRITING, ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured that couldn't be kept."""
    (tmp_path / "taken").write_text("")
    option = "--json" if module in (around, compile_time, decode, serving, transformers_models) else "--out"
    words = [option, str(tmp_path / "taken" / "x.json")]
    if module in (compile_time, drift):
        monkeypatch.setattr(sys, "argv", ["benchmark", *words])
        with pytest.raises(SystemExit) as end:
            module.main()
        assert end.value.code == 2
        return
    app = Typer()
    app.command()(module.main)
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "there can be no folder" in done.output) == (2, True), done.output


def test_a_place_to_write_is_made(tmp_path: Path) -> None:
    assert places.folder(str(tmp_path / "a" / "b")).is_dir()
    assert places.file(str(tmp_path / "c" / "d.json")).parent.is_dir()
    with pytest.raises(places.Unwritable, match="is a folder"):
        places.file(str(tmp_path))
