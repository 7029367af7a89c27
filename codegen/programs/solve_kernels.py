"""The kernels of a solve by conjugate gradients, around the chunk program of a matrix's product with a vector: a sweep that keeps
the states before each chunk, the solves of one chunk, and what its steps add to the gradients of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.code import (
    Binary,
    CastLike,
    Code,
    Literal,
    Load,
    Name,
    call,
    plus,
    shape,
    times,
    zeros,
)
from ..ir.kernel_ir import (
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Parameter,
    Statement,
    Store,
    added,
    let,
)
from ..recurrence.triton.kernels.arguments import Argument

PROGRAM = call("tl.program_id", 0)
NOTHING = Literal(0.0)


@dataclass(frozen=True)
class Part:
    """A kernel's arguments, and what it does before its loop and in each round."""

    arguments: tuple[Argument, ...]
    before: Body
    steps: Body


@dataclass(frozen=True)
class Square:
    """The state, whose two axes have one size: the names of the size, of a tile's width and of the places along an axis. `rows`:
    those along each of the state's axes, of which `down` lies down in a tile."""

    size: str
    block: str
    rows: tuple[str, str]
    down: str

    @property
    def place(self) -> Code:
        """Where an entry lies in memory."""
        first, second = (Name(x).along(0 if x == self.down else 1, 2) for x in self.rows)
        return plus(times(first, self.size), second)

    @property
    def entries(self) -> Code:
        return Name(self.size) * self.size


