"""Bit for bit on a GPU: no later step changes an earlier one, zeros are no state, runs agree, and so do sequences in company."""

import pytest
import torch
from shared.bits import (
    RECURRENCES,
    Case,
    has_zero_start,
    later_steps,
    no_state,
    once_more,
    other_entries,
    problem,
    replace,
)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
UNSTABLE = ("inverse_attention_unstable", "sherman_morrison")  # which divide by decays, and explode
PACKED = (5, 0, 70, 130, 64, 1)

every_op = pytest.mark.parametrize("name", RECURRENCES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def case(name: str, dtype: str, steps: int, **more) -> Case:
    short = name in UNSTABLE
    if short and "lengths" in more:
        more["lengths"] = tuple(min(n, 20) for n in more["lengths"])
    defaults = {"widths": (64, 72), "device": "cuda", "heads": 2}
    return Case(min(steps, 20) if short else steps, DTYPES[dtype], **(defaults | more))


def takes_packed(name: str) -> bool:
    return "packed" in problem(name, Case(1)).op.__globals__["OP"].backends["triton"].features


@every_op
@every_dtype
@pytest.mark.parametrize("deterministic", [False, True])
def test_later_steps_change_nothing_before(name, dtype, deterministic):
    """Also where what comes later, or what came before, has decays so strong that they add up to much over a chunk."""
    at = case(name, dtype, 1100, batch=1)
    strong = 1.0 if name in UNSTABLE else 20.0
    one, other = problem(name, replace(at, decay=0.1)), problem(name, replace(at, seed=1, decay=strong))
    found = {n: later_steps(one, other, n, deterministic=deterministic) for n in (10, 64, 300, 1090) if n < at.steps}
    found[-1] = later_steps(other, one, 10, deterministic=deterministic)
    assert not any(found.values()), found


@every_op
@every_dtype
def test_zeros_are_no_state(name, dtype):
    p = problem(name, case(name, dtype, 600, batch=1))
    if has_zero_start(p.op):
        assert no_state(p) == {}
        assert no_state(p, deterministic=True) == {}


@every_op
@every_dtype
@pytest.mark.parametrize("steps", [150, 1100])
def test_runs_agree(name, dtype, steps):
    assert once_more(problem(name, case(name, dtype, steps)), times=4) == {}


@every_op
@every_dtype
def test_sequences_alone_and_together_where_none_is_cut(name, dtype):
    assert other_entries(problem(name, case(name, dtype, 150))) == {}
    if takes_packed(name):
        assert other_entries(problem(name, case(name, dtype, 1, lengths=PACKED))) == {}


@every_op
@every_dtype
@pytest.mark.parametrize("widths", [(64, 72), (20, 33)], ids=["64", "20"])
def test_deterministic_sequences_alone_and_together(name, dtype, widths):
    for steps in (64, 1100):
        assert other_entries(problem(name, case(name, dtype, steps, widths=widths)), deterministic=True) == {}, steps
    if takes_packed(name):
        packed = case(name, dtype, 1, lengths=(*PACKED, 1100, 256), widths=widths)
        assert other_entries(problem(name, packed), deterministic=True) == {}


@every_op
@every_dtype
def test_pieces_at_chunk_boundaries_have_the_bits_of_the_whole(name, dtype):
    """As a prefill in pieces has them, each from the states that the one before left."""
    if name in UNSTABLE:
        pytest.skip("explodes within a chunk")
    p = problem(name, case(name, dtype, 300, batch=2))
    options = {"output_final_state": True, "deterministic": True}
    *whole, last = p.op(**p.given, **p.constants, initial_state=p.states, **options)
    state, parts = p.states, []
    for piece in (slice(0, 64), slice(64, 256), slice(256, 300)):
        own = {n: x[:, piece] if n in p.per_step else x for n, x in p.given.items()}
        *outputs, state = p.op(**own, **p.constants, initial_state=state, **options)
        parts.append(outputs)
    found = [torch.cat(x, 1) for x in zip(*parts, strict=True)]
    ends = [x if isinstance(x, tuple) else (x,) for x in (state, last)]
    wrong = [
        i for i, (x, y) in enumerate(zip((*found, *ends[0]), (*whole, *ends[1]), strict=True)) if not torch.equal(x, y)
    ]
    assert wrong == []
