"""The model's times follow what was measured of a recurrence; of others they are the model's own."""

from __future__ import annotations

import pytest

from chunkform.codegen.performance import measured_times
from chunkform.codegen.performance.measured_times import corrected, nearest
from chunkform.codegen.performance.sequence_parallel import link_plan
from chunkform.codegen.recurrence.emit import spec_hash
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.predict import H200, Machine, Prediction, predict
from chunkform.spec.language import find

C = compile_spec(find("gated_delta_rule")[0])
ROWS = [[8, 4096, 16, 128, 1.5], [1, 131072, 8, 128, 3.2], [8, 4096, 32, 64, 1.2]]
LASTING = [[1, 131072, 8, 128, 4.1]]


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"about": {"gpu": H200.name}, "times": {spec_hash(C): {"name": C.name, "rows": ROWS, "lasting": LASTING}}}
    monkeypatch.setattr(measured_times, "measured_times", lambda: times)


@pytest.mark.parametrize(
    "shape, like",
    [((8, 4096, 16, 128), 0), ((16, 8192, 16, 128), 0), ((1, 32768, 8, 128), 1), ((8, 4096, 16, 64), 2)],
)
def test_the_nearest_shape_is_of_the_same_width_where_there_is_one(shape: tuple[int, int, int, int], like: int) -> None:
    found = nearest(C, shape)
    assert found is not None and [*found.shape, 1e3 * found.seconds] == ROWS[like]


def test_where_it_was_measured_the_time_is_the_measured_one_and_elsewhere_the_model_says_how_it_differs() -> None:
    shape = (1, 131072, 8, 128)
    assert corrected(C, _predicted(shape), shape)[0] == pytest.approx(3.2e-3)
    half = (1, 65536, 8, 128)
    seconds, like = corrected(C, _predicted(half), half)
    assert like is not None and like.shape == shape
    assert seconds / 3.2e-3 == pytest.approx(_seconds(half) / _seconds(shape))


def test_the_model_stands_alone_for_other_recurrences_dtypes_and_machines() -> None:
    shape = (1, 131072, 8, 128)
    other = compile_spec(find("lightning_attention")[0])
    assert nearest(other, shape) is None and nearest(C, shape, element=4) is None
    slow = Machine("another", 1e12, 100, 1e12, 1e12, 1e10, 3e-6)
    p = predict(C, shape, slow)
    assert p is not None
    assert corrected(C, p, shape, slow) == (p.forward.seconds + p.backward.seconds, None)


def test_decays_that_last_have_times_of_their_own_where_they_were_measured() -> None:
    shape = (1, 131072, 8, 128)
    assert link_plan(C, shape, 1, lasting=True).compute == pytest.approx(4.1e-3)
    measured_times.measured_times()["times"][spec_hash(C)]["lasting"] = []
    assert link_plan(C, shape, 1, lasting=True).compute == pytest.approx(3.2e-3)


def test_a_plan_says_what_its_kernels_times_follow_from() -> None:
    step = link_plan(C, (1, 131072, 8, 128), 1)
    assert step.compute == pytest.approx(3.2e-3) and step.measured == (1, 131072, 8, 128)
    assert link_plan(compile_spec(find("lightning_attention")[0]), (1, 131072, 8, 128), 1).measured is None


def _predicted(shape: tuple[int, int, int, int]) -> Prediction:
    p = predict(C, shape)
    assert p is not None
    return p


def _seconds(shape: tuple[int, int, int, int]) -> float:
    p = _predicted(shape)
    return float(p.forward.seconds + p.backward.seconds)
