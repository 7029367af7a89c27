"""The dual form of a linear layer: training runs, attention, and matrices, converted into each other in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from chunkform.errors import ArgumentError
from chunkform.runtime.nn.dual_form import DualForm, Run, Schedule, attention, from_weight, record, train

N, M, T = 5, 3, 23
CASES = {
    "plain": dict(),
    "momentum": dict(momentum=0.9),
    "weight decay": dict(keep=0.97),
    "both": dict(momentum=0.8, keep=0.95),
}
SIZES = [4, 1, 6, 6, 5, 1]  # minibatches; T points in all
LOSSES = {
    "squared": lambda z, y: 0.5 * (z - y).square().sum(),
    "logistic": lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="sum"),
}


@pytest.fixture(autouse=True)
def wide():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def problem(seed=0, lead=()):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, T, N, generator=g)
    y = torch.rand(*lead, T, M, generator=g)
    return x, y, torch.randn(M, N, generator=g)


def descended(x, y, W, loss, sizes, rate, momentum=0.0, keep=1.0, mean=False):
    """Gradient descent as anybody writes it, with autograd."""
    W, V, start = W.clone(), torch.zeros_like(W), 0
    for size in sizes:
        W = W.detach().requires_grad_()
        part = slice(start, start + size)
        value = LOSSES[loss](x[part] @ W.T, y[part]) / (size if mean else 1)
        (gradient,) = torch.autograd.grad(value, W)
        V = momentum * V + gradient
        W = (keep * W - rate * V).detach()
        start += size
    return W


def close(a, b, by=1e-11):
    assert (a - b).norm() <= by * (1 + b.norm()), float((a - b).norm())


# --- training runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1] * T, SIZES], ids=["points", "minibatches"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", LOSSES)
def test_training_is_attention_over_the_points(loss, case, sizes):
    x, y, W = problem()
    s = Schedule.minibatches(sizes, 0.05, **CASES[case])
    form = train(x, y, s, loss, W).dual_form()
    expected = descended(x, y, W, loss, sizes, 0.05, **CASES[case])
    close(form.weight, expected)
    z = torch.randn(7, N)
    close(form(z), z @ expected.T)
    close(form.keys, x)


def test_mean_losses_of_minibatches():
    x, y, W = problem()
    sizes = [8, 8, 7]  # the last one is shorter, as in a data set
    s = Schedule.minibatches(sizes, 0.3, 0.9, 0.98, mean=True)
    form = train(x, y, s, "squared", W).dual_form()
    close(form.weight, descended(x, y, W, "squared", sizes, 0.3, 0.9, 0.98, mean=True))


def test_values_are_minus_the_rates_times_the_errors():
    """The document's last formula, with its missing factor: W x = W_0 x + Attention(points, -eta errors, x)."""
    x, y, W = problem()
    rates = torch.rand(T) * 0.1
    run = train(x, y, rates, "squared", W)
    form = run.dual_form()
    close(form.values, -rates[:, None] * run.errors)
    close(form.initial, W)
    close(run.errors, run.predictions() - y)


def test_the_training_op_is_linear_attention_over_its_errors():
    """At every step, not only the last: o_t = W_0 z_t + sum of <x_s, z_t> (-eta_s error_s) over s <= t."""
    from chunkform.generated import gradient_descent_squared, linear_attention

    x, y, W = problem()
    z, rates = torch.randn(T, N), 0.1 * torch.rand(T)
    run = train(x, y, rates, "squared", W)
    first = W[None, None]
    o, _ = gradient_descent_squared(
        *(a[None, :, None] for a in (x, z, y)), rates[None, :, None], initial_state=first, output_final_state=False
    )
    a, _ = linear_attention(*(b[None, :, None] for b in (z, x, run.dual_form().values)))
    close(o[0, :, 0], z @ W.T + a[0, :, 0])


def test_many_layers_at_once():
    x, y, _ = problem(lead=(2, 4))
    W = torch.randn(4, M, N)
    run = train(x, y, Schedule.constant(T, 0.05, 0.5, 0.9), initial=W)
    for i in range(2):
        for j in range(4):
            expected = descended(x[i, j], y[i, j], W[j], "squared", [1] * T, 0.05, 0.5, 0.9)
            close(run.dual_form().weight[i, j], expected)


