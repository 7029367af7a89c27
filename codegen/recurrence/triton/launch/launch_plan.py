"""The functions that launch the kernels of a plan: `triton_forward` and `triton_backward`, as the op calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from ....ir.expr import (
    COL,
    ROW,
    ZERO,
    Node,
    add,
    dim_of,
    factors_of,
    leaf,
    plain_name,
    rename,
    terms_of,
    walk,
)
from ....ir.expr import replace as replaced
from ....ir.launch_ir import (
    NONE,
    Alloc,
    Call,
    Define,
    Do,
    Expr,
    Function,
    If,
    Launch,
    Passed,
    Return,
    Set,
    Statement,
    Update,
    Wanted,
    any_wanted,
    joined,
    py,
    ref,
    stored,
)
from ....ir.step_program import StateVar, StepProgram, Var
from ....printing.cannot_print import CannotPrint
from ....printing.code_passes import finished_function
from ....printing.expressions import NodePrinter, Printed, Torch
from ....printing.launch_text import launch_text
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Accumulate, Map, Plan, Stage, Sweep, Unroll
from ...chunkwise.segment_maps import feeds_back, linear_sweep
from ...normal_form.form import StateAdjointProduct, StateForm
from ...normal_form.log_decay import log_of
from ...step.adjoint import gradient_name
from ...stepwise.initial import initial_adjoints
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..kernels.coupling_weights import (
    TransitionKernel,
    Transitions,
    transition_kernel,
    unroll_with_transitions,
    with_transitions,
)
from ..kernels.fused_backward import FusedBackward
from ..kernels.output_kernels import CheckpointReads, kept_apart, output_kernel, unroll_kernel
from ..kernels.per_step import Result, RowKernel, launched, matrix_product, outer_vectors, printable, row_kernel
from ..kernels.prologue_kernels import intra_chunk_kernel
from ..kernels.sweep_kernels import sweep_kernel
from ..kernels.tile_values import Fine
from ..plan_passes.checkpoint_schedule import checkpoint_schedule
from ..plan_passes.hoist import Opened, in_prologue, made_in_prologue, opened, owned, uses
from ..plan_passes.roles import PER_STEP, is_state
from ..plan_passes.value_placement import Fused, Store, fuse, is_made
from ..print.axis_names import size_name
from ..print.names import Names
from ..warp_roles.derive import schedule_if_any
from .inputs import entries, if_wanted, inputs
from .launches import Launches
from .wants import Wants, plain, streams_into, streams_of
from .warp_roles import with_roles_chosen

TERMS = 3  # that `total` adds
OWN = ".own"  # ends the names of sums of pairs of steps inside a block
HASH = "hash of the kernels"  # stands for it in the text that it is of


class Host:
    """Prints one of the two functions, and the kernels that it launches."""

    def __init__(
        self,
        c: Compiled,
        plan: Plan,
        backward: bool,
        cuts: bool,
        exchanges: bool = True,
        fine: Fine | None = None,
        later: Host | None = None,
        whole: FusedBackward | None = None,
        stem: str = "triton",
    ) -> None:
        """`later` is the host of the backward pass, where this one is of the forward pass; `whole` the backward pass as a fused
        backward,
        if it may be one. `stem`: how the function's name begins."""
        self.whole, self.function = whole, stem
        plan, self.transitions = with_transitions(plan)
        self.c, self.plan, self.backward, self.fine = c, plan, backward, fine
        self.unrolls = [x for x in plan.stages if isinstance(x, Unroll)]
        self.origins: dict[Node, Node] = {}  # what streams of theirs are that are made in the prologue
        self.kind = self.stem = "backward" if backward else "forward"  # the stem of names of kernels
        self.names = Names(c)
        saved = () if backward else tuple(plan.form.write_leaves())
        self.fused: Fused = fuse(plan, saved)
        self.kernels: list[Kernel | RowKernel | TransitionKernel] = []
        states = {s.name for s in c.step.states}
        self.schedule = checkpoint_schedule(plan, self.fused, states if backward else ())
        if later is not None:
            self.schedule = replace(self.schedule, stored=later.schedule.given)
        self.schedule = replace(
            self.schedule, stored=self.schedule.stored | (self._unrolled_from() - self.schedule.given)
        )
        # chunks' matrices serve several sweeps, and the sums as well, where sweeps make sums; and what was cut had several
        sweeps = self.schedule.sweeps.values()
        prologue = any(b.own for s in sweeps for b in s.boundary_sums) or len(
            {(s.states, s.side) for s in sweeps}
        ) < len(sweeps)
        self.opened: dict[int, Opened] = {k: opened(s, prologue) for k, s in self.schedule.sweeps.items()}
        self.from_checkpoints: dict[int, Opened] = {
            k: opened(s, True) for k, s in self.schedule.from_checkpoints.items()
        }
        self.wants = Wants(c, plan, self.fused, self.schedule, self.opened, self.from_checkpoints)
        self._share_sums()
        self.again = {n for s in self.schedule.sweeps.values() for n in s.states} & states if backward else set()
        self.kept_starts = later.again if later is not None else self.again
        self.turned: set[str] = set()
        if cuts:
            assert c.forward is not None
            self.turned = _turned_maps(c.forward, plan if backward or later is None else later.plan)
        self.spare = set() if backward else self._kept_alone()  # what only a backward pass uses
        # numbers of each step that this pass lays out by heads, and keeps for the other; and those that it has from the other
        self.by_head: dict[str, None] = {}
        self.kept_by_head: dict[str, None] = {}
        self.waiting = list(self.from_checkpoints)
        self.cuts = cuts  # may sequences be cut in segments, which programs of their own sweep over?
        self.exchanges = cuts and exchanges  # may other segments be elsewhere?
        self.block = "config.span" if self.unrolls and not self.from_checkpoints else "BLOCK"  # steps of a block
        self.launches = Launches(self.names, self.block, None if whole is None else whole.rows)
        self.held: list[tuple[set[str], list[Statement], tuple[str, ...]]] = []
        self.checkpointed: set[str] = set()  # states that were left at checkpoints
        self.entered: set[str] = set()  # states whose values before each segment are known
        self.left: set[str] = set()  # states whose last values are known
        self.paired: set[str] = set()  # states whose state-adjoint products at the ends of segments are known
        self.body: list[Statement] = []
        self.numbered = 0  # values of each step that have a number for a name
        self.initial_gradient = ""
        self.ready: set[str] = set()
        self.of_prologue: dict[str, set[str]] = {}  # what a prologue kernel made, and for which gradients
        self.printer = NodePrinter(Torch(lambda d: size_name(d), like="some"), taken=self.names.reserved | {"some"})
        for v in (*c.step.variables, *c.adjoint.program.variables):
            if v.kind != "trajectory":
                self.names(v.leaf)
        for s in (*c.step.states, *c.adjoint.program.states):
            self.names(leaf("state", s.name))

    def text(self) -> str:
        return launch_text(finished_function(self.function_ir()))

    def function_ir(self) -> Function:
        """The function as data."""
        if self.whole is not None and self.backward:
            rest = "".join(f", {x}" for x in ("packed", *(["exchange"] if self.exchanges else [])))
            handed = Expr(f"given, states, constants, saved, cotangents, final_cotangents, needs{rest}")
            call = Call((), f"{self.function}_backward_whole", (handed,), lines=True)
            self.body.append(If(Expr(f'"{self.whole.state.name} borders" in saved'), (Return(call),)))
        self._open()
        self._sweeps()
        self.body = with_roles_chosen(self.body, self.kernels)
        if self.backward:
            self._gradients()
        else:
            self._outputs()
        exchange = ", exchange=None" if self.exchanges else ""
        head = f"(given, states, constants, packed=None{exchange}, needs_backward=True, finals=True)"
        doc = "Outputs, last states and what the backward pass uses."
        if self.backward:
            head, doc = (
                f"(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None{exchange})",
                "Gradients.",
            )
        return self._function(f"{self.function}_{self.kind}", head, doc)

    def heavy_sweeps(self) -> set[int]:
        """The sweeps that load too much to make several reads at once, as their kernels say."""
        several = [
            k for k, sweep in self.schedule.sweeps.items() if len(self.opened[k].outputs) > 1 and not sweep.solve
        ]
        return {k for k in several if self.wants.wanted_by(k) and self._sweep_kernel(k, "alone").heavy}

    def _sweeps(self) -> None:
        for k, sweep in self.schedule.sweeps.items():
            self._read(self.wants.read_by(k, self.waiting))
            self._sweep(k, sweep)
            self._state_adjoints_at_ends()
        self._launch_held()
        self._state_adjoints_at_ends()
        self._read(self.waiting)

    def _function(self, name: str, head: str, doc: str) -> Function:
        return Function(name, head, doc, tuple(self.body), frozenset(self._everything()))

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        p, add = self.c.step, self.body.append
        given = frozenset() if self.fine is None else self.fine.given
        narrow = [v for v in p.variables if v.kind == "input" and v.name not in given]
        first = p.leading if p.leading in narrow else narrow[0] if given else None
        self.body += inputs(p, self.names, first)
        sizes = ", ".join(size_name(d) for d in p.dims) + ("," if len(p.dims) == 1 else "")
        add(Define(("config",), Expr(f'choose(some.dtype, ({sizes}), "{HASH}")')))
        add(Define(("lay",), Expr("places(packed, (B, T, H), config.chunk)")))
        if self.from_checkpoints or self.schedule.stored or self._takes_blocks:
            add(Define(("blocks",), Expr(f"places(packed, (B, T, H), {self.block})")))
        if self.whole is not None and not self.backward:
            wide = [ref(self.names(v.leaf)) for v in p.variables if v.kind == "input" and v.per_step and v.axes]
            jointly = py("needs_backward is True and together(config, ({}), {})", sizes, joined(wide))
            add(Define(("jointly",), jointly))
        parts = "1"
        if self.cuts:
            tiles = max((self.launches.tile_count(o) for o in self.opened.values()), key=lambda x: (x != "1", x))
            parts = f"parts_for(lay, B * H * {tiles})"
        add(Define(("parts",), Expr(parts)))
        for s in p.states:
            self._first_state(s)
            if not self.backward:
                name = self.names(leaf("state", s.name))
                add(Set((f"{name}_starts",), ref(f"{name}_first")))
        if self.backward:
            self._open_backward()

    def _open_backward(self) -> None:
        add = self.body.append
        for s in self.c.step.states:
            name = self.names(leaf("state", f"d{s.name}"))
            value = Expr(f'whole(final_cotangents.get("{s.name}"))')
            add(Set((f"{name}_first", f"{name}_starts"), value, each=True))
        for s in self.c.step.states:
            name = self.names(leaf("state", s.name))
            if s.name in self.again:
                first = py('saved["{}"] if parts > 1 else {}', f"{s.name} starts", ref(f"{name}_first"))
                add(Set((f"{name}_starts",), first))
            if s.name in self.schedule.given:
                add(Set((f"{name}_borders",), Expr(f'saved["{s.name} borders"]')))
        for x in self.plan.saved:
            add(Set((self.names(x),), Expr(f'saved["{x.attrs[1]}"]')))
        for name, axes in self.c.step.output_axes.items():
            x = leaf("cotangent", f"d{name}", axes)
            shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
            arguments = (Expr(f'cotangents.get("{name}")'), Expr("some"), Expr(f"({shape})"))
            add(Call((self.names(x),), "cotangent", arguments))

    @property
    def _takes_blocks(self) -> bool:
        return self.whole is not None and not self.backward

    def _first_state(self, s: StateVar) -> None:
        name = self.names(leaf("state", s.name))
        self.body.append(Set((f"{name}_first",), Expr(f'whole(states.get("{s.name}"))')))
        if s.initial is None:
            return
        made, results = self._torch({"first": s.initial}, {"first": s.axes})
        shape = ", ".join(["lay.sequences", "H", *(size_name(dim_of(a)) for a in s.axes)])
        value = py("whole(spread({}, ({}), some))", results["first"], shape)
        missing = py("{} is None", ref(f"{name}_first"))
        self.body.append(If(missing, (*made, Set((f"{name}_first",), value))))

    def torch_leaf(self, x: Node) -> Expr:
        """A step-level leaf as [B, T, H, *axes] float32 (per head: [H, *axes])."""
        kind, name, _ = x.attrs
        if kind == "constant":
            return Expr(f'constants["{name}"]')
        if kind == "sums":
            return py("{}.sum(2).mT", ref(self.names(x)))
        if kind == "pairing":
            return ref(f"{self.names(leaf('state', name))}_pairing")
        if kind == "cotangent" and name[1:] in {s.name for s in self.c.step.states}:
            return ref(self.initial_gradient)
        text = py("{}.float()", ref(self.names(x)))
        if kind in ("input", "decay"):
            text = py("each_head({}, H).float()", ref(self.names(x)))
        return py("{}.exp()", text) if kind.startswith("decay") else text

    def _tensor(self, x: Node) -> str:
        """The name of a leaf's tensor."""
        return f"{self.names(leaf('state', x.attrs[1]))}_pairing" if x.attrs[0] == "pairing" else self.names(x)

    def _per_step(self, results: list[Result]) -> list[Statement]:
        """The launch of a kernel that makes these."""
        number = sum(isinstance(x, RowKernel) for x in self.kernels) + 1
        kernel = row_kernel(f"{self.stem}_rows_{number}", results, self.names, self._tensor)
        self.kernels.append(kernel)
        return launched(kernel)

    def _in_memory(self, x: Node) -> Expr:
        """A value of each step, [B, T, H, *axes], which a per-step kernel makes unless it is there."""
        if x.op == "leaf" and x.attrs[0] == "input":
            return py("each_head({}, H)", ref(self.names(x)))
        if x.op == "leaf" and x.attrs[0] in ("cotangent", "read", "write", "stored", "multiplied"):
            return ref(self.names(x))
        self.numbered += 1
        name = self.names(leaf("stored", f"rows.{self.numbered}", x.axes))
        self.body += self._per_step([Result(name, x, x.axes, "torch.float32")])
        return ref(name)

    def _multiplied(self, nodes: Mapping[Any, Node]) -> dict[Any, Node]:
        """Nodes, with products of parameters that are matrices made by torch: over all steps of a head at once."""
        found, made = self._products(nodes)
        self.body += [x for _, statements in made for x in statements]
        return found

    def _products(self, nodes: Mapping[Any, Node]) -> tuple[dict[Any, Node], list[tuple[set[Any], list[Statement]]]]:
        """Nodes with such products as leaves; and the statements that make these, for which of the nodes."""
        out: dict[Any, Node] = {}
        made: dict[tuple[Node, bool, Node], tuple[str, set[Any], list[Statement]]] = {}  # whatever axes are called
        for user, node in nodes.items():
            found: dict[Node, Node] = {}
            for x in walk(node):
                parts = matrix_product(x)
                if parts is None:
                    continue
                matrix, vector = parts[0], replaced(parts[1], found)
                vector = rename(vector, {a: dim_of(a) for a in vector.axes})
                per_row = x.axes == matrix.attrs[2][:1]
                key = leaf(*matrix.attrs[:2]), per_row, vector
                if key not in made and printable(vector, vector.axes):
                    with self._apart() as statements:
                        text, letters = self._in_memory(vector), "bthj,hij->bthi" if per_row else "bthi,hij->bthj"
                    self.numbered += 1
                    product = leaf("multiplied", f"product.{self.numbered}", x.axes)
                    arguments = (Expr(f'"{letters}"'), text, self.torch_leaf(matrix))
                    statements.append(Call((self.names(product),), "by_matrix", arguments))
                    made[key] = product.attrs[1], set(), statements
                if key in made:
                    made[key][1].add(user)
                    found[x] = leaf("multiplied", made[key][0], x.axes)
            out[user] = replaced(node, found) if found else node
        return out, [(users, statements) for _, users, statements in made.values()]

    def _outer(self, node: Node, order: tuple[str, ...]) -> Expr | None:
        """The gradient of a parameter that is a matrix, where it sums products of two vectors of each step."""
        pairs = [outer_vectors(x, order) for x in terms_of(node)]
        if not pairs or None in pairs:
            return None
        texts = [[self._in_memory(x) for x in pair] for pair in pairs if pair is not None]
        sums = [py("outer_sum({}, {})", left, right) for left, right in texts]
        return sums[0] if len(sums) == 1 else py("({})", joined(sums, " + "))

    def torch_text(self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> dict[str, Expr]:
        made, results = self._torch(nodes, orders)
        self.body += made
        return results

    def _torch(
        self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]
    ) -> tuple[list[Statement], dict[str, Expr]]:
        """Statements of torch, and the results."""
        made, results = self.printer.values(nodes, lambda x: self.torch_leaf(x).text, orders=orders)

        def of(x: Printed) -> Expr:
            return Expr(x.text, frozenset(x.names).union(*(self.torch_leaf(y).names for y in x.leaves)))

        return [Set((name,), of(x)) for name, x in made], {name: of(x) for name, x in results.items()}

    @contextmanager
    def _apart(self) -> Iterator[list[Statement]]:
        """What is added to the body meanwhile, in a list of its own."""
        before, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = before

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def _sweep(self, k: int, sweep: Sweep) -> None:
        """A sweep, with what must be done in the prologue of it: what needs no state, and the states that enter segments of the
        sequence."""
        o = self.opened[k]
        stores = self.fused.stores[k]
        number = sum(x.sweeps and "ends" not in x.name for x in self.kernels) + 1
        wanted = self.wants.wanted_by(k) if self.backward else self._everything()
        first = not set(sweep.states) <= self.entered and not (self.backward and sweep.direction > 0)
        group = wanted
        stored = self.schedule.stored if self.whole is None or self.backward else {self.whole.state.name}
        checkpoints = bool(set(sweep.states) & stored) and not set(sweep.states) <= self.checkpointed
        if (first or checkpoints) and self.backward:
            group = set().union(*(self.wants.wanted_by(j) for j in self.wants.sweeps_over(set(sweep.states))))
            if checkpoints:
                wanted = group = group.union(*(self.wants.wanted_by(j) for j in self.from_checkpoints))
        if not group:
            return  # what it yields is made by other sweeps, with their stores or sums
        kernel = self._sweep_kernel(k, f"{self.kind}_sweep_{number}", first, checkpoints)
        if not self.backward and self.fine is None:
            kernel = replace(kernel, roles=schedule_if_any(kernel))
        making = self._makes(sweep, o, kernel)
        self._launch_prologue(o, group, f"{self.kind}_prepare_{number}", k, making)
        self._inputs(kernel)
        self.kernels.append(kernel)
        if first:
            self.entered |= set(sweep.states)
            begin, finish = self._entering(k, sweep, kernel)
            self._under(group, begin)
            self._launch_held()
            self._under(group, finish)
        made: list[Statement] = [self._allocated(k, s) for s in stores]
        if checkpoints:
            self.checkpointed |= set(sweep.states)
            made += [self._room_at_checkpoints(s) for s in sweep.group]
        for x in self._boundary_sums(o):
            shape = f"B, H, lay.chunks, {size_name(dim_of(x.axes[0]))}" if x.axes else f"B, H, {self._sums_of(k)}, T"
            made.append(Alloc(self.names(x), Expr(shape)))
        for s in sweep.group:
            if s.name in sweep.finals:
                name = self.names(leaf("state", s.name))
                each = self._to_ends(sweep)
                count = "lay.sequences * parts" if each else "lay.sequences"
                made.append(self._new_state(f"{name}_last", s, count, self._wants_last(s, each)))
        reads = [self.wants.of_read(k, alone) for alone in kernel.apart] if self.backward else []
        made += self.launches.launch(kernel, wide=self._stores_wide(kernel), wanted=reads)
        if self.cuts and self.backward and sweep.direction > 0 and self._can_wait(k):
            self.held.append((wanted, made, sweep.finals))
        else:
            self._under(wanted, made)
            self.left.update(sweep.finals)

    def _sweep_kernel(self, k: int, name: str, first: bool = False, checkpoints: bool = False) -> Kernel:
        """The kernel of sweep k: `first` of those over its states, and with `checkpoints` of these."""
        sweep, ends = self.schedule.sweeps[k], first and self.cuts
        return sweep_kernel(
            name,
            sweep,
            self.opened[k],
            self.fused.stores[k],
            self.names,
            ends=ends,
            linear=ends and self._makes_matrix(sweep),
            each=self._to_ends(sweep),
            fine=self.fine,
            checkpoints=checkpoints,
            rows=None if self.whole is None else self.whole.rows,
            spare=self.spare,
        )

    def _to_ends(self, sweep: Sweep) -> bool:
        """Does a sweep yield the states at the ends of all segments? State-adjoint products start from these."""
        return self.backward and sweep.direction > 0

    def _room_at_checkpoints(self, s: StateForm) -> Alloc:
        """Room for a state as blocks of steps find it."""
        shape = joined(["B", "H", "blocks.chunks", *(size_name(dim_of(a)) for a in s.axes)])
        when = None if self.backward else Expr("needs_backward")
        if self.whole is not None:
            rows, columns = (size_name(dim_of(a)) for a in (self.whole.rows, self.whole.columns))
            shape, when = Expr(f"B, blocks.chunks * config.padded({rows}), H, {columns}"), Expr("jointly")
        dtype = "some.dtype" if self.fine is None else "torch.float32"
        return Alloc(f"{self.names(leaf('state', s.name))}_borders", shape, dtype, when)

    def _wants_last(self, s: StateForm, each: bool) -> Expr:
        """When somebody uses the last value of a state: of the recurrence's own states, in a backward pass, that is what pairs
        it with its gradient there, if there is one."""
        if not self.backward:
            return Expr("finals")
        if each:
            gradient = self.names(leaf("state", f"d{s.name}"))
            other = f" or {self._in_segments}" if self.cuts else ""
            return py("{} is not None{}", ref(f"{gradient}_first"), other)
        return any_wanted({s.name[1:]} | self.wants.initial_wants(s.name[1:]))

    def _read(self, stages: list[int]) -> None:
        """Kernels that read checkpointed states: for these stages, one for those of the same tile axis."""
        if not stages:
            return
        self._launch_held()
        self.waiting = [k for k in self.waiting if k not in stages]
        tiles = list(dict.fromkeys(self.from_checkpoints[k].tile for k in stages))
        for tile in tiles:
            same = [k for k in stages if self.from_checkpoints[k].tile == tile]
            wanted = set().union(*(self.wants.wanted_by(k) for k in same))
            if not wanted:
                continue
            number = sum(isinstance(x, Kernel) and x.reads for x in self.kernels) + 1
            inside = {s.leaf for k in same for s in self.wants.stores_at(k) if self._only_in(s, same)}
            from_checkpoints = [
                CheckpointReads(
                    self.schedule.from_checkpoints[k].group, self.from_checkpoints[k], self.wants.stores_at(k)
                )
                for k in same
            ]
            kernel = output_kernel(
                f"{self.kind}_read_{number}",
                from_checkpoints,
                inside,
                self.schedule.spans,
                self.schedule.whole,
                self.names,
                self.fine,
            )
            for k in same:
                o, name = self.from_checkpoints[k], f"{self.kind}_prepare_read_{k + 1}"
                self._launch_prologue_by_intervals(o, made_in_prologue(o), wanted, name)
            self._inputs(kernel, "block_")
            self.kernels.append(kernel)
            made: list[Statement] = [
                self._allocated(k, s) for k in same for s in self.wants.stores_at(k) if s.leaf not in inside
            ]
            # a kernel for rows that are of a large decay range loads the sums once more
            free = set() if self.waiting or tile != tiles[-1] or kernel.slow_path else set(kernel.replaces)
            made += self._room_for_products(kernel, same[0], free)
            self._under(wanted, made + self.launches.launch(kernel, block="block_"))

    def _room_for_products(self, kernel: Kernel, k: int, free: set[str]) -> list[Statement]:
        """Room for what a kernel that reads checkpointed states, that of stage k and others, adds to products of states and
        gradients: in the place of decays' sums, of those in `free`, which nothing loads afterwards."""
        found: list[Statement] = []
        for a in kernel.arguments:
            x = a.source
            if x is None or x.op != "leaf" or x.attrs[0] not in ("sums", "stored"):
                continue
            own = [size_name(dim_of(y)) for y in x.axes]
            if x.attrs[1].endswith(".ends"):
                found.append(Alloc(self.names(x), joined(["B", "H", "blocks.chunks", *own])))
            elif x.attrs[1].endswith(".pairing"):
                if (decay := self._decay_of(x, k)) in free:
                    free.remove(decay)
                    found.append(Set((self.names(x),), ref(f"{decay}_sums"), in_place=True))
                    continue
                tiles = self.launches.tile_count(self.from_checkpoints[k], reads=True)
                shape = f"B, T, H, {own[0]}" if own else f"B, H, {tiles}, T"
                found.append(Alloc(self.names(x), Expr(shape)))
        return found

    def _decay_of(self, state_adjoint: Node, k: int) -> str:
        """The name of the decay whose gradient a state-adjoint product goes into, as the piece of stage k has it."""
        decay = self.plan.form.state(state_adjoint.attrs[1].removesuffix(".pairing")).decay
        assert decay is not None
        return self.names(rename(decay, self.from_checkpoints[k].rename))

    def _kept_alone(self) -> set[Node]:
        """The reads and writes that this pass stores and doesn't use itself."""
        nodes = [*self.fused.values.values(), *(x for pair in self.fused.state_adjoints.values() for x in pair)]
        nodes += [x for sweep in self.plan.sweeps for x in sweep.given.values()]
        found: set[Node] = set()
        for stores in self.fused.stores.values():
            for s in (s for s in stores if s.kind == "kept"):
                others = [x.node for y in self.fused.stores.values() for x in y if x is not s]
                if not any(uses(n, s.leaf) for n in (*nodes, *others)):
                    found.add(s.leaf)
        return found

    def _only_in(self, store: Store, stages: list[int]) -> bool:
        """Does nothing load what is stored, but the kernel that makes it for these stages?"""
        if store.kind == "sums":
            return False
        nodes = [*self.fused.values.values()]
        nodes += [x for n, pair in self.fused.state_adjoints.items() if n not in self.schedule.whole for x in pair]
        for k, stage in enumerate(self.plan.stages):
            if isinstance(stage, Sweep) and (k not in stages or k in self.schedule.sweeps):
                nodes += [*stage.given.values(), *(s.node for s in self.fused.stores[k])]
        return not any(uses(n, store.leaf) for n in nodes)

    def _launch_prologue_by_intervals(
        self, o: Opened, prologue: Mapping[Node, Node], wanted: set[str], name: str
    ) -> None:
        """The prologue kernel of one that takes blocks, for what that one doesn't make itself."""
        if not prologue:
            return
        some = replace(o, matrices={x: n for x, n in o.matrices.items() if x in prologue}, intra={}, own=[])
        kernel = intra_chunk_kernel(name, some, self.names, self.fine)
        self._inputs(kernel, "block_")
        made: list[Statement] = []
        for x in some.of_prologue:
            own = [a for a in x.axes if not a.startswith("%")]
            shape = f"B, H, T, {size_name(dim_of(own[0]))}" if own else "B, H, blocks.chunks, BLOCK, BLOCK"
            dtype = "torch.float32" if self.fine is not None else None
            made.append(Alloc(f"{self.names(x)}_blocks", Expr(shape), dtype))
        self._under(wanted, made + self.launches.launch(kernel, block="block_"))
        self.kernels.append(kernel)

    def _can_wait(self, k: int) -> bool:
        """May a sweep over states come after gradients of states were sent for, from other segments of the sequence?"""
        later = [(j, x) for j, x in enumerate(self.plan.stages) if j > k and isinstance(x, Sweep)]
        if not any(x.direction < 0 and not set(x.states) <= self.entered for _, x in later):
            return False
        nodes = [n for j, x in later for n in (*x.given.values(), *(s.node for s in self.fused.stores[j]))]
        return not any(uses(n, s.leaf) for n in nodes for s in self.fused.stores[k])

    def _launch_held(self) -> None:
        """Sweeps that were put off until what comes from other segments is on its way."""
        for wanted, made, finals in self.held:
            self._under(wanted, made)
            self.left.update(finals)
        self.held = []

    def _everything(self) -> set[str]:
        variables = {v.name for v in self.c.step.variables if v.kind != "constant"}
        return variables | {s.name for s in self.c.step.states}

    def _under(self, wanted: set[str], made: Sequence[Statement]) -> None:
        """Add statements that are for these results."""
        self.body.append(Wanted(frozenset(wanted), tuple(made)))

    def _new_state(self, name: str, s: StateForm, count: str, when: Expr | None = None) -> Alloc:
        return Alloc(name, joined([count, "H", *(size_name(dim_of(a)) for a in s.axes)]), when=when)

    def _makes(self, sweep: Sweep, o: Opened, walk: Kernel) -> frozenset[str]:
        """The decays whose sums the prologue kernel of a sweep makes: where nothing else needs more than those of whole chunks,
        and
        one product in that kernel needs them all, so that it has the registers."""
        alone = (
            len(self.schedule.sweeps) == 1 and not self.from_checkpoints and not feeds_back(sweep.group, sweep.solve)
        )
        if self.backward or not alone or len(o.products) != 1 or o.intra:
            return frozenset()
        decays = [x for x in o.decays.values() if x.op == "leaf" and x.attrs[0] == "decay" and x.axes]
        return frozenset(self.names(x) for x in decays) - walk.inside

    def _launch_prologue(
        self, o: Opened, wanted: set[str], name: str, k: int, making: frozenset[str] = frozenset()
    ) -> None:
        """The prologue kernel of sweep k, for what no kernel has made for these gradients yet; and, as it is at it, matrices of
        later sweeps."""
        made = [*o.matrices, *o.scaled, *o.intra]
        prologue = [x for x in made if not wanted <= self.of_prologue.get(self.names(x), set())]
        sums = [x for x in o.own if not wanted <= self.of_prologue.get(f"{x.state} {x.place}", set())]
        if not prologue and not sums:
            return
        some = replace(
            o,
            own=sums,
            matrices={x: n for x, n in o.matrices.items() if x in prologue},
            scaled={x: n for x, n in o.scaled.items() if x in prologue},
            intra={x: n for x, n in o.intra.items() if x in prologue},
        )
        for j, later in ((j, x) for j, x in self.opened.items() if j > k):
            for x, node in self.wants.matrices_early(some, later, k).items():
                if self.names(x) not in self.of_prologue:
                    some.matrices[x] = node
                    prologue.append(x)
                    wanted = wanted | (self.wants.wanted_by(j) if self.backward else wanted)
        for own in sums:
            wanted = wanted | self.wants.paired(own.state)
            if own.source is not None:
                streams_into(some, own.source, [n for n, _, _ in own.terms])
        for own in sums:
            self.of_prologue[f"{own.state} {own.place}"] = wanted
        kernel = intra_chunk_kernel(name, some, self.names, self.fine, making)
        self._inputs(kernel, makes=making)
        room: list[Statement] = []
        for own in (x for x in sums if x.place == 0):
            for slot, x in own.prologue.items():
                room.append(Alloc(self.names(x), Expr(f"B, H, {own.counts[slot]}, T")))
        for x in dict.fromkeys(prologue):
            self.of_prologue[self.names(x)] = wanted
            axes = [a for a in x.axes if not a.startswith("%")]
            shape = "B, H, lay.chunks, config.chunk, config.chunk"
            if axes:
                shape = f"B, H, T, {size_name(dim_of(axes[0]))}"
            wide = x.attrs[0] == "intra" or x.attrs[1] in o.wide | self._into_numbers or self.fine is not None
            room.append(Alloc(self.names(x), Expr(shape), "torch.float32" if wide else None))
        self._under(wanted, room + self.launches.launch(kernel))
        self.kernels.append(kernel)

    @cached_property
    def _multiplied_out(self) -> frozenset[Node]:
        """Reads of which numbers of each step are made that something is divided by or multiplied with, as <do, y> is: they stay
        float32 where they lie, since terms of gradients cancel that have such a number and that have not."""
        made = [
            x for o in self.opened.values() for x in (*o.streams.values(), *o.origins.values(), *o.prologue.values())
        ]
        sums = {y for x in made for y in walk(x) if y.op == "sum" and not set(y.axes) - {ROW, COL}}
        return frozenset(y for x in sums for y in walk(x) if y.op == "leaf" and y.attrs[0] == "read")

    @cached_property
    def _into_numbers(self) -> frozenset[str]:
        """Matrices over steps of which a sweep makes numbers of each step, as no product on tensor cores does: they are float32,
        for a normaliser that is small beside its terms has the rounding of these, and so has all that is divided by it."""
        found = set()
        for o in self.opened.values():
            for x in {y for z in (*o.definitions.values(), *o.outputs.values(), *o.states.values()) for y in walk(z)}:
                if x.op == "sum" and len(x.axes) == 1:
                    matrices = [f for f in factors_of(x.args[0]) if f.op == "leaf" and f.attrs[0] == "matrix"]
                    others = [f for f in factors_of(x.args[0]) if f not in matrices]
                    if all(not set(f.axes) - {ROW, COL} for f in others):
                        found |= {f.attrs[1] for f in matrices}
        return frozenset(found)

    def _share_sums(self) -> None:
        """Hand pairs inside chunks, which are summed for the gradient of a decay, to the prologue kernel of a sweep, up to their
        own,
        that loads all that they are made of, or all but one; so that no kernel is there for them alone."""
        if not self.backward:
            return
        sweeps = {k: o for k, o in self.opened.items() if self.wants.wanted_by(k)}
        loads: dict[int, set[tuple[str, str]]] = {}
        claimed: set[Node] = set()
        for k, o in sweeps.items():
            some = replace(o, streams={**o.streams}, decays={**o.decays})
            made = {x: (n, o) for x, n in o.matrices.items() if x not in claimed}
            for j, later in sweeps.items():
                if j > k:
                    made |= {
                        x: (n, later) for x, n in self.wants.matrices_early(some, later, k).items() if x not in claimed
                    }
            claimed |= set(made)
            if made:
                loads[k] = set().union(*(_wide_leaves(n, source) for n, source in made.values()))
        for k, o in sweeps.items():
            for own in list(o.own):
                parts: dict[int, list[tuple[Node, str, str]]] = {}
                for term in own.terms:
                    needs = _wide_leaves(term[0], o)
                    more = {
                        j: len(needs - loads[j])
                        for j in loads
                        if j <= k and plain(sweeps[j], o) and self.wants.known(term[0], o, j)
                    }
                    best = min(more, key=lambda j: more[j], default=k)
                    parts.setdefault(best if more.get(best, 2) < 2 else k, []).append(term)
                if set(parts) != {k}:
                    o.own.remove(own)
                    order = sorted(parts)
                    for j, share in zip(order, owned(own.prologue, [parts[j] for j in order]), strict=True):
                        share.source = None if j == k else o
                        sweeps[j].own.append(share)

    def _makes_matrix(self, sweep: Sweep) -> bool:
        """Does a sweep make the matrix of each segment's map? Not where another pass's serves, transposed."""
        turned = self.backward and sweep.group[0].name[1:] in self.turned
        return _matrix_map(sweep, self.plan) is not None and not turned

    def _entering(self, k: int, sweep: Sweep, kernel: Kernel) -> tuple[list[Statement], list[Statement]]:
        """What enters each segment of the sequences, from maps of the segments; nothing to do where there is one.

        In two halves: between them other segments of the sequence, where they are elsewhere, hand on what enters this one.
        """
        if not self.cuts:
            return [], []
        linear = _matrix_map(sweep, self.plan)
        begin: list[Statement] = [
            self._new_state(f"{self.names(leaf('state', s.name))}_ends", s, "B * parts") for s in sweep.group
        ]
        if linear is not None:
            (s,) = linear.group
            where = f"{self.names(leaf('state', s.name))}_linear"
            made = kernel.inner is not None  # or else the forward pass has made it
            turned = Set((where,), Expr(f'saved["{s.name[1:]} linear"].mT'))
            begin.append(self._new_state(where, s, "B * parts") if made else turned)
        begin += self.launches.launch(kernel, ends=True)
        if linear is not None and kernel.late:
            (s,) = linear.group
            name = self.names(leaf("state", s.name))
            pieces = (Expr("late"), ref(f"{name}_ends"), ref(f"{name}_linear"), Expr(str(s.axes.index(s.row))))
            begin += [Call((), "join_pieces", pieces), Define(("late",), NONE)]
        finish: list[Statement] = []
        for s in sweep.group:
            starts, coming = self._chained(k, s, linear)
            if self.exchanges:
                name = self.names(leaf("state", s.name))
                sent = Set((f"{name}_coming",), coming)
                elsewhere = "other parts of the sequence are elsewhere"
                begin.append(If(Expr("exchange is not None"), (sent,), comment=elsewhere))
                came = Set((f"{name}_first", f"{name}_starts"), py("{}()", ref(f"{name}_coming")), nested=True)
                finish.append(If(Expr("exchange is not None"), (came,), (starts,)))
            else:
                finish.append(starts)
        cut = Expr(self._in_segments)
        return [If(cut, tuple(begin))], [If(cut, tuple(finish))]

    def _chained(self, k: int, s: StateForm, linear: Sweep | None) -> tuple[Call, Expr]:
        """How the values of a state that enter each segment are made of what segments make of it; and what is sent to other
        segments of the sequence, if these are elsewhere."""
        name, way = self.names(leaf("state", s.name)), str(s.direction > 0)
        given = (ref(f"{name}_first"), ref(f"{name}_ends"))
        places = (Expr("lay"), Expr("parts"), Expr(way))
        function, kept = "chained", Expr("")
        rest: tuple[Expr, ...] = places
        if linear is not None:
            axis, matrix = s.axes.index(s.row), ref(f"{name}_linear")
            function, rest = "chained_matrix", (matrix, *places, Expr(f"along={axis}"))
            kept = py(", linear={}, axis={}", matrix, axis)
        elif s.decay is not None:
            decay = self.names(rename(s.decay, self.opened[k].rename))
            along = next((s.axes.index(a) for a in s.decay.axes), None)
            sums = py("({}, {})", ref(f"{decay}_sums"), ref(f"{decay}_rests"))
            kept = py(", decay={}, axis={}, exact=config.exact", sums, along or 0)
            rest = (*places, sums, Expr(str(along)), Expr("config.exact"))
        own = s.name[1:] if self.backward else s.name
        coming = py('exchange.begin((map_of_all("{}", {}, lay, parts, {}{}),))', own, joined(given), way, kept)
        return Call((f"{name}_starts",), function, (*given, *rest)), coming

    @property
    def _in_segments(self) -> str:
        """Are the sequences cut?"""
        return "parts > 1 or exchange is not None" if self.exchanges else "parts > 1"

    def _inputs(self, kernel: Kernel, block: str = "", makes: frozenset[str] = frozenset()) -> None:
        """What is made in the prologue of a kernel, but for sums of decays that it makes; `block` begins the names of one decay a
        step over blocks."""
        loaded = [a.source for a in kernel.arguments if a.source is not None]
        self._streams(loaded)
        wanted = [w for w in self.transitions if any(uses(x, y) for x in w.made for y in loaded)]
        self.transitions = [w for w in self.transitions if w not in wanted]
        self._launch_transitions(wanted)
        for a in sorted(kernel.arguments, key=lambda a: a.role is not Role.SUMS):
            x = a.source
            assert x is not None
            which = "" if a.axes else block  # kernels make sums over blocks of those over chunks, for each channel
            if a.role is Role.SUMS and f"{which}{a.name}" not in self.ready:
                self.ready.add(f"{which}{a.name}")
                self._cumulate(a, which, kernel, makes)
            if a.role is Role.BY_HEAD and a.name not in self.ready:
                self.ready.add(a.name)
                self._laid_out([a.name], "by_head", (ref(self.names(x)), Expr("H")))

    def _streams(self, sources: list[Node]) -> None:
        """The streams of prologues among what a kernel loads, where what they are made of is made."""
        groups: dict[tuple[int, ...], dict[Node, Node]] = {}
        for x in dict.fromkeys(sources):
            if x.op == "leaf" and x.attrs[0] == "ahead" and self.names(x) not in self.ready:
                self.ready.add(self.names(x))
                node = self._streams_in_prologue(x)
                leaves = [y.attrs[:2] for y in walk(node) if y.op == "leaf"]
                where = sorted({self.fused.made[y] for y in leaves if y in self.fused.made})
                groups.setdefault(tuple(where), {})[x] = node
        for stages, made in groups.items():
            with self._apart() as found:
                made = self._multiplied(made)
                narrow = self.fine is None and all(len(s.axes) > 1 for s in self.c.step.states)  # operands of products
                dtypes = {x: "row_dtype(some)" if x.axes and narrow else "torch.float32" for x in made}
                per_step = [Result(self.names(x), n, x.attrs[2], dtypes[x]) for x, n in made.items()]
                per_step = [r for r in per_step if printable(r.node, r.order)]
                self.body += self._per_step(per_step) if per_step else []
                for x, node in made.items():
                    if all(r.node is not node for r in per_step):
                        results = self.torch_text({"x": node}, {"x": x.attrs[2]})
                        shape = ", ".join(["B", "T", "H", *(size_name(dim_of(z)) for z in x.attrs[2])])
                        value = py("({}).expand({})", results["x"], shape)
                        self.body.append(Call((self.names(x),), "steps", (value,)))
            for k in stages:
                found = [
                    Wanted(frozenset(self.wants.wanted_by(k) if self.backward else self._everything()), tuple(found))
                ]
            self.body += found

    def _launch_transitions(self, transitions: list[Transitions], block: str = "") -> None:
        """Weights between states, those of one matrix of each step by one kernel; over blocks, their names are what `block`
        begins."""
        lay, chunk = ("blocks", self.block) if block else ("lay", "config.chunk")
        for w in transitions:
            number = sum(isinstance(x, TransitionKernel) for x in self.kernels) + 1
            kernel = transition_kernel(f"{self.kind}_weights_{number}", w, self.names)
            self.kernels.append(kernel)
            made = {x: self._number_of_steps(x) for x in dict.fromkeys(w.entries[p] for p in kernel.given)}
            given = [made[w.entries[p]] for p in kernel.given]
            arguments = [Passed(py("{}, *strides({}, H)", x, x)) for x in given]
            for x in w.made:
                shape, name = "T", f"{block}{self.names(x)}"
                if len(x.axes) > 1:
                    shape, name = f"{lay}.chunks, {chunk}, {chunk}", f"{self.names(x)}{'_blocks' * bool(block)}"
                arguments.append(stored(ref(name)))
                self.body.append(Alloc(name, Expr(f"B, H, {shape}")))
            places = (Expr(f"*{lay}.at_once"), Expr(f"{lay}.programs"))
            words = (("C", Expr(chunk)), ("num_warps", Expr("1")))
            self.body.append(Launch(kernel.name, Expr(f"{lay}.programs"), tuple(arguments), places, words))

    def _number_of_steps(self, x: Node) -> Expr:
        """A tensor [B, T, H] of a number of each step, or of one that is the same at each."""
        if printable(x, ()) or (x.op == "leaf" and x.attrs[0] == "input"):
            return self._in_memory(x)
        self.numbered += 1
        name = self.names(leaf("stored", f"number.{self.numbered}"))
        value = self.torch_text({"x": x}, {"x": ()})["x"]
        self.body.append(Call((name,), "spread", (value, Expr("(B, T, H)"), Expr("some"))))
        return ref(name)

    def _cumulate(self, a: Argument, which: str, kernel: Kernel, makes: frozenset[str]) -> None:
        """Sums of a decay; of one decay a step by the launch that lays out another number of each step, if one is waiting."""
        assert a.source is not None
        with self._apart() as prologue:
            log, base = self._log(a.source), f"{which}{a.base}"
        names, where = [f"{base}_{x}" for x in ("sums", "rests", "extents")], "blocks" if which else "lay"
        waiting = [y for y in kernel.arguments if y.role is Role.BY_HEAD and y.name not in self.ready]
        places = (Expr(where), Expr("config.exact"))
        if a.axes:
            made = (Expr("made=True"),) if base in makes else ()
            self.body += [*prologue, Call(tuple(names), "cumulate", (log, *places, *made))]
        elif not waiting:
            self._laid_out(names, "cumulate", (log, *places), prologue)
        else:
            other = waiting[0].source
            assert other is not None
            self.ready.add(waiting[0].name)
            arguments = (log, ref(self.names(other)), *places)
            self._laid_out([*names, waiting[0].name], "cumulate_beside", arguments, prologue)

    def _laid_out(
        self, names: list[str], function: str, arguments: tuple[Expr, ...], prologue: Sequence[Statement] = ()
    ) -> None:
        """Numbers of each step by heads, and what comes with them, with statements `prologue`: a backward pass has those that the
        forward pass has made, unless rests belong to them."""
        made: tuple[Statement, ...] = (*prologue, Call(tuple(names), function, arguments))
        kept = [n for n in names if n.endswith(("_sums", "_by_head"))]
        if not self.backward:
            self.by_head |= dict.fromkeys(kept)
        if not self.kept_by_head.keys() >= set(kept):
            self.body += made
            return
        values = ", ".join(f'saved["{n}"]' if n in kept else "None" for n in names)
        self.body.append(If(Expr(f'"{kept[0]}" in saved'), (Set(tuple(names), Expr(values)),), made))

    def _streams_in_prologue(self, x: Node) -> Node:
        if x in self.origins:
            return self.origins[x]
        for o in (*self.opened.values(), *self.from_checkpoints.values()):
            for stream, node in o.streams.items():
                if node is x:
                    return o.origins[stream]
        raise AssertionError(x)

    def _log(self, x: Node) -> Expr:
        if x.op == "leaf" and x.attrs[0] == "decay":
            return ref(self.names(x))
        axes, node = x.axes, self._multiplied({x: log_of(x)})[x]
        if printable(node, axes):
            name = self.names(leaf("ahead", f"log {x.key}", axes))
            self.body += self._per_step([Result(name, node, axes, "torch.float32")])
            return ref(name)
        results = self.torch_text({"x": node}, {"x": axes})
        shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
        return py("spread({}, ({}), some)", results["x"], shape)

    def _allocated(self, k: int, s: Store) -> Alloc | Set:
        x = s.leaf
        shape = ["B", "T", "H", *(size_name(dim_of(a)) for a in x.axes)]
        if s.kind == "sums":
            shape = ["B", "H", self._sums_of(k), "T"]
        before = self._replaced(k, s)
        if before is not None:
            return Set((self.names(x),), ref(self.names(before)), in_place=True)
        return Alloc(self.names(x), joined(shape), self._dtype(s), Expr("needs_backward") if x in self.spare else None)

    def _dtype(self, s: Store) -> str:
        """Of what is stored. A gradient's terms so far are float32, unless they may be made of writes that are solved for, which
        are rounded as well; so are reads that are one number a step: values are divided by them, and terms of gradients with
        them cancel."""
        if s.kind == "part" and not (self.backward and self.plan.form.write_leaves()):
            return "torch.float32"
        number = s.kind == "kept" and s.leaf.attrs[0] == "read" and (not s.leaf.axes or s.leaf in self._multiplied_out)
        wide = s.kind == "sums" or number or (s.kind in ("final", "part") and self._wide(s.root))
        return "torch.float32" if wide else "some.dtype"

    def _stores_wide(self, kernel: Kernel) -> bool:
        """Does a kernel store tiles in float32?"""
        stored = {a.source for a in kernel.arguments if a.layout == "out" and a.axes}
        return any(
            s.leaf in stored and self._dtype(s) == "torch.float32" for x in self.fused.stores.values() for s in x
        )

    def _replaced(self, k: int, s: Store) -> Node | None:
        """The terms so far that a store adds to, where nothing else uses them: each entry is made of the one that it replaces."""
        parts = {x.leaf.attrs[1]: x for n in range(k) for x in self.fused.stores.get(n, ()) if x.kind == "part"}
        used = [
            parts[y.attrs[1]]
            for y in terms_of(s.node)
            if y.op == "leaf" and y.attrs[0] == "stored" and y.attrs[1] in parts
        ]
        if s.kind not in ("final", "part") or len(used) != 1 or self._dtype(used[0]) != self._dtype(s):
            return None
        before = used[0].leaf
        if [*map(dim_of, before.axes)] != [*map(dim_of, s.leaf.axes)]:
            return None
        if k not in self.schedule.sweeps:
            return None  # a kernel may have made it that stores nothing of it
        others = [x.node for j, stores in self.fused.stores.items() for x in stores if (j, x) != (k, s)]
        others += [*self.fused.values.values(), *(x for pair in self.fused.state_adjoints.values() for x in pair)]
        others += [x for stage in self.plan.sweeps for x in stage.given.values()]
        if any(y.op == "leaf" and y.attrs[:2] == before.attrs[:2] for y in walk(*others)):
            return None
        return before

    def _sums_of(self, k: int) -> str:
        """How many sums over its tile axis a sweep leaves of each step: one for each tile, and of a sweep for each warp."""
        if k not in self.opened:
            return self.launches.tile_count(self.from_checkpoints[k], reads=True)
        tiles = self.launches.tile_count(self.opened[k])
        return f"{tiles} * config.warps" if len(self.opened[k].tile) == 1 else tiles

    def _boundary_sums(self, o: Opened) -> list[Node]:
        """What the sweep of a sweep sums for gradients of decays."""
        found = [(s.state, f"{s.kind}.{slot}") for s in o.sums if not s.totals for slot in s.reads]
        found += [(s.state, f"own.{slot}") for s in o.sums if not s.prologue for slot in s.slots]
        totals = [
            leaf("sums", f"{s.state}.{s.kind}", self.plan.form.state(s.state).decay_axes) for s in o.sums if s.totals
        ]
        return [*(leaf("sums", f"{state}.{slot}") for state, slot in found), *totals]

    def _wide(self, root: str) -> bool:
        """Is this value float32 whatever the inputs are?"""
        if not self.backward:
            return root in self.c.step.handed
        v = next((v for v in self.c.step.variables if gradient_name(v) == root), None)
        return v is None or v.kind != "input" or v.handed or self._handed_on(v.name)

    def _handed_on(self, variable: str) -> bool:
        """Do others add to the gradient of a variable, before it is rounded?"""
        return self.fine is not None and variable in self.fine.gradients

    # --- results ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> None:
        orders = self.c.step.output_axes
        values = self._multiplied(self.fused.values)
        rows = self._per_step_results(values, orders)
        self.body += self._per_step([*rows.values()]) if rows else []
        results = self._values(values, orders, {n: r.name for n, r in rows.items()})
        outputs = entries({n: results[n] for n in orders})
        finals = entries({s.name: ref(f"{self.names(leaf('state', s.name))}_last") for s in self.c.step.states})
        self._save()
        self.body.append(Return(py("{}, {}, {}", outputs, finals, ref("saved"))))

    def _save(self) -> None:
        """What the backward pass uses."""
        add, states = self.body.append, self.c.step.states
        names = {s.name: self.names(leaf("state", s.name)) for s in states}
        writes = {x: ref(self.names(x)) for x in self.plan.form.write_leaves()}
        saved, spare = (
            {x.attrs[1]: v for x, v in writes.items() if (x in self.spare) == alone} for alone in (False, True)
        )
        add(Set(("saved",), entries(saved)))
        if self.whole is not None:
            n = self.whole.state.name
            add(If(Expr("jointly"), (_saved({f"{n} borders": ref(f"{names[n]}_borders")}),)))
        if self.by_head:
            alone = " and not jointly" if self.whole is not None else ""
            if any(isinstance(k, Kernel) and k.roles is not None for k in self.kernels):
                alone += " and config.roles is None"  # whose chunks are others than the backward pass has
            kept = _saved({n: ref(n) for n in self.by_head})
            add(If(Expr(f"needs_backward is True and not config.exact{alone}"), (kept,)))
        checkpoints = {f"{n} borders": ref(f"{names[n]}_borders") for n in names if n in self.schedule.stored}
        if spare or checkpoints:
            add(If(Expr("needs_backward"), (_saved(spare | checkpoints),)))
        starts = {f"{n} starts": ref(f"{names[n]}_starts") for n in names if n in self.kept_starts}
        if self.cuts and starts:
            add(If(Expr("parts > 1"), (_saved(starts),)))
        if self.turned:
            linear = {n: f"{self.names(leaf('state', n))}_linear" for n in sorted(self.turned, key=plain_name)}
            add(If(Expr(self._in_segments), (_saved({f"{n} linear": ref(x) for n, x in linear.items()}),)))

    def _per_step_results(self, values: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> dict[str, Result]:
        """Those among values that a per-step kernel makes."""
        found = {}
        for name, node in values.items():
            if node.op != "leaf" and not self._terms(node, orders[name]) and printable(node, orders[name]):
                tensor = self.names(leaf("stored", name, orders[name]))
                found[name] = Result(tensor, node, orders[name], self._value_dtype(name))
        return found

    def _value_dtype(self, name: str) -> str:
        return "torch.float32" if self._wide(name) else "some.dtype"

    def _values(
        self, values: dict[str, Node], orders: dict[str, tuple[str, ...]], made: Mapping[str, str]
    ) -> dict[str, Expr]:
        """Whole values: tensors as stored, or torch expressions over them; `made` names those that are there."""
        out = {}
        for name, node in values.items():
            if name in made:
                out[name] = ref(made[name])
                continue
            if node.op == "leaf" and (node.attrs[0] == "stored" or is_made(node)) and len(orders[name]) < 2:
                out[name] = ref(self.names(node))
                continue
            shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in orders[name])])
            terms = self._terms(node, orders[name])
            if terms:
                out[name] = py("total(({}), {}, {})", shape, self._value_dtype(name), joined(map(ref, terms)))
                continue
            results = self.torch_text({"x": node}, {"x": orders[name]})
            rounded = "" if self._wide(name) else ".to(some.dtype)"
            out[name] = py("spread({}, ({}), some){}", results["x"], shape, rounded)
        return out

    def _terms(self, node: Node, order: tuple[str, ...]) -> list[str]:
        """The tensors whose sum a value is, where it is no more than that of a few that kernels have stored."""
        terms = node.args if node.op == "add" else (node,)
        if len(terms) > TERMS or any(x.op != "leaf" or x.attrs[2] != order for x in terms):
            return []
        kinds = {x.attrs[0] for x in terms}
        if not kinds <= {"sums", "pairing", "stored"} or kinds == {"pairing"}:
            return []
        return [
            f"{self.names(leaf('state', x.attrs[1]))}_pairing" if x.attrs[0] == "pairing" else self.names(x)
            for x in terms
        ]

    def _gradients(self) -> None:
        add = self.body.append
        add(Set(("gradients", "initial"), Expr("{}, {}")))
        for unroll in self.unrolls:
            self._unroll(unroll)
        for stage in self.plan.stages:
            if isinstance(stage, Accumulate):
                self._state_adjoint(stage)
        variables = [v for v in self.c.step.variables if v.kind != "constant" and gradient_name(v) in self.fused.values]
        found, products = self._products({v.name: self.fused.values[gradient_name(v)] for v in variables})
        for users, made_by in products:
            self._under(users, made_by)
        values = {gradient_name(v): _along(found[v.name], v.axes) for v in variables}
        made = self._gradients_per_step(variables, values)
        for v in variables:
            name = gradient_name(v)
            with self._apart() as inner:
                value = self._summed_over_steps(v, values[name], made) if not v.per_step else None
                value = value or self._values({name: values[name]}, {name: v.axes}, made)[name]
                rounded = "" if self._handed_on(v.name) else f'.to(given["{v.name}"].dtype)'
                inner.append(Do(py('{}["{}"] = {}{}', ref("gradients"), v.name, value, rounded)))
            add(if_wanted(v.name, inner))
        for state, program in initial_adjoints(self.c).items():
            self._through_initial(state, program)
        for s in self.c.step.states:
            last = ref(f"{self.names(leaf('state', f'd{s.name}'))}_last")
            add(if_wanted(s.name, [Do(py('{}["{}"] = {}', ref("initial"), s.name, last))]))
        add(Return(py("{}, {}", ref("gradients"), ref("initial"))))

    # --- products of states and gradients at each step ---------------------------------------------------------------

    def _unrolled_from(self) -> frozenset[str]:
        """The states that products of states and gradients at each step are made from, as blocks of steps find them."""
        return frozenset(s.name for x in self.unrolls for s in (*x.forward, *x.backward))

    def _unroll(self, stage: Unroll) -> None:
        """The products at each step, by a kernel over all blocks."""
        walked = {n for s in self.schedule.sweeps.values() for n in s.states}
        walked |= self.schedule.given
        if not self._unrolled_from() <= walked:
            raise CannotPrint(f"no walk over {', '.join(sorted(self._unrolled_from() - walked))}")
        stage, transitions = unroll_with_transitions(stage)
        stage = kept_apart(stage)  # before streams are named: a kernel loads them by the axes that they have there
        streams: dict[Node, Node] = {}
        for x, node in stage.streams.items():
            if in_prologue(node):
                self.origins[leaf("ahead", node.key[:12], node.axes)] = node
                node = leaf("ahead", node.key[:12], node.axes)
            streams[x] = node
        kernels = []
        channels = next((x.axes[0] for x in stage.outputs if x.axes), None)
        for part in [stage] if channels is not None else _parts_of(stage):
            number = sum(x.name.startswith(f"{self.kind}_unroll") for x in self.kernels) + 1
            kernel = unroll_kernel(f"{self.kind}_unroll_{number}", part, streams, self.names)
            self._inputs(kernel, "block_")
            self.kernels.append(kernel)
            kernels.append((kernel, list(part.outputs)))
        with self._apart() as found:
            self._launch_transitions(transitions, "block_")
            made: dict[str, list[Expr]] = {x.attrs[1]: [] for x in stage.outputs}
            for kernel, outputs in kernels:
                axis = kernel.tiled
                tiles = (
                    "1" if axis is None else f"cdiv({size_name(dim_of(axis))}, {self.launches.tile(axis, reads=True)})"
                )
                for x in outputs:
                    made[x.attrs[1].removesuffix(OWN)].append(ref(self.names(x)))
                    shape = f"B, H, {tiles}, T" if channels is None else f"B, T, H, {size_name(dim_of(channels))}"
                    found.append(Alloc(self.names(x), Expr(shape)))
                found += self.launches.launch(kernel, block="block_")
            for state_adjoint, parts in made.items():
                name = f"{self.names(leaf('state', state_adjoint))}_pairing"
                whole = Expr("(B, T, H)")
                if channels is not None:
                    found.append(Set((name,), parts[0]))
                elif parts:
                    found.append(Call((name,), "total", (whole, Expr("torch.float32"), *parts)))
                else:
                    found.append(Call((name,), "spread", (Expr("0.0"), whole, Expr("some"))))
        self._under(set().union(*(self.wants.paired(x.attrs[1]) for x in stage.outputs)), found)

    def _summed_over_steps(self, v: Var, node: Node, made: Mapping[str, str]) -> Expr | None:
        """The gradient of a parameter: the sum over sequences and steps of what it is at each."""
        name = gradient_name(v)
        if name in made:
            return py("{}.sum(0)", ref(made[name]))
        if _is_zero(node):
            shape = ", ".join(["H", *(size_name(dim_of(a)) for a in v.axes)])
            return Expr(f"some.new_zeros(({shape}), dtype=torch.float32)")
        value = self._outer(node, v.axes) if len(v.axes) == 2 else None
        return value or py("{}.float().sum((0, 1))", self._values({name: node}, {name: v.axes}, made)[name])

    def _gradients_per_step(self, variables: list[Var], values: dict[str, Node]) -> dict[str, str]:
        """The names of gradients that one per-step kernel makes, or sums over some steps each, which it launches."""
        per_step = [v for v in variables if v.per_step]
        found = self._per_step_results(
            {gradient_name(v): values[gradient_name(v)] for v in per_step}, _orders(per_step)
        )
        for name, order in _orders([v for v in variables if not v.per_step]).items():
            if printable(values[name], order, summed=True):
                tensor = self.names(leaf("stored", f"{name}.summed", order))
                found[name] = Result(tensor, values[name], order, "torch.float32", summed=True)
        wanted = {v.name: gradient_name(v) for v in variables if gradient_name(v) in found}
        if found:
            rows = [replace(found[name], wanted=n) for n, name in wanted.items()]
            self._under(set(wanted), self._per_step(rows))
        return {n: r.name for n, r in found.items()}

    def _through_initial(self, state: str, program: StepProgram) -> None:
        """What parameters get through the initial value that is made of them."""
        known = self.names(leaf("state", f"d{state}"))
        for v in program.variables:
            if gradient_name(v) not in program.outputs:
                continue
            node = program.outputs[gradient_name(v)]
            self.initial_gradient = f"{known}_last"
            made, results = self._torch({"x": node}, {"x": v.axes})
            shape = ", ".join(["lay.sequences", "H", *(size_name(dim_of(a)) for a in v.axes)])
            value = py('{}["{}"] += spread({}, ({}), some).sum(0)', ref("gradients"), v.name, results["x"], shape)
            given = Expr(f'"{v.name}" in needs and states.get("{state}") is None')
            self.body.append(If(given, (*made, Do(value)), wanted=frozenset({v.name})))

    def _state_adjoints_at_ends(self) -> None:
        """<S, dS> after the last step of each segment, as soon as both are known there: the states needn't be kept for longer."""
        for p in (x.state_adjoint for x in self.plan.stages if isinstance(x, Accumulate)):
            known = p.state in self.left and f"d{p.state}" in self.entered
            wanted = self.wants.paired(p.state)
            if not known or not wanted or p.state in self.paired or p.state in self.schedule.spans:
                continue
            self.paired.add(p.state)
            axes = self.c.step.state(p.state).axes
            name, gradient = (self.names(leaf("state", n)) for n in (p.state, f"d{p.state}"))
            dims = tuple(n - len(axes) for n, a in enumerate(axes) if a not in p.leaf.axes)
            arguments = (ref(f"{name}_last"), ref(f"{gradient}_starts"), Expr(str(dims)))
            self._under(wanted, [Call((f"{name}_at_ends",), "pair", arguments)])

    def _state_adjoint(self, stage: Accumulate) -> None:
        p = stage.state_adjoint
        wanted = self.wants.paired(p.state)
        if not wanted:
            return
        name, axes = self.names(leaf("state", p.state)), p.leaf.axes
        target = f"{name}_pairing"
        if p.state in self.schedule.spans and (not axes or p.state in self.schedule.whole):
            made = ref(self.names(leaf("stored" if axes else "sums", f"{p.state}.pairing", axes)))
            if not axes:
                self._under(wanted, [Call((target,), "total", (Expr("(B, T, H)"), Expr("torch.float32"), made))])
            elif made != ref(target):
                self._under(wanted, [Set((target,), made)])
            return
        assert p.state in self.paired or p.state in self.schedule.spans  # which need none
        start = f"{name}_at_ends"
        with self._apart() as inner:
            if stage.by_channel:
                self._summed(p, name, start, stage.at_boundaries)
            else:
                self._from_checkpoints(p, name, start)
        comment = f"the decay times <{p.state}_(t-1), d{p.state}_t>"
        self.body.append(If(any_wanted(wanted), tuple(inner), comment=comment, wanted=frozenset(wanted)))

    def _summed(self, p: StateAdjointProduct, name: str, start: str, at_boundaries: bool) -> None:
        axes = p.leaf.axes
        late, early = self._multiplied(dict(enumerate(self.fused.state_adjoints[p.state]))).values()
        shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
        sides = {"late": late, "early": early}
        rows = [Result(n, x, axes, "torch.float32") for n, x in sides.items() if x.op != "leaf" and printable(x, axes)]
        self.body += self._per_step(rows) if rows else []
        for side in (n for n in sides if all(r.name != n for r in rows)):
            value = self.torch_text({side: sides[side]}, {side: axes})[side]
            if sides[side] is not ZERO:
                self.body.append(Call((side,), "spread", (value, Expr(f"({shape})"), Expr("some"))))
            else:
                zeros = NONE if side == "early" else Expr(f"some.new_zeros(({shape}), dtype=torch.float32)")
                self.body.append(Set((side,), zeros))
        made = (ref("late"), ref("early"))
        if p.state in self.schedule.spans:
            ends = ref(self.names(leaf("sums", f"{p.state}.ends", axes)))
            self.body.append(Call((f"{name}_pairing",), "block_sums", (*made, ends, Expr("blocks"))))
            return
        totals = [ref(self.names(leaf("sums", f"{p.state}.{kind}"))) for kind in ("in", "out") if at_boundaries]
        arguments = (*made, ref(start), Expr("lay"), Expr("parts"), *totals)
        self.body.append(Call((f"{name}_pairing",), "suffix_sum", arguments))

    def _from_checkpoints(self, p: StateAdjointProduct, name: str, start: str) -> None:
        """What the sweeps over the state and over its gradient have summed, put together."""
        found: dict[str, str] = {}
        for sums in (s for o in self.opened.values() for s in o.sums if s.state == p.state):
            made = {f"{sums.kind}.{slot}": leaf("sums", f"{p.state}.{sums.kind}.{slot}") for slot in sums.reads}
            made |= {f"own.{n}": sums.prologue.get(n, leaf("sums", f"{p.state}.own.{n}")) for n in sums.slots}
            found |= {slot: self.names(x) for slot, x in made.items()}
        scale = self.plan.form.state(p.state).decay
        assert scale is not None
        decay = self.names(scale)
        given = joined([ref(f"{decay}_sums"), ref(f"{decay}_rests"), ref(start)])
        arguments = [
            py("{}, lay, parts, config.exact", given),
            *(py("{}={}", slot.replace(".", "_"), ref(x)) for slot, x in found.items()),
        ]
        arguments += [Expr("at_once=True")] if p.state in self.fused.at_once else []
        self.body.append(Call((f"{name}_pairing",), "border_sums", tuple(arguments), lines=True))

    # --- who needs what ---------------------------------------------------------------------------------------------