def checkpoints_kernel(part: Part, state: str, square: Square, full: str, tile: str) -> KernelFunction:
    """A sweep over chunks. `full` and `tile`: the places along the axis that a program has all of, and along the other."""
    tiles = call("tl.cdiv", square.size, "block_tile")
    inside = Name(f"{full}_ok").along(0, 2) & Name(f"{tile}_ok").along(1, 2)
    at = call("tl.arange", 0, "block_tile")
    own = plus("first", times("bh", square.size, square.size), "place")
    kept = plus(
        "checkpoints_out",
        times(plus(times("bh", "chunks"), "c"), square.size, square.size),
        "place",
    )
    last = plus("last_out", times("bh", square.size, square.size), "place")
    each: Body = (
        let("t0", times(call("tl.cast", "c", "tl.int64"), "C")),
        let("last", call("tl.minimum", Name("T") - "t0", "C").to("tl.int32") - 1),
        let("i_ok", Name("i") <= "last"),
        Store(kept, CastLike(Name("state"), Name("checkpoints_out")), Name("inside")),
        *part.steps,
    )
    return _kernel(
        "checkpoints",
        (("first", "last_out", "checkpoints_out"),),
        part,
        (square.size, square.block, "block_tile", "C", "DT", "EXACT"),
        f"An inter-chunk sweep, which keeps {state} as it stands before each chunk.",
        (
            let("tile", PROGRAM % tiles),
            let("bh", (PROGRAM // tiles).to("tl.int64")),
            *_of_head(),
            let("chunks", call("tl.cdiv", "T", "C")),
            let("i", call("tl.arange", 0, "C")),
            let(full, call("tl.arange", 0, square.block)),
            let(f"{full}_ok", Name(full) < square.size),
            let(tile, plus(times("tile", "block_tile"), at)),
            let(f"{tile}_ok", Name(tile) < square.size),
            let("place", square.place),
            let("inside", inside),
            let("state", zeros(shape(square.block, "block_tile"))),
            If(
                Name("first").given,
                (added("state", Load(own, Name("inside"), NOTHING)),),
            ),
            *_advances(part),
            For("c", call("range", "chunks"), each),
            Store(last, Name("state"), Name("inside")),
        ),
    )


def solves_kernel(part: Part, square: Square, dim: str) -> KernelFunction:
    """Conjugate gradients for all solves of a chunk. `dim`: the places along a state's axis."""
    kept, width = f"{dim}_kept", Name("H") * square.size
    along = Name(dim).along(1, 2)
    there = Name(f"{dim}_ok").along(0, 2) & Name(f"{dim}_ok").along(1, 2)
    state = plus("checkpoints_p", times(PROGRAM.to("tl.int64"), square.size, square.size), "place")
    right = Load(
        plus("right_p", times(Name("i").along(0, 2), "right_t"), along),
        Name("inside"),
        NOTHING,
    )
    bound = call("tl.maximum", times("tolerance", "tolerance"), "CONVERGED")
    where = plus(times("step", square.size), Binary("*", Name("i").along(0, 2), width), along)
    found = ("x", "r", "along", "delta")
    each: Body = (
        let("p", call("narrowed", "along", "DT")),
        *part.steps,
        Let(found, call("conjugate_step", "x", "r", "p", "hp", "delta", "rest")),
    )
    fine = plus("fine_out", "where")
    left = call("narrowed", Name("x") - call("widened", "rounded"), "DT")
    both = Name("rounded").to("tl.float32") + Name("left").to("tl.float32")
    given = (
        "right_p",
        "right_b",
        "right_t",
        "right_h",
        "x_out",
        "fine_out",
        "residual_out",
        "checkpoints_p",
        "tolerance",
    )
    return _kernel(
        "solves",
        (given,),
        part,
        ("SIGN", "COUNT", square.size, square.block, "C", "DT", "EXACT"),
        "COUNT steps of conjugate gradients for all solves of a chunk, from the best multiple of the right side, with its SIGN.",
        (
            *_of_chunk(),
            let("last", call("tl.minimum", Name("T") - "t0", "C").to("tl.int32") - 1),
            let("i_ok", Name("i") <= "last"),
            let(dim, call("tl.arange", 0, square.block)),
            let(f"{dim}_ok", Name(dim) < square.size),
            let(kept, dim),
            let(f"{kept}_ok", f"{dim}_ok"),
            *_advances(part),
            let("place", square.place),
            let("state", Load(state, there, NOTHING)),
            *part.before,
            let("inside", Name("i_ok").along(0, 2) & Name(f"{dim}_ok").along(1, 2)),
            added(
                "right_p",
                plus(times("b", "right_b"), times("h", "right_h"), times("t0", "right_t")),
            ),
            let("r", right.to("tl.float32") * "SIGN"),
            let("x", zeros(shape("C", square.block))),
            let("delta", call("tl.sum", times("r", "r"), axis=1)),
            let("along", call("over_root", "r", "delta")),
            let("size", "delta"),
            let("rest", bound * "size"),
            For("_", call("range", "COUNT"), each),
            let("step", (Name("b") * "T" + "t0") * "H" + "h"),
            let("where", where),
            let("rounded", call("narrowed", "x", "DT")),
            Store(plus("x_out", "where"), Name("rounded"), Name("inside")),
            If(
                Name("fine_out").given,
                (let("left", left), Store(fine, both, Name("inside"))),
                note="as precise as the two operands that it becomes; so x takes the same way to both",
            ),
            Store(
                plus("residual_out", "step", times("i", "H")),
                call("relative", "delta", "size"),
                Name("i_ok"),
            ),
        ),
    )


def sums_kernel(part: Part, square: Square, dim: str, found: Mapping[str, tuple[Code, bool]]) -> KernelFunction:
    """Sums over a chunk's steps. `found`: the value for each parameter, and whether it runs over the state's dim."""
    stores: list[Statement] = []
    for name, (value, wide) in found.items():
        at = plus(f"{name}_sums", PROGRAM)
        if wide:
            at = plus(f"{name}_sums", times(PROGRAM.to("tl.int64"), square.size), dim)
        stores.append(Store(at, value, Name(f"{dim}_ok") if wide else None))
    return _kernel(
        "parameter_sums",
        tuple((f"{name}_sums",) for name in found),
        part,
        (square.size, square.block, "C", "DT"),
        "What the steps of a chunk add to the gradients of parameters.",
        (
            *_of_chunk(),
            let("i_ok", Name("i") < Name("T") - "t0"),
            let(dim, call("tl.arange", 0, square.block)),
            let(f"{dim}_ok", Name(dim) < square.size),
            *_advances(part),
            *part.steps,
            *stores,
        ),
    )


def _kernel(
    name: str,
    given: tuple[tuple[str, ...], ...],
    part: Part,
    words: tuple[str, ...],
    doc: str,
    body: Body,
) -> KernelFunction:
    lines = (*given, *map(parameters, part.arguments))
    return KernelFunction(
        name,
        tuple(tuple(map(Parameter, x)) for x in lines),
        ("T", "H"),
        words,
        doc,
        body,
        unspecialised=("T",),
    )


def parameters(a: Argument) -> tuple[str, ...]:
    return (a.name, f"{a.base}_b", f"{a.base}_t", f"{a.base}_h") if a.layout == "step" else (a.name,)


def _of_head() -> Body:
    return (let("b", Name("bh") // "H"), let("h", Name("bh") % "H"))


def _of_chunk() -> Body:
    """The chunk of a program, and its steps."""
    return (
        let("chunks", call("tl.cdiv", "T", "C")),
        let("c", PROGRAM % "chunks"),
        let("bh", (PROGRAM // "chunks").to("tl.int64")),
        *_of_head(),
        let("t0", times(call("tl.cast", "c", "tl.int64"), "C")),
        let("i", call("tl.arange", 0, "C")),
    )


def _advances(part: Part) -> Body:
    """Pointers go to where a program's head begins."""
    return tuple(
        added(f"{a.base}_p", plus(times("b", f"{a.base}_b"), times("h", f"{a.base}_h")))
        for a in part.arguments
        if a.layout == "step"
    )
