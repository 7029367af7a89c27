"""The launch of a kernel of a plan: how many programs take it, what they are given, and what it is compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....ir.code import Literal, Not, Starred, plus, times
from ....ir.expr import ROW, dim_of, leaf
from ....ir.launch_ir import HEADS, NONE, STEPS, TILES, Code, Define, For, Launch, Passed, Statement, ref
from ....ir.python_code import FALSE, TRUE, Fixed, Named, also, beside, choice, made_by, method, of, several
from ....ir.warp_schedule import Invert, Leave, Product, Schedule
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel, slow_path_name
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import TRANSITION
from ..print.axis_names import block_name, size_name, tile_name
from ..print.names import Names
from ..print.sizes import cdiv, least, padded, size

TAILS = {Role.TAIL: "ends", Role.TAIL_MAP: "linear", Role.LIVE: "live"}  # as `tails_of` calls them


@dataclass(frozen=True)
class Launches:
    """Launches of kernels over tensors with these names. `steps_of_block`: how many steps a block has; `rows`: the axis in rows
    of states that are kept for a fused backward."""

    names: Names
    steps_of_block: Code
    rows: str | None = None

    def launch(
        self,
        kernel: Kernel,
        ends: bool = False,
        block: str = "",
        wide: bool = False,
        wanted: Sequence[Code] = (),
    ) -> list[Statement]:
        """The launch of a kernel; of a sweep, for its `ends`: what each segment makes of the states, and nothing of what it
        yields. `block` begins the names of decays over blocks, where it takes blocks at once. `wide`: it stores tiles in
        float32.
        `wanted`: when each of a sweep's reads is."""
        if kernel.slow_path:
            fast = self._launched(kernel, ends, block, True)
            return [self.placed(fast, kernel), self._launched(kernel, ends, block, False)]
        launch = self._launched(kernel, ends, block)
        if kernel.roles is not None and kernel.tiled is not None and not ends:
            launch = self.with_roles(launch, kernel)
        if kernel.roles is not None and kernel.whole:
            words = [w for a in kernel.axes for w in (size_name(dim_of(a)), block_name(a))]
            launch = replace(launch, roles=tuple(words), chooser="launch_fused_with_roles")
        if not kernel.sweeps or kernel.whole:
            return [launch]
        tiled = NONE if kernel.tiled is None else size(kernel.tiled)
        more = [Named("elements", TRUE)] if kernel.products else []
        if kernel.products and not ends and wide:
            more.append(Named("wide", TRUE))
        if kernel.apart and not ends:
            each = [self._loaded(kernel), *(self._loaded(kernel, x.loads) for x in kernel.apart)]
            more += [Named("wanted", several(*wanted))] if wanted else []
            over = made_by("config.by_read", tiled, *(several(*x) for x in each), *more)
            return [For(("read", "keeps", "sweep"), over, (launch,))]
        if ends and kernel.inner is not None:
            slim = [] if kernel.slim else [Named("slim", FALSE)]
            more.append(Named("programs", made_by("config.crowd", padded(kernel.inner), *slim)))
        loaded = self._loaded(kernel, kernel.carried if ends else None)
        sweep = Define(("sweep",), made_by("config.sweep", tiled, *loaded, *more))
        if not ends or kernel.inner is None:
            return [sweep, launch]
        (name,) = (a.base for a in kernel.arguments if a.role is Role.LINEAR)
        places, before = (ref(f"{name}_ends"), ref(f"{name}_linear")), [sweep]
        if kernel.tails:
            before.append(
                Define(("tails",), made_by("tails_of", *places, made_by("layout.length", "segments"), "sweep.tile"))
            )
        tails, which = (["tails"], "tail") if kernel.tails else ([], "_")
        over = made_by("by_launch", *places, "sweep.programs", *tails)
        return [*before, For((which, "ends", "linear"), over, (launch,), ("ends", "linear"))]

    def placed(self, launch: Launch, kernel: Kernel) -> Launch:
        """The launch of a kernel in whose place there may be one whose tiles are copied ahead of time."""
        if kernel.placed is None:
            return launch
        axes = [a for x in (False, True) for a in kernel.axes if (a == kernel.tiled) == x]
        words = [w for a in axes for w in (size_name(dim_of(a)), block_name(a))]
        return replace(
            launch, roles=(*words, *kernel.placed.sources), chooser="launch_placed", instead=kernel.placed.name
        )

    def with_roles(self, launch: Launch, kernel: Kernel) -> Launch:
        """The launch of a sweep that has a kernel with roles: in its place, or where a call asks for it."""
        assert kernel.roles is not None
        (whole,) = (a for a in kernel.axes if a != kernel.tiled)
        words = [w for a in (whole, kernel.tiled) if a is not None for w in (size_name(dim_of(a)), block_name(a))]
        launch = replace(launch, roles=tuple(words))
        if not kernel.roles.several:
            return launch
        if not kernel.roles.prepares:
            return replace(launch, chooser="launch_loaded_with_roles")
        return replace(launch, chooser=f"launch_joined{_registers(kernel.roles)}", alone=True)

    def _launched(self, kernel: Kernel, ends: bool, block: str, small_range: bool | None = None) -> Launch:
        layout = "blocks" if block else "layout"
        name = slow_path_name(kernel.name) if small_range is False else kernel.name
        arguments = tuple(self._passed(a, kernel, ends, block) for a in kernel.arguments)
        chunks = [Starred(Fixed(f"{layout}.at_once")), Fixed(f"{layout}.programs")]
        if kernel.sweeps:
            chunks = [Starred(Fixed(f"{layout}.swept")), Fixed("segments"), made_by(f"{layout}.length", "segments")]
        places = (*chunks, *([Fixed("blocks.chunks")] if kernel.checkpoints else []))
        grid = self._grid(kernel, ends, layout, small_range)
        words = self._words(kernel, ends, block, small_range)
        in_tiles = kernel.tiled is not None and not kernel.one_tile
        programs = frozenset({STEPS, HEADS, *([TILES] if in_tiles else [])})
        some = small_range if kernel.slow_path else None
        return Launch(name, grid, arguments, places, tuple(words), programs=programs, small_range=some)

    def _grid(self, kernel: Kernel, ends: bool, layout: str, small_range: bool | None) -> Code:
        """How many programs take a kernel."""
        grid: Code = Fixed(f"{layout}.programs")
        if kernel.sweeps:
            grid = Fixed("layout.sequences") * Fixed("segments") * Fixed("H")
        grid = cdiv(grid, "GROUP") if small_range is False else grid
        if kernel.queues:
            grid = made_by("config.queues", grid)
        if kernel.tiled is not None:
            wide = self._block(kernel, kernel.tiled)
            counts = cdiv(size(kernel.tiled), wide)
            if ends and kernel.inner is not None:  # tiles of a matrix as well, or alone
                columns = cdiv(size(kernel.inner), wide)
                return grid * (counts * ref("ends").given + columns * ref("linear").given)
            grid = grid * counts
        return grid

    def _words(self, kernel: Kernel, ends: bool, block: str, small_range: bool | None) -> list[tuple[str, Code]]:
        """What a kernel is compiled for, and how it is launched."""
        layout, levels = ("blocks", "LEVELS") if block else ("layout", "config.levels")
        chunk = self.steps_of_block if block else Fixed("config.chunk")
        words: dict[str, str | int | Code] = {size_name(dim_of(x)): size(x) for x in (*kernel.axes, *kernel.parts)}
        words |= {block_name(a): self._block(kernel, a) for a in kernel.axes}
        part = "INTERVAL" if block else "config.block"
        words |= {tile_name(a): least(part, padded(a)) for a in kernel.parts}
        words |= {"SMALL_RANGE": Literal(small_range), "GROUP": "GROUP"} if kernel.slow_path else {}
        loaded = self._bytes_loaded(kernel)[0] if kernel.whole or kernel.queues else NONE
        if kernel.whole:
            stages = made_by("stages_of", loaded, times(2, *map(padded, kernel.axes)))
            words |= {"YIELD": TRUE, "WARPS": _warps_of(kernel), "STAGES": stages}
        elif kernel.sweeps:
            words |= {"YIELD": Literal(not ends), "WARPS": "sweep.warps", "STAGES": "sweep.stages"}
            words |= {"PRODUCTS": "sweep.products"} if kernel.products else {}
            words |= {"READ": 0 if ends else "read"} if kernel.apart else {}
            words |= {"TAIL": "tail" if ends else 0} if kernel.tails else {}
        words |= {"BLOCK": self.steps_of_block} if kernel.checkpoints else {}
        if kernel.rows:
            assert self.rows is not None
            words["ROWS"] = padded(self.rows)
        words |= {} if kernel.sweeps else {"CHUNK": "config.chunk"}
        words |= {"STAGES": made_by("config.queued", loaded, chunk)} if kernel.queues else {}
        words |= {
            "C": chunk,
            "LEVELS": levels,
            "EVEN": f"{layout}.even",
            "EXACT": "config.exact",
            "DT": Fixed("DTYPES")[Fixed("some.dtype")],
        }
        words["num_warps"] = self._warps(kernel, bool(block))
        words["num_stages"] = 2 if kernel.sweeps else 1
        if not kernel.whole:
            most = (
                "sweep.registers"
                if kernel.sweeps
                else f"{_prologue_config(kernel)}.registers"
                if kernel.few and not block
                else "config.most"
            )
            words["maxnreg"] = (
                255 if kernel.queues else most
            )  # as many as there are for each of 4 programs with 2 warps
        if any(
            a.source is not None and a.source.op == "leaf" and a.source.attrs[0] == TRANSITION for a in kernel.arguments
        ):
            # States that are mixed are sums of products: in float32 the last bits would depend on which of them is fused with
            # the sum, and that on all that a kernel is compiled for. It takes longer: products in float32 are fused as well.
            words["enable_fp_fusion"] = Not(Fixed("config.exact"))
        return [(n, of(x)) for n, x in words.items()]

    def _warps(self, kernel: Kernel, blocks: bool) -> Code:
        """How many warps a program of a kernel has."""
        if kernel.whole:
            return _warps_of(kernel)
        if not blocks:
            return Fixed("sweep.warps" if kernel.sweeps else f"{_prologue_config(kernel)}.prologue_warps")
        wholes = [padded(a) for a in kernel.axes if a != kernel.tiled]
        more = [Named("many", TRUE)] if kernel.many else []
        return made_by("config.read_warps", *wholes, *more) if kernel.reads and wholes else Literal(4)

    def _loaded(self, kernel: Kernel, only: frozenset[str] | None = None) -> list[Code]:
        """How many bytes a kernel loads for each step, perhaps of these alone: of tiles along the axes that it has whole, of
        matrices and numbers, and of each channel of other tiles."""
        return self._bytes_loaded(kernel, only)

    def _bytes_loaded(self, kernel: Kernel, only: frozenset[str] | None = None) -> list[Code]:
        found: dict[str | None, list[Code]] = {}
        arguments = {a.name: a for a in kernel.arguments}
        for argument, axis in kernel.loads:
            if only is None or argument in only:
                tensor = self._tensor_of(arguments[argument])
                found.setdefault(axis, []).append(method(tensor, "element_size"))
        parts: dict[str, list[Code]] = {"whole": [], "matrices": [], "tiles": []}
        for axis, sizes in found.items():
            each = plus(*sizes)
            if axis == ROW:
                parts["matrices"] += sizes
            elif axis is None:
                parts["matrices"].append(Fixed("config.chunk") * each)
            elif axis == kernel.tiled:
                parts["tiles"] += sizes
            else:
                parts["whole"].append(padded(axis) * each)
        return [plus(*x) if x else Literal(0) for x in parts.values()]

    def _passed(self, a: Argument, kernel: Kernel, ends: bool, block: str = "") -> Passed:
        """What a launch passes for an argument."""
        own = self._value_passed(a, kernel, ends, block)
        return Passed(own, a.loaded, a.stored, _places_of(a, kernel) if a.stored else frozenset())

    def _value_passed(self, a: Argument, kernel: Kernel, ends: bool, block: str) -> Code:
        x = a.source

        def once(value: Code) -> Code:
            """What one launch stores."""
            return choice(value, "keeps", None) if kernel.apart and not ends else value

        assert x is not None
        if a.layout == "checkpoint":
            return NONE if ends else once(ref(a.name))
        if a.layout == "step":
            tensor = ref(self.names(x))
            return beside(tensor, Starred(made_by("strides", tensor, "H")))
        if a.layout == "number":
            return Fixed("constants")[x.attrs[1]]
        if a.layout == "size":
            return Fixed(size_name(x.attrs[0]))
        if a.layout == "state":
            state = self._passed_state(a, x.attrs[1], kernel, ends)
            return once(state) if a.role is Role.LAST and state != NONE else state
        if ends and a.role is Role.OUT:
            return NONE
        return self._tensor_of(a, block)

    def _tensor_of(self, a: Argument, block: str = "") -> Code:
        """The tensor that an argument is of."""
        x = a.source
        assert x is not None
        made_in_prologue = a.layout == "matrix" or (
            a.layout == "chunked" and x.op == "leaf" and x.attrs[0] in ("scaled", "intra")
        )
        if made_in_prologue:
            return ref(f"{self.names(x)}{'_blocks' * bool(block)}")
        if a.layout in ("sums", "out", "head", "step"):
            return ref(self.names(x))
        return ref(a.name if a.axes or a.role is Role.BY_HEAD else f"{block}{a.name}")

    def _passed_state(self, a: Argument, state: str, kernel: Kernel, ends: bool) -> Code:
        name = self.names(leaf("state", state))
        if a.role is Role.FIRST:
            return NONE if ends else ref(f"{name}_starts")
        if a.role is Role.LINEAR:
            return ref("linear") if ends else NONE
        if a.role in TAILS:
            return also("tails", f"tails.{TAILS[a.role]}") if ends else NONE
        if ends:
            return ref("ends") if kernel.inner is not None else ref(f"{name}_ends")
        return ref(f"{name}_last") if state in kernel.finals else NONE

    def _block(self, kernel: Kernel, axis: str) -> Code:
        sweeps = kernel.sweeps and not kernel.whole
        if axis == kernel.tiled:
            return Fixed("sweep.tile") if sweeps else self.tile(axis, kernel.reads)
        return least("config.slice", padded(axis)) if sweeps else padded(axis)

    def tile(self, axis: str, reads: bool = False) -> Code:
        """How wide a tile is, of a sweep or of what reads checkpointed states."""
        return least("config.read_tile" if reads else "config.tile", padded(axis))

    def tile_count(self, o: Opened, reads: bool = False) -> Code:
        return cdiv(size(o.tile[0]), self.tile(o.tile[0], reads)) if len(o.tile) == 1 else Literal(1)


