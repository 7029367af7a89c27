"""Which sizes a claim is tried at: a few for a proof, and ever larger ones for the smallest counterexample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from chunkform.spec.language.claims import LENGTH, Setting

_LENGTHS = {LENGTH: (4, 3, 4), "c": (3, 2, 2), "N": (3, 3, 4)}
_DIMS = ((2, 3, 2), (3, 2, 4))


def proof_sizes(setting: Setting) -> list[dict[str, int]]:
    """Three sets of sizes, with every two dims different in at least one, and with each dim once larger, once
    smaller."""
    return [_sizes(setting, variant) for variant in range(3)]


def _sizes(setting: Setting, variant: int) -> dict[str, int]:
    found: dict[str, int] = {}
    dims = 0
    for name in setting.sizes:
        if name in setting.fixed_sizes:
            allowed = setting.fixed_sizes[name]
            found[name] = allowed[variant % len(allowed)]
        elif name in _LENGTHS:
            found[name] = _LENGTHS[name][variant]
        else:
            found[name] = _DIMS[dims % 2][variant]
            dims += 1
    return found


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


def small_sizes(setting: Setting, largest: int = 3) -> Iterator[dict[str, int]]:
    """Sizes from the smallest on, up to a dim of 2 and `largest` steps."""
    choices = []
    for name in setting.sizes:
        if name in setting.fixed_sizes:
            choices.append(sorted(set(setting.fixed_sizes[name])))
        else:
            choices.append(list(range(1, (largest if name in _LENGTHS else 2) + 1)))
    for values in sorted(itertools.product(*choices), key=lambda v: (sum(v), max(v, default=0), v)):
        yield dict(zip(setting.sizes, values))
