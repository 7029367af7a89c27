"""Tables of configurations go on holding for kernels where nothing but names has changed."""

import re

import pytest

from benchmarks import rekey
from chunkform.runtime.launch import fingerprint

KERNELS_ASK = '''
import triton
from chunkform.runtime.chunk_kernels.decays import order
from chunkform.runtime.launch.launch import choose


@triton.jit(do_not_specialize=["parts"])
def kernel(x, parts, C: tl.constexpr):
    """One."""
    p = tl.load(x)
    p2 = p + C
    tl.store(x, tl.where(order(C, True, min(parts, 3)), p2, 0.0))


def forward(x):
    config = choose(x.dtype, (8,), "0123456789abcdef")
    kernel[(1,)](x, 2, C=config.chunk)
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (r"\bparts\b", "segments", True),
        (r"\bkernel\b", "sweep", True),
        (r"\bx\b", "given", True),
        (r"\bmin\b", "max", False),
        (r"p2, 0\.0", "p2, 2.0", False),
        ("One", "Two", True),
        (r"\bp2\b", "w", True),
        (r"p2, 0", "p, 0", False),  # another variable is stored
        (r"\bp2?\b", "w", False),  # two variables have become one
        (r"order\(C, True", "order(parts, True", False),
        (r'\["parts"\]', '["x"]', False),
        (r"\border\b", "diagonal", False),
    ],
)
def test_choices_go_on_where_only_names_have_changed(old, new, same):
    now, key = re.sub(old, new, KERNELS_ASK), "0123456789abcdef"
    assert now != KERNELS_ASK
    assert (rekey.unnamed(KERNELS_ASK, key, own := fingerprint.this_runtime()) == rekey.unnamed(now, key, own)) == same


def test_choices_go_on_where_only_names_of_functions_that_kernels_call_have_changed():
    def key(*changes: tuple[str, str], apart: tuple[str, ...] = ()) -> str:
        known = fingerprint.this_runtime()
        text = {p: known.read(p) for p in known.paths.values()}
        for old, new in changes:
            text = {p: re.sub(old, new, x) for p, x in text.items()}
        source = KERNELS_ASK if len(changes) < 2 else re.sub(*changes[0], KERNELS_ASK)
        return rekey.unnamed(source, "0123456789abcdef", fingerprint.Runtime(text.__getitem__, text), apart)

    renamed = (r"\border\b", "seen_by"), (r"\bDIAGONAL\b", "OWN_STEP")
    assert key() == key(*renamed) != key((r"return after >= 0 if", "return after > 0 if"))
    assert key(apart=("order",)) == key((r"return after >= 0 if", "return after > 0 if"), apart=("order",))
    assert key(apart=("order",)) != key((r"return after >= 0 if", "return after > 0 if"), apart=("diagonal",))
