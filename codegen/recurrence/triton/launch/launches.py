"""The launch of a kernel of a plan: how many programs take it, what they are given, and what it is compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....ir.expr import ROW, dim_of, leaf
from ....ir.launch_ir import HEADS, NONE, STEPS, TILES, Define, Expr, For, Launch, Passed, Statement, joined, py, ref
from ....ir.warp_schedule import Invert, Leave, Product, Schedule
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel, slow_path_name
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import WEIGHT
from ..print.axis_names import block_name, size_name, tile_name
from ..print.names import Names

TAILS = {Role.TAIL: "ends", Role.TAIL_MAP: "linear", Role.LIVE: "live"}  # as `tails_of` calls them


@dataclass(frozen=True)
class Launches:
    """Launches of kernels over tensors with these names. `steps_of_block`: how many steps a block has, as Python; `rows`: the
    axis in rows of states that are kept for a fused backward."""

    names: Names
    steps_of_block: str
    rows: str | None = None

    def launch(
        self,
        kernel: Kernel,
        ends: bool = False,
        block: str = "",
        wide: bool = False,
        wanted: Sequence[str] = (),
    ) -> list[Statement]:
        """The launch of a kernel; of a sweep, for its `ends`: what each segment makes of the states, and nothing of what it
        yields. `block` begins the names of decays over blocks, where it takes blocks at once. `wide`: it stores tiles in
        float32.
        `wanted`: when each of a sweep's reads is."""
        if kernel.slow_path:
            return [self._launched(kernel, ends, block, True), self._launched(kernel, ends, block, False)]
        launch = self._launched(kernel, ends, block)
        if kernel.roles is not None and kernel.tiled is not None and not ends:
            launch = self.with_roles(launch, kernel)
        if kernel.roles is not None and kernel.whole:
            words = [w for a in kernel.axes for w in (size_name(dim_of(a)), block_name(a))]
            launch = replace(launch, roles=tuple(words), chooser="launch_fused_with_roles")
        if not kernel.sweeps or kernel.whole:
            return [launch]
        size = "None" if kernel.tiled is None else size_name(dim_of(kernel.tiled))
        more = ["elements=True"] if kernel.products else []
        if kernel.products and not ends and wide:
            more.append("wide=True")
        if kernel.apart and not ends:
            each = [self._loaded(kernel), *(self._loaded(kernel, x.loads) for x in kernel.apart)]
            more += [f"wanted=({', '.join(wanted)})"] if wanted else []
            given = joined([size, *(py("({})", x) for x in each), *more])
            return [For(("read", "keeps", "sweep"), py("config.by_read({})", given), (launch,))]
        if ends and kernel.inner is not None:
            slim = "" if kernel.slim else ", slim=False"
            more.append(f"programs=config.crowd(config.padded({size_name(dim_of(kernel.inner))}){slim})")
        loaded = self._loaded(kernel, kernel.carried if ends else None)
        sweep = Define(("sweep",), py("config.sweep({})", joined([size, loaded, *more])))
        if not ends or kernel.inner is None:
            return [sweep, launch]
        (name,) = (a.base for a in kernel.arguments if a.role is Role.LINEAR)
        places, before = joined([ref(f"{name}_ends"), ref(f"{name}_linear")]), [sweep]
        if kernel.tails:
            before.append(Define(("tails",), py("tails_of({}, layout.length(segments), sweep.tile)", places)))
        tails, which = (["tails"], "tail") if kernel.tails else ([], "_")
        over = py("by_launch({})", joined([places, "sweep.programs", *tails]))
        return [*before, For((which, "ends", "linear"), over, (launch,), ("ends", "linear"))]

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
        places = ["*{}.swept", "segments", "{}.length(segments)"] if kernel.sweeps else ["*{}.at_once", "{}.programs"]
        places += ["blocks.chunks"] if kernel.checkpoints else []
        grid = self._grid(kernel, ends, layout, small_range)
        words = self._words(kernel, ends, block, small_range)
        where = tuple(py(x, layout) if "{" in x else Expr(x) for x in places)
        in_tiles = kernel.tiled is not None and not kernel.one_tile
        programs = frozenset({STEPS, HEADS, *([TILES] if in_tiles else [])})
        chunks = small_range if kernel.slow_path else None
        return Launch(name, grid, arguments, where, tuple(words), programs=programs, small_range=chunks)

    def _grid(self, kernel: Kernel, ends: bool, layout: str, small_range: bool | None) -> Expr:
        """How many programs take a kernel."""
        grid = "layout.sequences * segments * H" if kernel.sweeps else f"{layout}.programs"
        grid = f"cdiv({grid}, GROUP)" if small_range is False else grid
        if kernel.queues:
            grid = f"config.queues({grid})"
        if kernel.tiled is not None:
            wide = self._block(kernel, kernel.tiled)
            counts = f"cdiv({size_name(dim_of(kernel.tiled))}, {wide})"
            if ends and kernel.inner is not None:  # tiles of a matrix as well, or alone
                columns = f"cdiv({size_name(dim_of(kernel.inner))}, {wide})"
                made = py(
                    "({} * ({} is not None) + {} * ({} is not None))", counts, ref("ends"), columns, ref("linear")
                )
                return py("{} * {}", grid, made)
            grid += f" * {counts}"
        return Expr(grid)

    def _words(self, kernel: Kernel, ends: bool, block: str, small_range: bool | None) -> list[tuple[str, Expr]]:
        """What a kernel is compiled for, and how it is launched."""
        layout, chunk, levels = (
            ("blocks", self.steps_of_block, "LEVELS") if block else ("layout", "config.chunk", "config.levels")
        )
        words: dict[str, str | Expr] = {n: n for n in (size_name(dim_of(x)) for x in (*kernel.axes, *kernel.parts))}
        words |= {block_name(a): self._block(kernel, a) for a in kernel.axes}
        part = "BLOCK" if block else "config.block"
        words |= {tile_name(a): f"min({part}, config.padded({size_name(dim_of(a))}))" for a in kernel.parts}
        words |= {"SMALL_RANGE": str(small_range), "GROUP": "GROUP"} if kernel.slow_path else {}
        loaded = self._bytes_loaded(kernel)[0] if kernel.whole or kernel.queues else NONE
        if kernel.whole:
            widths = [f"config.padded({size_name(dim_of(a))})" for a in kernel.axes]
            stages = py("stages_of({}, 2 * {})", loaded, " * ".join(widths))
            words |= {"YIELD": "True", "WARPS": f"warps_of(({', '.join(widths)}))", "STAGES": stages}
        elif kernel.sweeps:
            words |= {"YIELD": str(not ends), "WARPS": "sweep.warps", "STAGES": "sweep.stages"}
            words |= {"PRODUCTS": "sweep.products"} if kernel.products else {}
            words |= {"READ": "0" if ends else "read"} if kernel.apart else {}
            words |= {"TAIL": "tail" if ends else "0"} if kernel.tails else {}
        words |= {"BLOCK": self.steps_of_block} if kernel.checkpoints else {}
        if kernel.rows:
            assert self.rows is not None
            words["ROWS"] = f"config.padded({size_name(dim_of(self.rows))})"
        words |= {} if kernel.sweeps else {"CHUNK": "config.chunk"}
        words |= {"STAGES": py("config.queued({}, {})", loaded, chunk)} if kernel.queues else {}
        words |= {
            "C": chunk,
            "LEVELS": levels,
            "EVEN": f"{layout}.even",
            "EXACT": "config.exact",
            "DT": "DTYPES[some.dtype]",
        }
        words["num_warps"] = self._warps(kernel, bool(block))
        words["num_stages"] = "2" if kernel.sweeps else "1"
        if not kernel.whole:
            most = (
                "sweep.registers"
                if kernel.sweeps
                else f"{_prologue_config(kernel)}.registers"
                if kernel.few and not block
                else "config.most"
            )
            words["maxnreg"] = (
                "255" if kernel.queues else most
            )  # as many as there are for each of 4 programs with 2 warps
        if any(
            a.source is not None and a.source.op == "leaf" and a.source.attrs[0] == WEIGHT for a in kernel.arguments
        ):
            # States that are mixed are sums of products: in float32 the last bits would depend on which of them is fused with
            # the sum, and that on all that a kernel is compiled for. It takes longer: products in float32 are fused as well.
            words["enable_fp_fusion"] = "not config.exact"
        return [(n, x if isinstance(x, Expr) else Expr(x)) for n, x in words.items()]

    def _warps(self, kernel: Kernel, blocks: bool) -> str:
        """How many warps a program of a kernel has."""
        if kernel.whole:
            return f"warps_of(({', '.join(f'config.padded({size_name(dim_of(a))})' for a in kernel.axes)}))"
        if not blocks:
            return "sweep.warps" if kernel.sweeps else f"{_prologue_config(kernel)}.prologue_warps"
        wholes = [f"config.padded({size_name(dim_of(a))})" for a in kernel.axes if a != kernel.tiled]
        more = ", many=True" if kernel.many else ""
        return f"config.read_warps({', '.join(wholes)}{more})" if kernel.reads and wholes else "4"

    def _loaded(self, kernel: Kernel, only: frozenset[str] | None = None) -> Expr:
        """How many bytes a kernel loads for each step, perhaps of these alone: of tiles along the axes that it has whole, of
        matrices and numbers, and of each channel of other tiles."""
        return joined(self._bytes_loaded(kernel, only))

    def _bytes_loaded(self, kernel: Kernel, only: frozenset[str] | None = None) -> list[Expr]:
        found: dict[str | None, list[Expr]] = {}
        arguments = {a.name: a for a in kernel.arguments}
        for argument, axis in kernel.loads:
            if only is None or argument in only:
                tensor = self._tensor_of(arguments[argument])
                found.setdefault(axis, []).append(py("{}.element_size()", tensor))
        texts: dict[str, list[Expr]] = {"whole": [], "matrices": [], "tiles": []}
        for axis, sizes in found.items():
            each = py("({})", joined(sizes, " + ")) if len(sizes) > 1 else sizes[0]
            if axis == ROW:
                texts["matrices"] += sizes
            elif axis is None:
                texts["matrices"].append(py("config.chunk * {}", each))
            elif axis == kernel.tiled:
                texts["tiles"] += sizes
            else:
                texts["whole"].append(py("config.padded({}) * {}", size_name(dim_of(axis)), each))
        return [joined(x, " + ") if x else Expr("0") for x in texts.values()]

    def _passed(self, a: Argument, kernel: Kernel, ends: bool, block: str = "") -> Passed:
        """What a launch passes for an argument."""
        own = self._value_passed(a, kernel, ends, block)
        return Passed(own, a.loaded, a.stored, _places_of(a, kernel) if a.stored else frozenset())

    def _value_passed(self, a: Argument, kernel: Kernel, ends: bool, block: str) -> Expr:
        once = "{} if keeps else None" if kernel.apart and not ends else "{}"  # what one launch stores
        x = a.source
        assert x is not None
        if a.layout == "checkpoint":
            return NONE if ends else py(once, ref(a.name))
        if a.layout == "step":
            tensor = ref(self.names(x))
            return py("{}, *strides({}, H)", tensor, tensor)
        if a.layout == "number":
            return Expr(f'constants["{x.attrs[1]}"]')
        if a.layout == "size":
            return Expr(size_name(x.attrs[0]))
        if a.layout == "state":
            state = self._passed_state(a, x.attrs[1], kernel, ends)
            return py(once, state) if a.role is Role.LAST and state != NONE else state
        if ends and a.role is Role.OUT:
            return NONE
        return self._tensor_of(a, block)

    def _tensor_of(self, a: Argument, block: str = "") -> Expr:
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

    def _passed_state(self, a: Argument, state: str, kernel: Kernel, ends: bool) -> Expr:
        name = self.names(leaf("state", state))
        if a.role is Role.FIRST:
            return NONE if ends else ref(f"{name}_starts")
        if a.role is Role.LINEAR:
            return ref("linear") if ends else NONE
        if a.role in TAILS:
            return Expr(f"tails and tails.{TAILS[a.role]}") if ends else NONE
        if ends:
            return ref("ends") if kernel.inner is not None else ref(f"{name}_ends")
        return ref(f"{name}_last") if state in kernel.finals else NONE

    def _block(self, kernel: Kernel, axis: str) -> str:
        if axis == kernel.tiled:
            return "sweep.tile" if kernel.sweeps and not kernel.whole else self.tile(axis, kernel.reads)
        whole = f"config.padded({size_name(dim_of(axis))})"
        return f"min(config.slice, {whole})" if kernel.sweeps and not kernel.whole else whole

    def tile(self, axis: str, reads: bool = False) -> str:
        """How wide a tile is, of a sweep or of what reads checkpointed states."""
        return f"min(config.{'read_tile' if reads else 'tile'}, config.padded({size_name(dim_of(axis))}))"

    def tile_count(self, o: Opened, reads: bool = False) -> str:
        if len(o.tile) != 1:
            return "1"
        return f"cdiv({size_name(dim_of(o.tile[0]))}, {self.tile(o.tile[0], reads)})"


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
