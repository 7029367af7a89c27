"""Quotients of powers, and their logarithms: values and gradients where powers of an argument have no float."""

from __future__ import annotations

import json

import pytest
from shared.forked import TESTS, script
from shared.rational_gates import GAINS, GATES, MIXED, off

from chunkform.codegen.recurrence.step.lower import lower
from chunkform.codegen.recurrence.step.scaled_quotients import scaled_quotients
from chunkform.spec.language import Recurrence, hadamard, normalize, silu

INTERPRETED = [
    "g^3 / (1 + |g|^3)",
    "log(1 + g^2)",
    "(1 + g / (1 + |g|)) / 2",
    "g^4 sigmoid(-|g|)",
    "softplus / (softplus + exp(2 g))",
]


SOME, SOME_MIXED = dict(list(GATES.items())[::4]), dict(list(MIXED.items())[1::3])
LONG = pytest.mark.long
CASES = {
    "vectors": ("vectors", GATES),
    "gains of vectors": ("vectors", GAINS),
    "matrices": ("matrices", SOME),
    "gains that are written": ("writes", GAINS),
    "powers beside exponentials": ("writes", SOME_MIXED),
    "all powers beside exponentials": pytest.param("writes", MIXED, marks=LONG),
    "matrices of these": pytest.param("matrices", MIXED, marks=LONG),
    "all matrices": pytest.param("matrices", GATES, marks=LONG),
    "gains of matrices": pytest.param("matrices", GAINS, marks=LONG),
    "all that are written": pytest.param("writes", GATES, marks=LONG),
}


@pytest.mark.parametrize(("place", "gates"), CASES.values(), ids=CASES)
def test_gates_of_powers_are_right_however_far_out(place, gates):
    assert off(place, gates) == []


def test_kernels_have_them_as_well():
    done = script(
        TESTS / "shared" / "rational_gates.py", json.dumps({"places": ["writes", "vectors"], "names": INTERPRETED})
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_norms_stay_as_they_are():
    """A gated key over its norm: its squares are summed as they are written."""
    r = Recurrence("normalised")
    d = r.dims("d")
    k, g = r.inputs("k g", d)
    S = r.state("S", d, d)
    r.update(S, S.prev / 2 + normalize(hadamard(k, silu(g))) * k.T)
    r.output("o", S.next * k)
    step = lower(r)
    assert scaled_quotients(step) == (step, {})
