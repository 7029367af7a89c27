"""What must hold of a schedule: its roles, in any order, leave in memory what the sweep's program says."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import in_field
from ....exact.run_kernel import Value
from ....ir.warp_schedule import Schedule
from ..chunk_gate import CHUNK, B, H
from ..kernels.chunk_kernel import Kernel
from ..print.axis_names import block_name
from ..sweep_gate import BLOCK, TILE, Swept
from .run_schedule import run_schedule

ORDERS = 2  # orders of roles that each sweep is tried in
WHOLE = 4  # a block that holds an axis whole


@in_field
def gate_schedule(k: Kernel, s: Schedule, orders: int = ORDERS) -> None:
    """Raises GateError where the roles of a sweep don't leave what it is for."""
    try:
        for parts in (1, 2):
            for n in range(orders):
                memory = Scheduled(k, CHUNK, False, False, random.Random(f"{k.name} {n}"), parts=parts)
                memory.run(s)
                memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@dataclass
class Scheduled(Swept):
    """What a schedule is given, and what it leaves."""

    def run(self, s: Schedule) -> None:
        words: dict[str, Value] = {"C": self.chunk, "T": self.steps, "H": H, "chunks": self.chunks, "DT": "tl.float32"}
        words |= {"starts": None, "parts": self.parts, "length": self.length, "blocks": -(-self.steps // BLOCK)}
        words |= {"BLOCK": BLOCK, "ROWS": WHOLE}
        words |= {block_name(a): TILE if a == self.k.tiled else WHOLE for a in self.k.axes}
        run_schedule(s, B * self.parts * H * self.tiles, {**self.given, **words}, 2, self.random)

    def compare_checkpoints(self, *_: object) -> None:
        """It leaves none."""
