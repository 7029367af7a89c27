"""Wrong arguments get one clear error that names the argument, what was expected and what was got."""

import warnings

import pytest
import torch

from chunkform import Recurrence, compile
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.errors import ArgumentError, BackendError, DoubleBackwardError
from chunkform.generated.gated_delta_rule import gated_delta_rule
from chunkform.generated.lightning_attention import lightning_attention
from chunkform.generated.retention import retention

B, T, H, D, E = 2, 9, 3, 4, 5

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls them a prototype
    NESTED = torch.nested.nested_tensor([torch.randn(T, H, D), torch.randn(T - 2, H, D)])


def arguments(**changes):
    given = {
        "q": torch.randn(B, T, H, D),
        "k": torch.randn(B, T, H, D),
        "v": torch.randn(B, T, H, E),
        "log_lam": -torch.rand(B, T, H),
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.randn(B, T, H, D + 1)}, r"k has d = 5, but q has d = 4"),
        ({"v": torch.randn(B, T + 1, H, E)}, r"v has T = 10, but q has T = 9"),
        ({"log_lam": -torch.rand(B, T)}, r"log_lam must have 3 axes \[B, T, H\], got the shape \[2, 9\]"),
        ({"q": torch.randn(B, T, H, D).long()}, r"q must be float32.* got int64"),
        ({"q": torch.randn(B, T, H, D).to_sparse()}, r"q must be a dense tensor, got the layout torch.sparse_coo"),
        ({"q": NESTED}, r"q must be a dense tensor, got a nested one"),
        (
            {"initial_state": torch.zeros(B, H, D, E).to_sparse()},
            r"initial_state must be a dense tensor, got the layout",
        ),
        ({"cu_seqlens": torch.tensor([0, T]).to_sparse()}, r"cu_seqlens must be a dense tensor, got the layout"),
        ({"output_final_state": "yes"}, r"output_final_state must be True or False, got 'yes'"),
        ({"output_final_state": torch.ones(2)}, r"output_final_state must be True or False, got tensor"),
        ({"q": [1.0]}, r"q must be a tensor \[B, T, H, d\], got list"),
        ({"initial_state": torch.zeros(B, H, E, D)}, r"initial_state must be \[B, H, d, e\] = \[2, 3, 4, 5\]"),
        ({"initial_state": (torch.zeros(B, H, D, E),) * 2}, r"initial_state must hold 1 states \(S\), got 2"),
        ({"initial_state": 0.0}, r"initial_state must be in float32, bfloat16, float16 or float64, got float"),
        ({"backend": "cuda"}, r"backend must be 'torch', 'triton' or None, got 'cuda'"),
    ],
)
def test_a_wrong_argument_is_named(changes, message):
    with pytest.raises(ArgumentError, match=message):
        lightning_attention(**arguments(**changes))


def test_the_triton_backend_needs_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="triton"):
        lightning_attention(**arguments(), backend="triton")


def test_a_second_derivative_is_refused_with_a_sentence():
    q = torch.randn(B, T, H, D, requires_grad=True)
    o, _ = lightning_attention(**arguments(q=q))
    (g,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="lightning_attention has no second derivatives"):
        g.sum().backward()


def test_a_gradient_with_create_graph_is_the_same():
    q = torch.randn(B, T, H, D, requires_grad=True)
    given = arguments(q=q)
    (plain,) = torch.autograd.grad(lightning_attention(**given)[0].square().sum(), q)
    (kept,) = torch.autograd.grad(lightning_attention(**given)[0].square().sum(), q, create_graph=True)
    torch.testing.assert_close(plain, kept.detach())


def test_layouts_that_are_not_contiguous_give_the_same():
    given = arguments()
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in given.items()}
    torch.testing.assert_close(lightning_attention(**given)[0], lightning_attention(**strided)[0])


@pytest.mark.parametrize("name", ["q", "v", "log_lam"])
def test_an_input_that_needs_no_gradient_gets_none(name):
    given = {n: x.requires_grad_(n == name) for n, x in arguments().items()}
    o, _ = lightning_attention(**given)
    o.sum().backward()
    assert [n for n, x in given.items() if x.grad is not None] == [name]


def test_an_empty_sequence_returns_the_initial_state_and_its_gradient():
    s = torch.randn(B, H, D, E, requires_grad=True)
    empty = {n: x[:, :0] for n, x in arguments().items()}
    o, last = lightning_attention(**empty, initial_state=s, output_final_state=True)
    assert o.shape == (B, 0, H, E)
    torch.testing.assert_close(last, s)
    last.sum().backward()
    torch.testing.assert_close(s.grad, torch.ones_like(s))


