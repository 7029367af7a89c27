"""Kernels that scan one state, entry by entry: a program takes some channels of one head through a sequence, or a segment of it,
some steps at once, and makes what else is made of each step there, while the state is in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from chunkform.runtime.torch_form.scans import LAWS

from ....ir.code import Code, Group, Items, Literal, Load, Name, Starred, call, code, shape, where, zeros
from ....ir.expr import Node, dim_of, expand, leaf, plain_name, walk
from ....ir.kernel_ir import For, If, KernelFunction, Let, Parameter, Statement, Store, added, let
from ....ir.launch_ir import (
    HEADS,
    NONE,
    STEPS,
    TILES,
    Alloc,
    Body,
    Call,
    Define,
    Launch,
    Passed,
    Set,
    ref,
)
from ....ir.launch_ir import If as LaunchIf
from ....ir.launch_ir import Statement as LaunchStatement
from ....ir.launch_ir import stored as stored_to
from ....ir.python_code import FALSE, TRUE, Each, Fixed, also, made_by, method, said, several
from ....ir.python_code import beside as row
from ....ir.ranges import Range
from ....ir.step_program import DECAYS
from ....printing.expressions import NodePrinter, Triton
from ....printing.terms import Axes
from ...step.elementwise import AFTER, BEFORE, Entry, value_of
from ..print.axis_names import axis_name, block_name, size_name
from ..print.names import Names
from ..print.sizes import cdiv, sizes
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
    """A scan of an entry; `sometimes`: for which gradients it loads what it doesn't always. `ranges`: what is known of the values
    of leaves, by kind and name."""

    state: str = ""
    entry: Entry | None = None
    forward: bool = True
    sometimes: Mapping[tuple[str, str], tuple[str, ...] | None] = field(default_factory=dict)
    ranges: Mapping[tuple[str, str], Range] = field(default_factory=dict)
    sweeps = True

    @property
    def kind(self) -> str:
        """The kind of its maps."""
        assert self.entry is not None
        return self.entry.kind

    @property
    def dims(self) -> list[str]:
        """The dims that it has, and those whose sizes are in values."""
        assert self.entry is not None
        return _dims(self.entry, self.axes, self.results)


def _dims(e: Entry, axes: Axes, results: Iterable[Result]) -> list[str]:
    nodes = [x for root in (*e.printed, *(r.node for r in results)) for x in walk(root)]
    return list(dict.fromkeys([*map(dim_of, axes), *sorted(x.attrs[0] for x in nodes if x.op == "size")]))


def beside(x: Node, order: Axes, axes: Axes) -> bool:
    """May a scan over these axes make a value of each step?"""
    nodes = list(walk(x))
    return order == axes and printable(x, order) and all(y.op in ENTRYWISE and set(y.axes) <= set(axes) for y in nodes)


def scan_kernel(
    name: str, e: Entry, axes: Axes, forward: bool, results: list[Result], names: Names, name_of: Callable[[Node], str]
) -> ScanKernel:
    """The kernel that scans a state over `axes`, from the first step to the last or back, and makes `results`."""
    s = _scan(e, axes, forward, results, names, name_of)
    setup, loop = _places(axes, forward)
    setup.append(let(s.names.state, s.nothing(shape(*map(block_name, axes)))))
    setup += s.unchanged()
    loop += s.affine() if e.kind == "affine" else s.others()
    loop += [*s.left_by_round(), *s.yielded()]
    over = call("tl.range", 0, "count", num_stages="STAGES")
    nothing = where(Name("count").equals(0), call("tl.sum", s.names.enters, axis=0), 0.0)
    end: list[Statement] = [
        s.if_entered(added(s.names.state, nothing)),
        _left(f"{s.names.state}_last", Name(s.names.state), axes),
        *(_left(name, value, axes) for name, value in s.left().items()),
    ]
    states = tuple(Parameter(x, optional=True) for x in states_of(s.names.state, e.kind))
    outs = [(Parameter(f"{r.name}_out", optional=r.wanted is not None),) for r in results]
    sizes = map(size_name, _dims(e, axes, results))
    function = KernelFunction(
        name,
        (states, *s.leaves.parameters, *outs),
        ("T", "H", "chunks", "starts", "segments", "length"),
        (*sizes, *map(block_name, axes), "C", "RESULTS", "STAGES"),
        f"A scan of {e.state}, {'forwards' if forward else 'backwards'}, and what is made of each step there.",
        (*setup, *s.entering(), For("n", over, tuple(loop)), *end),
        ("T", "chunks", "segments", "length"),
    )
    leaves = s.leaves
    return ScanKernel(function, axes, tuple(results), leaves.tensors, s.names.state, e, forward, leaves.sometimes)


@dataclass(frozen=True)
class _Names:
    """What is called by name in a scan: the state, also before and after each step, its maps, and those before each step."""

    state: str
    before: str
    after: str
    maps: tuple[str, ...]
    earlier: tuple[str, ...]
    whole: tuple[str, ...]
    edge: str
    enters: str


class _Leaves:
    """What a scan is made of: what it loads at the start of a round, as which parameters, and what that is called."""

    def __init__(self, e: Entry, results: list[Result], own: dict[tuple[str, str], str], taken: set[str]) -> None:
        self.texts, self.taken = own, taken
        self.loads: list[Statement] = []
        self.parameters: list[tuple[Parameter, ...]] = []
        self.tensors: tuple[tuple[str, str, Node], ...] = ()
        always = {x.attrs[:2]: x for root in (e.factor, e.added, *e.others) for x in walk(root) if x.op == "leaf"}
        found = always | {x.attrs[:2]: x for r in results for x in walk(r.node) if x.op == "leaf"}
        self.sometimes = {key: when for key, when in sometimes(results).items() if key not in always}
        self.found = {key: x for key, x in found.items() if key not in own}

    def load(self, key: tuple[str, str], x: Node, tensor: str) -> None:
        base, missing = tensor, self.sometimes.get(key) is not None
        while base in self.texts.values():  # a decay, and its logarithm
            base += "_"
        self.texts[key] = base
        self.taken.add(plain_name(base))
        self.tensors += ((base, tensor, x),)
        self.parameters.append(parameters_of(base, x, missing))
        self.loads += loaded(base, x, missing, rows="C")


def _scan(
    e: Entry, axes: Axes, forward: bool, results: list[Result], names: Names, name_of: Callable[[Node], str]
) -> _Scan:
    state = names(leaf("state", e.state))
    before, after = (value_of(e.state, when, axes) for when in (BEFORE, AFTER))
    leaves = _Leaves(e, results, {x.attrs[:2]: names(x) for x in (before, after)}, set(names.taken))
    for key, x in leaves.found.items():
        leaves.load(key, x, name_of(x))
    printer = NodePrinter(
        Triton(
            lambda d: "C" if d == STEP else size_name(d),
            lambda d: "i" if d == STEP else axis_name(d),
            lambda d: "i_ok" if d == STEP else f"{axis_name(d)}_ok",
            lambda d: "C" if d == STEP else block_name(d),
        ),
        taken=leaves.taken,
    )
    count = range(len(LAWS[e.kind].identity))
    wishes = [f"{x}{n}" for x in ("map", "before", "whole") for n in count]
    if e.kind == "affine":
        wishes = ["f", "w", "f_before", "w_before", "whole"]
    made = [printer.fresh(x) for x in (*wishes, "edge", "enters")]
    maps, earlier = made[: len(count)], made[len(count) : 2 * len(count)]
    whole = made[2 * len(count) : -2]  # of a segment
    own = _Names(state, names(before), names(after), tuple(maps), tuple(earlier), tuple(whole), *made[-2:])
    reads_before = any(y is before for r in results for y in walk(r.node))
    return _Scan(e, axes, forward, tuple(results), leaves, printer, own, reads_before)


@dataclass(frozen=True)
class _Scan:
    """The statements of a scan."""

    e: Entry
    axes: Axes
    forward: bool
    results: tuple[Result, ...]
    leaves: _Leaves
    printer: NodePrinter
    names: _Names
    reads_before: bool

    @property
    def tile(self) -> Items:
        return shape("C", *map(block_name, self.axes))

    @property
    def entered(self) -> Code:
        """The state that a round begins with."""
        return Name(self.names.state).along(1, 1 + len(self.axes))

    def values(self, nodes: dict[str, Node], orders: dict[str, Axes]) -> tuple[list[Statement], dict[str, Code]]:
        """The statements for values of each step, and the expression of each, over steps and these axes."""
        made, values = self.printer.values(
            {n: expand(by_step(x), (STEP, *orders[n])) for n, x in nodes.items()},
            lambda x: Name(self.leaves.texts[x.attrs[:2]]),
            orders={n: (STEP, *order) for n, order in orders.items()},
            padding=lambda x: FINITE if x.attrs[0] in DECAYS else ZERO,
        )
        return [let(n, x) for n, x in made], values

    def entering(self) -> list[Statement]:
        """The statement that loads the state that enters, if there is one, at the first step of a tile, zero at the others: so it
        has the layout of tiles."""
        pointer, steps = Name(f"{self.names.state}_first") + Name("sh"), Name("i")
        at_first = steps.equals(0) if self.forward else steps.equals(Name("C") - 1)
        if not self.axes:
            return [let(self.names.enters, Load(pointer + steps * 0, at_first, Literal(0.0)))]
        index = axis_name(self.axes[0])
        pointer = Name(f"{self.names.state}_first") + Name("sh") * size_name(self.axes[0])
        pointer = pointer + Name(index).along(1, 2) + steps.along(0, 2) * 0
        mask = at_first.along(0, 2) & Name(f"{index}_ok").along(1, 2)
        return [let(self.names.enters, Load(pointer, mask, Literal(0.0)))]

    def affine(self) -> list[Statement]:
        """A round of a scan of affine maps, but for what is made of states."""
        f, w = map(Name, self.names.maps)
        linear = Name(f"{self.names.state}_linear")
        made, texts = self.values(
            {"factor": self.e.factor, "added": self.e.added}, dict.fromkeys(("factor", "added"), self.axes)
        )
        ok = Name("i_ok").along(0, 1 + len(self.axes))
        begins = where(ok, texts["added"], 0.0)
        begun = zeros(self.tile) + (begins * f if self.e.early else begins)
        steps: list[Statement] = [
            *self.leaves.loads,
            *made,
            let(f.id, zeros(self.tile) + where(ok, texts["factor"], 1.0)),
            let(w.id, begun.to("tl.float64") if self.e.turns else begun),
            If(linear.given, (Let(self.names.whole, f, "*="),)),
            # what enters comes with the first step: if the loop began with it, it would have two layouts, and be scanned for
            # both
            self.if_entered(added(w.id, f * self.at_first)),
        ]
        nothing = (call("tl.full", self.tile, 1.0, "tl.float32"), self.nothing(self.tile))
        before = Name(self.names.earlier[1]) + Name(self.names.earlier[0]) * self.entered
        steps += self.scanned(nothing, "one_after_other", "with_those_before", before)
        steps.append(let(self.names.after, w + f * self.entered))
        return steps

    def others(self) -> list[Statement]:
        """The same of maps that aren't affine."""
        maps, kind, orders = self.names.maps, self.e.kind, dict.fromkeys(self.names.maps, self.axes)
        made, texts = self.values(dict(zip(maps, self.e.maps, strict=True)), orders)
        ok = Name("i_ok").along(0, 1 + len(self.axes))
        unchanged = [_number(x) for x in LAWS[kind].identity]
        # what enters comes with the first step, whose map is that of a state less what enters
        moved = [added(b, Name(a) * self.at_first) for a, b in zip(maps[::2], maps[1::2], strict=False)]
        steps: list[Statement] = [
            *self.leaves.loads,
            *made,
            *(let(m, zeros(self.tile) + where(ok, texts[m], x)) for m, x in zip(maps, unchanged, strict=True)),
            self.if_entered(*moved),
        ]
        nothing = tuple(call("tl.full", self.tile, x, "tl.float32") for x in unchanged)
        before = call(f"{kind}_at", *self.names.earlier, self.entered)
        steps += self.scanned(nothing, f"{kind}_then", f"{kind}_then_beside", before)
        steps.append(let(self.names.after, call(f"{kind}_at", *maps, self.entered)))
        return steps

    def scanned(self, nothing: tuple[Code, ...], alone: str, beside: str, before: Code) -> list[Statement]:
        """The scan of the maps, with that of all steps but the last where results need the state before each step."""
        names = self.names.maps
        maps = tuple(map(Name, names))
        simple = Let(names, call("tl.associative_scan", Items(maps), 0, alone))
        if not self.reads_before:
            return [simple]
        both = Let(
            (*names, *self.names.earlier), call("tl.associative_scan", Items((*maps, *nothing)), 0, beside), broken=True
        )
        results = (both, let(self.names.before, before), self.if_entered(added(self.names.before, self.at_first)))
        turns = (self.less_turns(self.names.before),) if self.e.turns else ()
        return [If(Name("RESULTS"), (*results, *turns), (simple,))]

    def yielded(self) -> list[Statement]:
        """What is made of the states of these steps, and stored."""
        if not self.results:
            return []
        made, texts = self.values({r.name: r.node for r in self.results}, {r.name: r.order for r in self.results})
        turns = (self.less_turns(self.names.after),) if self.e.turns else ()
        return [If(Name("RESULTS"), (*turns, *made, *(stored(r, texts[r.name]) for r in self.results)))]

    def nothing(self, sizes: Items) -> Code:
        """Zeros of what is summed."""
        return call("tl.zeros", sizes, "tl.float64") if self.e.turns else zeros(sizes)

    def less_turns(self, name: str) -> Statement:
        """A sum of angles less whole turns, in float32."""
        return let(name, call("less_turns", name))

    def unchanged(self) -> list[Statement]:
        """The map of a segment, before its first step."""
        if self.e.kind == "affine":  # a product for each place of a tile: the end of a segment multiplies these
            return [let(self.names.whole[0], call("tl.full", self.tile, 1.0, "tl.float32"))]
        lane, identity = shape(*map(block_name, self.axes)), map(_number, LAWS[self.e.kind].identity)
        return [let(n, call("tl.full", lane, x, "tl.float32")) for n, x in zip(self.names.whole, identity, strict=True)]

    def left(self) -> dict[str, Code]:
        """The numbers of a segment's map, by what stores them; of an affine one the state that it leaves is the other."""
        pointers = states_of(self.names.state, self.e.kind)[2:]
        if self.e.kind == "affine":
            return {pointers[0]: call("tl.reduce", self.names.whole[0], 0, "times")}
        return dict(zip(pointers, map(Name, self.names.whole), strict=True))

    def left_by_round(self) -> list[Statement]:
        """The state that the next steps begin with, and the map of all steps so far."""
        names = self.names
        last = Name("i").equals(Name("C") - 1 if self.forward else 0)
        found: list[Statement] = [let(names.edge, last, note="steps beyond the end keep states as they are")]
        if self.e.kind != "affine":
            these = tuple(self._at_edge(m) for m in names.maps)
            whole = Let(names.whole, call(f"{self.e.kind}_then", *names.whole, *these))
            begins = If(
                Name("n").equals(0), tuple(let(x, y) for x, y in zip(names.whole, these, strict=True)), (whole,)
            )
            found.append(If(Name(states_of(names.state, self.e.kind)[2]).given, (begins,)))
        return [*found, let(names.state, self._at_edge(names.after))]

    def _at_edge(self, value: str) -> Code:
        """A value of the last of these steps."""
        at_edge = Name(self.names.edge).along(0, 1 + len(self.axes))
        return call("tl.sum", where(at_edge, Name(value), 0.0), axis=0)

    @property
    def at_first(self) -> Code:
        """What enters, in the first round."""
        return where(Name("n").equals(0), Name(self.names.enters), 0.0)

    def if_entered(self, *body: Statement) -> If:
        return If(Name(f"{self.names.state}_first").given, body)


