"""The step kernels around what a step does: where a program is, and the turns that tiles take in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....ir.code import Items, Load, Name, call, summed
from ....ir.kernel_ir import Body, Do, For, If, KernelFunction, Let, Parameter, Return, Statement, let
from ..kernel import Kernel, Pointer, count_of
from ..loops import Rows

AHEAD = "what a later program loads is brought into the L2 cache meanwhile"
PACKED = "packed: a program has one sequence, whose place it reads"
PADDING = "the state's row of a pool; of padding, whose row is below 0, nothing is touched"


def one_step(
    k: Kernel,
    moves: Sequence[Statement],
    before: Sequence[Statement],
    body: Sequence[Statement],
    rows: Rows | None = None,
    small: Sequence[str] = (),
) -> KernelFunction:
    """The kernel of one step: pointers are moved, and each tile takes its turn after what all turns share. `small`: the pointers
    that are given where states are small numbers."""
    tile = f" and a tile of {k.tiling.dim}" if k.tiling.dim else ""
    how = " over blocks of the states' rows" if rows else ""
    return _kernel(
        k,
        "step_rows_kernel" if rows else "step_kernel",
        f"Each program: one batch entry and head{tile}, one step{how}.",
        (*_place(), *moves, *_turns(k, before, body)),
        ("rows_at", *small),
        (),
        (("programs", "turns", "flat", "inplace", *(["slots", "block_row"] if rows else ["prefetch_distance"])),),
    )


def several_steps_kernel(
    k: Kernel, moves: Sequence[Statement], before: Sequence[Statement], body: Sequence[Statement]
) -> KernelFunction:
    """The kernel of several steps, of which each sequence has as many as `counts_at` says."""
    tile = f" and a tile of {k.tiling.dim}" if k.tiling.dim else ""
    return _kernel(
        k,
        "steps_kernel",
        f"Each program: one sequence and head{tile}, one step after the other, with the state in registers.",
        (*_place(), *_sequence(), *moves, *_turns(k, before, body)),
        ("rows_at", "each_at", "counts_at", "starts_at"),
        ("steps",),
        (("programs", "turns", "flat"), ("yields", "keeps", "ends")),
    )


def _kernel(
    k: Kernel,
    name: str,
    doc: str,
    body: Body,
    places: tuple[str, ...],
    steps: tuple[str, ...],
    words: tuple[tuple[str, ...], ...],
) -> KernelFunction:
    pointers, *numbers = k.parameters()
    lines = [
        (*pointers, *(Parameter(x, optional=True) for x in places)),
        *numbers,
        tuple(map(Parameter, ("heads", *(g for g, _ in k.groups), *steps))),
    ]
    sizes = [(f"size_{d}", f"block_{d}") for d in k.dims]
    return KernelFunction(name, tuple(lines), (), (), doc, body, ("heads", *steps), more_words=(*sizes, *words))


def _place() -> Iterable[Statement]:
    """The statements that say which batch entry and head a program has, and which row of a pool."""
    place, batch = Name("place"), Name("batch")
    yield let("place", call("tl.program_id", 0) // "programs")
    yield If(
        Name("flat"),
        (
            let("batch", call("tl.cast", place // "heads", "tl.int64")),
            let("head", call("tl.cast", place % "heads", "tl.int64")),
        ),
        (
            let("batch", call("tl.cast", call("tl.program_id", 1), "tl.int64")),
            let("head", call("tl.cast", place, "tl.int64")),
        ),
        note="more batch entries than a grid is high",
    )
    pooled = (let("row", call("tl.cast", Load(Name("rows_at") + batch), "tl.int64")), If(Name("row") < 0, (Return(),)))
    yield If(Name("rows_at").given, pooled, (let("row", batch),), note=PADDING)


def later_row() -> If:
    """The row of a pool, and the head, of the program `prefetch_distance` heads later; the row is below 0 where there is none."""
    found = call("row_to_prefetch", "rows_at", "batch", "head", "heads", "prefetch_distance")
    return If(Name("prefetch_distance") > 0, (Let(("later_row", "later_head"), found),), note=AHEAD)


def later_states(k: Kernel, states: Mapping[str, Pointer]) -> list[Statement]:
    """That program's part of what matrices it loads."""
    moved = ((Name("later_row") - "row"), (Name("later_head") - "head"))
    parts = [
        Do(
            call(
                "prefetch",
                summed(Name(x.name), *(by * n for by, n in zip(moved, x.strides, strict=False))),
                count_of(x.axes),
                "programs",
                "later_row",
            )
        )
        for x in states.values()
        if len(x.axes) > 1
    ]
    return [If(Name("prefetch_distance") > 0, tuple(parts))] if parts else []


def _sequence() -> Iterable[Statement]:
    """The statements that say where a sequence begins, and how many steps of it are taken."""
    zero, at = call("tl.cast", 0, "tl.int64"), Name("starts_at") + "batch"
    yield Let(
        ("entry", "begin", "count"), Items((Name("batch"), zero, call("tl.cast", "steps", "tl.int64")), bare=True)
    )
    packed = (
        Let(("entry", "begin"), Items((zero, call("tl.cast", Load(at), "tl.int64")), bare=True)),
        let("count", Load(at + 1) - "begin"),
    )
    yield If(Name("starts_at").given, packed, note=PACKED)
    least = call("tl.minimum", "count", Load(Name("counts_at") + "batch"))
    yield If(Name("counts_at").given, (let("count", least),))
    yield If(Name("count") <= 0, (Return(),))


def _turns(k: Kernel, before: Sequence[Statement], body: Sequence[Statement]) -> Iterable[Statement]:
    """What each tile does, one after the other where a program has several."""
    for d in k.dims:
        if d != k.tiling.dim:
            yield from k.index_lets(d)
    if k.tiling.dim is None:
        yield from (*k.block_lets(), *body)
        return
    yield from before
    turn = (
        let("tile", call("tl.program_id", 0) % "programs" * "turns" + "turn"),
        let("first", Name("tile").equals(0)),
        *k.index_lets(k.tiling.dim),
        *k.block_lets(),
        *body,
    )
    yield For("turn", call("tl.static_range", "turns"), turn)
