"""Errors in float16, in Triton's interpreter, beside those of an eager run that rounds the operands of products."""

import json

from shared.forked import script

from benchmarks.rounding import called, recurrences_of

COMMAND = """import multiprocessing, sys
from benchmarks import rounding
rounding.get_context = lambda _: multiprocessing.get_context("fork")  # what is imported here is imported there
del sys.argv[1]
rounding.main()
"""


def test_each_recurrence_of_a_file_is_measured_and_named_by_its_place_in_the_repository():
    found = recurrences_of(["tests/codegen/specs"])
    assert {"both_sides", "late_decay", "rwkv7"} <= {name for _, name in found}
    assert "rwkv7 of tests/codegen/specs/rwkv7.py, float16" in {called(*x, "float16") for x in found}


def test_a_normaliser_that_is_small_beside_its_terms_keeps_the_digits_of_float32(tmp_path):
    """Gradients were off by up to 3.4 times the eager run's error, and by 15% in bfloat16, where numbers of each step, or the
    terms that they are sums of, were rounded on their way from one kernel to the next."""
    sizes = ["--device", "cpu", "--dtypes", "float16", "--steps", "66", "--width", "16", "--normal"]
    spec = "tests/codegen/recurrence/triton/specs/bounded_normaliser.py"
    done = script("-c", COMMAND, *sizes, spec, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {r["quantity"]: r for r in json.loads((tmp_path / "rounding.json").read_text())["rows"]}
    assert set(rows) == {"o", "final C", "final n", "dq", "dk", "dv", "di", "df"}
    assert {n: r["ratio"] for n, r in rows.items() if not r["ratio"] < 1.5} == {}
