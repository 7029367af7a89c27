"""What enters the segments of a sequence, where states are scanned or are in strata, is what a run of the whole sequence has
there; and backwards alike."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkform.codegen.commands.compile import compile_module
from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.recurrence.pipeline import compile_spec

TESTS = Path(__file__).parents[1]
LENGTHS = (13, 5, 0, 8)
SIZES = {"d": 3, "e": 4, "m": 5}
Tensors = dict[str, torch.Tensor]


def specs(folder: str, name: str) -> Any:
    """The specs of other tests."""
    found = importlib.util.spec_from_file_location(name, TESTS / folder / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.SPECS


def handing_on(sent: dict[int, list[torch.Tensor]], starts: bool, direction: int) -> Callable:
    """`exchange`, where what each segment sends is put into a list, one for each map that is exchanged. What lies before a start
    is told as zeros."""
    places = iter(range(100))

    def swap(segments: Any) -> Any:
        found = []
        for s in segments:
            rows = sent.setdefault(next(places), [])
            told = [torch.zeros_like(rows[0]), *rows] if rows else []
            before = torch.stack(told[::direction]) if rows else None
            rows.append(torch.cat([x.reshape(-1) for x in s.sent(starts)]))
            found.append(s.entering if starts else s.entered(before, direction))
        return tuple(found)

    return swap


@pytest.mark.parametrize(
    ("folder", "file", "name"),
    [
        ("step", "test_monoids", "every_kind"),
        ("step", "test_monoids", "log_space"),
        ("strata", "test_strata", "mlstm_stab"),
        ("strata", "test_strata", "scaled_momentum"),
    ],
)
def test_states_and_gradients_that_enter_segments(folder: str, file: str, name: str) -> None:
    torch.manual_seed(0)
    r = specs(folder, file)[name]()
    step = compile_spec(r).step
    module: Any = compile_module(r)
    own = module.OP.backends["torch"]
    steps, borders = sum(LENGTHS), [sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)]

    def drawn(lead: tuple[int, ...], axes: tuple[str, ...]) -> torch.Tensor:
        return torch.randn(*lead, *(SIZES[dim_of(a)] for a in axes), dtype=torch.float64)

    given = {v.name: drawn((1, steps, 2) if v.per_step else (2,), v.axes) for v in step.variables}
    given |= {v.name: -given[v.name].abs() / 9 for v in step.variables if v.is_decay}
    states = {s.name: drawn((1, 2), s.axes).abs() for s in step.states}
    cotangents = {n: drawn((1, steps, 2), axes) for n, axes in step.output_axes.items()}
    ends = {n: torch.randn_like(x) for n, x in states.items()}
    per_step = {*cotangents, *(v.name for v in step.variables if v.per_step)}

    def between(x: Tensors, i: int, j: int) -> Tensors:
        return {n: y[:, i:j] if n in per_step else y for n, y in x.items()}

    def part(x: Tensors, n: int) -> Tensors:
        return between(x, borders[n], borders[n + 1])

    sent: dict[int, list[torch.Tensor]] = {}
    entering = []
    for n in range(len(LENGTHS)):
        first = states if n == 0 else dict.fromkeys(states)
        entering.append(own.forward_states(part(given, n), first, {}, handing_on(sent, n == 0, 1)))
        expected = own.forward(between(given, 0, borders[n]), states, {})[1]
        assert all(torch.allclose(entering[n][m], expected[m], rtol=1e-11, atol=1e-11) for m in states), n
    sent.clear()
    for n in reversed(range(len(LENGTHS))):
        last, stop = n == len(LENGTHS) - 1, borders[n + 1]
        final = ends if last else dict.fromkeys(ends)
        kept = own.forward(part(given, n), entering[n], {})[2]
        leaving = own.backward_states(
            part(given, n), entering[n], {}, kept, part(cotangents, n), final, handing_on(sent, last, -1)
        )
        rest, there = between(given, stop, steps), own.forward(between(given, 0, stop), states, {})[1]
        kept = own.forward(rest, there, {})[2]
        after = between(cotangents, stop, steps)
        expected = own.backward(rest, there, {}, kept, after, ends, frozenset(states))[1]
        assert all(torch.allclose(leaving[m], expected[m], rtol=1e-11, atol=1e-11) for m in states), n
