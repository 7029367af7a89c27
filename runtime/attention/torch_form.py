"""The torch form of an attention: blocks of rows against the keys that they see, so that memory grows with T, not its square.

Any device and dtype, float64 too. Energies and weights are kept in float32 or wider.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .arguments import Setting
from .passes import Attention

BLOCK = 2**24  # entries of a block of energies, for all heads together


def forward(op: Attention, features: dict[str, Tensor], at: Setting) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(averages, lse, mass), by blocks of rows."""
    f = _Features(features, at)
    averages = torch.empty(
        (at.batch, at.queries, at.heads, f.value.shape[-1]), dtype=at.low, device=at.device
    ).transpose(1, 2)
    shifted = op.signature.normaliser == "softmax"
    lse = torch.empty((at.batch, at.heads, at.queries), dtype=at.dtype, device=at.device) if shifted else None
    mass = torch.empty((at.batch, at.heads, at.queries), dtype=at.dtype, device=at.device)
    for rows, keys in f.blocks():
        energy, _ = f.energy(op, rows, keys)
        if lse is not None:
            sums = torch.logsumexp(energy, -1) if energy.shape[-1] else energy.new_full(energy.shape[:-1], -math.inf)
            lse[:, :, rows] = sums
        weight = weights(op, energy, None if lse is None else lse[:, :, rows])
        averages[:, :, rows] = (weight @ f.value[:, :, keys]).to(at.low)
        mass[:, :, rows] = weight.sum(-1)
    return averages, lse, mass if lse is None else None


def backward(
    op: Attention,
    features: dict[str, Tensor],
    at: Setting,
    averages: Tensor,
    lse: Tensor | None,
    d_averages: Tensor,
    D: Tensor,
    needs: frozenset[str] = frozenset(),
) -> dict[str, Tensor]:
    """The cotangent of each feature, by the same blocks."""
    f = _Features(features, at)
    found = {n: x.new_zeros((at.batch, at.heads) if n.startswith("scalar") else x.shape) for n, x in f.wide.items()}
    d_averages = d_averages.to(at.dtype)
    for rows, keys in f.blocks():
        energy, leaves = f.energy(op, rows, keys)
        weight = weights(op, energy, None if lse is None else lse[:, :, rows])
        d = d_averages[:, :, rows]
        found["value"][:, :, keys] += weight.mT @ d
        dE = d @ f.value[:, :, keys].mT - D[:, :, rows, None]
        dE = dE * weight if op.signature.normaliser != "linear" else f.masked(dE, rows, keys, 0.0)
        leaves = {n: torch.where(x == -math.inf, 0, x) if n.startswith("column") else x for n, x in leaves.items()}
        for name, g in op.energy_gradients(dE, **leaves).items():
            g = g if g is dE else f.masked(g, rows, keys, 0.0)  # a derivative may be infinite where nothing is seen
            if name.startswith("score"):
                n = name.removeprefix("score")
                found[f"query{n}"][:, :, rows] += g @ f.wide[f"key{n}"][:, :, keys]
                found[f"key{n}"][:, :, keys] += g.mT @ f.wide[f"query{n}"][:, :, rows]
            elif name.startswith("row"):
                found[name][:, :, rows] += g.sum(-1)
            elif name.startswith("column"):
                found[name][:, :, keys] += g.sum(-2)
            else:
                found[name] += g.sum((-2, -1))
    return {n: grouped(g, features[n], at) for n, g in found.items()}


def weights(op: Attention, energy: Tensor, lse: Tensor | None) -> Tensor:
    if op.signature.normaliser == "linear":
        return energy
    if lse is None:
        return energy.exp()
    return (energy - torch.where(lse == -math.inf, 0, lse)[..., None]).exp()


def grouped(g: Tensor, x: Tensor, at: Setting) -> Tensor:
    """A cotangent with the heads of its feature: those of a group are summed."""
    if x.ndim >= 3 and x.shape[1] != g.shape[1]:
        g = g.unflatten(1, (x.shape[1], -1)).sum(2)
    return g.to(x.dtype)


class _Features:
    """Features in the dtype of the arithmetic, each with all heads."""

    def __init__(self, features: dict[str, Tensor], at: Setting) -> None:
        self.at = at
        self.wide = {}
        for n, x in features.items():
            if n == "row":
                continue
            x = x.to(at.dtype)
            if n.startswith("scalar"):
                self.wide[n] = x
                continue
            self.wide[n] = x.repeat_interleave(at.heads // x.shape[1], 1) if x.shape[1] != at.heads else x
        self.value = self.wide["value"]

    def blocks(self) -> Any:
        """(rows, keys that they may see), as slices."""
        at = self.at
        size = max(1, min(256, BLOCK // max(1, at.batch * at.heads * at.keys)))
        for start in range(0, at.queries, size):
            stop = min(start + size, at.queries)
            end = at.keys if not at.causal else max(0, min(at.keys, stop + at.keys - at.queries))
            yield slice(start, stop), slice(0, end)

    def energy(self, op: Attention, rows: slice, keys: slice) -> tuple[Tensor, dict[str, Any]]:
        """The energies of a block, masked, and the leaves that they are made of."""
        at, leaves = self.at, {}
        for name, x in self.wide.items():
            if name.startswith("query"):
                n = name.removeprefix("query")
                leaves[f"score{n}"] = x[:, :, rows] @ self.wide[f"key{n}"][:, :, keys].mT
            elif name.startswith("row"):
                leaves[name] = x[:, :, rows]
            elif name.startswith("column"):
                leaves[name] = x[:, :, keys]
            elif name.startswith("scalar"):
                leaves[name] = x
        leaves["i"], leaves["j"] = at.position("i")[rows], at.position("j")[keys]
        shape = (at.batch, at.heads, rows.stop - rows.start, keys.stop - keys.start)
        energy = op.energy(**leaves).expand(shape)
        return self.masked(energy, rows, keys, 0.0 if op.signature.normaliser == "linear" else -math.inf), leaves

    def masked(self, x: Tensor, rows: slice, keys: slice, fill: float) -> Tensor:
        at = self.at
        if not at.causal:
            return x
        i, j = at.position("i")[rows], at.position("j")[keys]
        return x.masked_fill(j[None, :] > i[:, None], fill)
