"""Kernels that scan one state, entry by entry: a program takes some channels of one head through a sequence, or a part of it,
some steps at once, and makes what else is made of each step there, while the state is in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chunkform.runtime.torch_form.scans import LAWS

from ....ir.expr import Node, dim_of, expand, leaf, plain_name, walk
from ....printing.expressions import NodePrinter, Triton
from ....printing.terms import Axes
from ...step.elementwise import AFTER, BEFORE, Entry, value_of
from ..launch_ir import (
    HEADS,
    NONE,
    STEPS,
    TILES,
    Alloc,
    Body,
    Call,
    Define,
    Expr,
    If,
    Launch,
    Passed,
    Set,
    Statement,
    py,
    ref,
)
from ..launch_ir import stored as stored_to
from ..print.axis_names import axis_name, block_name, size_name
from ..print.names import Names
from .per_step import (
    FINITE,
    STEP,
    ZERO,
    Result,
    RowKernel,
    by_step,
    loaded,
    parameters_of,
    passed,
    printable,
    sometimes,
    stored,
    when_wanted,
)

ENTRYWISE = frozenset("leaf const number size add mul pow fn expand".split())


@dataclass(frozen=True)
class ScanKernel(RowKernel):
    """A printed scan; `state` is what the state is called, `kind` that of its maps, `sometimes` for which gradients it loads what
    it doesn't always."""

    state: str = ""
    kind: str = "affine"
    sometimes: Mapping[tuple[str, str], tuple[str, ...] | None] = field(default_factory=dict)

    @property
    def unspecialised(self) -> tuple[str, ...]:
        return ("T", "chunks", "parts", "length")

    def signature(self) -> list[str]:
        sizes = dict.fromkeys(size_name(dim_of(a)) for a in self.axes)
        words = [*sizes, *(block_name(a) for a in self.axes), "C", "RESULTS", "STAGES"]
        places = "T, H, chunks, starts, parts, length,"
        return [*self.parameters, places, ", ".join(f"{w}: tl.constexpr" for w in words) + ","]


def beside(x: Node, order: Axes, axes: Axes) -> bool:
    """May a scan over these axes make a value of each step?"""
    nodes = list(walk(x))
    return order == axes and printable(x, order) and all(y.op in ENTRYWISE and set(y.axes) <= set(axes) for y in nodes)


def scan_kernel(
    name: str, e: Entry, axes: Axes, forward: bool, results: list[Result], names: Names, name_of: Callable[[Node], str]
) -> ScanKernel:
    """The kernel that scans a state over `axes`, from the first step to the last or back, and makes `results`."""
    if e.kind != "affine":
        return _other_scan(name, e, axes, forward, results, names, name_of)
    block = [block_name(a) for a in axes]
    tile, state = f"[{', '.join(['C', *block])}]", f"[{', '.join(block)}]"
    S = names(leaf("state", e.state))
    before, after = (value_of(e.state, when, axes) for when in (BEFORE, AFTER))
    printed = _Values(e, axes, results, names, name_of)
    f, w, f_before, w_before, whole, edge, enters = map(
        printed.printer.fresh, ("f", "w", "f_before", "w_before", "whole", "edge", "enters")
    )
    setup, loop = _places(axes, forward)
    setup += [
        f"{S} = tl.zeros({state}, tl.float32)",
        f"{whole} = tl.full({tile}, 1.0, tl.float32)",
        *_entering(enters, f"{S}_first", axes, forward),
    ]
    made, texts = printed.statements({"factor": e.factor, "added": e.added}, dict.fromkeys(("factor", "added"), axes))
    ok, entering = ("i_ok[:, None]", f"{S}[None, :]") if axes else ("i_ok", S)
    loop += [
        *printed.loads,
        *made,
        f"{f} = tl.zeros({tile}, tl.float32) + tl.where({ok}, {texts['factor']}, 1.0)",
        f"{w} = tl.zeros({tile}, tl.float32) + tl.where({ok}, {texts['added']}, 0.0){f' * {f}' * e.early}",
    ]
    loop += [f"if {S}_linear is not None:", f"    {whole} *= {f}"]
    # what enters comes with the first step: if the loop began with it, it would have two layouts, and be scanned for both
    loop += [f"if {S}_first is not None:", f"    {w} += {f} * tl.where(n == 0, {enters}, 0.0)"]
    alone = f"{f}, {w} = tl.associative_scan(({f}, {w}), 0, one_after_other)"
    if any(y is before for r in results for y in walk(r.node)):
        loop += [
            "if RESULTS:",
            f"    {f}, {w}, {f_before}, {w_before} = tl.associative_scan(",
            f"        ({f}, {w}, tl.full({tile}, 1.0, tl.float32), tl.zeros({tile}, tl.float32)), 0, with_those_before",
            "    )",
            f"    {names(before)} = {w_before} + {f_before} * {entering}",
            f"    if {S}_first is not None:",
            f"        {names(before)} += tl.where(n == 0, {enters}, 0.0)",
            "else:",
            f"    {alone}",
        ]
    else:
        loop.append(alone)
    loop += [f"{names(after)} = {w} + {f} * {entering}", *_left_by_round(S, names(after), edge, axes, forward)]
    loop += _yielded(results, printed)
    last = [f"if {S}_first is not None:", f"    {S} += tl.where(count == 0, tl.sum({enters}, axis=0), 0.0)"]
    last += [*_left(f"{S}_last", S, axes), *_left(f"{S}_linear", f"tl.reduce({whole}, 0, times)", axes)]
    return _kernel(name, e, axes, forward, results, printed, S, {"setup": setup, "loop": loop, "after": last})


