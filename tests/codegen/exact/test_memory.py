"""What gates draw: of so many numbers that a false pass is as unlikely as `rationals.py` says."""

import random

from chunkform.codegen.exact.memory import drawn
from chunkform.codegen.ir.evaluate import PRIME


def test_draws_are_of_as_many_numbers_as_there_are_residues() -> None:
    found = drawn(random.Random(0), (4, 100)).ravel().tolist()
    finest, largest = max(x.denominator for x in found), max(map(abs, found))
    assert 2 * largest * finest > 0.9 * PRIME and min(found) < 0
