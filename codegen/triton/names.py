"""Python names of what kernels and the functions that launch them speak of."""

from __future__ import annotations

import re
from collections import Counter

from ..ir import Node
from ..pipeline import Compiled
from .tile import axis_name, size_name

RESERVED = frozenset(
    "B T H C DT BLOCK LEVELS blocks first_block needs_backward EVEN EXACT FLAT STAGES WARPS YIELD tl triton torch i c h b n "
    "bh sh t0 at step last chunks tile flat extent part first begin stop count given states constants saved needs "
    "cotangents final_cotangents packed lay parts length begins stops starts config dtype some start late early gradients "
    "initial outputs finals inverse is_flat power span halves decayed_product decayed_sum rounded_and_rest rounded_to "
    "by_head border_sums chained chained_matrix cumulate suffix_sum part_of place_of parts_for places launch steps strides "
    "padded choose pair whole spread each_head cotangent cdiv block_sums".split()
)
SUFFIXES = re.compile(
    r"_(p|b|t|h|g|a|n|r|by_head|borders|blocks|sums|starts|ends|linear|resets|extents|extent|"
    r"end|before|ok|in|out|first|last|next|start|late|early)$"
)
STEMS = {
    "read": "read",
    "write": "write",
    "matrix": "matrix",
    "own": "own",
    "scaled": "scaled",
    "intra": "intra",
    "ahead": "ahead",
}


class Names:
    """Python names of leaves: those of the spec where they are free, numbered ones for what the compiler found."""

    def __init__(self, c: Compiled) -> None:
        self.reserved = set(RESERVED) | {size_name(d) for d in c.step.dims} | {axis_name(d) for d in c.step.dims}
        self.known: dict[object, str] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, x: Node) -> str:
        key: object = x.attrs[:2] if x.op == "leaf" else x
        if x.op == "leaf" and x.attrs[0].startswith("log "):
            key = (x.attrs[0].removeprefix("log "), x.attrs[1])
        if key not in self.known:
            self.known[key] = self._new(x)
        return self.known[key]

    def _new(self, x: Node) -> str:
        kind = x.attrs[0] if x.op == "leaf" else "decay_of"
        if kind in STEMS or x.op != "leaf":
            stem = STEMS.get(kind, "decay")
            self.counts[stem] += 1
            name = f"{stem}{self.counts[stem]}"
        else:
            name = re.sub(r"\W", "_", x.attrs[1])
        while name in self.reserved or SUFFIXES.search(name) or name in self.known.values():
            name += "_"
        return name
