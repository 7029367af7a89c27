"""The roles of a sweep that loads its matrices over steps, which other kernels have stored: a loader, and a consumer that has
the states. Where its pass has sweeps that are joined with their prologues, chunks are as those of these."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.code import Name
from ....ir.warp_schedule import Barriers, Schedule
from ....printing.cannot_print import CannotPrint
from ..kernels.chunk_kernel import Kernel
from .consumer import Wanted
from .prepared import PreparedConsumer, PreparedParts, backwards, parts_of
from .shared_memory import fitting


def schedule_of_loaded(k: Kernel) -> Schedule:
    """The schedule of a sweep that has no prologue; where a launch makes each of its reads, it is launched without roles.

    Raises CannotPrint: there are no roles for what it does.
    """
    parts = LoadedParts(*parts_of(k))
    consumer = LoadedConsumer(parts)
    role = consumer.role()
    loader = parts.loader()
    parts.refuse_others(role, loader)
    s = Schedule(
        k.name,
        tuple(parts.setup),
        tuple(parts.indices.values()),
        tuple(parts.scalars.values()),
        tuple(parts.rings.values()),
        tuple(consumer.buffers),
        parts.groups,
        (role, loader),
        several=True,
        backwards=backwards(k),
    )
    return fitting(s)


class LoadedParts(PreparedParts):
    """What the statements are: each matrix is loaded."""

    def is_matrix(self, name: str) -> bool:
        if super().is_matrix(name):
            raise CannotPrint("a matrix over steps that no other kernel makes")
        return False

    @property
    def groups(self) -> tuple[Barriers, ...]:
        return (self.barriers,)


@dataclass
class LoadedConsumer(PreparedConsumer):
    """The role that has the states, and waits for what is loaded alone."""

    def _next(self, pending: dict[str, Wanted]) -> Wanted | None:
        """The product to begin now: first what is added to the one that began last."""
        for w in pending.values():
            if self.issued and w.onto == Name(self.issued[-1]) and all(self._is_there(x, w) for x in w.operands):
                return w
        return super()._next(pending)

    def _begin(self, w: Wanted) -> None:
        """Before the first product, all that others take of states: the assembler waits for products before it touches a state
        that it has just made (C7517)."""
        if not self.issued:
            for x in self.products.values():
                if self._has_state(x.name):
                    self._left(x)
        super()._begin(w)
