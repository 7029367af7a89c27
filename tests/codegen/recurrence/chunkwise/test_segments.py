"""The affine map of a segment: its form follows from the structure of a recurrence, and a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from shared.spec_files import SPECS, read

from chunkform.codegen.ir.expr import ONE, Node, mul
from chunkform.codegen.recurrence.chunkwise import segment_maps as segments
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.chunkwise.segment_maps import (
    Affine,
    SegmentMap,
    linear_sweep,
    same_sweep,
    segment_map,
)
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.gates import gates
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, find, ones, total


def compiled(name: str) -> Compiled:
    path = SPECS / f"{name}.py"
    known = {r.name: r for r in read(SPECS / "columns.py")}
    return compile_spec(known[name] if name in known else read(path)[0] if path.exists() else find(name)[0])


def forward_map(name: str) -> SegmentMap:
    c = compiled(name)
    assert c.forward is not None
    sweep = next(s for s in c.forward.sweeps if s.finals)
    return segment_map(sweep.group, sweep.solve, c.forward.form.reads)


MATRIX = ("d", "d'")


@pytest.mark.parametrize(
    "name, shape",
    [
        ("lightning_attention", {("S", "S"): ()}),
        ("gated_linear_attention", {("S", "S"): ("d",)}),
        ("value_decay_attention", {("S", "S"): ("e",)}),
        ("scalar_rnn", {("h", "h"): ("d",)}),
        ("delta_rule", {("S", "S"): MATRIX}),
        ("kimi_delta_attention", {("S", "S"): MATRIX}),
        ("channel_delta_rule", {("S", "S"): ("d", "d'", "e")}),
        ("momentum", {pair: MATRIX for pair in (("M", "M"), ("M", "S"), ("S", "M"), ("S", "S"))}),
        ("ttt_linear", {("W", "W"): MATRIX, ("W", "b"): ("d",), ("b", "W"): ("d'",), ("b", "b"): ()}),
    ],
)
def test_the_linear_part_is_as_large_as_the_structure_asks(name: str, shape: dict) -> None:
    assert forward_map(name).affine.shape == shape


def test_where_nothing_decays_and_nothing_is_read_the_state_is_kept() -> None:
    assert forward_map("linear_attention").affine.linear == {("S", "S"): ONE}


def test_the_map_of_known_writes_has_no_matrix() -> None:
    """Where a gradient's sweep makes the forward state again, its writes are known: only decays are left."""
    c = compiled("gated_delta_rule")
    assert c.backward is not None
    again = next(s for s in c.backward.sweeps if s.states == ("S",) and s.finals)
    assert segment_map(again.group, again.solve, c.backward.form.reads).affine.shape == {("S", "S"): ()}


def test_a_linear_part_is_a_sweep_from_the_identity_unless_columns_differ() -> None:
    for name, found in (("delta_rule", True), ("momentum", True), ("channel_delta_rule", False), ("ttt_linear", False)):
        c = compiled(name)
        assert c.forward is not None
        sweep = next(s for s in c.forward.sweeps if s.solve)
        assert (linear_sweep(sweep.group, c.forward.form.reads) is not None) is found


def test_columns_of_a_matrix_are_the_states_sweep_unless_something_is_written_to_all_columns() -> None:
    for name, same in (("delta_rule", True), ("squashed", True), ("pulled", False)):
        c = compiled(name)
        assert c.forward is not None
        sweep = next(s for s in c.forward.sweeps if s.solve)
        assert same_sweep(sweep.group, c.forward.form.reads) is same


def test_what_is_summed_over_the_columns_is_written_to_all_of_them() -> None:
    """Whatever the sum calls them: kernels made a map of zeros, which their gate refused."""
    r = Recurrence("summed_over_columns")
    e = r.dims("e")
    v, w = r.inputs("v w", e)
    S = r.state("S", e, e)
    r.update(S, S.prev * (v * v.T) + ones(e) * (total(v) * v).T)
    r.output("o", S.next * w)
    c = compile_spec(r)
    assert c.forward is not None
    (sweep,) = c.forward.sweeps
    assert not same_sweep(sweep.group, c.forward.form.reads)
    emit(c, tidy=False)


def test_a_scan_composes_maps_of_one_shape() -> None:
    for name in ("delta_rule", "channel_delta_rule", "ttt_linear", "gated_linear_attention", "momentum"):
        shape = forward_map(name).affine
        law = segments.composed(shape)
        assert set(law.linear) == set(shape.shape)
        assert all(set(x.axes) <= set(shape.shape[p]) for p, x in law.linear.items())


# --- corruptions ------------------------------------------------------------------------------------------------------


def in_map(change: Callable[[Affine], Affine]) -> Callable[[SegmentMap], SegmentMap]:
    return lambda s: replace(s, affine=change(s.affine))


def blocks(change: Callable[[Node], Node]) -> Callable[[Affine], Affine]:
    return lambda a: replace(a, linear={p: change(x) for p, x in a.linear.items()})


def local(change: Callable[[Node], Node]) -> Callable[[Affine], Affine]:
    return lambda a: replace(a, local={n: change(x) for n, x in a.local.items()})


def flipped(a: Affine) -> Affine:
    """Every matrix transposed."""
    swap = {"d": "d'", "d'": "d"}
    return replace(a, linear={p: segments.rename(x, swap) for p, x in a.linear.items()})


CORRUPTIONS = [
    ("a linear part that is doubled", "delta_rule", "segment_map", in_map(blocks(lambda x: mul(2, x)))),
    ("a matrix that is transposed", "gated_delta_rule", "segment_map", in_map(flipped)),
    ("a lost decay", "lightning_attention", "segment_map", in_map(blocks(lambda x: ONE))),
    ("a local part with a wrong sign", "gated_linear_attention", "segment_map", in_map(local(lambda x: -x))),
    ("a law that takes a local part twice", "kimi_delta_attention", "composed", local(lambda x: mul(2, x))),
    ("a law that scales the linear part", "delta_rule", "composed", blocks(lambda x: mul(3, x))),
    (
        "a sweep from the identity that keeps its constants",
        "gated_delta_rule",
        "linear_sweep",
        lambda s: s and replace(s, chunk=replace(s.chunk, states={n: mul(2, x) for n, x in s.chunk.states.items()})),
    ),
]


@pytest.mark.parametrize("what, name, where, change", CORRUPTIONS, ids=[c[0] for c in CORRUPTIONS])
def test_a_wrong_map_is_refused(
    what: str, name: str, where: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(gates, where)
    monkeypatch.setattr(gates, where, lambda *args: change(original(*args)))
    with pytest.raises(GateError, match="`segments`"):
        compiled(name)


def test_maps_in_the_wrong_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "composed", lambda a: segments.named(a, "earlier").after(segments.named(a, "later")))
    with pytest.raises(GateError, match="`segments`"):
        compiled("gated_delta_rule")


def test_an_adjoint_that_is_not_the_transpose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Affine.transposed

    def wrong(self: Affine, group: Any) -> Any:
        return {p: mul(2, x) for p, x in original(self, group).items()}

    monkeypatch.setattr(Affine, "transposed", wrong)
    with pytest.raises(GateError, match="from the forward sweep"):
        compiled("delta_rule")
