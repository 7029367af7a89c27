"""The kernels of the recurrent form around what a step does: where a program is, and the loops over segments and steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.code import Code, Load, Name, call, where
from ...ir.kernel_ir import Barrier, Body, For, If, KernelFunction, Let, Parameter, Prefetch, Statement, let
from .kernel import SEVERAL, Kernel
from .tiling import PART

CHECKPOINT = (Name("slot") + "checkpoint") * "heads" + "head"
UNSPECIALISED = ("heads", "steps", "segment", "lines")


def room(offset: Code) -> Code:
    """The row of a step's state in the workspace that holds the states of a segment."""
    return (Name("room") + offset) * "heads" + "head"


@dataclass(frozen=True)
class Forward:
    """What a forward kernel does `before` all steps, for each `checkpoint`, in each `step`, and at `last`."""

    before: Body
    kept: str
    checkpoint: Body
    step: Body
    last: Body


@dataclass(frozen=True)
class Backward:
    """What a backward kernel does `before` all segments, at the `start` of each, in each step of it forwards (`again`) and
    backwards (`step`), and at `last`."""

    before: Body
    start: Body
    again: Body
    step: Body
    last: Body


@dataclass(frozen=True)
class Rows:
    """How a kernel goes over blocks of the states' rows: their dims, and how many vectors it keeps in memory."""

    row: str
    column: str
    slots: int


def forward_kernel(k: Kernel, x: Forward, rows: Rows | None = None) -> KernelFunction:
    """From the first step to the last."""
    steps = For(
        "offset",
        call("range", "length"),
        (let("now", Name("origin") + "offset"), *x.step),
        Prefetch(
            next=(("now", Name("then")), ("offset", Name("there"))),
            before=(let("now", "origin"),),
            each=_then(call("tl.minimum", Name("offset") + 1, Name("length") - 1)),
        ),
        together=k.together,
        when=k.when,
        ahead=k.ahead,
    )
    segment = (
        If(Name(x.kept).given, x.checkpoint),
        let("length", call("tl.minimum", "segment", Name("steps") - Name("checkpoint") * "segment")),
        _origin(),
        steps,
    )
    body = (*_place(k), *x.before, For("checkpoint", call("range", "segments"), segment), *x.last)
    return _kernel(k, "forward", "from the first step to the last", body, rows)


def backward_kernel(k: Kernel, x: Backward, rows: Rows | None = None) -> KernelFunction:
    """From the last segment to the first: its states again, from its checkpoint, then the adjoint's steps."""
    again = For(
        "offset",
        call("range", "length"),
        (let("now", Name("origin") + "offset"), *x.again),
        Prefetch(
            next=(("now", Name("then")), ("offset", Name("there"))),
            before=(let("now", "origin"),),
            each=_then(call("tl.minimum", Name("offset") + 1, Name("length") - 1)),
        ),
        together=k.together,
        when=k.when,
        ahead=k.ahead,
    )
    steps = For(
        "rest",
        call("range", "length"),
        (let("offset", Name("length") - 1 - "rest"), let("now", Name("origin") + "offset"), *x.step),
        Prefetch(
            first=(("offset", Name("length") - 1),),
            next=(("now", Name("then")), ("offset", Name("there"))),
            before=(let("now", Name("origin") + "length" - 1),),
            each=_then(call("tl.maximum", Name("offset") - 1, 0)),
        ),
        together=k.together,
        when=k.when,
        ahead=k.ahead,
    )
    segment = (
        let("checkpoint", Name("segments") - 1 - "back"),
        let("length", call("tl.minimum", "segment", Name("steps") - Name("checkpoint") * "segment")),
        *x.start,
        _origin(),
        again,
        Barrier(),
        steps,
        Barrier(),
    )
    body = (*_place(k), *x.before, For("back", call("range", "segments"), segment), *x.last)
    return _kernel(k, "backward", "segment by segment from the last to the first", body, rows)


def _then(there: Code) -> Body:
    return let("there", there), let("then", Name("origin") + "there")


def _origin() -> Let:
    return let("origin", call("tl.cast", "checkpoint", "tl.int64") * "segment")


def _kernel(k: Kernel, direction: str, order: str, body: Body, rows: Rows | None) -> KernelFunction:
    tile = f" and a tile of {k.tiling.dim}" if k.tiling.dim else ""
    how = ", over blocks of the states' rows" if rows else ""
    places = ("table_at", "heads", *(g for g, _ in k.groups), "steps", "segment", "lines")
    words = [(f"size_{d}", f"block_{d}") for d in k.dims]
    return KernelFunction(
        f"sequential_{direction}{'_rows' if rows else ''}_kernel",
        (*k.parameters(), tuple(Parameter(x, optional=x == "table_at") for x in places)),
        (),
        (),
        f"Each program: one batch entry and head{tile}, {order}{how}.",
        body,
        UNSPECIALISED,
        more_words=(
            *words,
            *([("tiles",)] if k.tiling.dim else []),
            *([("slots", "block_row")] if rows else []),
            *([(SEVERAL,)] if k.when else []),
        ),
    )


def _place(k: Kernel) -> Iterable[Statement]:
    """The statements that say where a program is, and the indices of its tiles."""
    program: Code = call("tl.program_id", 0)
    if k.tiling.dim:
        yield let("tile", program % "tiles")
        yield let("first", Name("tile").equals(0))
        yield let("once", where(Name("first"), 1.0, 0.0))
        yield let("rows", call("tl.cast", call("tl.num_programs", 0) // "tiles", "tl.int64"))
        program = program // "tiles"
    yield let("index", call("tl.cast", program, "tl.int64"))
    yield let("batch", Name("index") // "heads")
    yield let("head", Name("index") % "heads")
    row = Name("table_at") + 4 * Name("batch")
    packed = (
        let("entry", 0),
        let("begin", Load(row)),
        let("steps", Load(row + 4) - "begin"),
        let("segment", Load(row + 1)),
        let("slot", Load(row + 2)),
        let("room", Load(row + 3)),
        let("line", "begin"),
    )
    padded = (
        let("entry", "batch"),
        let("begin", 0),
        let("slot", Name("batch") * call("tl.cdiv", "steps", "segment")),
        let("room", Name("batch") * "segment"),
        let("line", Name("batch") * "steps"),
    )
    yield If(Name("table_at").given, packed, padded, note="packed: a program has one sequence, whose place it reads")
    yield let("segments", call("tl.cdiv", "steps", "segment"))
    if PART in k.tiling.kinds.values():
        yield let("lines", call("tl.cast", "lines", "tl.int64"))
    for d in k.dims:
        yield from k.index_lets(d)
    yield from k.block_lets()