def test_the_last_state_is_returned_when_asked_for_only():
    assert lightning_attention(**arguments())[1] is None
    assert lightning_attention(**arguments(), output_final_state=True)[1].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_outputs_and_gradients_keep_the_inputs_types(dtype):
    given = {n: x.to(dtype if n != "log_lam" else x.dtype).requires_grad_() for n, x in arguments().items()}
    o, _ = lightning_attention(**given)
    assert o.dtype == dtype
    o.sum().backward()
    assert all(x.grad.dtype == x.dtype for x in given.values())


def test_mixed_types_are_computed_in_the_wider_one():
    given = arguments(q=torch.randn(B, T, H, D, dtype=torch.bfloat16))
    assert lightning_attention(**given)[0].dtype == torch.float32


@pytest.mark.parametrize("value", [-1e4, -torch.inf, 0.0, 0.1])
def test_extreme_decays_give_what_the_recurrence_gives(value):
    given = {n: x.double() for n, x in arguments().items()}
    given["log_lam"][:, 4:6] = value
    given = {n: x.requires_grad_() for n, x in given.items()}
    o, _ = lightning_attention(**given)
    s = torch.zeros(B, H, D, E, dtype=torch.float64)
    steps = []
    for t in range(T):
        s = (
            given["log_lam"][:, t, :, None, None].exp() * s
            + given["k"][:, t, :, :, None] * given["v"][:, t, :, None, :]
        )
        steps.append(torch.einsum("bhd,bhde->bhe", given["q"][:, t], s))
    expected = torch.stack(steps, 1)
    torch.testing.assert_close(o, expected)
    weights = torch.randn_like(o)
    got = torch.autograd.grad((o * weights).sum(), list(given.values()))
    want = torch.autograd.grad((expected * weights).sum(), list(given.values()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_a_decay_of_each_head_gets_one_gradient_a_head():
    log_gamma = (-torch.rand(H)).double().requires_grad_()
    given = {n: x.double() for n, x in arguments().items() if n != "log_lam"}
    assert torch.autograd.gradcheck(lambda g: retention(**given, log_gamma=g)[0], log_gamma)


@pytest.mark.parametrize("beta", [torch.float32, torch.bfloat16])
def test_one_number_a_step_may_be_wider_than_the_other_inputs(beta):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, T, H, D, generator=g).bfloat16() for _ in range(3))
    b = torch.rand(B, T, H, generator=g).to(beta).requires_grad_()
    log_alpha = -torch.rand(B, T, H, generator=g)
    o, _ = gated_delta_rule(q, k, v, b, log_alpha)
    assert o.dtype == torch.bfloat16
    o.float().square().sum().backward()
    assert b.grad.dtype == beta
    wide, _ = gated_delta_rule(q.double(), k.double(), v.double(), b.detach().double(), log_alpha.double())
    assert relative_error(o, wide, 2) < 4e-3


def test_one_number_a_step_may_be_first():
    """What the outputs' dtype is goes by the inputs that have dims, not by their order."""
    r = Recurrence("number_first")
    b = r.inputs("b")
    d = r.dims("d")
    k = r.inputs("k", d)
    S = r.state("S", d)
    r.update(S, S.prev + b * k)
    r.output("o", S.next)
    op = compile(r)
    o, _ = op(torch.rand(1, 5, 1), torch.randn(1, 5, 1, 4).bfloat16())
    assert o.dtype == torch.bfloat16


def test_a_state_behind_the_arguments_of_a_step_is_told_to_come_first():
    """Others take it last; the first argument that doesn't fit its new place isn't what is wrong."""
    q, k, v, beta = torch.randn(B, H, D), torch.randn(B, H, D), torch.randn(B, H, E), torch.rand(B, H)
    with pytest.raises(
        ArgumentError, match=r"the state comes first: gated_delta_rule\.step\(state, q, k, v, beta, log_alpha\)"
    ):
        gated_delta_rule.step(q, k, v, beta, -beta, torch.zeros(B, H, D, E))
    with pytest.raises(ArgumentError) as told:
        gated_delta_rule.step(torch.zeros(B, H, D, E), q, k, v, beta[0], -beta)
    assert "comes first" not in str(told.value)
