"""What enters the segments of a sequence, one after the other, is what a run of the whole sequence has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from chunkform.codegen.commands.compile import compile_module
from chunkform.spec.language import load

SPECS = Path(__file__).parents[2] / "codegen" / "specs" / "entries.py"
LENGTHS = (70, 5, 0, 66)  # of which the second runs whole, and the third has nothing


def backend() -> Any:
    module: Any = compile_module(next(r for r in load(SPECS) if r.name == "gateloop"))
    return module.OP.backends["torch"]


def test_states_and_gradients_that_enter_segments() -> None:
    torch.manual_seed(0)
    own = backend()
    d, e, steps = 4, 3, sum(LENGTHS)
    f64 = torch.float64
    given = {n: torch.randn(1, steps, 2, d, dtype=f64) for n in ("q", "k", "th")} | {
        "v": torch.randn(1, steps, 2, e, dtype=f64),
        "a": -torch.rand(1, steps, 2, d, dtype=f64) / 9,
    }
    states = {n: torch.randn(1, 2, d, e, dtype=f64) for n in ("S1", "S2")}
    cotangents = {"o": torch.randn(1, steps, 2, e, dtype=f64)}
    ends = {n: torch.randn(1, 2, d, e, dtype=f64) for n in states}
    borders = [sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)]

    def part(x: dict[str, torch.Tensor], n: int) -> dict[str, torch.Tensor]:
        return {m: y[:, borders[n] : borders[n + 1]] for m, y in x.items()}

    sent: list[torch.Tensor] = []

    def exchange(rank: int, starts: bool, direction: int) -> Any:
        def swap(segments: Any) -> Any:
            rows = torch.stack(sent) if sent else None
            (s,) = segments
            sent[:] = [*sent, torch.cat([x.reshape(-1) for x in s.sent(starts)])]
            if starts:
                return (s.entering,)
            assert rows is not None
            return (s.entered(rows if direction > 0 else rows.flip(0), direction),)

        return swap

    entering, saved = [], []
    for n in range(len(LENGTHS)):
        first = states if n == 0 else dict.fromkeys(states)
        entering.append(own.forward_states(part(given, n), first, {}, exchange(n, n == 0, 1)))
        saved.append(own.forward(part(given, n), entering[n], {})[2])
        whole = {m: x[:, : borders[n]] for m, x in given.items()}
        expected = own.forward(whole, states, {})[1]
        assert all(torch.allclose(entering[n][m], expected[m], rtol=1e-12, atol=1e-12) for m in states), n
    sent.clear()
    for n in reversed(range(len(LENGTHS))):
        last = n == len(LENGTHS) - 1
        final = ends if last else dict.fromkeys(ends)
        leaving = own.backward_states(
            part(given, n), entering[n], {}, saved[n], part(cotangents, n), final, exchange(n, last, -1)
        )
        rest = {m: x[:, borders[n + 1] :] for m, x in given.items()}
        after = {m: x[:, borders[n + 1] :] for m, x in cotangents.items()}
        kept = own.forward(rest, states, {})[2]
        expected = own.backward(rest, states, {}, kept, after, ends, frozenset(states))[1]
        assert all(torch.allclose(leaving[m], expected[m], rtol=1e-12, atol=1e-12) for m in states), n