def _kernel(
    name: str,
    e: Entry,
    axes: Axes,
    forward: bool,
    results: list[Result],
    printed: _Values,
    S: str,
    lines: dict[str, list[str]],
) -> ScanKernel:
    parameters = (f"{S}_first, {S}_last, {S}_linear,", *printed.parameters, *(f"{r.name}_out," for r in results))
    doc = f"A scan of {e.state}, {'forwards' if forward else 'backwards'}, and what is made of each step there."
    return ScanKernel(
        name,
        lines,
        doc,
        (),
        axes,
        None,
        True,
        parameters=parameters,
        leaves=printed.leaves,
        state=S,
        kind=e.kind,
        sometimes=printed.sometimes,
    )


def _other_scan(
    name: str, e: Entry, axes: Axes, forward: bool, results: list[Result], names: Names, name_of: Callable[[Node], str]
) -> ScanKernel:
    """The same of maps that aren't affine; a sequence is in one part."""
    block = [block_name(a) for a in axes]
    tile, state = f"[{', '.join(['C', *block])}]", f"[{', '.join(block)}]"
    S = names(leaf("state", e.state))
    before, after = (value_of(e.state, when, axes) for when in (BEFORE, AFTER))
    printed = _Values(e, axes, results, names, name_of)
    law, fresh = LAWS[e.kind], printed.printer.fresh
    maps, earlier = ([fresh(f"{stem}{n}") for n in range(len(law.identity))] for stem in ("map", "before"))
    edge, enters = map(fresh, ("edge", "enters"))
    setup, loop = _places(axes, forward)
    setup += [f"{S} = tl.zeros({state}, tl.float32)", *_entering(enters, f"{S}_first", axes, forward)]
    made, texts = printed.statements(dict(zip(maps, e.maps, strict=True)), dict.fromkeys(maps, axes))
    ok, entering = ("i_ok[:, None]", f"{S}[None, :]") if axes else ("i_ok", S)
    unchanged = [f'float("{x}")' if x in (float("inf"), -float("inf")) else repr(x) for x in law.identity]
    loop += [*printed.loads, *made]
    loop += [
        f"{m} = tl.zeros({tile}, tl.float32) + tl.where({ok}, {texts[m]}, {x})"
        for m, x in zip(maps, unchanged, strict=True)
    ]
    # what enters comes with the first step, whose map is that of a state less what enters
    moved = list(zip(maps[::2], maps[1::2], strict=False))
    loop += [f"if {S}_first is not None:", *(f"    {b} += {a} * tl.where(n == 0, {enters}, 0.0)" for a, b in moved)]
    alone = [f"{', '.join(maps)} = tl.associative_scan(({', '.join(maps)}), 0, {e.kind}_then)"]
    if any(y is before for r in results for y in walk(r.node)):
        numbers = ", ".join(f"tl.full({tile}, {x}, tl.float32)" for x in unchanged)
        loop += [
            "if RESULTS:",
            f"    {', '.join([*maps, *earlier])} = tl.associative_scan(",
            f"        ({', '.join(maps)}, {numbers}), 0, {e.kind}_then_beside",
            "    )",
            f"    {names(before)} = {e.kind}_at({', '.join(earlier)}, {entering})",
            f"    if {S}_first is not None:",
            f"        {names(before)} += tl.where(n == 0, {enters}, 0.0)",
            "else:",
            *(f"    {x}" for x in alone),
        ]
    else:
        loop += alone
    loop += [
        f"{names(after)} = {e.kind}_at({', '.join(maps)}, {entering})",
        *_left_by_round(S, names(after), edge, axes, forward),
    ]
    loop += _yielded(results, printed)
    last = [f"if {S}_first is not None:", f"    {S} += tl.where(count == 0, tl.sum({enters}, axis=0), 0.0)"]
    last += _left(f"{S}_last", S, axes)
    return _kernel(name, e, axes, forward, results, printed, S, {"setup": setup, "loop": loop, "after": last})


