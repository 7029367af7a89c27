"""fla's fused recurrent kernels beside our steps and drafts: what they take in the run that times ours, and whether both agree.

Their public functions take states in any dtype, and make float32 ones anew; ours do the same beside them, outside of any pool.
Kimi delta attention's inner function also takes rows of a pool, in place, and drafts whose states go to a block each, as
inference engines have them: beside these stand our step, and our function of an engine's name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Recurrent:
    """A function of fla's, module:name, and its arguments by ours; `pooled` takes rows of a pool too."""

    function: str
    names: Mapping[str, str]
    pooled: str | None = None

    @property
    def name(self) -> str:
        return self.function.rpartition(":")[2]

    def __call__(self, given: Mapping[str, Tensor], **more: Any) -> tuple[Tensor, Tensor]:
        """On [B, T, H, ..]."""
        return _call(self.function, self.names, given, more)

    def between_rows(self, given: Mapping[str, Tensor], pool: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        """On [B, T, H, ..], from rows of a pool and back."""
        assert self.pooled is not None
        return _call(self.pooled, self.names, given, {"initial_state": pool, "inplace_final_state": True, **more})


def _call(
    function: str, names: Mapping[str, str], given: Mapping[str, Tensor], more: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    module, _, name = function.partition(":")
    renamed = {names.get(n, n): x for n, x in given.items()}
    found: tuple[Tensor, Tensor] = getattr(importlib.import_module(module), name)(**renamed, scale=1.0, **more)
    return found


FLA = {
    "gated_delta_rule": Recurrent("fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule", {"log_alpha": "g"}),
    "kimi_delta_attention": Recurrent(
        "fla.ops.kda:fused_recurrent_kda", {"log_alpha": "g"}, "fla.ops.kda.fused_recurrent:fused_recurrent_kda_fwd"
    ),
    "lightning_attention": Recurrent("fla.ops.simple_gla:fused_recurrent_simple_gla", {"log_lam": "g"}),
}


def peer(name: str) -> Recurrent | None:
    """fla's function for an op; None, and why, where it can't be called."""
    found = FLA.get(name)
    if found is None:
        return None
    try:
        importlib.import_module(found.function.partition(":")[0])
    except ImportError as error:
        print(f"fla can't be imported: {error}")
        return None
    return found


def check(name: str, call: Any, many: Mapping[str, Tensor]) -> None:
    """Both compute the same: the steps `many` [B, K, H, ..] one after the other, alone and between rows of a pool."""
    theirs = peer(name)
    if theirs is None:
        return
    count, steps, heads = many["q"].shape[:3]
    width = many["q"].shape[3], many["v"].shape[3]
    first = 0.1 * torch.randn(count, heads, *width, device=many["q"].device)
    state, outs = first.clone(), []
    for t in range(steps):
        o, state = call.step(state, **{n: x[:, t] for n, x in many.items()})
        outs.append(o)
    with torch.no_grad():
        o, last = theirs(many, initial_state=first.clone(), output_final_state=True)
    _same(f"{name}: outputs", torch.stack(outs, 1), o)
    _same(f"{name}: states", state, last)
    if theirs.pooled:
        pool = torch.zeros(count * steps + 3, heads, *width, device=first.device)
        rows = torch.arange(3, len(pool), device=first.device, dtype=torch.int32).view(count, steps)
        pool[rows[:, 1].long()] = first
        accepted = torch.full((count,), 2, device=first.device, dtype=torch.int32)
        o = blocks(theirs, many, pool, rows, accepted)
        _same(f"{name}: drafts in blocks", torch.stack(outs, 1), o)
        _same(f"{name}: states in blocks", state, pool[rows[:, -1].long()])


def blocks(theirs: Recurrent, many: Mapping[str, Tensor], pool: Tensor, rows: Tensor, accepted: Tensor) -> Tensor:
    """Drafts whose states go to a block each."""
    with torch.no_grad():
        return theirs.between_rows(many, pool, ssm_state_indices=rows, num_accepted_tokens=accepted)[0]


def ours_in_blocks(many: Mapping[str, Tensor], starts: Tensor, pool: Tensor, rows: Tensor, accepted: Tensor) -> Tensor:
    """The same by our function of vLLM's name; packed, as it takes drafts."""
    from chunkform.integrations.engines.vllm import fused_recurrent_kda

    flat = {n: x.flatten(0, 1).unsqueeze(0) for n, x in many.items()}
    o, _ = fused_recurrent_kda(
        flat["q"], flat["k"], flat["v"], flat["log_alpha"], flat["beta"], 1.0, pool, True, False, starts, rows, accepted,
        state_v_first=False, null_block_id=None,
    )  # fmt: skip
    return o


def _same(what: str, ours: Tensor, theirs: Tensor) -> None:
    far = float((ours.float() - theirs.float()).norm() / ours.float().norm())
    assert far < 2e-2, f"{what}: fla's are {far:.1e} from ours"


Timed = tuple[str, list[Callable[[], object]], int]  # what, rounds, bytes moved by one of them


def alone(name: str, call: Any, given: Mapping[str, Tensor], states: list[Tensor]) -> Iterator[Timed]:
    """Steps outside of any pool, whose float32 states are made anew: ours, and fla's."""
    theirs = peer(name)
    moved = 2 * _bytes([states[0]]) + _bytes([*given.values(), given["v"]])
    yield "step, float32 states made anew", [lambda s=s: call.step(s, **given) for s in states], moved
    if theirs is not None:
        one = {n: x.unsqueeze(1) for n, x in given.items()}
        rounds = [lambda s=s: theirs(one, initial_state=s, output_final_state=True) for s in states]
        yield f"fla {theirs.name}, float32 states made anew", rounds, moved


def between_rows(
    name: str, given: Mapping[str, Tensor], many: Mapping[str, Tensor], pool: Tensor, order: Tensor
) -> Iterator[Timed]:
    """fla's step between rows of the pool, and both libraries' drafts, with a block for each draft's state.

    order: the pool's rows, in the order in which rounds take them.
    """
    theirs = peer(name)
    if theirs is None or theirs.pooled is None:
        return
    count, steps = many["q"].shape[:2]
    state = _bytes([pool]) * count // len(pool)
    one, out = {n: x.unsqueeze(1) for n, x in given.items()}, torch.empty_like(given["v"]).unsqueeze(1)
    rounds = [
        lambda r=r: theirs.between_rows(one, pool, ssm_state_indices=r, out=out) for r in order.int().view(-1, count)
    ]
    yield f"fla {theirs.name}, in the pool", rounds, 2 * state + _bytes([*given.values(), out])
    sets = order.int().view(-1, count, steps)
    accepted = torch.randint(1, steps + 1, (count,), device=pool.device, dtype=torch.int32)
    starts = torch.arange(0, (count + 1) * steps, steps, device=pool.device, dtype=torch.int32)
    moved = (1 + steps) * state + _bytes([*many.values(), many["v"]])
    rounds = [lambda r=r: ours_in_blocks(many, starts, pool, r, accepted) for r in sets]
    yield f"{steps} drafts, a block each", rounds, moved
    rounds = [lambda r=r: blocks(theirs, many, pool, r, accepted) for r in sets]
    yield f"fla {theirs.name}, {steps} drafts, a block each", rounds, moved


def _bytes(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