def _parts_of(stage: Unroll) -> list[Unroll]:
    """What is of states, and what is of pairs of steps inside a block alone: no program has the registers for both."""
    parts: dict[str, dict[Node, Node]] = {}
    for x, node in stage.outputs.items():
        for term in () if node == ZERO else terms_of(node):
            kind = "" if any(map(is_state, walk(term))) else OWN
            made = parts.setdefault(kind, {})
            y = leaf("sums", f"{x.attrs[1]}{kind}")
            made[y] = add(made[y], term) if y in made else term
    return [replace(stage, outputs=made) for made in parts.values()]


def _saved(values: Mapping[str, Expr]) -> Update:
    return Update("saved", entries(values))


def _orders(variables: list[Var]) -> dict[str, tuple[str, ...]]:
    """The axes of variables, by the names of their gradients."""
    return {gradient_name(v): v.axes for v in variables}


def _along(node: Node, axes: tuple[str, ...]) -> Node:
    """A vector's value along the vector's own axis, which may be the other one of a square state where it is made."""
    return rename(node, dict(zip(node.axes, axes, strict=True))) if len(node.axes) == len(axes) == 1 else node


def _is_zero(node: Node) -> bool:
    """Is a value zero, over whichever axes?"""
    return node is ZERO or (node.op == "expand" and _is_zero(node.args[0]))


