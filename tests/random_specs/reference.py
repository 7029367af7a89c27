"""What a random spec means: a plain loop over its steps in torch, and autograd of that loop; and arguments for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .grammar import Drawn
from .terms import Shape, Step

BATCH, HEADS = 2, 2
SIZES = {"d": 3, "e": 5}
PER_STEP = ("inputs", "decay")


@dataclass(frozen=True)
class Call:
    """Arguments of one call, [B, T, H, ..] or [H, ..], decays as logarithms; first states, or None; and incoming gradients."""

    given: dict[str, Tensor]
    constants: dict[str, float]
    initial: dict[str, Tensor | None]
    cotangents: dict[str, Tensor]
    steps: int

    def moved(self, scale: float) -> Call:
        """The call with arguments that are off by so much of what they are."""
        g = torch.Generator().manual_seed(1)

        def off(x: Tensor) -> Tensor:
            return x * (1 + scale * torch.randn(x.shape, generator=g, dtype=x.dtype))

        return replace(self, given={n: off(x) for n, x in self.given.items()})

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Call:
        def low(x: dict[str, Tensor]) -> dict[str, Tensor]:
            return {n: None if v is None else v.to(device, dtype) for n, v in x.items()}  # type: ignore[misc]

        return replace(self, given=low(self.given), initial=low(self.initial), cotangents=low(self.cotangents))  # type: ignore[arg-type]


def arguments(s: Drawn, seed: int, steps: int, initial: bool, sizes: dict[str, int] = SIZES) -> Call:
    """Random arguments for so many steps. Vectors are about of length one, and a few decays are strong or none at all."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def of(shape: Shape) -> list[int]:
        return [sizes[x] for x in shape]

    given, constants = {}, {}
    for x in s.given:
        lead = (BATCH, steps, HEADS) if x.kind in PER_STEP else (HEADS,)
        own = of(x.shape)
        if x.kind == "constant":
            constants[x.name] = 0.4
        elif "decay" in x.kind:
            log = torch.nn.functional.logsigmoid(normal(*lead, *own) + 2)
            chance = torch.rand(log.shape, generator=g)
            given[x.name] = torch.where(chance < 0.03, 8 * log, torch.where(chance > 0.97, 0 * log, log))
        elif x.domain is not None:
            low, high = x.domain
            given[x.name] = low + (high - low) * torch.sigmoid(2 * normal(*lead, *own))
        else:
            given[x.name] = normal(*lead, *own) / (own[-1] ** 0.5 if own else 1)
    states = {n: 0.3 * normal(BATCH, HEADS, *of(shape)) for n, shape in s.states.items()}
    cotangents = {f"final {n}": normal(BATCH, HEADS, *of(shape)) for n, shape in s.states.items()}
    cotangents |= {n: normal(BATCH, steps, HEADS, *of(x.shape)) for n, x in s.outputs.items()}
    return Call(given, constants, states if initial else dict.fromkeys(states), cotangents, steps)


def run_loop(s: Drawn, call: Call, sizes: dict[str, int] = SIZES) -> dict[str, Tensor]:
    """Outputs, last states ("final S"), and gradients of every argument ("dq") and given first state ("d initial S")."""
    leaves = {n: x.clone().requires_grad_() for n, x in call.given.items()}
    first = {n: x.clone().requires_grad_() for n, x in call.initial.items() if x is not None}
    dtype = next(iter(leaves.values())).dtype
    kinds = {x.name: x.kind for x in s.given}
    values = {n: x.exp() if "decay" in kinds[n] else x for n, x in leaves.items()}
    values |= {n: torch.tensor(x, dtype=dtype) for n, x in call.constants.items()}
    ahead = Step(values, {}, sizes, dtype)
    states = {}
    for n, shape in s.states.items():
        start = s.initial[n].value(ahead) if n in s.initial else torch.zeros((), dtype=dtype)
        if n not in s.initial or s.initial[n].shape != shape:
            start = start[(..., *(None,) * len(shape))]
        states[n] = first.get(n, start.expand(BATCH, HEADS, *(sizes[x] for x in shape)))
    outputs: dict[str, list[Tensor]] = {n: [] for n in s.outputs}
    for t in range(call.steps):
        now = {n: x[:, t] if kinds[n] in PER_STEP else x for n, x in values.items()}
        step = Step(now, states, sizes, dtype)
        for n, term in s.updates.items():
            step.after[n] = _full(term.value(step), s.states[n], sizes)
        for n, term in s.outputs.items():
            outputs[n].append(_full(term.value(step), term.shape, sizes))
        states = step.after
    found = {n: torch.stack(x, 1) for n, x in outputs.items()} | {f"final {n}": x for n, x in states.items()}
    wanted = {f"d{n}": x for n, x in leaves.items()} | {f"d initial {n}": x for n, x in first.items()}
    ends = [(found[n], x) for n, x in call.cotangents.items() if found[n].requires_grad]
    got = torch.autograd.grad([a for a, _ in ends], list(wanted.values()), [b for _, b in ends], allow_unused=True)
    gradients = {n: torch.zeros_like(x) if v is None else v for (n, x), v in zip(wanted.items(), got, strict=True)}
    return {n: x.detach() for n, x in found.items()} | gradients


def _full(x: Tensor, shape: Shape, sizes: dict[str, int]) -> Tensor:
    return x.expand(BATCH, HEADS, *(sizes[n] for n in shape))