def test_gradients_flow_through_a_training_run():
    x, y, W = problem()
    leaves = [t[:6].clone().requires_grad_() if i < 2 else t.clone().requires_grad_() for i, t in enumerate((x, y, W))]
    rates = (0.1 * torch.rand(6)).requires_grad_()

    def final(x, y, W, rates):
        return train(x, y, rates, "squared", W).dual_form().weight

    assert torch.autograd.gradcheck(final, (*leaves, rates))


@pytest.mark.parametrize("steps", [0, 1])
def test_short_runs(steps):
    x, y, W = problem()
    run = train(x[:steps], y[:steps], 0.1, "squared", W)
    close(run.dual_form().weight, descended(x[:steps], y[:steps], W, "squared", [1] * steps, 0.1))
    assert run.predictions().shape == (steps, M)


# --- and back ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_comes_back_from_its_dual_form(loss, case):
    x, y, W = problem()
    s = Schedule.constant(T, 0.05, **CASES[case])
    run = train(x, y, s, loss, W)
    back = run.dual_form().run(s)
    for a, b in ((back.points, run.points), (back.errors, run.errors), (back.initial, run.initial)):
        close(a, b)
    close(back.targets(loss), y)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", LOSSES)
def test_any_attention_is_a_training_run(loss, case):
    """Keys and values that no training made: the targets which make gradient descent end there."""
    form = DualForm(torch.randn(T, N), torch.randn(T, M), torch.randn(M, N))
    s = Schedule.constant(T, 0.5, **CASES[case])
    run = form.run(s)
    again = train(run.points, run.targets(loss), s, loss, run.initial)
    close(again.dual_form().weight, form.weight, 1e-9)


def test_a_penalty_goes_both_ways():
    """V <- mu V + error x^T + penalty W, as torch.optim.SGD has weight_decay."""
    x, _, W = problem()
    s = Schedule.constant(T, 0.05, 0.7, penalty=0.3)
    run = Run(x, torch.randn(T, M), s, W)
    V, w = torch.zeros(M, N), W
    for t in range(T):
        V = 0.7 * V + run.errors[t, :, None] * x[t] + 0.3 * w
        w = w - 0.05 * V
    close(run.dual_form().weight, w)
    close(run.dual_form().run(s).errors, run.errors)


def test_points_without_influence():
    form = DualForm(torch.randn(2, N), torch.randn(2, M))
    with pytest.raises(ArgumentError, match="point 1 has no influence"):
        form.run(torch.tensor([0.1, 0.0]))
    silent = DualForm(form.keys, torch.cat([form.values[:1], torch.zeros(1, M)]))
    close(silent.run(torch.tensor([0.1, 0.0])).dual_form().weight, silent.weight)
    with pytest.raises(ArgumentError, match="forgets W_0"):
        DualForm(form.keys, form.values * 0, torch.ones(M, N)).run(Schedule(torch.ones(2), keep=torch.zeros(2)))


