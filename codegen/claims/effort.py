"""How much a search may do. Work is counted in operations and not in seconds, so that the same claim gets the same verdict on any
machine; `SECOND` of them are about a second of one core's time."""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 20_000
NORMAL = 3.0  # seconds, for a repair; a third of it for conditions, and for a small counterexample


@dataclass
class Work:
    """Operations done so far: nodes evaluated, steps run, candidates made."""

    done: int = 0


WORK = Work()


@dataclass
class Effort:
    """What a search may still do, from now on: about so many seconds' work. `ended`: it was stopped by that."""

    seconds: float = NORMAL
    since: int = field(default_factory=lambda: WORK.done)
    ended: bool = False

    def left(self) -> float:
        return self.seconds - (WORK.done - self.since) / SECOND

    def spent(self) -> bool:
        """Whether nothing is left; who asks stops then, and it is known."""
        if self.left() <= 0:
            self.ended = True
        return self.ended

    def share(self, parts: int) -> Effort:
        """An equal part of what is left."""
        return Effort(max(0.0, self.left()) / max(1, parts))


@dataclass(frozen=True)
class Search:
    """What is told of the searches for a claim: their budget, and whether one was stopped by it."""

    effort: float
    complete: bool
