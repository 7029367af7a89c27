"""Five published backward passes: every right row holds, every row with a planted mistake fails, and nearly all are repaired to
what the authors have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from shared.published_claims import DERIVATIONS, Derivation

from chunkform.codegen.claims.alone import verdicts_alone
from chunkform.codegen.claims.verdict import Verdict
from chunkform.spec.language.claims import Claim
from chunkform.spec.language.formula import Formula, formula, substitute
from chunkform.spec.language.statements import Equal

SECONDS = 5  # of the processor's time, for a claim


def judged(made: Derivation, rows: Iterator[tuple[str, Any, Any]]) -> dict[str, Verdict]:
    claims = [Claim(name, Equal((formula(a), formula(b))), made.setting) for name, a, b in rows]
    return {v.claim.id: v for v in verdicts_alone(claims)}


LONG = ("rwkv7", "gated_linear_attention")


@pytest.fixture(
    params=[pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in DERIVATIONS], scope="module"
)
def made(request: pytest.FixtureRequest) -> Derivation:
    return DERIVATIONS[request.param]()


def test_every_right_row_holds(made: Derivation) -> None:
    found = judged(made, ((name, *sides) for name, sides in made.right.items()))
    assert {name: v.verdict for name, v in found.items()} == dict.fromkeys(made.right, "holds")


def test_every_planted_mistake_fails_and_four_of_five_are_repaired_to_the_original(made: Derivation) -> None:
    assert set(made.planted) == {"sign", "transpose", "index", "missing factor", "missing solve"}
    found = judged(made, ((kind, made.right[name][0], side) for kind, (name, side) in made.planted.items()))
    assert {kind: v.verdict for kind, v in found.items()} == dict.fromkeys(made.planted, "fails")
    assert all(
        v.counterexample is not None and v.counterexample.sides for v in found.values() if v.claim.id != "transpose"
    )
    original = {kind: " = ".join(str(formula(x)) for x in made.right[name]) for kind, (name, _) in made.planted.items()}
    other = {kind: v.repaired for kind, v in found.items() if v.repaired != original[kind]}
    assert len(other) <= 1, other
    assert all(other.values()), "what isn't repaired to the original is repaired to something else that is true"
    assert all(v.seconds < SECONDS for v in found.values())


@pytest.mark.parametrize(
    "name,row,quantity,index",
    [
        ("gated_linear_attention", "dk unrolled", "alpha", "j+1"),
        ("state_space_duality", "dx", "a", "j+1"),
        ("state_space_duality", "dlog a", "B", "j-1"),
        ("state_space_duality", "dlog a", "delta", "j-1"),
        ("state_space_duality", "dlog a", "x", "j-1"),
    ],
)
def test_an_index_that_leaves_the_range_of_its_sum_is_a_mistake(name: str, row: str, quantity: str, index: str) -> None:
    """Such a formula has a value where the sum is empty, or has one term, and is right there; that isn't enough."""
    made = DERIVATIONS[name]()
    left, right = made.right[row]
    j = Formula("index", (), ("j",))
    moved = substitute(right, {at(quantity, j): at(quantity, j + 1 if index == "j+1" else j - 1)})
    assert moved != right
    (found,) = judged(made, iter([(row, left, moved)])).values()
    assert found.verdict == "fails"
    assert found.counterexample is not None and "has no value" in found.counterexample.message
    assert found.repaired == f"{left} = {right}"


def at(name: str, index: Formula) -> Formula:
    return Formula("at", (index,), (name,))
