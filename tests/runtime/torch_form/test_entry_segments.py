"""What enters the segments of a sequence, one after the other, is what a run of the whole sequence has there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkform.codegen.commands.compile import compile_module, compile_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Recurrence, cos, diag, load, sin

CODEGEN = Path(__file__).parents[2] / "codegen"
LENGTHS = (70, 5, 0, 66)  # of which the second runs whole, and the third has nothing
SIZES = {"d": 4, "e": 3}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("specs/entries.py", "gateloop"),
        ("specs/entries.py", "turned_entries"),
        ("recurrence/step/specs/column_maps.py", "rotated_corrected"),
    ],
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


def turned(constant: bool) -> Recurrence:
    """A state that is rotated, by one angle of each channel or by one of each step."""
    r = Recurrence("turned_as_before" if constant else "turned")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    th = r.parameter("th", d) if constant else r.inputs("th", d)
    A, B = r.state("A", d, e), r.state("B", d, e)
    c, s = diag(cos(th)), diag(sin(th))
    r.update(A, c * A.prev - s * B.prev + k * v.T)
    r.update(B, s * A.prev + c * B.prev)
    r.output("o", A.next.T * k)
    return r


@pytest.mark.parametrize(
    ("constant", "steps", "bound"),
    [(True, 10**5, 2e-7), *(pytest.param(x, 10**6, 2e-6, marks=pytest.mark.long) for x in (True, False))],
)
def test_float32_knows_after_a_million_steps_what_was_turned_in_each(constant: bool, steps: int, bound: float) -> None:
    """One angle that is the same in all steps would be rounded to the same side in the maps of all segments."""
    torch.manual_seed(0)
    op = compile_op(turned(constant))
    th = torch.tensor([0.01, 0.1, 1.0, 2.5]).view(1, 1, 1, 4)
    angles = th.expand(1, steps, 1, 4) if constant else th + 0.3 * torch.randn(1, steps, 1, 4)
    k = torch.zeros(1, steps, 1, 4)
    k[:, 0] = 1
    _, last = op(
        k, torch.ones(1, steps, 1, 1), th[0, 0] if constant else angles, output_final_state=True, backend="torch"
    )
    turned_by = angles[0, 1:, 0].double().sum(0)
    for state, function in zip(last, (torch.cos, torch.sin), strict=True):
        assert state.dtype == torch.float32
        assert (state[0, 0, :, 0].double() - function(turned_by)).abs().max() < bound


def test_maps_of_constant_steps_are_powers_whatever_the_lengths() -> None:
    """Packed, with gradients, and of columns that go through one constant matrix: as one step after the other has it."""
    r = Recurrence("constant_matrix")
    d, e = r.dims("d e")
    W, k, v = r.parameter("W", d, d), r.inputs("k", d), r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, W * S.prev + k * v.T)
    r.output("o", S.next.T * k)
    for spec, shape in ((turned(True), (2, 4)), (r, (2, 4, 4))):
        op = compile_op(spec)
        assert "constant=True" in op.source()
        torch.manual_seed(1)
        k, v = torch.randn(1, 300, 2, 4, dtype=torch.float64), torch.randn(1, 300, 2, 3, dtype=torch.float64)
        w = (0.4 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
        given = {"k": k, "v": v, "th" if len(shape) == 2 else "W": w}
        lengths = [0, 70, 70, 101, 300]
        o, _ = op(**given, cu_seqlens=torch.tensor(lengths), output_final_state=True)
        (g,) = torch.autograd.grad(o.sin().sum(), w)
        outs = []
        for a, b in pairwise(lengths):
            state, part = None, {n: x for n, x in given.items() if n not in "kv"}
            for t in range(a, b):
                x, state = op(
                    k=k[:, t : t + 1], v=v[:, t : t + 1], **part, initial_state=state, output_final_state=True
                )
                outs.append(x)
        expected = torch.cat(outs, 1)
        (h,) = torch.autograd.grad(expected.sin().sum(), w)
        assert torch.allclose(o, expected, rtol=1e-12, atol=1e-12) and torch.allclose(g, h, rtol=1e-10, atol=1e-10)
