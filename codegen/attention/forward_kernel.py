"""The kernel forwards: averages of one block of rows, and the log-sum-exp or the sums of weights, over blocks of keys."""

from __future__ import annotations

from ..ir.code import Code, Name, call, plus, times
from ..ir.kernel_ir import Body, Do, For, If, KernelFunction, Let, Parameter, Statement, Store, added, let
from .pair_statements import (
    BESIDE,
    MINUS_INFINITY,
    ROW_PLACE,
    beside_block,
    columns_of,
    energy_of_tile,
    key_blocks,
    low,
    pair_kernel,
    product,
    products_beside,
    rows_start,
    store_block,
    tensor,
    value_block,
    visible_only,
    zeros_of,
)
from .pairs import Pairs

ONLINE = ("weight", "rescale", "top", "mass")  # what an online softmax makes of a tile
WHOLE = "so that no loop is left without a step: the assembler would serialise its products"


def forward_kernel(p: Pairs) -> KernelFunction:
    beside = ((Parameter("beside_p"),),) if p.beside else ()
    sums = (*tensor("average", "average_p"), Parameter("lse_p"), Parameter("mass_p"))
    of_matrix = tuple(Parameter(f"after_{n}") for n in ("p", "h", "e", "f"))
    after = ((*of_matrix, *tensor("out", "out_p")),) if p.after else ()
    what = "the log-sum-exp" if p.softmax else "sums of weights"
    return pair_kernel(
        p,
        "forward_kernel",
        f"Averages, and {what}, of one block of rows.",
        (*beside, sums, *after),
        (
            *rows_start(p),
            let("average", zeros_of("BM", "BE")),
            let("mass", zeros_of("BM")),
            *((let("top", zeros_of("BM") + MINUS_INFINITY),) if p.softmax else ()),
            If(
                Name("full") > 0,
                (For("start", call("range", 0, "full", "BN"), tuple(_pairs(p, False))),),
                note=WHOLE,
            ),
            If(Name("end") > "full", (For("start", call("range", "full", "end", "BN"), tuple(_pairs(p, True))),)),
            *_stored(p),
        ),
        (("F", "BF"),) if p.after else (),
    )


def _pairs(p: Pairs, masked: bool) -> list[Statement]:
    """A block of keys."""
    scaled = Let(ONLINE, call("scaled_online", "e", *(() if p.scale is None else (p.scale,)), "top", "mass"))
    plain = Let(ONLINE, call("online", "e", "top", "mass"))
    found = [*key_blocks(p, masked)]
    if p.unscaled:
        found.append(let("e", product(p)))
    elif p.beside:
        energy = (beside_block(masked), let("e", products_beside(p)))
        found.append(If(BESIDE, energy, energy_of_tile(p, masked)))
    else:
        found += energy_of_tile(p, masked)
    if masked:
        found += visible_only(p)
    if p.beside:
        found.append(If(BESIDE, (scaled,), (plain,)))
    elif p.softmax:
        found.append(scaled if p.unscaled else plain)
    if p.softmax:
        found.append(let("average", Name("average") * columns_of("rescale")))
    else:
        found += [let("weight", p.weight), added("mass", call("tl.sum", "weight", 1))]
    return [
        *found,
        value_block(p, "value", "start", masked),
        let("average", call("weighted", "weight", "value_block", "average")),
    ]


def _stored(p: Pairs) -> list[Statement]:
    found: list[Statement] = []
    row_ok = Name("row_ok")
    if p.softmax:
        top: Code = Name("top")
        found.append(let("average", call("averaged", "average", "mass")))
        if p.beside and p.scale is not None:
            found.append(If(BESIDE, (let("top", top * p.scale),)))
        if p.unscaled and p.scale is not None:
            top = top * p.scale
        found.append(Store(plus("lse_p", ROW_PLACE), call("log_sum_exp", top, "mass"), row_ok))
    else:
        found.append(Store(plus("mass_p", ROW_PLACE), Name("mass"), row_ok))
    average = Do(store_block("average", "h", "T", "E", "BM", "average", "average_p"))
    if p.product is None:
        return [*found, average]
    found.append(If(Name("after_p").given, _product(*p.product)))
    return [*found, If(Name("average_p").given, (average,))]


def _product(body: Body, out: Code) -> Body:
    """The output, of averages and a matrix."""
    matrix = call("load_matrix", plus("after_p", times("h", "after_h")), "after_e", "after_f", "E", "BE", "F", "BF")
    return (
        let("low", low("value")),
        let("matrix", matrix.to("low")),
        *body,
        Do(store_block("out", "h", "T", "F", "BM", out, "out_p")),
    )
