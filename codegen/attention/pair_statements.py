"""What the kernels over pairs do alike: where a program's rows are, blocks of keys, energies, what of them is visible."""

from __future__ import annotations

from ..ir.code import Attribute, Code, Expanded, Literal, Load, Name, call, plus, shape, times, where, zeros
from ..ir.kernel_ir import Body, If, KernelFunction, Let, Note, Parameter, Statement, added, let
from .pairs import Gradient, Pairs

PROGRAM = call("tl.program_id", 0)
TRUE, FALSE, NOTHING = Literal(True), Literal(False), Literal(0.0)
MINUS_INFINITY = call("float", Literal("-inf"))
INFINITY = call("float", Literal("inf"))
CAUSAL, BESIDE, SAME = Name("CAUSAL"), Name("BESIDE"), Name("SAME")
ROW_PLACE = plus("row_base", "row_at")


# --- signatures -----------------------------------------------------------------------------------------------------


def tensor(name: str, pointer: str = "") -> tuple[Parameter, ...]:
    """A tensor [B, H, T, ..] and its strides."""
    return (Parameter(pointer or name), *(Parameter(f"{name}_{n}") for n in "bth"))


def given(p: Pairs) -> tuple[tuple[Parameter, ...], ...]:
    """What all kernels are given first: features of both sides, and numbers of keys, of rows and of heads."""
    scores = (tensor(n) for s in p.scores for n in (s.query, s.key))
    return (*scores, tensor("value"), tuple(Parameter(f"{n}_p") for n in (*p.columns, *p.rows, *p.scalars)))


def outs(found: tuple[Gradient, ...]) -> tuple[tuple[Parameter, ...], ...]:
    return tuple(tensor(x.out) if x.score else (Parameter(x.out),) for x in found)


def pair_kernel(
    p: Pairs,
    name: str,
    doc: str,
    parameters: tuple[tuple[Parameter, ...], ...],
    body: Body,
    words: tuple[tuple[str, ...], ...] = (),
) -> KernelFunction:
    """A kernel over pairs, which is compiled for the widths of features and for the sizes of blocks; and for more `words`."""
    widths = [w for s in p.scores for w in (f"D{s.n}", f"BD{s.n}")]
    blocks = ("CAUSAL", "BM", "BN", "HELD")
    flags = (("BESIDE",) if p.folded else (), ("SAME",) if p.same else ())
    sizes = ("GROUP", *widths, "E", "BE")
    return KernelFunction(
        name,
        (*given(p), *parameters),
        ("T", "S", "H"),
        sizes,
        doc,
        body,
        unspecialised=("T", "S"),
        more_words=(blocks, *flags, *words),
    )


# --- blocks ---------------------------------------------------------------------------------------------------------


def at_head(name: str, head: str, base: str = "") -> Code:
    """Where a head's rows begin."""
    return plus(base or name, times("b", f"{name}_b"), times(head, f"{name}_h"))


def load_block(base: Code | str, start: str, name: str, count: str, width: str, rows: str, masked: bool) -> Code:
    return call("load_block", base, start, f"{name}_t", count, width, f"B{width}", rows, TRUE if masked else FALSE)


def store_block(name: str, head: str, count: str, width: str, rows: str, value: Code | str, base: str = "") -> Code:
    at = at_head(name, head, base)
    return call("store_block", at, "first", f"{name}_t", count, width, f"B{width}", rows, value)


def zeros_of(*sizes: str) -> Code:
    return zeros(shape(*sizes))


def columns_of(name: str) -> Code:
    """A number of each row, beside each column of a tile."""
    return Expanded(Name(name), (True, False))


def rows_of(name: str) -> Code:
    """A number of each column, below each row of a tile."""
    return Expanded(Name(name), (False, True))


def value_block(p: Pairs, base: Code | str, start: str, masked: bool) -> Statement:
    """What is averaged, which may be the block of keys at hand."""
    loaded = let("value_block", load_block(base, start, "value", "S", "E", "BN", masked))
    if not p.same:
        return loaded
    return If(SAME, (let("value_block", Name(f"{p.scores[0].key}_block")),), (loaded,))


def low(name: str) -> Code:
    """The dtype of what a pointer points to."""
    return Attribute(Attribute(Name(name), "dtype"), "element_ty")


# --- of a block of rows ---------------------------------------------------------------------------------------------


