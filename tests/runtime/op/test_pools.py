"""Rows of a pool of states: read and written in place, by a step and by a prefill; padding touches nothing."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import chunkform
from chunkform.errors import ArgumentError
from chunkform.generated import gated_delta_rule, gradient_descent_squared_momentum, lightning_attention
from chunkform.runtime.op.rows import write_rows
from chunkform.runtime.op.small_states import SmallPool

H, D, E, P = 2, 8, 16, 7


def given(op, *lead):
    torch.manual_seed(0)
    sizes = {"d": D, "e": E, "n": D, "m": E}
    made = {}
    for a in OPS[op].arguments:
        x = torch.rand(*lead, H, *(sizes[d] for d in a.dims)) / 2
        made[a.key] = -x if a.kind == "decay" else x
    return made


TRIED = (gated_delta_rule, lightning_attention, gradient_descent_squared_momentum)
OPS = {op: sys.modules[op.__module__].SIGNATURE for op in TRIED}
every = pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)


def pool_of(op, dtype=torch.float32):
    torch.manual_seed(1)
    made = tuple(
        torch.randn(P, H, *({"d": D, "e": E, "n": D, "m": E}[d] for d in dims)).to(dtype) / 4
        for _, dims in OPS[op].states
    )
    return made if len(made) > 1 else made[0]


def listed(x):
    return list(x) if isinstance(x, tuple) else [x]


@every
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_a_step_reads_and_writes_its_rows_alone(op, kind):
    rows = torch.tensor([4, -1, 0, 6, -1], dtype=kind)
    now, pool = given(op, 5), pool_of(op)
    before = [x.clone() for x in listed(pool)]
    for x in now.values():
        x[1] = float("nan")  # padding: whatever it is
    *outputs, same = op.step(pool, **now, state_indices=rows)
    assert same is pool
    for b, row in enumerate(rows.tolist()):
        if row < 0:
            assert all((o[b] == 0).all() for o in outputs)
            continue
        state = [x[row : row + 1].clone() for x in before]
        *alone, after = op.step(
            tuple(state) if len(state) > 1 else state[0], **{n: x[b : b + 1] for n, x in now.items()}
        )
        assert all(torch.equal(o[b], a[0]) for o, a in zip(outputs, alone, strict=True))
        assert all(torch.equal(x[row], y[0]) for x, y in zip(listed(pool), listed(after), strict=True))
    for x, y in zip(listed(pool), before, strict=True):
        assert torch.equal(x[[1, 2, 3, 5]], y[[1, 2, 3, 5]])


@every
def test_a_prefill_in_pieces_goes_on_from_the_pool(op):
    steps, rows = 20, torch.tensor([3, -1, 5])
    whole, pool = given(op, 3, steps), pool_of(op)
    first = [x.index_select(0, rows.clamp(min=0)) for x in listed(pool)]
    before = [x.clone() for x in listed(pool)]
    *wanted, last = op(**whole, initial_state=tuple(first) if len(first) > 1 else first[0], output_final_state=True)
    parts = []
    for piece in (slice(0, 8), slice(8, 9), slice(9, 20)):
        *outputs, same = op(**{n: x[:, piece] for n, x in whole.items()}, state_pool=pool, state_indices=rows)
        parts.append(outputs)
        assert same is pool
    for n, y in enumerate(wanted):
        found = torch.cat([p[n] for p in parts], 1)
        assert torch.allclose(found[[0, 2]], y[[0, 2]], atol=1e-5) and (found[1] == 0).all()
    for x, y, z in zip(listed(pool), listed(last), before, strict=True):
        assert torch.allclose(x[[3, 5]], y[[0, 2]], atol=1e-5)
        assert torch.equal(x[[0, 1, 2, 4, 6]], z[[0, 1, 2, 4, 6]])


def test_packed_padding_is_zero_whatever_its_arguments_are():
    row, pool = given(gated_delta_rule, 1, 12), pool_of(gated_delta_rule)
    before, starts, rows = pool.clone(), torch.tensor([0, 4, 4, 9, 12]), torch.tensor([-1, 5, 2, -1])
    row["v"][:, :4] = float("nan")
    o, _ = gated_delta_rule(**row, state_pool=pool, state_indices=rows, cu_seqlens=starts)
    alone = {n: x[:, 4:9] for n, x in row.items()}
    wanted, last = gated_delta_rule(**alone, initial_state=before[2:3], output_final_state=True)
    assert torch.equal(o[:, 4:9], wanted) and torch.equal(pool[2], last[0])
    assert (
        not o[:, :4].any() and not o[:, 9:].any() and torch.equal(pool[[0, 1, 3, 4, 5, 6]], before[[0, 1, 3, 4, 5, 6]])
    )


def test_a_packed_prefill_then_steps():
    op, lengths = lightning_attention, [5, 0, 9]
    starts = torch.tensor([0, 5, 5, 14])
    rows, pool = torch.tensor([6, 2, 1]), torch.zeros(P, H, D, E)
    row = given(op, 1, sum(lengths))
    (o, _) = op(**row, state_pool=pool, state_indices=rows, cu_seqlens=starts)
    for n, at in enumerate(rows.tolist()):
        part = {k: x[:, starts[n] : starts[n + 1]] for k, x in row.items()}
        alone, last = op(**part, output_final_state=True)
        assert torch.allclose(o[:, starts[n] : starts[n + 1]], alone, atol=1e-5)
        assert torch.allclose(pool[at], last[0], atol=1e-5)
    assert (pool[[0, 3, 4, 5]] == 0).all()


def test_only_padding_writes_nothing_and_out_keeps_its_rows():
    op, pool = gated_delta_rule, pool_of(gated_delta_rule, torch.bfloat16)
    before, out = pool.clone(), torch.full((2, H, E), 7.0)
    op.step(pool, **given(op, 2), state_indices=torch.tensor([-1, -1]), out=out)
    assert torch.equal(pool, before) and (out == 7).all()
    op.step(pool, **given(op, 2), state_indices=torch.tensor([-1, 0]), out=out)
    assert (out[0] == 7).all() and (out[1] != 7).all()
    assert torch.equal(pool[1:], before[1:]) and not torch.equal(pool[0], before[0])


def test_in_debug_mode_a_row_is_there_and_stands_once():
    pool, now = pool_of(gated_delta_rule), given(gated_delta_rule, 3)
    with chunkform.debug():
        gated_delta_rule.step(pool, **now, state_indices=torch.tensor([-1, 3, -1]))
        with pytest.raises(ArgumentError, match="the row 3 twice, at 0 and at 2"):
            gated_delta_rule.step(pool, **now, state_indices=torch.tensor([3, 1, 3]))
        with pytest.raises(ArgumentError, match="0 to 6, or -1; got 7 at 1"):
            gated_delta_rule.step(pool, **now, state_indices=torch.tensor([3, 7, 2]))


def test_a_pool_that_is_not_dense_is_told():
    pool = pool_of(gated_delta_rule).to_sparse()
    with pytest.raises(ArgumentError, match=r"state must be a dense tensor, got the layout torch.sparse_coo"):
        gated_delta_rule.step(pool, **given(gated_delta_rule, 2), state_indices=torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 1], "must be a tensor"),
        (torch.tensor([0.0, 1.0]), "int32 or int64"),
        (torch.tensor([[0, 1]]), r"tensor \[B\]"),
        (torch.tensor([0, 1, 2]), "state"),
        (torch.tensor([0, 7]), "0 to 6, or -1; got 7 at 1"),
        (torch.tensor([-2, 1]), "got -2 at 0"),
    ],
)
def test_other_indices_are_told(rows, said):
    pool = pool_of(gated_delta_rule)
    with pytest.raises(ArgumentError, match=said):
        gated_delta_rule.step(pool, **given(gated_delta_rule, 2), state_indices=rows)


def test_what_a_pool_cannot_be_is_told():
    now = given(gated_delta_rule, 2, 3)
    rows = torch.tensor([0, 1])
    with pytest.raises(ArgumentError, match="given together"):
        gated_delta_rule(**now, state_indices=rows)
    with pytest.raises(ArgumentError, match="given together"):
        gated_delta_rule(**now, state_pool=pool_of(gated_delta_rule))
    with pytest.raises(ArgumentError, match="the pool is the step's state"):
        gated_delta_rule.step(**given(gated_delta_rule, 2), state_pool=pool_of(gated_delta_rule))
    with pytest.raises(ArgumentError, match=r"S \[P, H, d, e\]"):
        gated_delta_rule.step(None, **given(gated_delta_rule, 2), state_indices=rows)
    with pytest.raises(ArgumentError, match="no_grad"):
        gated_delta_rule(
            **(now | {"q": now["q"].requires_grad_()}), state_pool=pool_of(gated_delta_rule), state_indices=rows
        )


def test_a_pool_and_its_rows_go_by_their_own_names():
    """Not by those of the initial states that a prefill makes of them, nor by the batch's."""
    long, now, packed = (given(gated_delta_rule, *lead) for lead in ((2, 5), (2,), (1, 5)))
    rows, starts = torch.tensor([1, 2]), torch.tensor([0, 2, 5])
    call, step, pool = gated_delta_rule, gated_delta_rule.step, torch.zeros(P, H, D, E)
    small = SmallPool.zeros(gated_delta_rule, rows=P, heads=H, dims={"d": D, "e": E}, dtype=torch.int8)
    for run, told in (
        (lambda: call(**long, state_pool=pool.to(torch.int8), state_indices=rows), r"rows of state_pool must be in float32"),
        (lambda: call(**long, state_pool=pool[:, :1], state_indices=rows), r"rows of state_pool must be \[B, H, d, e\]"),
        (lambda: call(**long, state_pool=pool, state_indices=rows[:1]), r"state_indices must be \[B\] = \[2\], got \[1\]"),
        (
            lambda: call(**packed, cu_seqlens=starts, state_pool=pool, state_indices=rows[:1]),
            r"state_indices must be \[N\] = \[2\], got \[1\]",
        ),
        (lambda: step(pool[:, :1], **now, state_indices=rows), r"state must be \[P, H, d, e\] = \[7, 2, 8, 16\], got"),
        (lambda: step(pool.to(torch.float8_e5m2), **now, state_indices=rows), r"state must be in float32, .* got torch.float8"),
        (lambda: step(small, **now), r"a SmallPool is taken with state_indices"),
        (lambda: call(**long, deterministic="chunks"), r"must be True or False, got 'chunks'; \"chunk\" is for decoding"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            run()


def test_rows_are_written_without_being_read():
    """What padding needs, where all rows are that, is one row of the pool."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if any(x is pool for x in args) and isinstance(made, torch.Tensor) and made is not pool:
                read.append(made.shape[0])
            return made

    for rows, left in (([3, -1, 0], [2, 9, 9, 0, 9]), ([-1, -1, -1], [9] * 5)):
        pool, read = torch.full((5, 2), 9.0), []
        states = torch.tensor([[0.0], [1.0], [2.0]]).expand(3, 2)
        with Seen():
            write_rows([pool], [states], torch.tensor(rows))
        assert sum(read) <= 1 and torch.equal(pool[:, 0], torch.tensor(left, dtype=torch.float32))