def _matrix_map(sweep: Sweep, plan: Plan) -> Sweep | None:
    """The sweep over the matrix of a segment's map, where writes depend on reads; there may be none for such a sweep."""
    return linear_sweep(sweep.group, plan.form.reads) if feeds_back(sweep.group, sweep.solve) else None


def _turned_maps(forward: Plan, backward: Plan) -> set[str]:
    """The states with a matrix in the map of a segment, which is, turned, in the map of their gradient: so the gates have
    proved."""
    rows: dict[str, str | None] = {}
    for plan in (forward, backward):
        alone = [s for s in plan.sweeps if len(s.group) == 1 and _matrix_map(s, plan) is not None]
        rows |= {s.group[0].name: s.group[0].row for s in alone}
    return {n for n in rows if rows.get(f"d{n}", "") == rows[n]}


def _wide_leaves(node: Node, o: Opened) -> set[tuple[str, str]]:
    """What a kernel loads a tile of for a matrix."""
    nodes = walk(node, *streams_of(o, [node]).values())
    return {
        y.attrs[:2]
        for y in nodes
        if y.op == "leaf" and y.attrs[0] in PER_STEP and any(not a.startswith("%") for a in y.axes)
    }


def without(plan: Plan, value: str) -> Plan:
    """A plan that doesn't compute one of its values, nor what only that is made of."""
    stages: list[Stage] = []
    for stage in plan.stages:
        if isinstance(stage, Map):
            stage = replace(stage, values={n: x for n, x in stage.values.items() if n != value})
        stages.append(stage)
    made = [x for stage in stages if isinstance(stage, Map) for x in stage.values.values()]
    made += [
        x
        for s in stages
        if isinstance(s, Accumulate) and s.by_channel
        for x in (s.state_adjoint.late, s.state_adjoint.early)
    ]
    made += [
        x
        for s in stages
        if isinstance(s, Sweep)
        for x in (*s.given.values(), *s.chunk.definitions.values(), *s.chunk.states.values())
    ]
    used = {y.attrs[:2] for y in walk(*made) if is_made(y)}
    for k, stage in enumerate(stages):
        if isinstance(stage, Sweep):
            outputs = {x: n for x, n in stage.chunk.outputs.items() if x.attrs[:2] in used}
            stages[k] = replace(stage, chunk=replace(stage.chunk, outputs=outputs))
    return replace(plan, stages=tuple(stages))
