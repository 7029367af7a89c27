"""A table that names roles for a delta rule gives it its forward pass in one kernel, and changes nothing else."""

import functools
import importlib
from dataclasses import replace

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.performance.compile_report import replaced_launches
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch.launch import candidates, using

op = importlib.import_module("chunkform.generated.gated_delta_rule")
CONFIG = candidates(2, 128)[0]


def launches(roles: int | None, recording: bool, parts: int) -> list[tuple[str, object, tuple[object, ...]]]:
    """The kernels that a call launches with such a configuration, with their grids and options; of both passes where gradients
    are recorded."""
    found = []

    def record(kernel, grid, args, options):
        found.append((kernel.fn.__name__, grid, tuple(sorted((n, str(x)) for n, x in options.items()))))

    def empty(*axes: int, wide: bool = False) -> torch.Tensor:
        return torch.empty(2, 512, 4, *axes, device="meta", dtype=torch.float32 if wide else torch.bfloat16)

    p = compiled("gated_delta_rule").step
    given = {v.name: empty(*(128 for _ in v.axes), wide=v.kind != "input") for v in p.variables}
    with replaced_launches(op, record, parts), using(replace(CONFIG, roles=roles)):
        outputs, finals, saved = op.triton_forward(given, {}, {}, needs_backward=recording)
        if recording:
            op.triton_backward(given, {}, {}, saved, outputs, finals, frozenset(given))
    return found


@pytest.fixture(autouse=True)
def such_a_gpu(monkeypatch):
    monkeypatch.setattr(warp_roles, "available", lambda: True)
    monkeypatch.setattr(warp_roles, "movable", lambda *_: True)


names = functools.partial(map, lambda x: x[0])


def test_a_forward_pass_of_whole_sequences_is_one_kernel():
    assert "forward_joined_roles" in names(launches(3, False, 1))
    (stages,) = (dict(x[2])["STAGES"] for x in launches(2, False, 1) if x[0] == "forward_joined_roles")
    assert stages == "2"
    assert "forward_joined_roles" not in names(launches(None, False, 1))


def test_passes_that_record_gradients_have_joined_sweeps_both_ways():
    joined = [n for n in names(launches(3, True, 1)) if n.endswith("_roles")]
    backward = ["backward_joined_1_roles", "backward_joined_2_roles", "backward_sweep_3_roles"]
    assert joined == ["forward_joined_roles", *backward]
    assert not [n for n in names(launches(None, True, 1)) if n.endswith("_roles")]


@pytest.mark.parametrize("recording", [True, False])
def test_what_is_split_is_as_without(recording):
    found = launches(3, recording, 2)
    assert found == launches(None, recording, 2) and "forward_joined_roles" not in names(found)
    assert found