def _warps_of(kernel: Kernel) -> Code:
    return made_by("warps_of", several(*map(padded, kernel.axes)))


def _registers(s: Schedule) -> str:
    """Which of the functions that launch kernels with a preparer it is, by what this needs registers for: inverses, several
    products, and what it leaves in memory."""
    steps = [x for r in s.roles if r.together for x in r.steps]
    leaves, inverts = (any(isinstance(x, kind) for x in steps) for kind in (Leave, Invert))
    if not inverts:
        return "_light" if sum(isinstance(x, Product) for x in steps) > 1 else "_slight"
    return "_heavy" if leaves else ""


def _places_of(a: Argument, kernel: Kernel) -> frozenset[str]:
    """What the places differ in where a kernel stores. Sums over a tile, of which numbers of each step are made, have a place for
    each tile; other numbers are the same in all tiles."""
    own = {size_name(dim_of(x)) for x in a.axes} | {size_name(dim_of(x)) for x in getattr(a.source, "axes", ())}
    each = kernel.tiled is None or size_name(dim_of(kernel.tiled)) in own or not own
    return frozenset({STEPS, HEADS, *([TILES] if each else [])})


def _prologue_config(kernel: Kernel) -> str:
    """What says how a prologue kernel is launched."""
    return "config.summing" if kernel.making else "config"
