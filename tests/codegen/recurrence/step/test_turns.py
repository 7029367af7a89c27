"""Sums of angles: which states are, and that they keep their digits over 10^6 steps in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import chunkform
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.runtime.torch_form.entry_segments import WHOLE, InSegments
from chunkform.spec.language import Recurrence, cos, hadamard, sin, tanh

STEPS = 10**6
BOUND = 5e-7  # of cos, of an angle within half a turn as float32 has it


def turned(read):
    """A state that sums angles, and one that is read through `read` of it."""
    r = Recurrence("turned")
    d = r.dims("d")
    x, th = r.inputs("x th", d)
    at, h = r.state("at", d), r.state("h", d)
    r.update(at, at.prev + th)
    r.update(h, hadamard(r.decay("a", d), h.prev) + read(at, x))
    r.output("o", h.next)
    return r


READ = {
    "cos": (lambda at, x: hadamard(cos(at.next), x), True),
    "before the step, twice": (lambda at, x: hadamard(sin(2 * at.prev), x), True),
    "beside another": (lambda at, x: hadamard(cos(x - at.next), x), True),
    "half of it": (lambda at, x: hadamard(cos(at.next / 2), x), False),
    "times an input": (lambda at, x: cos(hadamard(at.next, x)), False),
    "as it is": (lambda at, x: hadamard(cos(at.next), at.next), False),
    "another function": (lambda at, x: tanh(at.next), False),
}


@pytest.mark.parametrize("read", READ)
def test_whole_turns_do_not_count_where_cos_and_sin_alone_are_taken(read: str) -> None:
    f, turns = READ[read]
    step = compile_spec(turned(f)).step
    assert step.state("at").turns == turns and not step.state("h").turns


def test_a_sum_of_angles_keeps_its_digits_over_10_6_steps() -> None:
    """In one sum of float32 it's off by a large part of a turn."""
    r = Recurrence("angles")
    th, x = r.inputs("th x")
    at = r.state("at")
    r.update(at, at.prev + th)
    r.output("o", cos(at.next) * x)
    op = chunkform.compile(r)
    g = torch.Generator().manual_seed(0)
    given = {n: torch.rand(1, STEPS, 1, generator=g) for n in ("th", "x")}
    for steady in (False, True):
        given["th"] = torch.full_like(given["th"], 0.3) if steady else given["th"]
        leaves = [x.clone().requires_grad_() for x in given.values()]
        o, at_end = op(*leaves, output_final_state=True)
        angles = given["th"].double().cumsum(1)
        assert o.dtype == at_end.dtype == torch.float32
        assert (o.detach() - angles.cos() * given["x"]).abs().max() < BOUND
        of_x = torch.autograd.grad(o.sum(), leaves)[1]
        assert (of_x - angles.cos()).abs().max() < BOUND
        alone = given["th"].cumsum(1)
        assert (alone.cos() - angles.cos()).abs().max() > 1e-3  # what a sum in float32 makes


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_long_rotations_by_the_same_angles_never_run_whole(constant: bool, together: bool) -> None:
    """On a GPU that heads fill: what rounding of a cosine adds up to the same side ends with each segment."""
    groups = (("R", "I"),) if together else (("R",), ("I",))
    nothing = lambda *_: ({}, {}, {})  # noqa: E731
    run = InSegments(nothing, nothing, nothing, groups, ("x",), entries=2**24, constant=constant)  # type: ignore[arg-type]

    def segments(steps: int):
        some = SimpleNamespace(shape=(1, steps, 64, 3), is_cuda=True, device=torch.device("cpu"))
        return run.segments_of({"x": some}, None)  # type: ignore[dict-item]

    assert segments(WHOLE) is None
    cut = segments(STEPS)
    assert (cut is not None) == (constant and together)
    if cut is not None:
        assert cut.packed.longest <= WHOLE