def rows_start(p: Pairs) -> Body:
    """The rows of a program, and the keys that they see."""
    found: list[Statement] = [
        let("blocks", call("tl.cdiv", "T", "BM")),
        let("index", PROGRAM // "blocks"),
        let("block", PROGRAM % "blocks"),
        If(CAUSAL, (let("block", Name("blocks") - 1 - "block"),), note="the longest first"),
        let("first", Name("block") * "BM"),
        let("b", (Name("index") // "H").to("tl.int64")),
        let("h", Name("index") % "H"),
        let("kh", Name("h") // "GROUP"),
        *row_places("first"),
        let("row_base", Name("b") * "H" + "h"),
    ]
    found[-1] = let("row_base", (Name("b") * "H" + "h") * "T")
    for s in p.scores:
        block = Name(f"{s.query}_block")
        found += [
            added(s.key, plus(times("b", f"{s.key}_b"), times("kh", f"{s.key}_h"))),
            let(block.id, load_block(at_head(s.query, "h"), "first", s.query, "T", f"D{s.n}", "BM", True)),
            If(Name("HELD"), (let(block.id, call("held", block)),)),
        ]
    found.append(added("value", plus(times("b", "value_b"), times("kh", "value_h"))))
    of_keys = (Name("b") * (Name("H") // "GROUP") + "kh") * "S"
    found += [added(f"{n}_p", of_keys) for n in p.columns]
    found += [let(n, Load(plus(f"{n}_p", ROW_PLACE), Name("row_ok"), NOTHING)) for n in p.rows]
    found += [let(n, Load(plus(f"{n}_p", "h"))) for n in p.scalars]
    seen = plus("first", "S") - "T" + 1
    end = plus("first", "BM", "S") - "T"
    found += [
        Note("keys in [0, full) are seen by all rows of the block, those in [full, end) by some"),
        let("end", "S"),
        let("full", Name("S") // "BN" * "BN"),
        If(
            CAUSAL,
            (
                let("end", call("tl.maximum", 0, call("tl.minimum", "S", end))),
                let("full", call("tl.minimum", "full", call("tl.maximum", 0, seen) // "BN" * "BN")),
            ),
        ),
    ]
    if p.beside:
        ones = call("three_ones", 0, "BM", low(p.scores[0].key))
        found.append(If(BESIDE, (added("beside_p", (Name("b") * "H" + "h") * "S" * 16), let("ones", ones))))
    return tuple(found)


def row_places(start: str) -> Body:
    """Rows, which of them there are, and which keys stand where they do."""
    return (
        let("row_at", plus(start, call("tl.arange", 0, "BM"))),
        let("row_ok", Name("row_at") < "T"),
        let("i_at", Name("row_at") + (Name("S") - "T")),
        let("i", Name("i_at").to("tl.float32")),
    )


def key_blocks(p: Pairs, masked: bool) -> Body:
    """The keys of a round."""
    return (
        let("j_at", plus("start", call("tl.arange", 0, "BN"))),
        let("j", Name("j_at").to("tl.float32")),
        *(let(f"{s.key}_block", load_block(s.key, "start", s.key, "S", f"D{s.n}", "BN", masked)) for s in p.scores),
    )


def product(p: Pairs) -> Code:
    """The first score of a tile."""
    return call("products", f"{p.scores[0].query}_block", f"{p.scores[0].key}_block")


def products_beside(p: Pairs) -> Code:
    """The first score with what is added to it."""
    both = (f"{p.scores[0].query}_block", f"{p.scores[0].key}_block")
    return call("products_and", *both, call("products", "ones", "beside"))


def beside_block(masked: bool) -> Let:
    strides = (Literal(16), "S", Literal(16), Literal(16), "BN", TRUE if masked else FALSE)
    return let("beside", call("load_block", "beside_p", "start", *strides))


def energy_of_tile(p: Pairs, masked: bool) -> Body:
    """Scores of a tile, and its energies."""
    of_keys = (Name("j_at") < "S", NOTHING) if masked else (None, None)
    energy = call("energy", *p.arguments)
    return (
        *(let(s.name, call("products", f"{s.query}_block", f"{s.key}_block")) for s in p.scores),
        *(let(n, Load(plus(f"{n}_p", "j_at"), *of_keys)) for n in p.columns),
        let("e", energy if p.scores else energy + zeros_of("BM", "BN")),
    )


def visible_only(p: Pairs) -> Body:
    """Energies where a row sees a key."""
    sees = columns_of("i_at") >= rows_of("j_at")
    return (
        let("visible", Expanded(Name("j_at") < "S", (False, True))),
        If(CAUSAL, (let("visible", Name("visible") & sees),)),
        let("e", masked_energy(p)),
    )


def masked_energy(p: Pairs) -> Code:
    return where(Name("visible"), Name("e"), NOTHING if p.linear else MINUS_INFINITY)


def derivative(p: Pairs, x: Gradient, suffix: str, masked: bool) -> Code:
    """What is summed for a cotangent, pair by pair."""
    found = call(f"d{x.name}{suffix}", "dE", *p.arguments)
    return where(Name("visible"), found, NOTHING) if masked and x.guarded else found


def times_factor(x: Code, factor: Code | None) -> Code:
    return x if factor is None else x * factor
