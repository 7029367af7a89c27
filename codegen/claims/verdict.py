"""What the verifier says about a claim, and its stable JSON form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkform.spec.language.claims import Claim

from .arithmetic import CONTEXT
from .effort import Search
from .repair import Repair

PLAIN = "the sides differ"


@dataclass(frozen=True)
class Counterexample:
    """Numbers at which the two sides differ, or what is wrong with the formula's shapes."""

    message: str
    sizes: tuple[tuple[str, int], ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    at: tuple[tuple[str, int], ...] = ()
    sides: tuple[tuple[str, str], ...] = ()

    def json(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "sizes": dict(self.sizes),
            "given": dict(self.given),
            "at": dict(self.at),
            "sides": [{"formula": f, "value": v} for f, v in self.sides],
        }

    def text(self) -> str:
        if not self.sides:
            return self.message
        shown = [f"{name} = {value}" for name, value in self.given if re.search("[1-9]", value)]
        given = ", ".join([*shown, "all else 0"] if len(shown) < len(self.given) else shown)
        at = ", ".join(f"{name} = {value}" for name, value in self.at)
        sides = ", but ".join(f"{f} = {v}" for f, v in self.sides)
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes)
        before = "" if self.message == PLAIN else f"{self.message}, "
        return f"{before}{sizes}; {given}{'; at ' + at if at else ''}: {sides}"


@dataclass(frozen=True)
class Condition:
    """A reading or side condition, and whether the claim is true under it."""

    text: str
    holds: bool
    kind: str = "reading"  # reading | condition | trivial | where defined | not tried

    def json(self) -> dict[str, Any]:
        return {"text": self.text, "holds": self.holds, "kind": self.kind}


@dataclass(frozen=True)
class Trouble:
    """Why there is no verdict on a claim: what happened, where the claim stands, and what was expected instead."""

    message: str
    where: str
    expected: str

    def text(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}; expected: {self.expected}"

    def json(self) -> dict[str, str]:
        return {"message": self.message, "where": self.where, "expected": self.expected}


@dataclass(frozen=True)
class Verdict:
    """holds, fails or depends, with the evidence; or error, with what kept the claim from being judged."""

    claim: Claim
    verdict: str
    how: str
    counterexample: Counterexample | None = None
    repairs: tuple[Repair, ...] = ()
    repaired: str = ""  # the repaired formula in full, as text
    repaired_latex: str = ""
    repair_reading: str = ""
    conditions: tuple[Condition, ...] = ()
    proof: str = ""
    seconds: float = 0.0
    searched: bool = False
    search: Search | None = None
    error: Trouble | None = None
    defined: str = ""  # the nearest true formula, where a definition says it already
    extra: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        c = self.claim
        repair: dict[str, Any] | None = None
        if self.repairs:
            repair = {
                "formula": self.repaired,
                "latex": self.repaired_latex,
                "edits": list(self.repairs[0].edits),
                "reading": self.repair_reading,
                "others": [str(r.result) for r in self.repairs[1:4]],
            }
        elif self.searched:
            repair = {"formula": None, "edits": [], "reading": "", "others": [], "latex": ""}
        if repair is not None:
            repair["defined"] = self.defined
        return {
            "id": c.id,
            "spec": c.spec,
            "document": c.document,
            "section": c.section,
            "verdict": self.verdict,
            "counterexample": self.counterexample.json() if self.counterexample else None,
            "repair": repair,
            "conditions": [x.json() for x in self.conditions],
            "search": {"effort": self.search.effort, "complete": self.search.complete} if self.search else None,
            "how": self.how,
            "proof": self.proof,
            "error": self.error.json() if self.error else None,
            "latex": c.latex,
            "where": str(c.where.place) if c.where else "",
        }


def number_text(x: Any) -> str:
    if hasattr(x, "_mpf_") or isinstance(x, float):
        return f"{float(x):.6g}" if abs(x) < 1e300 else str(CONTEXT.nstr(x, 6))
    return str(x)


def array_text(a: np.ndarray) -> str:
    """A matrix on one line: a number, (1, 2) for a vector, [1 2; 3 4]."""
    if a.shape == (1, 1):
        return number_text(a[0, 0])
    if 1 in a.shape:
        return "(" + ", ".join(number_text(x) for x in a.flat) + ")" + ("" if a.shape[1] == 1 else "^T")
    return "[" + "; ".join(" ".join(number_text(x) for x in row) for row in a) + "]"


VERBS = {  # of one claim, and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "depends": ("depends", "depend"),
    "error": ("couldn't be judged", "couldn't be judged"),
}
COLOURS = {"holds": "green", "fails": "red", "depends": "yellow", "error": "magenta"}


VERBS = {  # of one claim, and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "depends": ("depends", "depend"),
    "error": ("couldn't be judged", "couldn't be judged"),
}


def summary(verdicts: list[Verdict]) -> str:
    """Counts of verdicts and repairs, in one line: `4 claims: 3 hold, 1 fails; it has a repair`."""
    counts = {name: sum(v.verdict == name for v in verdicts) for name in COLOURS}
    failed = [v for v in verdicts if v.verdict == "fails"]
    fixed = sum(bool(v.repairs) for v in failed)
    parts = [f"{n} {VERBS[name][n != 1]}" for name, n in counts.items() if n]
    line = ": ".join(
        [f"{len(verdicts)} claim{'' if len(verdicts) == 1 else 's'}", *([", ".join(parts)] if parts else [])]
    )
    if not failed:
        return line
    if len(failed) == 1:
        return f"{line}; {'it has a repair' if fixed else 'no repair was found'}"
    return f"{line}; {fixed or 'none'} of the {len(failed)} that fail {'has' if fixed == 1 else 'have'} a repair"