def _places(axes: Axes, forward: bool) -> tuple[list[str], list[str]]:
    """The statements that say where a program is, and where a round of its loop is."""
    tiles = f"tl.cdiv({size_name(axes[0])}, {block_name(axes[0])})" if axes else "1"
    setup = [
        f"sh = (tl.program_id(0) // {tiles}).to(tl.int64)",
        "h = sh % H",
        "b, part, begin, stop, first = part_of(sh // H, T, starts, parts, length, C)",
        "count = tl.cdiv(tl.maximum(stop - begin, 0), C).to(tl.int32)",
        "i = tl.arange(0, C)" if forward else "i = C - 1 - tl.arange(0, C)  # as steps are walked over",
    ]
    for a in axes:
        index = axis_name(a)
        setup += [
            f"{index} = tl.program_id(0) % {tiles} * {block_name(a)} + tl.arange(0, {block_name(a)})",
            f"{index}_ok = {index} < {size_name(a)}",
        ]
    loop = [
        f"t0 = begin + tl.cast({'n' if forward else 'count - 1 - n'}, tl.int64) * C",
        "i_ok = i < tl.minimum(stop - t0, C).to(tl.int32)",
        "step = t0 + i",
        "at = (b * T + step) * H + h",
    ]
    return setup, loop


def _entering(name: str, pointer: str, axes: Axes, forward: bool) -> list[str]:
    """The statements that load the state that enters, if there is one, at the first step of a tile, zero at the others: so it has
    the layout of tiles."""
    at_first = "i == 0" if forward else "i == C - 1"
    place, ok = f"{pointer} + sh + i * 0", at_first
    if axes:
        index, size = axis_name(axes[0]), size_name(axes[0])
        place = f"{pointer} + sh * {size} + {index}[None, :] + i[:, None] * 0"
        ok = f"({at_first})[:, None] & {index}_ok[None, :]"
    return [f"if {pointer} is not None:", f"    {name} = tl.load({place}, mask={ok}, other=0.0)"]


def _left_by_round(S: str, after: str, edge: str, axes: Axes, forward: bool) -> list[str]:
    """The state that the next steps begin with."""
    at_edge = f"{edge}[:, None]" if axes else edge
    return [
        f"{edge} = i == {'C - 1' if forward else '0'}  # steps beyond the end keep states as they are",
        f"{S} = tl.sum(tl.where({at_edge}, {after}, 0.0), axis=0)",
    ]


def _yielded(results: list[Result], printed: _Values) -> list[str]:
    """What is made of the states of these steps, and stored."""
    if not results:
        return []
    made, texts = printed.statements({r.name: r.node for r in results}, {r.name: r.order for r in results})
    stores = [line for r in results for line in stored(r, texts[r.name])]
    return ["if RESULTS:", *(f"    {line}" for line in (*made, *stores))]


def _left(pointer: str, value: str, axes: Axes) -> list[str]:
    """The statements that store what is left of a part, a state or what is like one."""
    if not axes:
        return [f"if {pointer} is not None:", f"    tl.store({pointer} + sh, {value})"]
    index, size = axis_name(axes[0]), size_name(axes[0])
    return [f"if {pointer} is not None:", f"    tl.store({pointer} + sh * {size} + {index}, {value}, mask={index}_ok)"]


