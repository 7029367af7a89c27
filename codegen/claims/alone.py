"""One claim's trouble is its own: whatever goes wrong while it is judged becomes a verdict of its own kind, `error`, and the
other claims are judged as ever.

Where only the search for a counterexample or a repair goes wrong, or takes too long, the bare verdict stands, and says so."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from chunkform.errors import ChunkformError
from chunkform.spec.language.claims import Claim
from chunkform.spec.language.statements import Unreadable

from .effort import NORMAL
from .verdict import Trouble, Verdict
from .verifier import Verifier

SECONDS = 300  # of the processor's time, that one claim may take
BARE = 60  # and then for its verdict alone
HERE = Path(__file__).resolve().parents[2]


class TooLong(Exception):
    """A claim took all the time that it may take."""


def verdicts_alone(claims: Iterable[Claim], seconds: float = SECONDS, effort: float = NORMAL) -> Iterator[Verdict]:
    """The verdicts of claims of one setting, one after the other; a verifier that failed isn't asked again."""
    verifier = Verifier(effort=effort)
    for claim in claims:
        found, sound = judged_alone(verifier, claim, seconds)
        if not sound:
            repaired, verifier = verifier.repaired, Verifier(verifier.thorough, effort)
            verifier.repaired = repaired
        yield found


def judged_alone(verifier: Verifier, claim: Claim, seconds: float = SECONDS) -> tuple[Verdict, bool]:
    """(the verdict on a claim, whatever happens, whether the verifier is as it should be)."""
    if isinstance(claim.statement, Unreadable):
        said = claim.statement
        return refused(claim, Trouble(said.message, place(claim), said.expected)), True
    try:
        with within(seconds):
            return verifier.judge(claim), True
    except ChunkformError as error:
        return refused(claim, trouble(error, claim)), True
    except Exception as error:
        first = trouble(error, claim, seconds)
    try:
        with within(min(seconds, BARE)):
            bare = Verifier(thorough=False)
            bare.repaired = verifier.repaired
            found = bare.judge(claim)
    except Exception:
        return refused(claim, first), False
    stopped = f"the search for what would be right ended early: {first.message}"
    return replace(found, how=f"{found.how}; {stopped}" if found.verdict != "holds" else found.how), False


def refused(claim: Claim, why: Trouble) -> Verdict:
    return Verdict(claim, "error", "not judged", error=why)


def trouble(error: BaseException, claim: Claim, seconds: float = SECONDS) -> Trouble:
    """What an exception says about a claim."""
    if isinstance(error, TooLong):
        return Trouble(f"not judged within {seconds:g} s", place(claim), "fewer steps, or smaller sums")
    if isinstance(error, RecursionError):
        return Trouble("the formula is nested too deeply", place(claim), "parts of it as definitions (r.define)")
    if isinstance(error, MemoryError):
        return Trouble("the formula takes more memory than there is", place(claim), "fewer steps, or smaller sums")
    if isinstance(error, ChunkformError):
        where = getattr(error, "where", None) or claim.where
        expected = getattr(error, "expected", "a claim that can be judged")
        return Trouble(str(error).removeprefix(f"{where}: "), str(where or ""), expected)
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({_inside(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    message = f"{type(error).__name__}: {error}{at}"
    return Trouble(message, place(claim), "a verdict: this is a fault of the verifier, and not of the claim")


def place(claim: Claim) -> str:
    return str(claim.where) if claim.where else ""


def _inside(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(HERE)) if HERE in path.parents else path.name


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLong after so many seconds of this process's time; where nothing can do so, on a thread beside the first, or
    without signals, there is no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
