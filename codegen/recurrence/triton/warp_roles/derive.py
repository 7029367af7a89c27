"""The pass that gives warps roles: a sweep's statements -> its schedule.

It sees what statements load, multiply and store. A loader fetches tiles by the copy engine and makes the numbers of each step; a
consumer has the states in registers and makes everything else. Refused with CannotPrint is what it has no roles for.
"""

from __future__ import annotations

from ....ir.warp_schedule import Schedule
from ....printing.cannot_print import CannotPrint
from ..kernels.arguments import Role
from ..kernels.chunk_kernel import Kernel
from .consumer import Consumer
from .parts import SweepParts
from .straight import straight

ELSEWHERE = (Role.LINEAR, Role.TAIL, Role.TAIL_MAP, Role.LIVE)  # arguments of other launches


def schedule_of_sweep(k: Kernel) -> Schedule:
    """The schedule of a sweep, as it yields outputs, and leaves checkpoints of states where a launch wants them.

    Raises CannotPrint: there are no roles for what it does.
    """
    if not k.sweeps or k.tiled is None or k.whole or len(k.axes) != 2:
        raise CannotPrint("roles are for sweeps over chunks with states of two axes")
    if k.apart or k.slow_path:
        raise CannotPrint("a sweep of several launches has no roles yet")
    missing = [a.name for a in k.arguments if a.role in ELSEWHERE]
    s = straight(k.function, frozenset(missing))
    sweep = SweepParts(k, s)
    consumer = Consumer(sweep)
    role = consumer.role()
    loader = sweep.loader()
    return Schedule(
        k.name,
        tuple(sweep.setup),
        tuple(sweep.indices.values()),
        tuple(sweep.scalars.values()),
        tuple(sweep.rings.values()),
        tuple(consumer.buffers),
        (sweep.barriers,),
        (role, loader),
    )


def schedule_if_any(k: Kernel) -> Schedule | None:
    """The schedule of a sweep, if there are roles for what it does."""
    try:
        return schedule_of_sweep(k)
    except CannotPrint:
        return None