class _Values:
    """Prints values of each step inside a scan; what they are made of is loaded at the start of a round."""

    def __init__(
        self, e: Entry, axes: Axes, results: list[Result], names: Names, name_of: Callable[[Node], str]
    ) -> None:
        own = [value_of(e.state, when, axes) for when in (BEFORE, AFTER)]
        self.texts = {x.attrs[:2]: names(x) for x in own}
        self.taken = set(names.taken)
        self.loads: list[str] = []
        self.parameters: list[str] = []
        self.leaves: tuple[tuple[str, str, Node], ...] = ()
        always = {x.attrs[:2]: x for root in (e.factor, e.added, *e.others) for x in walk(root) if x.op == "leaf"}
        found = always | {x.attrs[:2]: x for r in results for x in walk(r.node) if x.op == "leaf"}
        self.sometimes = {key: when for key, when in sometimes(results).items() if key not in always}
        for key, x in found.items():
            if key in self.texts:
                continue
            base, kind = name_of(x), x.attrs[0]
            while base in self.texts.values():  # a decay, and its logarithm
                base += "_"
            self.texts[key] = base
            self.taken.add(plain_name(base))
            self.leaves += ((base, name_of(x), x),)
            if kind == "constant":
                self.parameters.append(f"{base},")
                continue
            self.parameters.append(f"{', '.join(parameters_of(base, kind))},")
            self.loads += loaded(base, x, self.sometimes.get(key) is not None, rows="C")
        self.printer = NodePrinter(
            Triton(
                lambda d: "C" if d == STEP else size_name(d),
                lambda d: "i" if d == STEP else axis_name(d),
                lambda d: "i_ok" if d == STEP else f"{axis_name(d)}_ok",
                lambda d: "C" if d == STEP else block_name(d),
            ),
            taken=self.taken,
        )

    def statements(self, nodes: dict[str, Node], orders: dict[str, Axes]) -> tuple[list[str], dict[str, str]]:
        """The statements, and the text of each value, over steps and these axes."""
        return self.printer.statements(
            {n: expand(by_step(x), (STEP, *orders[n])) for n, x in nodes.items()},
            lambda x: self.texts[x.attrs[:2]],
            orders={n: (STEP, *order) for n, order in orders.items()},
            padding=lambda x: FINITE if x.attrs[0].startswith("decay") else ZERO,
        )


def launched(kernel: ScanKernel, results: list[Result], first: Expr, forward: bool, finals: str) -> list[Statement]:
    """The statements that scan a state, in parts where there are few programs, and allocate what that makes. `finals`: when the
    last state is wanted."""
    S = kernel.state
    sizes = [size_name(dim_of(a)) for a in kernel.axes]
    width = f"scan_width({sizes[0]})" if sizes else "1"
    tiles = f"cdiv({sizes[0]}, {width})" if sizes else "1"
    cut = kernel.kind == "affine"
    found: list[Statement] = [Define(("parts",), Expr(f"scan_parts(lay, {tiles})" if cut else "1"))]
    for r in results:
        shape = ", ".join(["B, T, H", *(size_name(dim_of(a)) for a in r.order)])
        found.append(Alloc(r.name, Expr(shape), r.dtype, when_wanted(r)))
    tensors = [passed(tensor, x, kernel.sometimes.get(x.attrs[:2])) for _, tensor, x in kernel.leaves]
    words = [(x, Expr(x)) for x in sizes] + [(block_name(a), Expr(width)) for a in kernel.axes]

    def launch(ends: bool) -> Launch:
        left = [NONE, ref(f"{S}_ends"), ref(f"{S}_linear")] if ends else [ref(f"{S}_starts"), ref(f"{S}_last"), NONE]
        states = [Passed(left[0]), *(stored_to(x, tiles=bool(sizes)) for x in left[1:])]
        outs = [stored_to(NONE if ends else ref(r.name), tiles=bool(r.order)) for r in results]
        return Launch(
            kernel.name,
            Expr(f"lay.sequences * parts * H * {tiles}"),
            (*states, *tensors, *outs),
            (Expr("*lay.walked"), Expr("parts"), Expr("lay.length(parts)")),
            (*words, ("C", Expr("SCAN" if sizes else "LONG_SCAN")), ("RESULTS", Expr(str(not ends)))),
            (("STAGES", Expr("scan_stages(parts)")), ("num_warps", Expr("1"))),
            frozenset({STEPS, HEADS, *([TILES] if sizes else [])}),
        )

    state = ", ".join(["{}", "H", *sizes])
    ends = f"(some.new_empty(({state.format('B * parts')}), dtype=torch.float32) for _ in range(2))"
    entering = (first, ref(f"{S}_ends"), ref(f"{S}_linear"), Expr("lay"), Expr("parts"), Expr(str(forward)))
    parts: Body = (
        Set((f"{S}_ends", f"{S}_linear"), Expr(ends)),
        launch(True),
        Call((f"{S}_starts",), "scanned", entering),
    )
    found += [Set((f"{S}_starts",), first), *([If(Expr("parts > 1"), parts)] if cut else [])]
    if finals == "False":
        found.append(Set((f"{S}_last",), NONE))
    else:
        when = None if finals == "True" else Expr(finals)
        found.append(Alloc(f"{S}_last", Expr(state.format("lay.sequences * parts")), when=when))
    found.append(launch(False))
    if finals != "False" and cut:
        last = ref(f"{S}_last")
        whole = py("{}.unflatten(0, (B, parts))[:, {}]", last, "-1" if forward else "0")
        found.append(If(py("parts > 1 and {} is not None", last), (Set((f"{S}_last",), whole),)))
    return found