def states_of(state: str, kind: str) -> tuple[str, ...]:
    """Arguments of a scan that are states: the one that enters, the one that is left, and the numbers of a segment's map."""
    numbers = ("linear",) if kind == "affine" else tuple(f"map{n}" for n in range(len(LAWS[kind].identity)))
    return tuple(f"{state}_{x}" for x in ("first", "last", *numbers))


def _number(x: float) -> Code:
    """An entry of a map that changes nothing."""
    return call("float", Literal(str(x))) if x in (float("inf"), -float("inf")) else Literal(x)


def _places(axes: Axes, forward: bool) -> tuple[list[Statement], list[Statement]]:
    """The statements that say where a program is, and where a round of its loop is."""
    program = call("tl.program_id", 0)
    tiles: Code = call("tl.cdiv", size_name(axes[0]), block_name(axes[0])) if axes else Literal(1)
    steps = call("tl.arange", 0, "C")
    setup: list[Statement] = [
        let("sh", (program // tiles).to("tl.int64")),
        let("h", Name("sh") % "H"),
        Let(
            ("b", "segment", "begin", "stop", "first"),
            call("segment_of", Name("sh") // "H", "T", "starts", "segments", "length", "C"),
        ),
        let("count", call("tl.cdiv", call("tl.maximum", Name("stop") - "begin", 0), "C").to("tl.int32")),
        let("i", steps) if forward else let("i", Name("C") - 1 - steps, note="in the order of the sweep"),
    ]
    for a in axes:
        index = axis_name(a)
        setup += [
            let(index, program % tiles * block_name(a) + call("tl.arange", 0, block_name(a))),
            let(f"{index}_ok", Name(index) < size_name(a)),
        ]
    number = Name("n") if forward else Name("count") - 1 - "n"
    loop: list[Statement] = [
        let("t0", Name("begin") + call("tl.cast", number, "tl.int64") * "C"),
        let("i_ok", Name("i") < call("tl.minimum", Name("stop") - "t0", "C").to("tl.int32")),
        let("step", Name("t0") + "i"),
        let("at", (Name("b") * "T" + "step") * "H" + "h"),
    ]
    return setup, loop


def _left(pointer: str, value: Code, axes: Axes) -> Store:
    """The statement that stores what is left of a segment, a state or what is like one."""
    if not axes:
        return Store(Name(pointer) + "sh", value)
    index, size = axis_name(axes[0]), size_name(axes[0])
    return Store(Name(pointer) + Name("sh") * size + index, value, Name(f"{index}_ok"))


def launched(kernel: ScanKernel, first: Code, finals: Code) -> list[LaunchStatement]:
    """The statements that scan a state, in segments where there are few programs, and allocate what that makes. `finals`: when
    the last state is wanted."""
    S, results, forward = kernel.state, kernel.results, kernel.forward
    own = sizes(kernel.axes)
    width = made_by("scan_width", own[0]) if own else Literal(1)
    tiles = cdiv(own[0], width) if own else Literal(1)
    found: list[LaunchStatement] = [Define(("segments",), made_by("scan_segments", "layout", tiles))]
    for r in results:
        shape = row("B", "T", "H", *sizes(r.order))
        found.append(Alloc(r.name, shape, r.dtype, when_wanted(r)))
    tensors = [passed(tensor, x, kernel.sometimes.get(x.attrs[:2])) for _, tensor, x in kernel.leaves]
    words = [(x, Fixed(x)) for x in map(size_name, kernel.dims)] + [(block_name(a), width) for a in kernel.axes]

    affine = kernel.kind == "affine"
    numbers = [ref(x) for x in states_of(S, kernel.kind)[2:]]
    made = [*numbers, *([ref(f"{S}_ends")] if affine else [])]  # a segment's map

    def launch(ends: bool) -> Launch:
        whole = [ref(f"{S}_starts"), ref(f"{S}_last"), *(NONE for _ in numbers)]
        left = [NONE, ref(f"{S}_ends") if affine else NONE, *numbers] if ends else whole
        states = [Passed(left[0]), *(stored_to(x, tiles=bool(own)) for x in left[1:])]
        outs = [stored_to(NONE if ends else ref(r.name), tiles=bool(r.order)) for r in results]
        return Launch(
            kernel.name,
            Fixed("layout.sequences") * Fixed("segments") * Fixed("H") * tiles,
            (*states, *tensors, *outs),
            (Starred(Fixed("layout.swept")), Fixed("segments"), made_by("layout.length", "segments")),
            (*words, ("C", Fixed("SCAN") if own else Fixed("LONG_SCAN")), ("RESULTS", code(not ends))),
            (("STAGES", made_by("scan_stages", "segments")), ("num_warps", Literal(1))),
            frozenset({STEPS, HEADS, *([TILES] if own else [])}),
        )

    dtype = "torch.float64" if kernel.entry is not None and kernel.entry.turns else "torch.float32"
    empty = made_by("some.new_empty", several(Fixed("B") * Fixed("segments"), "H", *own), dtype=dtype)
    ends = Group(Each(empty, ("_",), made_by("range", len(made)), bare=True))
    maps = several(*made)
    entering = (said(kernel.kind), first, maps, Fixed("layout"), Fixed("segments"), code(forward))
    segments: Body = (
        Set(tuple(x.id for x in made), ends),
        launch(True),
        Call((f"{S}_starts",), "scanned", entering),
    )
    found += [Set((f"{S}_starts",), first), LaunchIf(Fixed("segments") > 1, segments)]
    if finals == FALSE:
        found.append(Set((f"{S}_last",), NONE))
    else:
        when = None if finals == TRUE else finals
        shape = row(Fixed("layout.sequences") * Fixed("segments"), "H", *own)
        found.append(Alloc(f"{S}_last", shape, when=when))
    found.append(launch(False))
    if finals != FALSE:
        last = ref(f"{S}_last")
        whole = method(last, "unflatten", 0, several("B", "segments"))[:, -1 if forward else 0]
        found.append(LaunchIf(also(Fixed("segments") > 1, last.given), (Set((f"{S}_last",), whole),)))
    return found
