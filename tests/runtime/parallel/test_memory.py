"""What a call on one segment holds, counted from its allocations on tensors without data: a segment's share of one GPU's."""

from __future__ import annotations

import importlib
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shared.launches import recorded
from torch import Tensor

from chunkform.runtime.op import op as op_module
from chunkform.runtime.parallel.group import Group

STEPS, HEADS, WIDTH, RANKS = 32768, 8, 128, 4
cp = importlib.import_module("chunkform.runtime.op.context_parallel")


@dataclass(frozen=True)
class Silent(Group):
    """A group whose others send numbers that nobody reads."""

    @property
    def on_host(self) -> bool:
        return False

    def gather(self, x: Tensor) -> Any:
        return SimpleNamespace(wait=lambda: x.new_empty((self.size, *x.shape)))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bytes of what was allocated and lives; "most" of them at once under the key -1."""
    found = {-1: 0}

    def counting(function: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Tensor:
            made = function(*args, **options)
            found[id(made)] = made.nbytes
            weakref.finalize(made, found.pop, id(made), None)
            found[-1] = max(found[-1], sum(n for key, n in found.items() if key != -1))
            return made

        return counted

    monkeypatch.setattr(torch.Tensor, "new_empty", counting(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", counting(torch.empty_like))
    monkeypatch.setattr(cp, "chosen_backend", lambda *_: "triton")
    monkeypatch.setattr(op_module, "chosen_backend", lambda *_: "triton")
    monkeypatch.setattr(cp, "group_of", lambda name, given: given)
    monkeypatch.setattr(cp, "agreed", lambda *_, **__: [{"T": STEPS, "node": 8}] * RANKS)
    return found


def arguments(op: Any, steps: int, gradients: bool) -> dict[str, Tensor]:
    given = {}
    for a in op.signature.arguments:
        kind = torch.float32 if a.kind.startswith("decay") else torch.bfloat16
        shape = (1, steps, HEADS, *[WIDTH] * len(a.dims))
        given[a.name] = torch.empty(shape, dtype=kind, device="meta", requires_grad=gradients)
    return given


def peak(name: str, ranks: int, held: dict[int, int], gradients: bool = True) -> float:
    """The most MiB that a call holds beside its arguments."""
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    given = arguments(op, STEPS if ranks > 1 else STEPS * RANKS, gradients)
    group = Silent(name, frozenset({"processes"}), 1, ranks) if ranks > 1 else None  # type: ignore[arg-type]
    held[-1] = 0
    with recorded():
        o = op(given, context_parallel=group)[0]
        if gradients:
            torch.autograd.grad(o, list(given.values()), torch.zeros_like(o))
    return held[-1] / 2**20


@pytest.mark.parametrize(
    "name", ["lightning_attention", "linear_attention", "gated_linear_attention", "gated_delta_rule", "delta_rule"]
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_segment_takes_its_share_of_memory(name: str, gradients: bool, held: dict[int, int]) -> None:
    whole, part = (peak(name, ranks, held, gradients) for ranks in (1, RANKS))
    assert part < 1.05 * whole / RANKS + 5  # MiB of states and maps, which don't depend on the number of steps
