"""A claim that two recurrences are the same: what `chunkform verify A --same-as B` says, as a verdict."""

from __future__ import annotations

from chunkform.errors import ChunkformError, ClaimError
from chunkform.spec.language import Recurrence, find
from chunkform.spec.language.claims import Claim
from chunkform.spec.language.statements import SameAs

from ..exact.same import same
from .verdict import Counterexample, Verdict


def verdict_of_same(claim: Claim, statement: SameAs) -> Verdict:
    """It holds, or it fails with numbers that show it."""
    own = claim.setting.recurrence
    try:
        other = statement.other
        if isinstance(other, str):
            (other,) = [r for r in find(other) if isinstance(r, Recurrence)]
        if not isinstance(own, Recurrence) or not isinstance(other, Recurrence):
            raise ClaimError(f"{own!r} is no recurrence, or {other!r} isn't", claim.where, "two recurrences")
        found = same(own, other, dict(statement.names))
    except ClaimError:
        raise
    except (ChunkformError, ValueError) as why:
        told = f"{statement.other} holds several recurrences, or none" if isinstance(why, ValueError) else str(why)
        raise ClaimError(told, claim.where, "a recurrence with the same inputs, parameters and outputs") from why
    how = "runs of both specs, in exact arithmetic" if found.exact else "runs of both specs, with 50 digits"
    if found.difference is None:
        return Verdict(claim, "holds", how)
    x = found.difference
    counter = Counterexample(
        "the outputs differ",
        tuple(x.sizes.items()),
        tuple(x.given.items()),
        (("t", x.step),),
        ((f"{x.output} of {own.name}", x.values[0]), (f"{x.output} of {other.name}", x.values[1])),
    )
    return Verdict(claim, "fails", how, counter)
