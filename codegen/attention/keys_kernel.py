"""The kernel backwards for keys: cotangents of values, of keys and of columns, over all heads of a group."""

from __future__ import annotations

from ..ir.code import Binary, Code, Either, Group, Literal, Load, Name, call, plus, times, where
from ..ir.kernel_ir import Body, Do, For, If, KernelFunction, Note, Parameter, Statement, Store, added, let
from .pair_statements import (
    BESIDE,
    CAUSAL,
    FALSE,
    INFINITY,
    NOTHING,
    PROGRAM,
    ROW_PLACE,
    at_head,
    columns_of,
    derivative,
    load_block,
    low,
    masked_energy,
    outs,
    pair_kernel,
    row_places,
    rows_of,
    store_block,
    tensor,
    times_factor,
    value_block,
    zeros_of,
)
from .pairs import Gradient, Pairs

GROUP = Name("GROUP")
KEY_HEADS = Group(Name("H") // "GROUP")
KEY_PLACE = plus("key_base", "j_at")
WHOLE = "all heads of the group in one loop, and no loop without a step: the assembler would serialise its products"
ROWS = (
    "rows in [low, whole) see some keys of the block, those in [whole, T) all; in [last, T) is no whole block of rows"
)


def keys_kernel(p: Pairs) -> KernelFunction:
    beside = ((Parameter("beside_p"), Parameter("beside_h")),) if p.folded else ()
    gradients = (*tensor("d_average"), Parameter("shift_p"), Parameter("D_p"))
    after = call("tl.maximum", "whole", "last")
    masked, whole = (Name("whole") - "low", Name("last") - "whole")
    heads = (let(n, Load(plus(f"{n}_p", times("kh", "GROUP")))) for n in p.scalars)
    scaled = (
        If(GROUP.equals(1), (let(x.total, times_factor(Name(x.total), x.factor)),)) for x in p.of_keys if x.factor
    )
    return pair_kernel(
        p,
        "keys_kernel",
        "What keys get of the gradient: cotangents of values, of keys and of columns, over all heads of a group.",
        (gradients, *beside, tensor("dvalue", "dvalue_p"), *outs(p.of_keys)),
        (
            *_start(p),
            Note(WHOLE),
            _over_rows(p, Name("whole") > "low", Name("low"), masked // "BM", True, True),
            _over_rows(p, Name("last") > "whole", Name("whole"), whole // "BM", False, False),
            _over_rows(p, Name("T") > after, after, None, False, True),
            *heads,
            *scaled,
            Do(store_block("dvalue", "kh", "S", "E", "BN", "dvalue", "dvalue_p")),
            *map(_stored, p.of_keys),
        ),
    )


def _start(p: Pairs) -> list[Statement]:
    """The keys of a program, and the rows that see them."""
    found: list[Statement] = [
        let("blocks", call("tl.cdiv", "S", "BN")),
        let("index", PROGRAM // "blocks"),
        let("first", PROGRAM % "blocks" * "BN"),
        let("b", (Name("index") // KEY_HEADS).to("tl.int64")),
        let("kh", Name("index") % KEY_HEADS),
        let("j_at", plus("first", call("tl.arange", 0, "BN"))),
        let("j_ok", Name("j_at") < "S"),
        let("j", Name("j_at").to("tl.float32")),
        let("key_base", (Name("b") * KEY_HEADS + "kh") * "S"),
    ]
    for s in p.scores:
        found.append(
            let(f"{s.key}_block", load_block(at_head(s.key, "kh"), "first", s.key, "S", f"D{s.n}", "BN", True))
        )
    found.append(value_block(p, at_head("value", "kh"), "first", True))
    for n in p.columns:
        found.append(let(f"{n}_raw", Load(plus(f"{n}_p", KEY_PLACE), Name("j_ok"), NOTHING)))
        found.append(let(n, call("finite", f"{n}_raw")))
    if p.folded:
        ones = (("ones_of_energy", 0), ("ones_of_D", 3))
        found.append(If(BESIDE, tuple(let(n, call("three_ones", first, "BN", low(p.folded.key))) for n, first in ones)))
    found.append(let("dvalue", zeros_of("BN", "BE")))
    found += [let(x.total, zeros_of("BN", *((f"BD{x.score.n}",) if x.score else ()))) for x in p.of_keys]
    unseen = Name("S") - "T"
    low_row = call("tl.maximum", 0, Name("first") - unseen) // "BM" * "BM"
    seen = call("tl.maximum", 0, plus("first", "BN") - 1 - unseen)
    all_rows = call("tl.cdiv", "T", "BM") * "BM"
    return [
        *found,
        Note(ROWS),
        let("last", Name("T") // "BM" * "BM"),
        let("low", 0),
        let("whole", 0),
        If(
            CAUSAL,
            (let("low", low_row), let("whole", call("tl.minimum", all_rows, call("tl.cdiv", seen, "BM") * "BM"))),
        ),
    ]


def _over_rows(p: Pairs, some: Code, origin: Code, count: Code | None, masked: bool, tail: bool) -> If:
    """A loop over blocks of rows from `origin` on, `count` of each head, or one."""
    rounds = GROUP if count is None else GROUP * Group(count)
    each = Group(Literal(1) if count is None else count)
    body = (
        let("start", plus(origin, times(Group(Either(Name("n"), GROUP.equals(1), Name("n") % each)), "BM"))),
        let("h", plus(times("kh", "GROUP"), Group(Either(Literal(0), GROUP.equals(1), Name("n") // each)))),
        *_rows(p, tail),
        *_energies(p, masked, tail),
        *_gradients(p, masked, tail),
    )
    return If(some, (For("n", call("range", 0, rounds), body),))


def _of_row(name: str, tail: bool, other: Code = NOTHING) -> Load:
    """A number of each row."""
    place = plus(f"{name}_p", ROW_PLACE)
    return Load(place, Name("row_ok"), other) if tail else Load(place)


def _rows(p: Pairs, tail: bool) -> list[Statement]:
    """A block of rows, and products with it."""
    found: list[Statement] = [
        let("row_base", (Name("b") * "H" + "h") * "T"),
        *(let(n, Load(plus(f"{n}_p", "h"))) for n in p.scalars),
        *row_places("start"),
    ]
    for s in p.scores:
        block = load_block(at_head(s.query, "h"), "start", s.query, "T", f"D{s.n}", "BM", tail)
        found.append(let(f"{s.query}_block", block))
    d_block = load_block(at_head("d_average", "h"), "start", "d_average", "T", "E", "BM", tail)
    found.append(let("d_block", d_block))
    plain = let("G", call("products", "value_block", "d_block"))
    for s in p.scores:
        both = (f"{s.key}_block", f"{s.query}_block")
        score = let(s.name, call("products", *both))
        if s != p.folded:
            continue
        head = plus("beside_p", times(plus(times("b", "H"), "h"), "beside_h"))
        sizes = (Literal(16), "T", Literal(16), Literal(16), "BM", FALSE)
        found.append(
            If(
                BESIDE,
                (
                    let("beside", call("load_block", head, "start", *sizes)),
                    let(s.name, call("products_and", *both, call("products", "ones_of_energy", "beside"))),
                    let("G", call("products_and", "value_block", "d_block", call("products", "ones_of_D", "beside"))),
                ),
                (score, plain),
            )
        )
    if p.folded is None:
        found.append(plain)
    others = [s for s in p.scores if s != p.folded]
    found += [let(s.name, call("products", f"{s.key}_block", f"{s.query}_block")) for s in others]
    return [*found, *(let(n, _of_row(n, tail)) for n in p.rows)]


def _energies(p: Pairs, masked: bool, tail: bool) -> list[Statement]:
    raw = call("energy_t", *(f"{n}_raw" if n in p.columns else n for n in p.arguments))
    found: list[Statement] = [let("e", raw if p.scores else raw + zeros_of("BN", "BM"))]
    if masked or (tail and p.wild):
        if masked:
            found.append(let("visible", Binary(">=", rows_of("i_at"), columns_of("j_at"))))
        if p.wild:
            found.append(let("visible", Name("visible") & rows_of("row_ok") if masked else rows_of("row_ok")))
        found.append(let("e", masked_energy(p)))
    return found


def _gradients(p: Pairs, masked: bool, tail: bool) -> list[Statement]:
    """Weights, gradients of energies, and what they give to keys."""
    shift = let("shift", _of_row("shift", tail, INFINITY))
    weight: Body = (*((shift,) if p.softmax else ()), let("weight", p.weight_t))
    own_part: Body = (let("D", _of_row("D", tail)), let("dE", call("tile_gradient_t", "weight", "G", "D")))
    if p.folded:
        found: list[Statement] = [If(BESIDE, (let("weight", p.shifted_weight_t),), weight)]
    else:
        found = [*weight]
    if tail and not p.softmax and not p.linear:
        found.append(let("weight", where(rows_of("row_ok"), Name("weight"), NOTHING)))
    found.append(let("dvalue", call("weighted", "weight", "d_block", "dvalue")))
    if p.folded:
        found.append(If(BESIDE, (let("dE", call("shifted_gradient_t", "weight", "G")),), own_part))
    else:
        found += own_part
    if masked and p.linear:
        found.append(let("dE", where(Name("visible"), Name("dE"), NOTHING)))
    for x, score in ((x, x.score) for x in p.of_keys if x.score):
        found += _cotangent(x, derivative(p, x, "_t", masked or tail), "a number of each head, and not of the group")
        found.append(let(x.total, call("weighted", f"d_{x.name}", f"{score.query}_block", x.total)))
    for x in (x for x in p.of_keys if not x.score):
        found += _cotangent(x, call("tl.sum", derivative(p, x, "_t", masked or tail), 1))
        found.append(added(x.total, Name(f"d_{x.name}")))
    return found


def _cotangent(x: Gradient, made: Code, note: str = "") -> list[Statement]:
    name = f"d_{x.name}"
    if x.factor is None:
        return [let(name, made)]
    return [let(name, made), If(GROUP > 1, (let(name, times_factor(Name(name), x.factor)),), note=note)]


def _stored(x: Gradient) -> Statement:
    if x.score:
        return Do(store_block(x.out, "kh", "S", f"D{x.score.n}", "BN", x.total))
    return Store(plus(x.out, KEY_PLACE), Name(x.total), Name("j_ok"))
