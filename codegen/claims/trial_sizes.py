"""Which sizes a claim is tried at: a few for a proof, and ever larger ones for the smallest counterexample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from chunkform.spec.language.claims import LENGTH, Setting

from .branches import Around
from .required_steps import NEAR, Reach

_LENGTHS = {LENGTH: (4, 3, 4), "c": (3, 2, 2), "N": (3, 3, 4)}
_DIMS = ((2, 3, 2), (3, 2, 4))
MOST = 80  # steps


@dataclass(frozen=True)
class Point:
    """Which instance a claim is tried in: its sizes and numbers by `variant`, as far as the claim reaches, and what is drawn
    around which constants."""

    variant: int = 0
    reach: Reach = NEAR
    around: Around = ()

    def sizes(self, setting: Setting) -> dict[str, int]:
        return proof_sizes(setting, self.reach)[self.variant % 3]


def proof_sizes(setting: Setting, reach: Reach = NEAR) -> list[dict[str, int]]:
    """Three sets of sizes, with every two dims different in at least one, and with each dim once larger, once
    smaller; with the steps that a claim reaches."""
    return [_sizes(setting, variant, reach) for variant in range(3)]


def _sizes(setting: Setting, variant: int, reach: Reach) -> dict[str, int]:
    found: dict[str, int] = {}
    dims = 0
    for name in setting.sizes:
        if name in setting.fixed_sizes:
            allowed = setting.fixed_sizes[name]
            found[name] = allowed[variant % len(allowed)]
        elif name in _LENGTHS:
            found[name] = _LENGTHS[name][variant]
            if name != ("c" if variant % 2 else "N"):  # long chunks, or many: both would be too many steps
                found[name] = min(reach.grown(found[name]), most(name))
        else:
            found[name] = _DIMS[dims % 2][variant]
            dims += 1
            if name in reach.dims:
                found[name] = min(reach.grown(found[name] + 2), most(name))
    return found


def most(name: str) -> int:
    """The largest size of that name that is tried: a third of the steps for a chunk, a number of chunks, or a dim."""
    return MOST if name == LENGTH else MOST // 3


def beyond(setting: Setting, reach: Reach) -> str:
    """Where a claim that reaches farther than the largest size isn't tried; nothing where it doesn't."""
    growing = [x for x in setting.sizes if (x in _LENGTHS or x in reach.dims) and x not in setting.fixed_sizes]
    return " or ".join(f"{x} > {most(x)}" for x in growing if reach.grown(min(_LENGTHS[LENGTH])) > most(x))


def tiny_sizes(setting: Setting) -> dict[str, int]:
    """Sizes for a proof with symbols: two steps, or two chunks of two steps; dims of 2 and 1."""
    found: dict[str, int] = {}
    dims = 0
    for name in setting.sizes:
        if name in setting.fixed_sizes:
            found[name] = min(setting.fixed_sizes[name])
        elif name in _LENGTHS:
            found[name] = 2
        else:
            found[name] = 2 - dims % 2
            dims += 1
    return found


def small_sizes(setting: Setting, reach: Reach = NEAR, largest: int = 3) -> Iterator[dict[str, int]]:
    """Sizes from the smallest on, up to a dim of 2 and `largest` steps; then the steps that a claim reaches."""
    choices = []
    for name in setting.sizes:
        if name in setting.fixed_sizes:
            choices.append(sorted(set(setting.fixed_sizes[name])))
        else:
            choices.append(list(range(1, (largest if name in _LENGTHS else 2) + 1)))
    for values in sorted(itertools.product(*choices), key=lambda v: (sum(v), max(v, default=0), v)):
        yield dict(zip(setting.sizes, values))
    if reach is NEAR:
        return
    growing = [x for x in setting.sizes if (x in _LENGTHS or x in reach.dims) and x not in setting.fixed_sizes]
    smallest = {x: values[0] for x, values in zip(setting.sizes, choices)}
    for size in range(largest + 1, min(reach.grown(largest + 1), MOST) + 1):
        yield from ({**smallest, name: size} for name in growing if size <= most(name))
    yield smallest | proof_sizes(setting, reach)[0]
