"""Pools in int8, float8 and bfloat16: what rounding does, on average and at most, and that rows are read and written alone."""

import pytest
import torch
from shared.step_calls import SIZES, arguments, at, op

from chunkform.errors import ArgumentError
from chunkform.runtime.op.small_states import DTYPES, LARGEST, SmallPool, small

H = 2
STEP = {
    torch.int8: 1 / 127,
    torch.float8_e4m3fn: 1 / 8,
    torch.bfloat16: 1 / 128,
}  # of the largest, or of the number itself
every = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def value(numbers, scales):
    return numbers.float() if scales is None else numbers.float() * scales


@every
@pytest.mark.parametrize("stochastic", [True, False])
def test_a_number_is_rounded_to_a_neighbour(dtype, stochastic):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 50) * torch.tensor([1e-20, 1.0, 3.0, 1e20]).view(4, 1, 1, 1)
    x[0, 0, 0] = 0
    found = value(*small(x, dtype, stochastic))
    of = x.abs().amax(-1, keepdim=True) if dtype == torch.int8 else x.abs()
    least = 0 if dtype not in LARGEST else x.abs().amax(-1, keepdim=True) * 2.0**-9 / LARGEST[dtype]
    assert (
        (found - x).abs()
        <= (1 + 1e-5) * torch.maximum(of * STEP[dtype], torch.as_tensor(least)) / (1 if stochastic else 2)
    ).all()
    assert (found[0, 0, 0] == 0).all()


@every
def test_what_is_rounded_away_adds_up_to_nothing(dtype):
    torch.manual_seed(0)
    x = torch.rand(1, 1, 4, 16)
    many = x.expand(4000, 1, 4, 16).contiguous()
    mean = value(*small(many, dtype, True)).mean(0, keepdim=True)
    nearest = value(*small(x, dtype, False))
    assert (mean - x).abs().max() < 0.1 * (nearest - x).abs().max()


@every
@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_a_step_and_a_prefill_read_and_write_their_rows_alone(name, dtype):
    torch.manual_seed(0)
    call, count = op(name), 3
    tensors, constants = arguments(name, count, 12, H, SIZES, seed=3)
    pool = SmallPool.zeros(call, 7, H, SIZES, dtype)
    rows = torch.tensor([5, -1, 2])
    *outputs, same = call(**tensors, **constants, state_pool=pool, state_indices=rows)
    *whole, last = call(**tensors, **constants, output_final_state=True)
    assert same is pool and all(torch.equal(x[[0, 2]], y[[0, 2]]) for x, y in zip(outputs, whole, strict=True))
    last = last if isinstance(last, tuple) else (last,)
    for x, y in zip(pool.read(torch.tensor([5, 2])), last, strict=True):
        assert (x - y[[0, 2]]).abs().max() <= 1.01 * STEP[dtype] * y.abs().max()
    before = pool.read(torch.arange(7))
    own = pool.read(rows)
    now = at(name, tensors, 0)
    *found, _ = call.step(pool, **now, **constants, state_indices=rows)
    *exact, after = call.step(own if len(own) > 1 else own[0], **now, **constants)
    for x, y in zip(found, exact, strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]]) and not x[1].any()
    after = after if isinstance(after, tuple) else (after,)
    for x, y, z in zip(pool.read(torch.arange(7)), after, before, strict=True):
        assert (x[[5, 2]] - y[[0, 2]]).abs().max() <= 1.01 * STEP[dtype] * y.abs().max()
        assert torch.equal(x[[0, 1, 3, 4, 6]], z[[0, 1, 3, 4, 6]])


@every
@pytest.mark.parametrize("keep", ["replay", "copies"])
@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_drafts_are_rounded_when_they_are_taken_over(name, keep, dtype):
    call = op(name)
    tensors, constants = arguments(name, 4, 3, H, SIZES, seed=3)
    pool = SmallPool.zeros(call, 7, H, SIZES, dtype, stochastic=False)
    pool.write(torch.arange(7), [torch.randn_like(x) for x in pool.read(torch.arange(7))])
    rows, accepted = torch.tensor([5, -1, 2, 0]), torch.tensor([3, 2, 0, 1])
    before, own = pool.read(torch.arange(7)), pool.read(rows)
    *outputs, drafts = call.draft(pool, **tensors, **constants, state_indices=rows, keep=keep)
    wide = tuple(x.clone() for x in own) if len(own) > 1 else own[0].clone()
    *exact, others = call.draft(wide, **tensors, **constants, keep=keep)
    real = rows >= 0
    for x, y in zip(outputs, exact, strict=True):
        assert torch.equal(x[real], y[real]) and not x[1].any()
    assert all(torch.equal(x, y) for x, y in zip(pool.read(torch.arange(7)), before, strict=True))
    assert call.commit(drafts, accepted) is pool
    after = call.commit(others, accepted)
    for x, y, z in zip(
        pool.read(torch.arange(7)), after if isinstance(after, tuple) else (after,), before, strict=True
    ):
        assert torch.equal(x[[5, 0]], value(*small(y, dtype, False))[[0, 3]])
        assert torch.equal(x[[1, 2, 3, 4, 6]], z[[1, 2, 3, 4, 6]])


def test_bytes_and_mistakes():
    call = op("gated_delta_rule")
    pool = SmallPool.zeros(call, 10, H, {"d": 64, "e": 64})
    assert len(pool) == 10 and pool.bytes == 10 * H * (64 * (64 + 4) + 4)  # and a count for each row and head
    with pytest.raises(ArgumentError, match=r"dtype must be torch.int8, .* got torch.int16"):
        SmallPool.zeros(call, 10, H, SIZES, torch.int16)
    with pytest.raises(ArgumentError, match=r"dims must have the sizes of e as well, got {'d': 64}"):
        SmallPool.zeros(call, 10, H, {"d": 64})
    with pytest.raises(ArgumentError, match="op must be an op, whose states are known, got 'gated_delta_rule'"):
        SmallPool.zeros("gated_delta_rule", 10, H, SIZES)
    with pytest.raises(ArgumentError, match="rows must be a number, 0 or more, got -1"):
        SmallPool.zeros(call, -1, H, SIZES)
    tensors, _ = arguments("gated_delta_rule", 2, 1, H, SIZES)
    rows = {"state_indices": torch.tensor([0, 1])}
    with pytest.raises(ArgumentError, match="state_indices must be a tensor"):
        call.draft(SmallPool.zeros(call, 10, H, SIZES), **tensors)
    other, constants = arguments("gradient_descent_squared_momentum", 2, 1, H, SIZES)
    with pytest.raises(ArgumentError, match="of an op with 1 states, not 2"):
        now = at("gradient_descent_squared_momentum", other, 0)
        op("gradient_descent_squared_momentum").step(SmallPool.zeros(call, 10, H, SIZES), **now, **constants, **rows)
    now = at("gated_delta_rule", tensors, 0)
    with pytest.raises(ArgumentError, match="state_dtype must be left out"):
        call.step(SmallPool.zeros(call, 10, H, SIZES), **now, **rows, state_dtype=torch.float32)
    with pytest.raises(ArgumentError, match="deterministic must be"):
        call.step(SmallPool.zeros(call, 10, H, SIZES), **now, **rows, deterministic="yes")
