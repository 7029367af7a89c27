"""The Triton kernels in Triton's interpreter against the float64 oracle, and compiled for Hopper without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.attentions import everything
from shared.forked import script

from chunkform.codegen.attention.inspect import inspect_attention
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.performance.compile_report import SHARED_LIMIT
from chunkform.spec.language import find

HERE = Path(__file__).parent
FULL = {"batch": 1, "steps": 45, "width": 8}
TAIL = {"batch": 1, "steps": 40, "keys": 25, "causal": True, "heads": 4, "key_heads": (2,), "width": 6, "seed": 1}
HALF = {"batch": 1, "steps": 30, "width": 8, "causal": True, "dtype": "float16", "seed": 2}  # blocks held in registers
GROUPS = {
    "catalogue": ("softmax_attention", "kattention_f6", "self_attention", "relay_nodes"),
    "positions": ("rotary_attention", "distance_attention", "capped", "two_blocks"),
    "others": ("masked", "polynomial", "exponential", "energy_gradient", "turned"),
    "streams": ("distances", "forgetting", "norms"),
}


def interpret(names, cases, **how):
    done = script(HERE / "interpret.py", json.dumps({"names": names, "cases": cases} | how))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("group", GROUPS)
def test_every_gradient_in_the_interpreter(group):
    rows = interpret(GROUPS[group], [FULL, TAIL, *([HALF] if group == "catalogue" else [])])
    assert len(rows) > 20
    assert [r for r in rows if not r["ok"]] == []


def test_heads_that_do_not_divide_each_other_and_weights_that_overflow_in_the_interpreter():
    cases = [TAIL, TAIL | {"heads": 6, "key_heads": (2, 3)}]
    rows = interpret(("shared", "decaying"), cases)
    assert len(rows) > 20
    assert [r for r in rows if not r["ok"]] == []


def test_a_matrix_of_keys_that_stays_where_it_is_in_the_interpreter():
    rows = interpret(("self_attention",), [FULL, HALF], unmoved=True)
    assert len(rows) > 10
    assert [r for r in rows if not r["ok"]] == []


@pytest.mark.parametrize("fit", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_kernels_that_do_not_fit_shared_memory_take_narrower_tiles_and_at_last_the_torch_form(fit):
    rows = interpret(("softmax_attention", "kattention"), [TAIL, HALF], fit=fit)
    assert len(rows) > 20
    assert [r for r in rows if not r["ok"]] == []


def test_features_that_kernels_do_not_hold_are_made_by_torch():
    rows = interpret(("kattention_f6", "rbf"), [FULL | {"width": 72}])
    assert len(rows) > 10
    assert [r for r in rows if not r["ok"]] == []


@pytest.mark.parametrize("case", [TAIL, pytest.param(FULL, marks=pytest.mark.long)], ids=["tail", "full"])
def test_numbers_of_rows_and_keys_beside_products_in_the_interpreter(case):
    names = ("softmax_attention", "kattention_f6", "distance_attention", "two_blocks", "masked")
    rows = interpret(names, [case], beside=True)
    assert len(rows) > 20
    assert [r for r in rows if not r["ok"]] == []


@pytest.mark.parametrize(
    "names",
    [(), ("self_attention", "kattention", "ked"), ("rotary_attention", "capped"), ("polynomial", "energy_gradient")],
    ids=" ".join,
)
@pytest.mark.long
def test_replayed_calls_give_the_same_bits(names):
    """With fresh memory full of NaN; see `replays.py`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "replays.py"), *names],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {}


@pytest.mark.parametrize("width", [64, pytest.param(128, marks=pytest.mark.long)])
def test_kernels_use_tensor_cores_and_do_not_spill(width):
    c = compile_attention(find("kattention")[0])
    rows = inspect_attention(c, "sm_90", ("bfloat16",), (width,))
    assert [r.kernel for r in rows] == ["key_features_kernel", "forward_kernel", "rows_kernel", "keys_kernel"]
    assert all("waits" not in r.problem for r in rows)
    assert all(r.ok and r.tensor_core for r in rows), (
        rows
    )  # ok: spills within the bounds of `codegen/performance/compile_report.py`


@pytest.mark.long
def test_kernels_of_several_scores_fit_a_hopper_gpu():
    c = compile_attention(next(a for a in everything() if a.name == "polynomial"))
    rows = [*inspect_attention(c, "sm_90", ("bfloat16",), (128,))]  # narrower ones take less
    assert len(rows) == 3 and len(c.split.scores) == 2
    assert not [(r.kernel, r.width, r.shared_bytes) for r in rows if r.shared_bytes > SHARED_LIMIT]
