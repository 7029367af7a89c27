"""What enters the segments of a sequence, one after the other, is what a run of the whole sequence has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chunkform.codegen.commands.compile import compile_module
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import load

CODEGEN = Path(__file__).parents[2] / "codegen"
LENGTHS = (70, 5, 0, 66)  # of which the second runs whole, and the third has nothing
SIZES = {"d": 4, "e": 3}


@pytest.mark.parametrize(
    ("file", "name"),
    [("specs/entries.py", "gateloop"), ("recurrence/step/specs/column_maps.py", "rotated_corrected")],
)
def test_states_and_gradients_that_enter_segments(file: str, name: str) -> None:
    """Whose entries are multiplied, and whose columns go through matrices, of a transposed state too."""
    torch.manual_seed(0)
    r = next(r for r in load(CODEGEN / file) if r.name == name)
    module: Any = compile_module(r)
    own, step = module.OP.backends["torch"], compile_spec(r).step
    steps, f64 = sum(LENGTHS), torch.float64
    given = {v.name: torch.randn(1, steps, 2, *(SIZES[a] for a in v.axes), dtype=f64) for v in step.variables}
    given["a"] = -given["a"].abs() / 9
    states = {s.name: torch.randn(1, 2, *(SIZES[a] for a in s.axes), dtype=f64) for s in step.states}
    cotangents = {"o": torch.randn(1, steps, 2, SIZES["e"], dtype=f64)}
    ends = {n: torch.randn_like(x) for n, x in states.items()}
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
