"""Python names of what kernels and the functions that launch them speak of."""

from __future__ import annotations

import re
from collections import Counter

from ..ir import Node
from ..pipeline import Compiled
from .slices import counter
from .tile import KEPT, axis_name, block_name, size_name

# what a section imports
IMPORTS = {
    "chunkform.runtime.by_head": "by_head",
    "chunkform.runtime.kernels": (
        "block_sums border_sums chained chained_matrix chunk_of cumulate cumulate_beside decayed_product decayed_sum inverse "
        "is_flat last_of later_sums log2_of over_block part_of place_of power reach span steep suffix_sum sums_of"
    ),
    "chunkform.runtime.launch": "DTYPES cdiv choose cotangent each_head launch spread steps strides whole",
    "chunkform.runtime.parts": "map_of_all",
    "chunkform.runtime.packed": "BLOCK",
    "chunkform.runtime.places": "GROUP LEVELS parts_for places",
    "chunkform.runtime.rounding": "rounded_and_rest rounded_to",
    "chunkform.runtime.together": (
        "aligned block_pairing column_parts column_sums in_place over_rows paired_states row_parts row_sums rows_of "
        "stages_of store_parts store_sums together warps_of"
    ),
    "chunkform.runtime.signature": "OVERWRITE",
    "chunkform.runtime.total": "pair total",
}
# what is called by name in kernels and in the functions that launch them
RESERVED = frozenset(
    "B T H C DT BLOCK CHUNK GROUP LEVELS ROWS blocks first_block first_row jointly "
    "places_of_borders needs_backward tiles column column_ok EVEN EXACT FLAT STAGES SUMS WARPS YIELD "
    "tl triton torch i c h b n group programs bh sh t0 at row step last chunks tile flat extent part first begin stop "
    "count given states constants saved needs cotangents final_cotangents packed lay parts config dtype some length "
    "begins stops starts start late early gradients initial outputs finals".split()
) | {name for names in IMPORTS.values() for name in names.split()}
SUFFIXES = re.compile(
    r"_(p|b|t|h|g|a|n|r|by_head|borders|blocks|sums|starts|ends|linear|resets|extents|extent|"
    r"all|end|before|ok|in|out|first|last|next|start|late|early)$"
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
        axes = [x for d in c.step.dims for x in (d, f"{d}{KEPT}")]
        self.reserved = set(RESERVED) | {f(x) for x in axes for f in (size_name, axis_name, block_name, counter)}
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
