"""Covering arrays: each pair that may occur does, and few rows are enough."""

import itertools

from chunkform.codegen.checking.covering import covering, pairs_of

FACTORS = {"T": (20, 1, 64, 65, 330), "dtype": ("f32", "f64", "bf16"), "packed": (False, True), "heads": (2, 1, 4)}


def pairs(rows):
    return {p for row in rows for p in itertools.combinations(row.items(), 2)}


def test_each_pair_occurs():
    rows = covering(FACTORS)
    assert pairs(rows) >= set(pairs_of(FACTORS))
    assert len(rows) <= 18  # 15 pairs of T and dtype
    assert rows[0] == {n: some[0] for n, some in FACTORS.items()}
    assert rows == covering(FACTORS)


def test_what_may_not_go_together_does_not():
    def allowed(row):
        return not (row.get("dtype") == "f64" and row.get("packed")) and not (
            row.get("T") == 1 and row.get("heads") == 4
        )

    rows = covering(FACTORS, allowed)
    assert all(allowed(row) for row in rows)
    left_out = set(pairs_of(FACTORS)) - pairs(rows)
    assert left_out == {(("dtype", "f64"), ("packed", True)), (("T", 1), ("heads", 4))}


def test_a_factor_of_one_choice_is_in_each_row():
    rows = covering({"a": (1, 2), "b": ("x",)})
    assert [r["b"] for r in rows] == ["x", "x"] and {r["a"] for r in rows} == {1, 2}


def test_three_factors_that_are_wanted_together():
    rows = covering(FACTORS, together=[("dtype", "packed", "heads")])
    assert len({(r["dtype"], r["packed"], r["heads"]) for r in rows}) == 18
    assert pairs(rows) >= set(pairs_of(FACTORS)) and len(rows) <= 24
