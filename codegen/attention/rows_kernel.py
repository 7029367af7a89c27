"""The kernel backwards for rows: cotangents of queries and of rows, and each row's part of those of numbers a head."""

from __future__ import annotations

from ..ir.code import Code, Load, Name, Not, call, plus, where
from ..ir.kernel_ir import Do, For, If, KernelFunction, Parameter, Statement, Store, added, let
from .pair_statements import (
    BESIDE,
    INFINITY,
    NOTHING,
    ROW_PLACE,
    at_head,
    beside_block,
    derivative,
    energy_of_tile,
    key_blocks,
    load_block,
    outs,
    pair_kernel,
    products_beside,
    rows_start,
    store_block,
    tensor,
    times_factor,
    value_block,
    visible_only,
    zeros_of,
)
from .pairs import Gradient, Pairs

AHEAD = "as another loop ahead of its loads, it would serialise all products"


def rows_kernel(p: Pairs) -> KernelFunction:
    beside = ((Parameter("beside_p"),),) if p.beside else ()
    with_ = tuple(f"WITH_{x.name}" for x in p.of_rows if x.kind == "scalar")
    row_ok = Name("row_ok")
    d_block = load_block(at_head("d_average", "h"), "first", "d_average", "T", "E", "BM", True)
    masked = call("tl.range", "full", "end", "BN", num_stages=1) if p.columns else call("range", "full", "end", "BN")
    shift = let("shift", Load(plus("shift_p", ROW_PLACE), row_ok, INFINITY))
    return pair_kernel(
        p,
        "rows_kernel",
        "What rows get of the gradient: cotangents of queries, of rows, and each row's part of those of numbers a head.",
        (*beside, (*tensor("d_average"), Parameter("shift_p"), Parameter("D_p")), *outs(p.of_rows)),
        (
            *rows_start(p),
            let("d_block", d_block),
            If(Name("HELD"), (let("d_block", call("held", "d_block")),)),
            let("D", Load(plus("D_p", ROW_PLACE), row_ok, NOTHING)),
            *((shift,) if p.softmax else ()),
            *(let(x.total, zeros_of("BM", *((f"BD{x.score.n}",) if x.score else ()))) for x in p.of_rows),
            If(Name("full") > 0, (For("start", call("range", 0, "full", "BN"), tuple(_pairs(p, False))),)),
            If(
                Name("end") > "full",
                (For("start", masked, tuple(_pairs(p, True)), note=AHEAD if p.columns else ""),),
            ),
            *map(_stored, p.of_rows),
        ),
        (with_,),
    )


def _pairs(p: Pairs, masked: bool) -> list[Statement]:
    """A block of keys."""
    found = [*key_blocks(p, masked)]
    if p.beside and p.scale is not None:
        energy = (
            beside_block(masked),
            let(p.scores[0].name, products_beside(p)),
            let("e", Name(p.scores[0].name) * p.scale),
            let(p.beside, 0.0, note="which nothing reads"),
        )
        found.append(If(BESIDE, energy, energy_of_tile(p, masked)))
    else:
        found += energy_of_tile(p, masked)
    if masked:
        found += visible_only(p)
    found += [
        value_block(p, "value", "start", masked),
        let("weight", p.weight),
        let("dE", call("tile_gradient", "weight", call("products", "d_block", "value_block"), "D")),
    ]
    if masked and p.linear:
        found.append(let("dE", where(Name("visible"), Name("dE"), NOTHING)))
    for n in p.columns:
        finite = let(n, call("finite", n))
        found.append(If(Not(BESIDE), (finite,)) if p.beside else finite)
    rows, scalars = ([x for x in p.of_rows if x.kind == kind] for kind in ("row", "scalar"))
    for x, score in ((x, x.score) for x in p.of_rows if x.score):
        found.append(let(f"d_{x.name}", derivative(p, x, "", masked)))
        found.append(let(x.total, call("weighted", f"d_{x.name}", f"{score.key}_block", x.total)))
    found += [_summed(p, x, masked) for x in rows]
    return [*found, *(If(Name(f"WITH_{x.name}"), (_summed(p, x, masked),)) for x in scalars)]


def _summed(p: Pairs, x: Gradient, masked: bool) -> Statement:
    return added(x.total, call("tl.sum", derivative(p, x, "", masked), 1))


def _stored(x: Gradient) -> Statement:
    total: Code = times_factor(Name(x.total), x.factor)
    if x.score:
        return Do(store_block(x.out, "h", "T", f"D{x.score.n}", "BM", total))
    stored = Store(plus(x.out, ROW_PLACE), total, Name("row_ok"))
    return If(Name(f"WITH_{x.name}"), (stored,)) if x.kind == "scalar" else stored
