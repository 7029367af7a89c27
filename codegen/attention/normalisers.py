"""How energies become weights, and what that does to gradients: one row for each normaliser.

With the weights P_ij, G_ij = <dO_i, v_j> the gradient of a weight as the averages see it, and D_i the row's own part:

    softmax       P = exp(E - lse)    dE = P (G - D)    D = <dO, O> - dlse
    exponential   P = exp(E)          dE = P (G - D)    D = -dmass
    linear        P = E               dE = G - D        D = -dmass

where mass_i = sum_j P_ij.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import ZERO, Node, add, fn, leaf, leaves, mul, replace
from .lower import KEY


@dataclass(frozen=True)
class Normaliser:
    """`weight` is over leaves energy and lse; `gradient` over leaves weight, G and D."""

    name: str
    weight: Node
    gradient: Node
    shifted: bool  # is the largest energy of a row subtracted, and the sum of weights divided out?


def normalisers(query: str) -> dict[str, Normaliser]:
    pair = (query, KEY)
    energy, lse = leaf("pair", "energy", pair), leaf("pair", "lse", (query,))
    weight, g, d = leaf("pair", "weight", pair), leaf("pair", "G", pair), leaf("pair", "D", (query,))
    difference = add(g, mul(-1, d))
    return {
        "softmax": Normaliser("softmax", fn("exp", add(energy, mul(-1, lse))), mul(weight, difference), True),
        "exponential": Normaliser("exponential", fn("exp", energy), mul(weight, difference), False),
        "linear": Normaliser("linear", energy, difference, False),
    }


def shifted(n: Normaliser) -> Normaliser:
    """The same of energies from which lse is subtracted already, and of G from which D is."""

    def without(x: Node, name: str) -> Node:
        return replace(x, {y: ZERO for y in leaves(x) if y.attrs[1] == name})

    return Normaliser(n.name, without(n.weight, "lse"), without(n.gradient, "D"), False)
