"""Agreement: pieces at chunk boundaries have the bits of the whole, and so have steps with `deterministic="chunk"`."""

import pytest
import torch
from shared.spec_files import catalogue
from shared.step_calls import SIZES, arguments, at, op, part

from chunkform.errors import ArgumentError
from chunkform.generated import mesa_net, rwkv7
from chunkform.spec.language import Recurrence

NAMES = [r.name for r in catalogue() if isinstance(r, Recurrence)]
STEP_BY_STEP = {"sherman_morrison", "gradient_descent_logistic", "gradient_descent_logistic_momentum"}


def listed(x):
    return list(x) if isinstance(x, tuple) else [x]


def same(found, wanted):
    return all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_pieces_at_chunk_boundaries_have_the_bits_of_the_whole(name):
    """But for recurrent forms on a CPU, which compute in float64 and hand float32 on."""
    tensors, constants = arguments(name, 1, 200, 2, SIZES, seed=3)
    *whole, last = op(name)(**tensors, **constants, output_final_state=True, deterministic=True)
    state, parts = None, []
    for piece in (slice(0, 64), slice(64, 192), slice(192, 200)):
        *outputs, state = op(name)(
            **part(name, tensors, piece), **constants, initial_state=state, output_final_state=True, deterministic=True
        )
        parts.append(outputs)
    found = [torch.cat(x, 1) for x in zip(*parts, strict=True)]
    assert (same(found, whole) and same(listed(state), listed(last))) == (name not in STEP_BY_STEP)
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(found, whole, strict=True))


def test_functions_of_inputs_are_rounded_otherwise_at_the_end_of_a_tensor():
    """By torch on a CPU: steps by chunks agree to rounding, as the page on serving says."""
    torch.manual_seed(0)
    given = {n: torch.rand(2, 140, 2, 16) / 4 for n in ("q", "k", "kappa", "a", "v")}
    given["log_w"] = -torch.rand(2, 140, 2, 16) / 4
    whole, _ = rwkv7(**given, deterministic=True)
    _, state = rwkv7(**{n: x[:, :60] for n, x in given.items()}, output_final_state=True, deterministic="chunk")
    for t in range(60, 140):
        o, state = rwkv7.step(state, **{n: x[:, t] for n, x in given.items()}, deterministic="chunk")
        assert torch.allclose(o, whole[:, t], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "kimi_delta_attention", "gradient_descent_squared_momentum", "inverse_attention"]
)
def test_steps_by_chunks_have_the_bits_of_a_training_pass(name, dtype):
    tensors, constants = arguments(name, 2, 72, 2, SIZES, dtype, seed=3)
    call = op(name)
    *whole, _ = call(**tensors, **constants, deterministic=True)
    *outputs, state = call(
        **part(name, tensors, slice(0, 61)), **constants, output_final_state=True, deterministic="chunk"
    )
    assert same([x[:, :61] for x in whole], outputs)
    for t in range(61, 68):
        *now, state = call.step(state, **at(name, tensors, t), **constants, deterministic="chunk")
        assert same(now, [x[:, t] for x in whole])
    assert state.filled == 4
    *outputs, none = call(
        **part(name, tensors, slice(68, None)), **constants, initial_state=state, deterministic="chunk"
    )
    assert none is None and same(outputs, [x[:, 68:] for x in whole])


def test_a_step_from_a_plain_state_is_refused_as_nothing_says_where_its_chunk_began():
    tensors, _ = arguments("lightning_attention", 2, 91, 2, SIZES)
    call = op("lightning_attention")
    _, plain = call(**part("lightning_attention", tensors, slice(0, 90)), output_final_state=True, deterministic=True)
    with pytest.raises(ArgumentError, match=r"or None, got .* which doesn't say where its chunk began"):
        call.step(plain, **at("lightning_attention", tensors, 90), deterministic="chunk")


def test_from_nothing_in_two_ways():
    tensors, _ = arguments("lightning_attention", 2, 3, 2, SIZES)
    call = op("lightning_attention")
    whole, _ = call(**tensors, deterministic=True)
    _, state = call.step(None, **at("lightning_attention", tensors, 0), deterministic="chunk")
    other = state.clone()
    out = torch.empty(2, 2, SIZES["e"])
    for s in (state, other):
        o, _ = call.step(s, **at("lightning_attention", tensors, 1), deterministic="chunk", out=out)
        assert o is out and torch.equal(out, whole[:, 1])
    assert repr(state) == "<states at a chunk boundary, and 2 steps since>"


def test_mistakes_are_named():
    tensors, _ = arguments("lightning_attention", 2, 3, 2, SIZES)
    call, now = op("lightning_attention"), at("lightning_attention", tensors, 0)
    with pytest.raises(ArgumentError, match='deterministic="chunk" takes no cu_seqlens'):
        call(**tensors, cu_seqlens=torch.tensor([0, 3]), deterministic="chunk")
    with pytest.raises(ArgumentError, match='deterministic="chunk" takes no state_indices'):
        call.step(None, **now, state_indices=torch.tensor([0]), deterministic="chunk")
    with pytest.raises(ArgumentError, match="state must be what a call"):
        call.step("state", **now, deterministic="chunk")
    _, state = call.step(None, **now, deterministic="chunk")
    with pytest.raises(ArgumentError, match=r"q must be \[2, 2, 5\]"):
        call.step(state, **(now | {"q": torch.zeros(1, 2, 5)}), deterministic="chunk")
    with pytest.raises(ArgumentError, match="needs v as well"):
        call.step(None, **{n: x for n, x in now.items() if n != "v"}, deterministic="chunk")


def test_an_op_without_a_step_says_so():
    tensors, _ = arguments("lightning_attention", 2, 3, 2, SIZES)
    beta, lamb = torch.rand(2, 3, 2), torch.ones(2, SIZES["d"])
    with pytest.raises(ArgumentError, match=r"mesa_net: deterministic must be True or False.* this op has none"):
        mesa_net(**tensors, beta=beta, lamb=lamb, deterministic="chunk")
