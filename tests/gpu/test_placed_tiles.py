"""Kernels whose tiles are copied ahead of time, on a GPU of compute capability 9.0: outputs, last states and gradients of each
head against float64, beside those of the kernels of Triton."""

from contextlib import contextmanager

import pytest
import torch

from benchmarks import joined_roles
from benchmarks.inputs import Shape
from benchmarks.joined_roles import Case
from chunkform.runtime.chunk_kernels import placed_tiles, warp_roles
from chunkform.runtime.launch import replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES = (
    Case(Shape("one step", 2, 1, 3, 128), start=True),
    *(Case(Shape("few", 2, steps, 3, 128), start=True) for steps in (63, 65)),
    *(Case(Shape("tail", 2, 300, 4, 128), decay, start=decay == "usual") for decay in ("usual", "lasting", "fast")),
    Case(Shape("shared", 2, 300, 4, 128), shared=2),
    Case(Shape("packed", 1, 700, 4, 128), start=True, lengths=(100, 1, 200, 399)),
    Case(Shape("narrow", 2, 300, 4, 64)),
    *(Case(Shape(f"{width}", 2, 300, 4, width)) for width in (72, 96, 120)),
    Case(Shape("long", 8, 1024, 16, 128), "lasting"),
)


@contextmanager
def meanwhile(FORCED, PLACED):
    """These are what they are given, in the modules that have them, and no launch is replayed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warp_roles, "FORCED", FORCED)
        patch.setattr(placed_tiles, "PLACED", PLACED)
        patch.setattr(replay, "ON", False)
        yield


@pytest.mark.parametrize("name", ["gated_linear_attention", "kimi_delta_attention"])
@pytest.mark.parametrize("case", CASES, ids=lambda x: x.spelled)
def test_errors_are_as_with_kernels_of_triton(name, case, monkeypatch):
    torch.cuda.init()
    if not warp_roles.available():
        pytest.skip("no kernels in Gluon on this GPU with this Triton")
    monkeypatch.setattr(joined_roles, "asked_for", lambda there: meanwhile(FORCED=there, PLACED=there))
    launched = []
    real = placed_tiles.launch
    monkeypatch.setattr(
        placed_tiles, "launch", lambda k, *args, **options: (launched.append(k), real(k, *args, **options))[1]
    )
    found = {"errors": [joined_roles.comparison(name, case)], "times": []}
    assert joined_roles.complaints(found) == []
    assert [k.fn.__name__ for k in launched] == ["backward_read_1", "backward_read_1_placed"]
