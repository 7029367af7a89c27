"""Drafts: K steps in one call, of which any number are taken over; the bits are those of steps one after the other."""

import pytest
import torch
from shared.step_calls import SIZES, arguments, at, op
from torch.utils._python_dispatch import TorchDispatchMode

import chunkform
from chunkform.errors import ArgumentError
from chunkform.runtime.op.decode import Launch

K, H = 4, 2
TRIED = (
    "gated_delta_rule",
    "lightning_attention",
    "gradient_descent_squared_momentum",
    "sherman_morrison",
    "ttt_linear",
)


def listed(x):
    return list(x) if isinstance(x, tuple) else [x]


def given(name, batch):
    return arguments(name, batch, K, H, SIZES, seed=3)


def pool_of(name, dtype, rows=7):
    tensors, constants = given(name, 1)
    *_, state = op(name).step(None, **at(name, tensors, 0), **constants)
    torch.manual_seed(1)
    return tuple((0.1 * torch.randn(rows, *x.shape[1:]) + x).to(dtype) for x in listed(state))


@pytest.mark.parametrize("keep", ["replay", "copies"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TRIED)
def test_drafts_then_a_commit_have_the_bits_of_as_many_steps(name, dtype, keep):
    tensors, constants = given(name, 4)
    pool, rows = pool_of(name, dtype), torch.tensor([5, -1, 2, 0])
    *outputs, drafts = op(name).draft(pool, **tensors, **constants, state_indices=rows, keep=keep)
    assert drafts.keeps == keep
    assert all(torch.equal(x, y) for x, y in zip(pool, pool_of(name, dtype), strict=True))
    stepped = pool_of(name, dtype)
    states = [[x.clone() for x in stepped]]
    for t in range(K):
        *now, _ = op(name).step(stepped, **at(name, tensors, t), **constants, state_indices=rows)
        assert all(torch.equal(x, y[:, t]) for x, y in zip(now, outputs, strict=True))
        states.append([x.clone() for x in stepped])
    accepted = torch.tensor([3, 4, 0, 4])
    same = op(name).commit(drafts, accepted)
    assert all(x is y for x, y in zip(listed(same), pool, strict=True))
    for x, *all_of_it in zip(pool, *states, strict=True):
        for row, n in ((5, 3), (2, 0), (0, 4)):
            assert torch.equal(x[row], all_of_it[n][row])
        assert torch.equal(x[[1, 3, 4, 6]], all_of_it[0][[1, 3, 4, 6]])


class Sizes(TorchDispatchMode):
    """How many entries the largest tensor has that an operation takes."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.most = max([self.most, *(x.numel() for x in arguments if isinstance(x, torch.Tensor))])
        return function(*arguments, **(options or {}))


def test_nothing_is_done_to_a_whole_pool(monkeypatch):
    """Where a kernel goes to the rows: a copy, or a cast, of all of them would take longer than the steps."""
    monkeypatch.setattr(Launch, "launch", lambda self, *_: None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    tensors, _ = given("lightning_attention", 2)
    call, rows = op("lightning_attention"), torch.tensor([0, 5])
    pool = torch.zeros(1000, H, SIZES["d"], SIZES["e"], dtype=torch.bfloat16)
    out = torch.zeros(2, K, H, SIZES["e"])
    with Sizes() as seen:
        *_, drafts = call.draft(pool, **tensors, state_indices=rows, out=out, backend="triton", keep="replay")
        call.commit(drafts, torch.tensor([1, 2]))
        now = at("lightning_attention", tensors, 0)
        call.step(pool, **now, state_indices=rows, out=out[:, 0].clone(), backend="triton")
    assert seen.most < pool.numel() // 10


def test_without_a_pool_the_states_are_the_batchs():
    tensors, _ = given("lightning_attention", 2)
    call = op("lightning_attention")
    o, drafts = call.draft(None, **tensors)
    whole, last = call(**tensors, output_final_state=True)
    assert torch.allclose(o, whole, atol=1e-6)
    assert torch.allclose(call.commit(drafts, K), last, atol=1e-6)


def test_what_is_kept_is_chosen_by_bytes_and_told():
    call = op("gated_delta_rule")
    wide = {n: torch.rand(2, K, H, *([64] if n in "qkv" else [])) for n in ("q", "k", "v", "beta")}
    _, drafts = call.draft(torch.zeros(2, H, 64, 64), **wide, log_alpha=-torch.rand(2, K, H))
    assert drafts.keeps == "replay"
    assert drafts.bytes == {"replay": K * H * (3 * 64 + 2) * 4, "copies": (K + 1) * H * 64 * 64 * 4}
    narrow, constants = given("leaky_integrator", 2)
    *_, drafts = op("leaky_integrator").draft(None, **narrow, **constants, state_dtype=torch.bfloat16)
    assert drafts.keeps == ("copies" if drafts.bytes["copies"] < drafts.bytes["replay"] else "replay")
    assert repr(drafts) == f"<4 drafts of leaky_integrator, kept as {drafts.keeps}>"


def test_outputs_go_where_they_are_wanted():
    tensors, _ = given("lightning_attention", 2)
    call, pool = op("lightning_attention"), torch.zeros(3, H, SIZES["d"], SIZES["e"])
    out = torch.full((2, K, H, SIZES["e"]), 7.0)
    same, _ = call.draft(pool, **tensors, state_indices=torch.tensor([-1, 1]), out=out)
    assert same is out and (out[0] == 7).all() and (out[1] != 7).any()


MISTAKES = {
    "an option": (lambda: {"stat_indices": torch.tensor([0, 1])}, "has no argument 'stat_indices'"),
    "rows": (lambda: {"state_indices": torch.tensor([0, 1, 2])}, r"state_indices must be \[B\] = \[2\]"),
    "no such row": (lambda: {"state_indices": torch.tensor([0, 9])}, "0 to 2, or -1; got 9 at 1"),
    "how to keep": (lambda: {"keep": "state"}, "keep must be 'replay', 'copies' or None"),
    "a gradient": (lambda: {"q": torch.randn(2, K, H, 5, requires_grad=True)}, "has no gradient"),
    "no step": (
        lambda: {n: torch.zeros(2, 0, H, *w) for n, w in (("q", [5]), ("k", [5]), ("v", [3]), ("log_lam", []))},
        "one step or more, got T = 0",
    ),
    "one step": (lambda: {"q": torch.randn(2, H, 5)}, "q must have 4 axes"),
    "out": (lambda: {"out": torch.zeros(2, H, 3)}, r"out must be \[B, T, H, e\] = \[2, 4, 2, 3\]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    change, message = MISTAKES[mistake]
    tensors, _ = given("lightning_attention", 2)
    pool = torch.zeros(3, H, SIZES["d"], SIZES["e"])
    rows = {"state_indices": torch.tensor([0, 2])}
    with pytest.raises(ArgumentError, match=message):
        op("lightning_attention").draft(pool, **(rows | tensors | change()))


def test_what_cannot_be_taken_over_is_told():
    tensors, _ = given("lightning_attention", 2)
    call, pool = op("lightning_attention"), torch.zeros(3, H, SIZES["d"], SIZES["e"])
    _, drafts = call.draft(pool, **tensors, state_indices=torch.tensor([0, 2]))
    with pytest.raises(ArgumentError, match="0 to 4 steps, got 5 at 1"):
        call.commit(drafts, torch.tensor([1, 5]))
    with pytest.raises(ArgumentError, match=r"must be \[B\] = \[2\]"):
        call.commit(drafts, torch.tensor([1]))
    with pytest.raises(ArgumentError, match="must be a number, or a tensor"):
        call.commit(drafts, torch.tensor([1.0, 2.0]))
    with pytest.raises(ArgumentError, match=r"must be what lightning_attention\.draft returned"):
        call.commit(pool, 1)
    with pytest.raises(ArgumentError, match=r"must be what gated_delta_rule\.draft returned"):
        op("gated_delta_rule").commit(drafts, 1)
    call.commit(drafts, 2)
    with pytest.raises(ArgumentError, match="were taken over before"):
        call.commit(drafts, 2)


def test_in_debug_mode_a_row_stands_once_and_values_are_looked_at():
    tensors, _ = given("lightning_attention", 2)
    call, pool = op("lightning_attention"), torch.zeros(3, H, SIZES["d"], SIZES["e"])
    with chunkform.debug():
        with pytest.raises(ArgumentError, match="the row 2 twice, at 0 and at 1"):
            call.draft(pool, **tensors, state_indices=torch.tensor([2, 2]))
        with pytest.raises(ArgumentError, match="log_lam is the logarithm of a decay"):
            call.draft(pool, **(tensors | {"log_lam": torch.ones(2, K, H)}), state_indices=torch.tensor([0, 2]))
        tensors["q"][1] = float("nan")
        call.draft(pool, **tensors, state_indices=torch.tensor([0, -1]))


def test_inside_a_compiled_function_they_are_the_same():
    tensors, _ = given("lightning_attention", 2)
    call, pool = op("lightning_attention"), torch.ones(2, H, SIZES["d"], SIZES["e"])
    compiled = torch.compile(lambda s, x: call.draft(s, **x)[0] * 2, backend="eager")
    assert torch.equal(compiled(pool, tensors), call.draft(pool, **tensors)[0] * 2)
