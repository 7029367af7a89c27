"""Which claims of a document are true, without reasons and repairs: what readings are compared by."""

from __future__ import annotations

from collections.abc import Collection

from chunkform.codegen.claims.verifier import Verifier

from .paper import Paper


def truths(paper: Paper, only: Collection[str] | None = None) -> dict[str, bool]:
    """Which claims are true; those that can't be judged are left out."""
    return {k: said == "holds" for k, said in bare_verdicts(paper, only).items()}


def bare_verdicts(paper: Paper, only: Collection[str] | None = None) -> dict[str, str]:
    """Verdicts without reasons; claims that can't be judged are left out."""
    bare = Verifier(thorough=False)
    found = {}
    for c in paper.claims:
        if only is None or c.id in only:
            try:
                found[c.id] = bare.judge(c).verdict
            except Exception:  # a claim that can't be judged tells nothing of readings
                continue
    return found