# --- a layer that somebody trains -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_a_recorded_layer(bias):
    """The last layer of a network, trained by torch's SGD on minibatches with a loss that no op knows."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, N), nn.Tanh(), nn.Linear(N, M, bias=bias))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    with record(net[2]) as seen:
        for size in (8, 3, 8, 1):
            loss = F.cross_entropy(net(torch.randn(size, 4)), torch.randint(M, (size,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                net(torch.randn(2, 4))  # not training
    form = seen.run(0.1, momentum=0.9, penalty=0.01).dual_form()
    weight = torch.cat([net[2].weight, net[2].bias[:, None]], 1) if bias else net[2].weight
    close(form.weight, weight.detach())
    assert form.keys.shape == (20, N + bias)
    net(torch.randn(2, 4)).sum().backward()
    assert len(seen.points) == 4  # the watch is over


# --- statement, proof and exercise 1 ----------------------------------------------------------------------------------


def test_attention_is_the_linear_layer():
    K, V, x = torch.randn(T, N), torch.randn(T, M), torch.randn(9, N)
    W = sum(v[:, None] * k for k, v in zip(K, V, strict=True))
    close(attention(K, V, x), x @ W.T)
    close(DualForm(K, V).scores(x), torch.einsum("an,tn->at", x, K))


def test_layers_are_added_by_merging_pairs():
    a = DualForm(torch.randn(4, N), torch.randn(4, M), torch.randn(M, N))
    b = DualForm(torch.randn(7, N), torch.randn(7, M))
    assert a.merged(b).keys.shape == (11, N)
    close(a.merged(b).weight, a.weight + b.weight)
    close(b.merged(b).weight, 2 * b.weight)


EXERCISE = torch.tensor([[1.0, 2, 3], [2, 3, 1], [3, 1, 2]], dtype=torch.float64)


@pytest.mark.parametrize("pairs", [None, 3, 4, 7])
def test_exercise_1(pairs):
    form = from_weight(EXERCISE, pairs)
    assert form.keys.shape == form.values.shape == (pairs or 3, 3)
    assert torch.equal(form.weight, EXERCISE)


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_exercise_1_has_no_answer_below_the_rank(pairs):
    with pytest.raises(ArgumentError, match=rf"has rank 3, and {pairs} key-value pairs .* at least 3 pairs"):
        from_weight(EXERCISE, pairs)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_as_few_pairs_as_the_rank(rank):
    W = torch.randn(6, rank) @ torch.randn(rank, 9)
    assert from_weight(W, rank).keys.shape == (rank, 9)
    close(from_weight(W, rank).weight, W)
    close(from_weight(W, rank + 1).weight, W)
    with pytest.raises(ArgumentError, match=f"rank {rank}"):
        from_weight(W, rank - 1)


def test_more_columns_than_rows():
    W = torch.randn(2, 6)
    close(from_weight(W, 4).weight, W)
    assert from_weight(W, 4).values.shape == (4, 2)


def test_a_weight_as_training_on_given_points():
    """From W back to the errors: points that span its rows, and W_0."""
    W, W0, x = torch.randn(M, N), torch.randn(M, N), torch.randn(N + 3, N)
    form = from_weight(W, keys=x, initial=W0)
    run = form.run(0.1)
    assert torch.equal(run.points, x)
    close(train(x, run.targets(), 0.1, initial=W0).dual_form().weight, W)
    with pytest.raises(ArgumentError, match="don't span the rows"):
        from_weight(W, keys=x[: N - 1], initial=W0)


def test_another_basis_of_the_pairs():
    form, A = from_weight(EXERCISE), torch.randn(3, 3)
    close(DualForm(A @ form.keys, torch.linalg.inv(A).T @ form.values).weight, EXERCISE)


# --- mistakes ---------------------------------------------------------------------------------------------------------

x, y = torch.zeros(4, 3), torch.zeros(4, 2)
MISTAKES = [
    (lambda: train([1.0], y, 0.1), r"train: points must be a floating-point tensor \[..., T, width\], got list"),
    (lambda: train(x, y[:3], 0.1), r"train: targets must be .* got \[3, 2\]"),
    (lambda: train(x, y, 0.1, "hinge"), "loss must be one of 'squared', 'logistic', got 'hinge'"),
    (lambda: train(x, y, torch.ones(5)), "the schedule has T = 5, but there are 4 points"),
    (lambda: train(x, y, "fast"), "schedule must be a Schedule, a tensor .* got str"),
    (lambda: train(x, y, Schedule.constant(4, 0.1, penalty=0.1)), "penalty isn't trained by an op"),
    (lambda: train(x, y, Schedule.constant(4, 0.1, momentum=1.5)), r"momentum must be in \[0, 1\], got 1.5 to 1.5"),
    (lambda: train(x, y, 0.1, initial=torch.zeros(3, 2)), r"initial must be .* \[..., 2, 3\], got .* \[3, 2\]"),
    (lambda: Schedule(torch.ones(3), keep=torch.ones(2)), "keep has T = 2, but rates has T = 3"),
    (lambda: Schedule(0.1), "rates must be a floating-point tensor"),
    (lambda: Schedule.minibatches([2, 0], 0.1), "sizes must be whole numbers"),
    (lambda: Schedule.minibatches([2, 1], [0.1]), "one number for each of 2 minibatches, got 1"),
    (lambda: DualForm(x, y[:2]), "keys has T = 4, but values has T = 2"),
    (lambda: from_weight(torch.zeros(3, 3), -1), "pairs must be a whole number of at least 0, got -1"),
    (lambda: from_weight(torch.zeros(2, 3), 2, keys=x), "give pairs or keys"),
    (lambda: Run(x, y, Schedule.constant(3, 0.1)), "schedule has T = 3, but points has T = 4"),
    (lambda: record(nn.ReLU()).__enter__(), r"layer must be a torch.nn.Linear, got ReLU"),
]


@pytest.mark.parametrize("wrong, said", MISTAKES, ids=[s[:30] for _, s in MISTAKES])
def test_mistakes_are_named(wrong, said):
    with pytest.raises(ArgumentError, match=said):
        wrong()
