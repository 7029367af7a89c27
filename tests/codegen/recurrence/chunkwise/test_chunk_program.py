"""The exact meaning of what chunks are made of: many chunks that are evaluated together are what each is by itself."""

import random
from itertools import product

import numpy as np
import pytest

from chunkform.codegen.ir.evaluate import BEYOND, CHUNK_OPERATIONS, Field, evaluate
from chunkform.codegen.ir.expr import COL, ROW, Node, leaf, make, mul, rename, total
from chunkform.codegen.recurrence.chunkwise import chunk_program, coupled_states

FIELD, CHUNKS, STEPS = Field(), 3, 4
SIZES = {ROW: STEPS, COL: STEPS, "d": 2, BEYOND: 1}
DECAY, NUMBER, PAIRS = leaf("decay", "x", (ROW, "d")), leaf("input", "x", (ROW,)), leaf("input", "x", (ROW, COL))
READ, WRITE, START, END = (leaf("input", n, (ROW, "d")) for n in ("read", "write", "start", "end"))
BOTH = leaf("input", "both", ("d",))
MIXED = (((0, 0), (1, 0), (1, 1)), 2, 1, 0)


def nodes() -> list[Node]:
    found = []
    for way in (1, -1):
        found += [
            make("decay_mask", (DECAY,), (True, False, True, way), (ROW, COL, "d")),
            make("decay_in", (DECAY,), (True, way), DECAY.axes),
            make("decay_out", (DECAY,), (False, way), DECAY.axes),
            make("decay_all", (DECAY,), (), ("d",)),
            make("decay_mask", (NUMBER,), (False, False, True, way), (ROW, COL)),
            make("decay_in", (NUMBER,), (True, way), (ROW,)),
            make("decay_all", (NUMBER,), (), ()),
            make("inverse", (PAIRS,), (way,), (ROW, COL)),
            make("transition_mask", (NUMBER,) * 3, (*MIXED, True, way), (ROW, COL)),
            make("transition_in", (NUMBER,) * 3, (*MIXED, False, way), (ROW,)),
            make("transition_out", (NUMBER,) * 3, (*MIXED, way), (ROW,)),
            make("transition_all", (NUMBER,) * 3, (*MIXED, way), ()),
        ]
    given = (DECAY, READ, WRITE, PAIRS, START, END, BOTH)
    return found + [make("left_out", given, late, DECAY.axes) for late in product((True, False), repeat=2)]


def test_all_operations_are_tried() -> None:
    own = {n for n, f in CHUNK_OPERATIONS.items() if f.__module__ in (chunk_program.__name__, coupled_states.__name__)}
    assert own == {x.op for x in nodes()} | {
        "order_mask",
        "apart_mask",
        "transition_products",
        "channel_solve",
    }  # the same in all chunks; inside; below


@pytest.mark.parametrize("x", nodes(), ids=lambda x: f"{x.op} {x.attrs}")
def test_many_chunks_are_what_each_is(x: Node) -> None:
    rng, given = random.Random(0), {y.attrs[:2]: y.attrs[2] for y in x.args}
    values = {n: FIELD.random(rng, (CHUNKS, *(SIZES[a] for a in axes))) for n, axes in given.items()}
    together = evaluate(x, values, FIELD, SIZES)
    alone = [evaluate(x, {n: v[k] for n, v in values.items()}, FIELD, SIZES) for k in range(CHUNKS)]
    assert np.shape(together) == (CHUNKS, *(SIZES[a] for a in x.axes))
    assert all(FIELD.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not FIELD.equal(alone[0], alone[1])


@pytest.mark.parametrize("edges", [(), *product((True, False), repeat=2)])
@pytest.mark.parametrize("way", [1, -1])
def test_a_system_of_each_channel_is_solved_as_by_its_inverse(way: int, edges: tuple[bool, ...]) -> None:
    """Of several chunks at once, and of each; also with decays between a write and a read, whose own steps' are among them."""
    t, scale, right = (
        leaf("input", "t", (ROW, COL)),
        leaf("input", "scale", (ROW, "e")),
        leaf("input", "right", (ROW, "e")),
    )
    decay = leaf("stream", "decay", (ROW, "e"))
    sizes = {ROW: STEPS, COL: STEPS, "e": 2, BEYOND: 0}
    env = {
        x.attrs[:2]: FIELD.random(random.Random(n), (CHUNKS, *(sizes[a] for a in x.attrs[2])))
        for n, x in enumerate((t, scale, right, decay))
    }
    env[t.attrs[:2]][:, ~np.tri(STEPS, k=-1, dtype=bool)[::way, ::way]] = 0
    decays = (decay,) if edges else ()
    masks = (make("decay_mask", (d,), (*edges, False, way), ("e", ROW, COL)) for d in decays)
    whole = mul(scale, t, *masks)
    inverse = make("inverse", (whole,), (way,), whole.axes)
    expected = total(mul(inverse, rename(right, {ROW: COL})), COL)
    solved = make("channel_solve", (t, scale, right, *decays), (way, *edges), expected.axes)
    for values in (env, *({x: v[n] for x, v in env.items()} for n in range(CHUNKS))):
        assert FIELD.equal(evaluate(solved, values, FIELD, sizes), evaluate(expected, values, FIELD, sizes))
