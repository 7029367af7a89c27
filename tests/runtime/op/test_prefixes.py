"""States at every n steps of each sequence, from which a pass resumes."""

import pytest
import torch
from shared.step_calls import SIZES, arguments, op, part

from chunkform.errors import ArgumentError

H = 2
TRIED = ("gated_delta_rule", "gradient_descent_squared_momentum", "sherman_morrison", "kimi_delta_attention")


def listed(x):
    return list(x) if isinstance(x, tuple) else [x]


def close(found, wanted):
    return all(torch.allclose(x, y, atol=1e-5) for x, y in zip(listed(found), listed(wanted), strict=True))


@pytest.mark.parametrize("name", TRIED)
def test_a_batch_has_a_state_at_every_n_steps_and_resumes_from_any(name):
    tensors, constants = arguments(name, 2, 21, H, SIZES)
    call = op(name)
    *outputs, last, prefixes = call.prefixes(**tensors, **constants, every=8)
    *whole, final = call(**tensors, **constants, output_final_state=True)
    assert close(tuple(outputs), tuple(whole)) and close(last, final)
    assert sorted(prefixes.places) == [(0, 8), (0, 16), (1, 8), (1, 16)]
    assert prefixes.longest(1, 20) == 16 and prefixes.longest(1, 7) == 0
    for sequence, steps in prefixes.places:
        own = {n: x if x.dim() < 3 or x.shape[0] != 2 else x[sequence : sequence + 1] for n, x in tensors.items()}
        *_, state = call(**part(name, own, slice(0, steps)), **constants, output_final_state=True)
        found = prefixes.state(sequence, steps)
        assert close(found, state)
        *rest, end = call(
            **part(name, own, slice(steps, None)), **constants, initial_state=found, output_final_state=True
        )
        assert close(end, tuple(x[sequence : sequence + 1] for x in listed(final)))
        assert close(tuple(rest), tuple(x[sequence : sequence + 1, steps:] for x in whole))


@pytest.mark.parametrize("lengths", [[5, 0, 70, 12, 64], [40], [0, 0], [8, 16, 8]], ids=str)
@pytest.mark.parametrize("resumed", [False, True], ids=["from nothing", "from states"])
def test_packed_sequences_have_theirs(lengths, resumed):
    name, count = "gated_delta_rule", len(lengths)
    tensors, _ = arguments(name, 1, sum(lengths), H, SIZES)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    first = torch.randn(count, H, SIZES["d"], SIZES["e"]) if resumed else None
    call = op(name)
    o, last, prefixes = call.prefixes(**tensors, initial_state=first, cu_seqlens=starts, every=8)
    whole, final = call(**tensors, initial_state=first, output_final_state=True, cu_seqlens=starts)
    assert o.shape == whole.shape and torch.allclose(o, whole, atol=1e-5) and torch.allclose(last, final, atol=1e-5)
    assert sorted(prefixes.places) == [(i, n) for i, m in enumerate(lengths) for n in range(8, m + 1, 8)]
    assert prefixes.states[0].shape[0] == len(prefixes.places)
    for sequence, steps in prefixes.places:
        piece = {n: x[:, starts[sequence] : starts[sequence] + steps] for n, x in tensors.items()}
        own = None if first is None else first[sequence : sequence + 1]
        _, state = call(**piece, initial_state=own, output_final_state=True)
        assert torch.allclose(prefixes.state(sequence, steps), state, atol=1e-5)


@pytest.mark.parametrize("name", ["sherman_morrison", "running_maximum"])
def test_a_sequence_without_steps_ends_in_the_state_that_the_spec_begins_with(name):
    tensors, constants = arguments(name, 1, 20, H, SIZES)
    starts = torch.tensor([0, 0, 11, 11, 20])
    *_, last, prefixes = op(name).prefixes(**tensors, **constants, cu_seqlens=starts, every=8)
    *_, final = op(name)(**tensors, **constants, cu_seqlens=starts, output_final_state=True)
    assert close(last, final) and any(x[0].any() for x in listed(final))
    assert prefixes.places == ((1, 8), (3, 8))


def test_they_have_gradients_and_another_dtype():
    tensors, _ = arguments("lightning_attention", 1, 20, H, SIZES)
    k = tensors["k"].requires_grad_()
    *_, prefixes = op("lightning_attention").prefixes(**tensors, every=8, state_dtype=torch.bfloat16)
    assert prefixes.states[0].dtype == torch.bfloat16
    prefixes.state(0, 16).float().sum().backward()
    assert k.grad[:, :16].any() and not k.grad[:, 16:].any()


def test_mistakes_are_named():
    tensors, _ = arguments("lightning_attention", 1, 20, H, SIZES)
    call = op("lightning_attention").prefixes
    for every in (0, None, 2.0, True):
        with pytest.raises(ArgumentError, match="every must be a number of steps"):
            call(**tensors, every=every)
    with pytest.raises(ArgumentError, match="needs v as well"):
        call(**{n: x for n, x in tensors.items() if n != "v"}, every=8)
    with pytest.raises(ArgumentError, match=r"rise from 0 to T = 20, got \[0, 25\]"):
        call(**tensors, every=8, cu_seqlens=torch.tensor([0, 25]))
    with pytest.raises(ArgumentError, match="prefixes has no argument 'evry': did you mean every"):
        call(**tensors, evry=8)
    with pytest.raises(ArgumentError, match="takes no state_pool"):
        call(**tensors, every=8, state_pool=torch.zeros(1))
    *_, prefixes = call(**tensors, every=8)
    with pytest.raises(ArgumentError, match="no checkpoint of sequence 0 after 12 steps: there is one every 8"):
        prefixes.state(0, 12)
