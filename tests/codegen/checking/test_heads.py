"""Gradients of one number a head: over several draws, sums that are equally exact are told from sums that aren't."""

import torch
from shared.heads import DRAWS, few, worst_head

HEADS, STEPS, TRIALS = 5, 333, 40


def sums(trial: int, draws: int, larger: float) -> tuple[list[torch.Tensor], ...]:
    """Sums whose terms are rounded to bfloat16, those of the same terms of which one in five is rounded at another scale, and
    exact ones. The first ones' errors are `larger` times what they are. Checkpoints of states make a fifth of the errors of
    retention's gradient, or less, and chunks of other lengths round these at other scales."""
    g = torch.Generator().manual_seed(trial)
    x, y = (torch.randn(draws, HEADS, STEPS, generator=g, dtype=torch.float64) for _ in range(2))
    exact = (x * y).sum(-1)
    fifth = torch.arange(STEPS) % 5 == 0
    scales = (torch.where(fifth, s, 1.0) for s in (1.0, 0.77))
    one, other = (((x * s).bfloat16().double() / s * y).sum(-1) for s in scales)
    return [*(exact + larger * (one - exact))], [*other], [*exact]


def refused(draws: int, larger: float) -> float:
    """In how many of the trials the bound is missed."""
    missed = 0
    for trial in range(TRIALS):
        mine, others, exact = sums(trial, draws, larger)
        missed += worst_head(mine, exact, 0) >= 1.15 * worst_head(others, exact, 0) + 1e-4
    return missed / TRIALS


def test_one_draw_is_chance_and_many_are_not():
    assert few(torch.zeros(HEADS), 0) and not few(torch.zeros(HEADS, 8), 0)
    assert refused(1, 1.0) > 0.1 and refused(1, 1.3) < 0.9
    assert refused(DRAWS, 1.0) == 0 and refused(DRAWS, 1.3) == 1
