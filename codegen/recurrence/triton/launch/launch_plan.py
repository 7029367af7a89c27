"""The functions that launch the kernels of a plan: `triton_forward` and `triton_backward`, as the op calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    leaf_names,
    plain_name,
    rename,
    terms_of,
    walk,
)
from ....ir.expr import replace as replaced
from ....ir.step_program import StateVar, StepProgram, Var
from ....printing.expressions import NodePrinter, Torch
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Accumulate, Map, Plan, Stage, Sweep, Unroll
from ...chunkwise.segment_maps import feeds_back, linear_sweep
from ...normal_form.form import StateAdjointProduct, StateForm
from ...normal_form.log_decay import log_of
from ...step.adjoint import gradient_name
from ...stepwise.initial import initial_adjoints
from ..kernels.coupling_weights import (
    TransitionKernel,
    Transitions,
    transition_kernel,
    unroll_with_transitions,
    with_transitions,
)
from ..kernels.fused_backward import FusedBackward
from ..kernels.per_step import Result, RowKernel, launched, matrix_product, outer_vectors, printable, row_kernel
from ..kernels.sweep_kernels import (
    Alone,
    CheckpointReads,
    Kernel,
    intra_chunk_kernel,
    output_kernel,
    slow_path_name,
    sweep_kernel,
    unroll_kernel,
)
from ..kernels.tile_lowering import Argument, Fine
from ..plan_passes.checkpoint_schedule import checkpoint_schedule
from ..plan_passes.hoist import Opened, in_prologue, made_in_prologue, opened, owned, uses
from ..plan_passes.roles import PER_STEP, CannotPrint, is_state
from ..plan_passes.value_placement import Fused, Store, fuse, is_made
from ..print.axis_names import axis_name, block_name, size_name
from ..print.names import Names

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
        self.wants: dict[int, frozenset[str]] = {}  # by stage: the variables and states whose gradients need it
        self.kernels: list[Kernel] = []
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
        self.cuts = cuts  # may sequences be cut in parts, which programs of their own sweep over?
        self.exchanges = cuts and exchanges  # may other parts be elsewhere?
        self.block = "config.span" if self.unrolls and not self.from_checkpoints else "BLOCK"  # steps of a block
        self.held: list[tuple[set[str], list[str], tuple[str, ...]]] = []
        self.checkpointed: set[str] = set()  # states that were left at checkpoints
        self.entered: set[str] = set()  # states whose values before each part are known
        self.left: set[str] = set()  # states whose last values are known
        self.heavy: set[int] = set()  # sweeps that load too much to do so ahead, and make several reads
        self.wanted_reads: dict[str, list[str]] = {}  # by walk: whether each of its reads is needed
        self.paired: set[str] = set()  # states whose state-adjoint products at the ends of parts are known
        self.lines: list[str] = []
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
        if self.whole is not None and self.backward:
            rest = "".join(f", {x}" for x in ("packed", *(["exchange"] if self.exchanges else [])))
            self.lines += [
                f'if "{self.whole.state.name} borders" in saved:',
                f"    return {self.function}_backward_whole(",
                f"        given, states, constants, saved, cotangents, final_cotangents, needs{rest}",
                "    )",
            ]
        self._open()
        self._sweeps()
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
        """The sweeps that load too much to do so ahead, which is known once their kernels are there."""
        self._open()
        self._sweeps()
        return self.heavy

    def _sweeps(self) -> None:
        for k, sweep in self.schedule.sweeps.items():
            self._read(self._read_by(k))
            self._sweep(k, sweep)
            self._state_adjoints_at_ends()
        self._launch_held()
        self._state_adjoints_at_ends()
        self._read(self.waiting)

    def _function(self, name: str, head: str, doc: str) -> str:
        body = "\n".join(f"    {x}" for x in freed(self.lines))
        return f'def {name}{head}:\n    """{doc}"""\n{body}\n'

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        p, add = self.c.step, self.lines.append
        given = frozenset() if self.fine is None else self.fine.given
        narrow = [v for v in p.variables if v.kind == "input" and v.name not in given]
        first = p.leading if p.leading in narrow else narrow[0] if given else None
        self.lines += inputs(p, self.names, first)
        sizes = ", ".join(size_name(d) for d in p.dims) + ("," if len(p.dims) == 1 else "")
        add(f'config = choose(some.dtype, ({sizes}), "{HASH}")')
        add("lay = places(packed, (B, T, H), config.chunk)")
        if self.from_checkpoints or self.schedule.stored or self._takes_blocks:
            add(f"blocks = places(packed, (B, T, H), {self.block})")
        if self.whole is not None and not self.backward:
            wide = [self.names(v.leaf) for v in p.variables if v.kind == "input" and v.per_step and v.axes]
            add(f"jointly = needs_backward is True and together(config, ({sizes}), {', '.join(wide)})")
        if self.cuts:
            tiles = max((self._tile_count(o) for o in self.opened.values()), key=lambda x: (x != "1", x))
            add(f"parts = parts_for(lay, B * H * {tiles})")
        else:
            add("parts = 1")
        for s in p.states:
            self._first_state(s)
            if not self.backward:
                name = self.names(leaf("state", s.name))
                add(f"{name}_starts = {name}_first")
        if self.backward:
            for s in p.states:
                name = self.names(leaf("state", f"d{s.name}"))
                add(f'{name}_first = {name}_starts = whole(final_cotangents.get("{s.name}"))')
            for s in p.states:
                name = self.names(leaf("state", s.name))
                if s.name in self.again:
                    add(f'{name}_starts = saved["{s.name} starts"] if parts > 1 else {name}_first')
                if s.name in self.schedule.given:
                    add(f'{name}_borders = saved["{s.name} borders"]')
            for x in self.plan.saved:
                add(f'{self.names(x)} = saved["{x.attrs[1]}"]')
            for name, axes in self.c.step.output_axes.items():
                x = leaf("cotangent", f"d{name}", axes)
                shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
                add(f'{self.names(x)} = cotangent(cotangents.get("{name}"), some, ({shape}))')

    @property
    def _takes_blocks(self) -> bool:
        return self.whole is not None and not self.backward

    def _first_state(self, s: StateVar) -> None:
        name = self.names(leaf("state", s.name))
        self.lines.append(f'{name}_first = whole(states.get("{s.name}"))')
        if s.initial is None:
            return
        lines, results = self.printer.statements({"first": s.initial}, self.torch_leaf, orders={"first": s.axes})
        shape = ", ".join(["lay.sequences", "H", *(size_name(dim_of(a)) for a in s.axes)])
        self.lines.append(f"if {name}_first is None:")
        self.lines += [f"    {x}" for x in lines]
        self.lines.append(f"    {name}_first = whole(spread({results['first']}, ({shape}), some))")

    def torch_leaf(self, x: Node) -> str:
        """A step-level leaf as [B, T, H, *axes] float32 (per head: [H, *axes])."""
        kind, name, _ = x.attrs
        if kind == "constant":
            return f'constants["{name}"]'
        if kind == "sums":
            return f"{self.names(x)}.sum(2).mT"
        if kind == "pairing":
            return f"{self.names(leaf('state', name))}_pairing"
        if kind == "cotangent" and name[1:] in {s.name for s in self.c.step.states}:
            return self.initial_gradient
        text = f"{self.names(x)}.float()"
        if kind in ("input", "decay"):
            text = f"each_head({self.names(x)}, H).float()"
        return f"{text}.exp()" if kind.startswith("decay") else text

    def _tensor(self, x: Node) -> str:
        """The name of a leaf's tensor."""
        return f"{self.names(leaf('state', x.attrs[1]))}_pairing" if x.attrs[0] == "pairing" else self.names(x)

    def _per_step(self, results: list[Result]) -> list[str]:
        """The launch of a kernel that makes these."""
        number = sum(isinstance(x, RowKernel) for x in self.kernels) + 1
        kernel = row_kernel(f"{self.stem}_rows_{number}", results, self.names, self._tensor)
        self.kernels.append(kernel)
        return launched(kernel, results)

    def _in_memory(self, x: Node) -> str:
        """The text of a value of each step, [B, T, H, *axes], which a per-step kernel makes unless it is there."""
        if x.op == "leaf" and x.attrs[0] == "input":
            return f"each_head({self.names(x)}, H)"
        if x.op == "leaf" and x.attrs[0] in ("cotangent", "read", "write", "stored", "multiplied"):
            return self.names(x)
        self.numbered += 1
        name = self.names(leaf("stored", f"rows.{self.numbered}", x.axes))
        self.lines += self._per_step([Result(name, x, x.axes, "torch.float32")])
        return name

    def _multiplied(self, nodes: Mapping[Any, Node]) -> dict[Any, Node]:
        """Nodes, with products of parameters that are matrices made by torch: over all steps of a head at once."""
        found, made = self._products(nodes)
        self.lines += [x for _, lines in made for x in lines]
        return found

    def _products(self, nodes: Mapping[Any, Node]) -> tuple[dict[Any, Node], list[tuple[set[Any], list[str]]]]:
        """Nodes with such products as leaves; and the statements that make these, for which of the nodes."""
        out: dict[Any, Node] = {}
        made: dict[tuple[Node, bool, Node], tuple[str, set[Any], list[str]]] = {}  # whatever axes are called
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
                    before, self.lines = self.lines, []
                    text, letters = self._in_memory(vector), "bthj,hij->bthi" if per_row else "bthi,hij->bthj"
                    self.numbered += 1
                    product = leaf("multiplied", f"product.{self.numbered}", x.axes)
                    made_by = f'by_matrix("{letters}", {text}, {self.torch_leaf(matrix)})'
                    made[key] = product.attrs[1], set(), [*self.lines, f"{self.names(product)} = {made_by}"]
                    self.lines = before
                if key in made:
                    made[key][1].add(user)
                    found[x] = leaf("multiplied", made[key][0], x.axes)
            out[user] = replaced(node, found) if found else node
        return out, [(users, lines) for _, users, lines in made.values()]

    def _outer(self, node: Node, order: tuple[str, ...]) -> str | None:
        """The gradient of a parameter that is a matrix, where it sums products of two vectors of each step."""
        pairs = [outer_vectors(x, order) for x in terms_of(node)]
        if not pairs or None in pairs:
            return None
        texts = [[self._in_memory(x) for x in pair] for pair in pairs if pair is not None]
        sums = [f"outer_sum({left}, {right})" for left, right in texts]
        return sums[0] if len(sums) == 1 else f"({' + '.join(sums)})"

    def torch_text(self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> dict[str, str]:
        lines, results = self.printer.statements(nodes, self.torch_leaf, orders=orders)
        self.lines += lines
        return results

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def _sweep(self, k: int, sweep: Sweep) -> None:
        """A sweep, with what must be done in the prologue of it: what needs no state, and the states that enter parts of the
        sequence."""
        o = self.opened[k]
        stores = self.fused.stores[k]
        number = sum(x.sweeps and "ends" not in x.name for x in self.kernels) + 1
        wanted = self._wanted_by(k) if self.backward else self._everything()
        first = not set(sweep.states) <= self.entered and not (self.backward and sweep.direction > 0)
        group = wanted
        stored = self.schedule.stored if self.whole is None or self.backward else {self.whole.state.name}
        checkpoints = bool(set(sweep.states) & stored) and not set(sweep.states) <= self.checkpointed
        if (first or checkpoints) and self.backward:
            again = [
                j for j, x in enumerate(self.plan.stages) if isinstance(x, Sweep) and set(x.states) & set(sweep.states)
            ]
            group = set().union(*(self._wanted_by(j) for j in again))
            if checkpoints:
                wanted = group = group.union(*(self._wanted_by(j) for j in self.from_checkpoints))
        if not group:
            return  # what it yields is made by other sweeps, with their stores or sums
        each = self.backward and sweep.direction > 0  # state-adjoint products start from the end of each part
        linear = first and self.cuts and self._makes_matrix(sweep)
        kernel = sweep_kernel(
            f"{self.kind}_sweep_{number}",
            sweep,
            o,
            stores,
            self.names,
            ends=first and self.cuts,
            linear=linear,
            each=each,
            fine=self.fine,
            checkpoints=checkpoints,
            rows=None if self.whole is None else self.whole.rows,
            spare=self.spare,
        )
        if kernel.heavy:
            self.heavy.add(k)
        if self.backward:
            self.wanted_reads[kernel.name] = [self._wants(k, alone) for alone in kernel.apart]
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
        lines = [self._allocated(k, s) for s in stores]
        if checkpoints:
            self.checkpointed |= set(sweep.states)
            for state in sweep.group:
                shape = ", ".join(["B", "H", "blocks.chunks", *(size_name(dim_of(a)) for a in state.axes)])
                dtype = "some.dtype" if self.fine is None else "torch.float32"
                alone = "" if self.backward else " if needs_backward else None"
                if self.whole is not None:
                    rows, columns = (size_name(dim_of(a)) for a in (self.whole.rows, self.whole.columns))
                    shape, alone = f"B, blocks.chunks * config.padded({rows}), H, {columns}", " if jointly else None"
                text = f"some.new_empty(({shape}), dtype={dtype})"
                lines.append(f"{self.names(leaf('state', state.name))}_borders = {text}{alone}")
        for x in self._boundary_sums(o):
            shape = f"B, H, lay.chunks, {size_name(dim_of(x.axes[0]))}" if x.axes else f"B, H, {self._sums_of(k)}, T"
            lines.append(f"{self.names(x)} = some.new_empty(({shape}), dtype=torch.float32)")
        for s in sweep.group:
            if s.name in sweep.finals:
                name = self.names(leaf("state", s.name))
                count = "lay.sequences * parts" if each else "lay.sequences"
                lines.append(f"{name}_last = {self._new_state(s, count)} if {self._wants_last(s, each)} else None")
        lines += self._launch(kernel)
        if self.cuts and self.backward and sweep.direction > 0 and self._can_wait(k):
            self.held.append((wanted, lines, sweep.finals))
        else:
            self._under(wanted, lines)
            self.left.update(sweep.finals)

    def _wants_last(self, s: StateForm, each: bool) -> str:
        """When somebody uses the last value of a state: of the recurrence's own states, in a backward pass, that is what pairs
        it with its gradient there, if there is one."""
        if not self.backward:
            return "finals"
        if each:
            gradient = self.names(leaf("state", f"d{s.name}"))
            return f"{gradient}_first is not None" + (f" or {self._in_segments}" if self.cuts else "")
        wanted = sorted({s.name[1:]} | self._initial_wants(s.name[1:]), key=plain_name)
        return "needs & {" + ", ".join(f'"{n}"' for n in wanted) + "}"

    def _read_by(self, k: int) -> list[int]:
        """The pieces that make what sweep k loads, and what these load."""
        nodes = [*self.schedule.sweeps[k].given.values(), *(s.node for s in self.fused.stores[k])]
        found: list[int] = []
        while nodes:
            makers = [j for j in self.waiting if any(uses(n, s.leaf) for n in nodes for s in self._stores_at(j))]
            more = [j for j in makers if j not in found]
            found += more
            nodes = [s.node for j in more for s in self._stores_at(j)]
        return sorted(found)

    def _read(self, stages: list[int]) -> None:
        """Kernels that read checkpointed states: for these stages, one for those of the same tile axis."""
        if not stages:
            return
        self._launch_held()
        self.waiting = [k for k in self.waiting if k not in stages]
        tiles = list(dict.fromkeys(self.from_checkpoints[k].tile for k in stages))
        for tile in tiles:
            same = [k for k in stages if self.from_checkpoints[k].tile == tile]
            wanted = set().union(*(self._wanted_by(k) for k in same))
            if not wanted:
                continue
            number = sum(x.reads for x in self.kernels) + 1
            inside = {s.leaf for k in same for s in self._stores_at(k) if self._only_in(s, same)}
            from_checkpoints = [
                CheckpointReads(self.schedule.from_checkpoints[k].group, self.from_checkpoints[k], self._stores_at(k))
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
            lines = [self._allocated(k, s) for k in same for s in self._stores_at(k) if s.leaf not in inside]
            # a kernel for rows that are of a large decay range loads the sums once more
            free = set() if self.waiting or tile != tiles[-1] or kernel.slow_path else set(kernel.replaces)
            for a in kernel.arguments:
                x = a.source
                if x is None or x.op != "leaf" or x.attrs[0] not in ("sums", "stored"):
                    continue
                own = [size_name(dim_of(y)) for y in x.axes]
                if x.attrs[1].endswith(".ends"):
                    shape = ", ".join(["B", "H", "blocks.chunks", *own])
                elif x.attrs[1].endswith(".pairing"):
                    tiles_of = self._tile_count(self.from_checkpoints[same[0]], reads=True)
                    shape = f"B, T, H, {own[0]}" if own else f"B, H, {tiles_of}, T"
                else:
                    continue
                text = f"some.new_empty(({shape}), dtype=torch.float32)"
                if x.attrs[1].endswith(".pairing") and (decay := self._decay_of(x, same[0])) in free:
                    free.remove(decay)
                    text = f"{decay}_sums  # in place"
                lines.append(f"{self.names(x)} = {text}")
            self._under(wanted, lines + self._launch(kernel, block="block_"))

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

    def _stores_at(self, k: int) -> list[Store]:
        """What the piece of a stage stores: nothing where a sweep does."""
        return [] if k in self.schedule.sweeps else self.fused.stores[k]

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
        lines = []
        for x in some.of_prologue:
            own = [a for a in x.axes if not a.startswith("%")]
            shape = f"B, H, T, {size_name(dim_of(own[0]))}" if own else "B, H, blocks.chunks, BLOCK, BLOCK"
            dtype = ", dtype=torch.float32" if self.fine is not None else ""
            lines.append(f"{self.names(x)}_blocks = some.new_empty(({shape}){dtype})")
        self._under(wanted, lines + self._launch(kernel, block="block_"))
        self.kernels.append(kernel)

    def _can_wait(self, k: int) -> bool:
        """May a sweep over states come after gradients of states were sent for, from other parts of the sequence?"""
        later = [(j, x) for j, x in enumerate(self.plan.stages) if j > k and isinstance(x, Sweep)]
        if not any(x.direction < 0 and not set(x.states) <= self.entered for _, x in later):
            return False
        nodes = [n for j, x in later for n in (*x.given.values(), *(s.node for s in self.fused.stores[j]))]
        return not any(uses(n, s.leaf) for n in nodes for s in self.fused.stores[k])

    def _launch_held(self) -> None:
        """Sweeps that were put off until what comes from other parts is on its way."""
        for wanted, lines, finals in self.held:
            self._under(wanted, lines)
            self.left.update(finals)
        self.held = []

    def _everything(self) -> set[str]:
        variables = {v.name for v in self.c.step.variables if v.kind != "constant"}
        return variables | {s.name for s in self.c.step.states}

    def _under(self, wanted: set[str], lines: list[str]) -> None:
        """Add lines, under the condition that one of these gradients is needed."""
        self.lines += self._where(wanted, lines)

    def _where(self, wanted: set[str], lines: list[str]) -> list[str]:
        """Lines under this condition."""
        if not lines or wanted == self._everything():
            return lines
        names = ", ".join(f'"{n}"' for n in sorted(wanted, key=plain_name))
        return [f"if needs & {{{names}}}:", *(f"    {x}" for x in lines)]

    def _new_state(self, s: StateForm, count: str) -> str:
        shape = ", ".join([count, "H", *(size_name(dim_of(a)) for a in s.axes)])
        return f"some.new_empty(({shape}), dtype=torch.float32)"

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
            for x, node in self._matrices_early(some, later, k).items():
                if self.names(x) not in self.of_prologue:
                    some.matrices[x] = node
                    prologue.append(x)
                    wanted = wanted | (self._wanted_by(j) if self.backward else wanted)
        for own in sums:
            wanted = wanted | self._paired(own.state)
            if own.source is not None:
                _streams_into(some, own.source, [n for n, _, _ in own.terms])
        for own in sums:
            self.of_prologue[f"{own.state} {own.place}"] = wanted
        kernel = intra_chunk_kernel(name, some, self.names, self.fine, making)
        self._inputs(kernel, makes=making)
        lines = []
        for own in (x for x in sums if x.place == 0):
            for slot, x in own.prologue.items():
                lines.append(f"{self.names(x)} = some.new_empty((B, H, {own.counts[slot]}, T), dtype=torch.float32)")
        for x in dict.fromkeys(prologue):
            self.of_prologue[self.names(x)] = wanted
            axes = [a for a in x.axes if not a.startswith("%")]
            shape = "B, H, lay.chunks, config.chunk, config.chunk"
            if axes:
                shape = f"B, H, T, {size_name(dim_of(axes[0]))}"
            wide = x.attrs[0] == "intra" or x.attrs[1] in o.wide | self._into_numbers or self.fine is not None
            dtype = ", dtype=torch.float32" if wide else ""
            lines.append(f"{self.names(x)} = some.new_empty(({shape}){dtype})")
        self._under(wanted, lines + self._launch(kernel))
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

    def _matrices_early(self, o: Opened, later: Opened, k: int) -> dict[Node, Node]:
        """The matrices of a later sweep that the prologue kernel of sweep k, which is for `o`, can make: its axes and streams are
        added to those of `o`."""
        if not _plain(o, later):
            return {}
        found = {x: n for x, n in later.matrices.items() if self._known(n, later, k)}
        for node in found.values():
            _streams_into(o, later, [node])
        return found

    def _known(self, node: Node, o: Opened, k: int) -> bool:
        """Is all that a matrix of `o` is made of there ahead of sweep k?"""
        leaves = [y for y in walk(node) if y.op == "leaf"]
        if any(y.attrs[0] in ("inner", "product") for y in leaves) or node.op == "inverse":
            return False
        made = [y for z in (node, *_streams_of(o, [node]).values()) for y in walk(z) if y.op == "leaf"]
        late = {"ahead": k, "stored": k}
        return all(self.fused.made.get(y.attrs[:2], late.get(y.attrs[0], -1)) < k for y in made)

    def _share_sums(self) -> None:
        """Hand pairs inside chunks, which are summed for the gradient of a decay, to the prologue kernel of a sweep, up to their
        own,
        that loads all that they are made of, or all but one; so that no kernel is there for them alone."""
        if not self.backward:
            return
        sweeps = {k: o for k, o in self.opened.items() if self._wanted_by(k)}
        loads: dict[int, set[tuple[str, str]]] = {}
        claimed: set[Node] = set()
        for k, o in sweeps.items():
            some = replace(o, streams={**o.streams}, decays={**o.decays})
            made = {x: (n, o) for x, n in o.matrices.items() if x not in claimed}
            for j, later in sweeps.items():
                if j > k:
                    made |= {x: (n, later) for x, n in self._matrices_early(some, later, k).items() if x not in claimed}
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
                        if j <= k and _plain(sweeps[j], o) and self._known(term[0], o, j)
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
        """Does a sweep make the matrix of each part's map? Not where another pass's serves, transposed."""
        turned = self.backward and sweep.group[0].name[1:] in self.turned
        return _matrix_map(sweep, self.plan) is not None and not turned

    def _entering(self, k: int, sweep: Sweep, kernel: Kernel) -> tuple[list[str], list[str]]:
        """What enters each part of the sequences, from maps of the parts; nothing to do where there is one.

        In two halves: between them other parts of the sequence, where they are elsewhere, hand on what enters this one.
        """
        if not self.cuts:
            return [], []
        linear = _matrix_map(sweep, self.plan)
        lines = [f"{self.names(leaf('state', s.name))}_ends = {self._new_state(s, 'B * parts')}" for s in sweep.group]
        if linear is not None:
            (s,) = linear.group
            made = kernel.inner is not None  # or else the forward pass has made it
            where = self._new_state(s, "B * parts") if made else f'saved["{s.name[1:]} linear"].mT'
            lines.append(f"{self.names(leaf('state', s.name))}_linear = {where}")
        lines += self._launch(kernel, ends=True)
        if linear is not None and kernel.late:
            (s,) = linear.group
            name = self.names(leaf("state", s.name))
            lines += [f"join_pieces(late, {name}_ends, {name}_linear, {s.axes.index(s.row)})", "late = None"]
        finish: list[str] = []
        for s in sweep.group:
            name, way = self.names(leaf("state", s.name)), s.direction > 0
            given = f"{name}_first, {name}_ends"
            if linear is not None:
                function, rest = "chained_matrix", f"{name}_linear, lay, parts, {way}, along={s.axes.index(s.row)}"
                kept = f", linear={name}_linear, axis={s.axes.index(s.row)}"
            elif s.decay is None:
                function, rest, kept = "chained", f"lay, parts, {way}", ""
            else:
                decay = self.names(rename(s.decay, self.opened[k].rename))
                along = next((s.axes.index(a) for a in s.decay.axes), None)
                kept = f", decay=({decay}_sums, {decay}_resets), axis={along or 0}, exact=config.exact"
                rest = f"lay, parts, {way}, ({decay}_sums, {decay}_resets), {along}, config.exact"
                function = "chained"
            own = s.name[1:] if self.backward else s.name
            if self.exchanges:
                lines.append("if exchange is not None:  # other parts of the sequence are elsewhere")
                lines.append(
                    f'    {name}_coming = exchange.begin((map_of_all("{own}", {given}, lay, parts, {way}{kept}),))'
                )
                finish += [
                    "if exchange is not None:",
                    f"    (({name}_first, {name}_starts),) = {name}_coming()",
                    "else:",
                ]
            finish.append(f"{'    ' * self.exchanges}{name}_starts = {function}({given}, {rest})")
        begin, end = ([f"if {self._in_segments}:", *(f"    {x}" for x in half)] for half in (lines, finish))
        return begin, end

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
        for a in sorted(kernel.arguments, key=lambda a: not a.name.endswith("_sums")):
            x = a.source
            assert x is not None
            which = "" if a.axes else block  # kernels make sums over blocks of those over chunks, for each channel
            if a.name.endswith("_sums") and f"{which}{a.name}" not in self.ready:
                self.ready.add(f"{which}{a.name}")
                self._cumulate(a, which, kernel, makes)
            if a.name.endswith("_by_head") and a.name not in self.ready:
                self.ready.add(a.name)
                self._laid_out([a.name], f"by_head({self.names(x)}, H)")

    def _streams(self, sources: list[Node]) -> None:
        """The streams ahead among what a kernel loads, where what they are made of is made."""
        groups: dict[tuple[int, ...], dict[Node, Node]] = {}
        for x in dict.fromkeys(sources):
            if x.op == "leaf" and x.attrs[0] == "ahead" and self.names(x) not in self.ready:
                self.ready.add(self.names(x))
                node = self._streams_in_prologue(x)
                leaves = [y.attrs[:2] for y in walk(node) if y.op == "leaf"]
                where = sorted({self.fused.made[y] for y in leaves if y in self.fused.made})
                groups.setdefault(tuple(where), {})[x] = node
        for stages, made in groups.items():
            before, self.lines = self.lines, []
            made = self._multiplied(made)
            narrow = self.fine is None and all(len(s.axes) > 1 for s in self.c.step.states)  # operands of products
            dtypes = {x: "row_dtype(some)" if x.axes and narrow else "torch.float32" for x in made}
            per_step = [Result(self.names(x), n, x.attrs[2], dtypes[x]) for x, n in made.items()]
            per_step = [r for r in per_step if printable(r.node, r.order)]
            self.lines += self._per_step(per_step) if per_step else []
            for x, node in made.items():
                if all(r.node is not node for r in per_step):
                    results = self.torch_text({"x": node}, {"x": x.attrs[2]})
                    shape = ", ".join(["B", "T", "H", *(size_name(dim_of(z)) for z in x.attrs[2])])
                    self.lines.append(f"{self.names(x)} = steps(({results['x']}).expand({shape}))")
            lines, self.lines = self.lines, before
            for k in stages:
                lines = self._where(self._wanted_by(k) if self.backward else self._everything(), lines)
            self.lines += lines

    def _launch_transitions(self, transitions: list[Transitions], block: str = "") -> None:
        """Weights between states, those of one matrix of each step by one kernel; over blocks, their names are what `block`
        begins."""
        lay, chunk = ("blocks", self.block) if block else ("lay", "config.chunk")
        for w in transitions:
            number = sum(isinstance(x, TransitionKernel) for x in self.kernels) + 1
            kernel = transition_kernel(f"{self.kind}_weights_{number}", w, self.names)
            self.kernels.append(kernel)
            made = {x: self._number_of_steps(x) for x in dict.fromkeys(w.entries[p] for p in kernel.given)}
            texts = [made[w.entries[p]] for p in kernel.given]
            names = []
            for x in w.made:
                shape, name = "T", f"{block}{self.names(x)}"
                if len(x.axes) > 1:
                    shape, name = f"{lay}.chunks, {chunk}, {chunk}", f"{self.names(x)}{'_blocks' * bool(block)}"
                names.append(name)
                self.lines.append(f"{name} = some.new_empty((B, H, {shape}), dtype=torch.float32)")
            self.lines += ["launch(", f"    {kernel.name}, ({lay}.programs,),"]
            self.lines += [f"    {x}, *strides({x}, H)," for x in texts]
            self.lines += [f"    {x}," for x in names]
            self.lines += [f"    *{lay}.at_once, {lay}.programs, C={chunk}, num_warps=1,", ")"]

    def _number_of_steps(self, x: Node) -> str:
        """The name of a tensor [B, T, H] of a number of each step, or of one that is the same at each."""
        if printable(x, ()) or (x.op == "leaf" and x.attrs[0] == "input"):
            return self._in_memory(x)
        self.numbered += 1
        name = self.names(leaf("stored", f"number.{self.numbered}"))
        self.lines.append(f"{name} = spread({self.torch_text({'x': x}, {'x': ()})['x']}, (B, T, H), some)")
        return name

    def _cumulate(self, a: Argument, which: str, kernel: Kernel, makes: frozenset[str]) -> None:
        """Sums of a decay; of one decay a step by the launch that lays out another number of each step, if one is waiting."""
        assert a.source is not None
        before, self.lines = self.lines, []
        log, base = self._log(a.source), f"{which}{a.name.removesuffix('_sums')}"
        prologue, self.lines = self.lines, before
        names, where = [f"{base}_{x}" for x in ("sums", "resets", "extents")], "blocks" if which else "lay"
        waiting = [y for y in kernel.arguments if y.name.endswith("_by_head") and y.name not in self.ready]
        if a.axes:
            made = ", made=True" * (base in makes)
            self.lines += [*prologue, f"{', '.join(names)} = cumulate({log}, {where}, config.exact{made})"]
        elif not waiting:
            self._laid_out(names, f"cumulate({log}, {where}, config.exact)", prologue)
        else:
            other = waiting[0].source
            assert other is not None
            self.ready.add(waiting[0].name)
            made = f"cumulate_beside({log}, {self.names(other)}, {where}, config.exact)"
            self._laid_out([*names, waiting[0].name], made, prologue)

    def _laid_out(self, names: list[str], made: str, prologue: Sequence[str] = ()) -> None:
        """Numbers of each step by heads, and what comes with them, with statements `prologue`: a backward pass has those that the
        forward pass has made, unless resets belong to them."""
        lines = [*prologue, f"{', '.join(names)} = {made}"]
        kept = [n for n in names if n.endswith(("_sums", "_by_head"))]
        if not self.backward:
            self.by_head |= dict.fromkeys(kept)
        if not self.kept_by_head.keys() >= set(kept):
            self.lines += lines
            return
        values = ", ".join(f'saved["{n}"]' if n in kept else "None" for n in names)
        self.lines += [f'if "{kept[0]}" in saved:', f"    {', '.join(names)} = {values}", "else:"]
        self.lines += [f"    {x}" for x in lines]

    def _streams_in_prologue(self, x: Node) -> Node:
        if x in self.origins:
            return self.origins[x]
        for o in (*self.opened.values(), *self.from_checkpoints.values()):
            for stream, node in o.streams.items():
                if node is x:
                    return o.origins[stream]
        raise AssertionError(x)

    def _log(self, x: Node) -> str:
        if x.op == "leaf" and x.attrs[0] == "decay":
            return self.names(x)
        axes, node = x.axes, self._multiplied({x: log_of(x)})[x]
        if printable(node, axes):
            name = self.names(leaf("ahead", f"log {x.key}", axes))
            self.lines += self._per_step([Result(name, node, axes, "torch.float32")])
            return name
        results = self.torch_text({"x": node}, {"x": axes})
        shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
        return f"spread({results['x']}, ({shape}), some)"

    def _allocated(self, k: int, s: Store) -> str:
        x = s.leaf
        name = self.names(x)
        shape = ["B", "T", "H", *(size_name(dim_of(a)) for a in x.axes)]
        if s.kind == "sums":
            shape = ["B", "H", self._sums_of(k), "T"]
        before = self._replaced(k, s)
        if before is not None:
            return f"{name} = {self.names(before)}  # in place"
        alone = " if needs_backward else None" if x in self.spare else ""
        return f"{name} = some.new_empty(({', '.join(shape)}), dtype={self._dtype(s)}){alone}"

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

    def _tile_count(self, o: Opened, reads: bool = False) -> str:
        if len(o.tile) != 1:
            return "1"
        return f"cdiv({size_name(dim_of(o.tile[0]))}, {self._tile(o.tile[0], reads)})"

    def _sums_of(self, k: int) -> str:
        """How many sums over its tile axis a sweep leaves of each step: one for each tile, and of a sweep for each warp."""
        if k not in self.opened:
            return self._tile_count(self.from_checkpoints[k], reads=True)
        tiles = self._tile_count(self.opened[k])
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
            return False
        v = next((v for v in self.c.step.variables if gradient_name(v) == root), None)
        return v is None or v.kind != "input" or self._handed_on(v.name)

    def _handed_on(self, variable: str) -> bool:
        """Do others add to the gradient of a variable, before it is rounded?"""
        return self.fine is not None and variable in self.fine.gradients

    def _tile(self, axis: str, reads: bool = False) -> str:
        """How wide a tile is, of a sweep or of what reads checkpointed states."""
        return f"min(config.{'read_tile' if reads else 'tile'}, config.padded({size_name(dim_of(axis))}))"

    def _block(self, kernel: Kernel, axis: str) -> str:
        if axis == kernel.tiled:
            return "walk.tile" if kernel.sweeps and not kernel.whole else self._tile(axis, kernel.reads)
        whole = f"config.padded({size_name(dim_of(axis))})"
        return f"min(config.slice, {whole})" if kernel.sweeps and not kernel.whole else whole

    def _launch(self, kernel: Kernel, ends: bool = False, block: str = "") -> list[str]:
        """The launch of a kernel; of a sweep, for its `ends`: what each part makes of the states, and nothing of what it yields.
        `block` begins the names of decays over blocks, where it takes blocks at once."""
        if kernel.slow_path:
            return [*self._launched(kernel, ends, block, True), *self._launched(kernel, ends, block, False)]
        lines = self._launched(kernel, ends, block)
        if not kernel.sweeps or kernel.whole:
            return lines
        size = "None" if kernel.tiled is None else size_name(dim_of(kernel.tiled))
        more = ", elements=True" if kernel.products else ""
        if kernel.products and not ends and self._stores_wide(kernel):
            more += ", wide=True"
        if kernel.apart and not ends:
            each = [self._loaded(kernel), *(self._loaded(kernel, x.loads) for x in kernel.apart)]
            more += f", wanted=({', '.join(self.wanted_reads[kernel.name])})" if self.backward else ""
            before = [f"for read, keeps, walk in config.by_read({size}, {', '.join(f'({x})' for x in each)}{more}):"]
        else:
            if ends and kernel.inner is not None:
                slim = "" if kernel.slim else ", slim=False"
                more += f", programs=config.crowd(config.padded({size_name(dim_of(kernel.inner))}){slim})"
            walk = f"walk = config.walk({size}, {self._loaded(kernel, kernel.carried if ends else None)}{more})"
            if not ends or kernel.inner is None:
                return [walk, *lines]
            (name,) = (a.name.removesuffix("_linear") for a in kernel.arguments if a.name.endswith("_linear"))
            places, before = f"{name}_ends, {name}_linear", [walk]
            if kernel.late:
                before.append(f"late = late_pieces({places}, lay.length(parts), walk.tile)")
            late, piece = (", late", "piece") if kernel.late else ("", "_")
            before.append(f"for {piece}, ends, linear in by_launch({places}, walk.programs{late}):")
        return [*before, *(f"    {x}" for x in lines)]

    def _launched(self, kernel: Kernel, ends: bool, block: str, small_range: bool | None = None) -> list[str]:
        lay, chunk, levels = ("blocks", self.block, "LEVELS") if block else ("lay", "config.chunk", "config.levels")
        grid = "lay.sequences * parts * H" if kernel.sweeps else f"{lay}.programs"
        grid = f"cdiv({grid}, GROUP)" if small_range is False else grid
        if kernel.queues:
            grid = f"config.queues({grid})"
        crowded = ends and kernel.inner is not None  # tiles of a matrix as well, or alone
        if kernel.tiled is not None:
            wide = self._block(kernel, kernel.tiled)
            counts = f"cdiv({size_name(dim_of(kernel.tiled))}, {wide})"
            if crowded:
                assert kernel.inner is not None
                columns = f"cdiv({size_name(dim_of(kernel.inner))}, {wide})"
                counts = f"({counts} * (ends is not None) + {columns} * (linear is not None))"
            grid += f" * {counts}"
        name = slow_path_name(kernel.name) if small_range is False else kernel.name
        lines = ["launch(", f"    {name}, ({grid},),"]
        lines += [f"    {self._passed(a, kernel, ends, block)}," for a in kernel.arguments]
        sizes = dict.fromkeys(size_name(dim_of(x)) for x in (*kernel.axes, *kernel.parts))
        words = [f"{n}={n}" for n in sizes]
        words += [f"{block_name(a)}={self._block(kernel, a)}" for a in kernel.axes]
        part = "BLOCK" if block else "config.block"
        words += [f"part_{axis_name(a)}=min({part}, config.padded({size_name(dim_of(a))}))" for a in kernel.parts]
        words += [f"FLAT={small_range}", "GROUP=GROUP"] if kernel.slow_path else []
        if kernel.whole:
            widths = [f"config.padded({size_name(dim_of(a))})" for a in kernel.axes]
            warps = f"warps_of(({', '.join(widths)}))"
            loaded = self._loaded(kernel).split(", ")[0]
            words += ["YIELD=True", f"WARPS={warps}", f"STAGES=stages_of({loaded}, 2 * {' * '.join(widths)})"]
        elif kernel.sweeps:
            words += [f"YIELD={not ends}", "WARPS=walk.warps", "STAGES=walk.stages"]
            words += ["PRODUCTS=walk.products"] if kernel.products else []
            words += [f"READ={0 if ends else 'read'}"] if kernel.apart else []
            words += [f"PIECE={'piece' if ends else 0}"] if kernel.late else []
        words += [f"BLOCK={self.block}"] if kernel.checkpoints else []
        if kernel.rows:
            assert self.whole is not None
            words.append(f"ROWS=config.padded({size_name(dim_of(self.whole.rows))})")
        words += [] if kernel.sweeps else ["CHUNK=config.chunk"]
        if kernel.queues:
            words.append(f"STAGES=config.queued({self._loaded(kernel).split(', ')[0]}, {chunk})")
        words += [f"C={chunk}", f"LEVELS={levels}", f"EVEN={lay}.even"]
        words += ["EXACT=config.exact", "DT=DTYPES[some.dtype]"]
        if not kernel.whole:
            warps = "walk.warps" if kernel.sweeps else "config.ahead"
        if block and not kernel.whole:
            wholes = [f"config.padded({size_name(dim_of(a))})" for a in kernel.axes if a != kernel.tiled]
            more = ", many=True" if kernel.many else ""
            warps = f"config.read_warps({', '.join(wholes)}{more})" if kernel.reads and wholes else "4"
        most = "walk.registers" if kernel.sweeps else "config.registers" if kernel.few and not block else "config.most"
        most = "255" if kernel.queues else most  # as many as there are for each of 4 programs with 2 warps
        most = "" if kernel.whole else f" maxnreg={most},"
        places = f"*{lay}.walked, parts, {lay}.length(parts)" if kernel.sweeps else f"*{lay}.at_once, {lay}.programs"
        places += ", blocks.chunks" if kernel.checkpoints else ""
        stages = 2 if kernel.sweeps else 1
        return [*lines, f"    {places}, {', '.join(words)}, num_warps={warps}, num_stages={stages},{most}", ")"]

    def _loaded(self, kernel: Kernel, only: frozenset[str] | None = None) -> str:
        """How many bytes a kernel loads for each step, perhaps of these alone: of tiles along the axes that it has whole, of
        matrices and numbers, and of each channel of other tiles."""
        found: dict[str | None, list[str]] = {}
        arguments = {a.name: a for a in kernel.arguments}
        for argument, axis in kernel.loads:
            if only is None or argument in only:
                tensor = self._passed(arguments[argument], kernel, False).split(",")[0]
                found.setdefault(axis, []).append(f"{tensor}.element_size()")
        texts: dict[str, list[str]] = {"whole": [], "matrices": [], "tiles": []}
        for axis, sizes in found.items():
            each = f"({' + '.join(sizes)})" if len(sizes) > 1 else sizes[0]
            if axis == ROW:
                texts["matrices"] += sizes
            elif axis is None:
                texts["matrices"].append(f"config.chunk * {each}")
            elif axis == kernel.tiled:
                texts["tiles"] += sizes
            else:
                texts["whole"].append(f"config.padded({size_name(dim_of(axis))}) * {each}")
        return ", ".join(" + ".join(x) or "0" for x in texts.values())

    def _passed(self, a: Argument, kernel: Kernel, ends: bool, block: str = "") -> str:
        x = a.source
        assert x is not None
        once = " if keeps else None" if kernel.apart and not ends else ""  # what one launch stores
        if a.layout == "border":
            return "None" if ends else f"{a.name}{once}"
        if a.layout == "step":
            name = self.names(x)
            return f"{name}, *strides({name}, H)"
        if a.layout == "number":
            return f'constants["{x.attrs[1]}"]'
        if a.layout == "size":
            return size_name(x.attrs[0])
        if a.layout == "state":
            state = self._passed_state(a.name, x.attrs[1], kernel, ends)
            return f"{state}{once}" if a.name.endswith("_last") and state != "None" else state
        if ends and a.name.endswith("_out"):
            return "None"
        made_in_prologue = a.layout == "matrix" or (
            a.layout == "chunked" and x.op == "leaf" and x.attrs[0] in ("scaled", "intra")
        )
        if made_in_prologue:
            return f"{self.names(x)}{'_blocks' * bool(block)}"
        if a.layout in ("sums", "out", "head"):
            return self.names(x)
        return a.name if a.axes or a.name.endswith("_by_head") else f"{block}{a.name}"

    def _passed_state(self, argument: str, state: str, kernel: Kernel, ends: bool) -> str:
        name = self.names(leaf("state", state))
        if argument.endswith("_first"):
            return "None" if ends else f"{name}_starts"
        if argument.endswith("_linear"):
            return "linear" if ends else "None"
        for kind, what in (("late", "ends"), ("late_map", "linear"), ("live", "live")):
            if argument == f"{name}_{kind}":
                return f"late and late.{what}" if ends else "None"
        if ends:
            return "ends" if kernel.inner is not None else f"{name}_ends"
        return f"{name}_last" if state in kernel.finals else "None"

    # --- results ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> None:
        orders = self.c.step.output_axes
        values = self._multiplied(self.fused.values)
        rows = self._per_step_results(values, orders)
        self.lines += self._per_step([*rows.values()]) if rows else []
        results = self._values(values, orders, {n: r.name for n, r in rows.items()})
        outputs = ", ".join(f'"{n}": {results[n]}' for n in orders)
        finals = ", ".join(f'"{s.name}": {self.names(leaf("state", s.name))}_last' for s in self.c.step.states)
        leaves = [(f'"{x.attrs[1]}": {self.names(x)}', x in self.spare) for x in self.plan.form.write_leaves()]
        saved, spare = (", ".join(text for text, alone in leaves if alone == which) for which in (False, True))
        checkpoints = [s.name for s in self.c.step.states if s.name in self.schedule.stored]
        starts = [s.name for s in self.c.step.states if s.name in self.kept_starts]
        self.lines.append(f"saved = {{{saved}}}")
        if self.whole is not None:
            kept = self.names(leaf("state", self.whole.state.name))
            self.lines += ["if jointly:", f'    saved |= {{"{self.whole.state.name} borders": {kept}_borders}}']
        if self.by_head:
            kept = ", ".join(f'"{n}": {n}' for n in self.by_head)
            alone = " and not jointly" if self.whole is not None else ""
            self.lines += [f"if needs_backward is True and not config.exact{alone}:", f"    saved |= {{{kept}}}"]
        more = [spare] if spare else []
        more += [f'"{n} borders": {self.names(leaf("state", n))}_borders' for n in checkpoints]
        if more:
            self.lines += ["if needs_backward:", f"    saved |= {{{', '.join(more)}}}"]
        if self.cuts and starts:
            named = ", ".join(f'"{n} starts": {self.names(leaf("state", n))}_starts' for n in starts)
            self.lines += ["if parts > 1:", f"    saved |= {{{named}}}"]
        if self.turned:
            named = ", ".join(
                f'"{n} linear": {self.names(leaf("state", n))}_linear' for n in sorted(self.turned, key=plain_name)
            )
            self.lines += [f"if {self._in_segments}:", f"    saved |= {{{named}}}"]
        self.lines.append(f"return {{{outputs}}}, {{{finals}}}, saved")

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
    ) -> dict[str, str]:
        """Texts of whole values: tensors as stored, or torch expressions over them; `made` names those that are there."""
        out = {}
        for name, node in values.items():
            if name in made:
                out[name] = made[name]
                continue
            if node.op == "leaf" and (node.attrs[0] == "stored" or is_made(node)) and len(orders[name]) < 2:
                out[name] = self.names(node)
                continue
            shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in orders[name])])
            terms = self._terms(node, orders[name])
            if terms:
                out[name] = f"total(({shape}), {self._value_dtype(name)}, {', '.join(terms)})"
                continue
            results = self.torch_text({"x": node}, {"x": orders[name]})
            out[name] = f"spread({results['x']}, ({shape}), some)"
            if not self._wide(name):
                out[name] += ".to(some.dtype)"
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
        add = self.lines.append
        add("gradients, initial = {}, {}")
        for unroll in self.unrolls:
            self._unroll(unroll)
        for stage in self.plan.stages:
            if isinstance(stage, Accumulate):
                self._state_adjoint(stage)
        variables = [v for v in self.c.step.variables if v.kind != "constant" and gradient_name(v) in self.fused.values]
        found, products = self._products({v.name: self.fused.values[gradient_name(v)] for v in variables})
        for users, lines in products:
            self._under(users, lines)
        values = {gradient_name(v): _along(found[v.name], v.axes) for v in variables}
        made = self._gradients_per_step(variables, values)
        for v in variables:
            name = gradient_name(v)
            add(f'if "{v.name}" in needs:')
            before, self.lines = self.lines, []
            text = self._summed_over_steps(v, values[name], made) if not v.per_step else ""
            text = text or self._values({name: values[name]}, {name: v.axes}, made)[name]
            rounded = "" if self._handed_on(v.name) else f'.to(given["{v.name}"].dtype)'
            self.lines.append(f'gradients["{v.name}"] = {text}{rounded}')
            inner, self.lines = self.lines, before
            self.lines += [f"    {x}" for x in inner]
        for state, program in initial_adjoints(self.c).items():
            self._through_initial(state, program)
        for s in self.c.step.states:
            add(f'if "{s.name}" in needs:')
            add(f'    initial["{s.name}"] = {self.names(leaf("state", f"d{s.name}"))}_last')
        add("return gradients, initial")

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
        before, self.lines = self.lines, []
        self._launch_transitions(transitions, "block_")
        made: dict[str, list[str]] = {x.attrs[1]: [] for x in stage.outputs}
        for kernel, outputs in kernels:
            axis = kernel.tiled
            tiles = "1" if axis is None else f"cdiv({size_name(dim_of(axis))}, {self._tile(axis, reads=True)})"
            for x in outputs:
                made[x.attrs[1].removesuffix(OWN)].append(self.names(x))
                shape = f"B, H, {tiles}, T" if channels is None else f"B, T, H, {size_name(dim_of(channels))}"
                self.lines.append(f"{self.names(x)} = some.new_empty(({shape}), dtype=torch.float32)")
            self.lines += self._launch(kernel, block="block_")
        for state_adjoint, names in made.items():
            name = self.names(leaf("state", state_adjoint))
            if channels is not None:
                self.lines.append(f"{name}_pairing = {names[0]}")
                continue
            text = f"total((B, T, H), torch.float32, {', '.join(names)})" if names else "spread(0.0, (B, T, H), some)"
            self.lines.append(f"{name}_pairing = {text}")
        lines, self.lines = self.lines, before
        self._under(set().union(*(self._paired(x.attrs[1]) for x in stage.outputs)), lines)

    def _summed_over_steps(self, v: Var, node: Node, made: Mapping[str, str]) -> str:
        """The gradient of a parameter: the sum over sequences and steps of what it is at each."""
        name = gradient_name(v)
        if name in made:
            return f"{made[name]}.sum(0)"
        if _is_zero(node):
            shape = ", ".join(["H", *(size_name(dim_of(a)) for a in v.axes)])
            return f"some.new_zeros(({shape}), dtype=torch.float32)"
        text = self._outer(node, v.axes) if len(v.axes) == 2 else None
        return text or f"{self._values({name: node}, {name: v.axes}, made)[name]}.float().sum((0, 1))"

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
            rows = [replace(found[name], wanted=f'"{n}" in needs') for n, name in wanted.items()]
            self._under(set(wanted), self._per_step(rows))
        return {n: r.name for n, r in found.items()}

    def _through_initial(self, state: str, program: StepProgram) -> None:
        """What parameters get through the initial value that is made of them."""
        known = self.names(leaf("state", f"d{state}"))
        for v in program.variables:
            if gradient_name(v) not in program.outputs:
                continue
            self.lines.append(f'if "{v.name}" in needs and states.get("{state}") is None:')
            node = program.outputs[gradient_name(v)]
            self.initial_gradient = f"{known}_last"
            lines, results = self.printer.statements({"x": node}, self.torch_leaf, orders={"x": v.axes})
            self.lines += [f"    {x}" for x in lines]
            shape = ", ".join(["lay.sequences", "H", *(size_name(dim_of(a)) for a in v.axes)])
            self.lines.append(f'    gradients["{v.name}"] += spread({results["x"]}, ({shape}), some).sum(0)')

    def _initial_wants(self, state: str) -> set[str]:
        """Parameters that the initial value of a state is made of."""
        programs = initial_adjoints(self.c)
        return {v.name for v in programs[state].variables if v.kind != "constant"} if state in programs else set()

    def _state_adjoints_at_ends(self) -> None:
        """<S, dS> after the last step of each part, as soon as both are known there: the states needn't be kept for longer."""
        for p in (x.state_adjoint for x in self.plan.stages if isinstance(x, Accumulate)):
            known = p.state in self.left and f"d{p.state}" in self.entered
            wanted = self._paired(p.state)
            if not known or not wanted or p.state in self.paired or p.state in self.schedule.spans:
                continue
            self.paired.add(p.state)
            axes = self.c.step.state(p.state).axes
            name, gradient = (self.names(leaf("state", n)) for n in (p.state, f"d{p.state}"))
            dims = tuple(n - len(axes) for n, a in enumerate(axes) if a not in p.leaf.axes)
            self._under(wanted, [f"{name}_at_ends = pair({name}_last, {gradient}_starts, {dims})"])

    def _state_adjoint(self, stage: Accumulate) -> None:
        p = stage.state_adjoint
        wanted = self._paired(p.state)
        if not wanted:
            return
        name, axes = self.names(leaf("state", p.state)), p.leaf.axes
        if p.state in self.schedule.spans and (not axes or p.state in self.schedule.whole):
            made = leaf("stored" if axes else "sums", f"{p.state}.pairing", axes)
            text = self.names(made) if axes else f"total((B, T, H), torch.float32, {self.names(made)})"
            if text != f"{name}_pairing":
                self._under(wanted, [f"{name}_pairing = {text}"])
            return
        names = ", ".join(f'"{n}"' for n in sorted(wanted, key=plain_name))
        self.lines.append(f"if needs & {{{names}}}:  # the decay times <{p.state}_(t-1), d{p.state}_t>")
        before, self.lines = self.lines, []
        assert p.state in self.paired or p.state in self.schedule.spans  # which need none
        start = f"{name}_at_ends"
        if stage.by_channel:
            self._summed(p, name, start, stage.at_boundaries)
        else:
            self._from_checkpoints(p, name, start)
        inner, self.lines = self.lines, before
        self.lines += [f"    {x}" for x in inner]

    def _summed(self, p: StateAdjointProduct, name: str, start: str, at_boundaries: bool) -> None:
        axes = p.leaf.axes
        late, early = self._multiplied(dict(enumerate(self.fused.state_adjoints[p.state]))).values()
        shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in axes)])
        sides = {"late": late, "early": early}
        rows = [Result(n, x, axes, "torch.float32") for n, x in sides.items() if x.op != "leaf" and printable(x, axes)]
        self.lines += self._per_step(rows) if rows else []
        for side in (n for n in sides if all(r.name != n for r in rows)):
            text = self.torch_text({side: sides[side]}, {side: axes})[side]
            none = "None" if side == "early" else f"some.new_zeros(({shape}), dtype=torch.float32)"
            self.lines.append(f"{side} = " + (none if sides[side] is ZERO else f"spread({text}, ({shape}), some)"))
        if p.state in self.schedule.spans:
            ends = self.names(leaf("sums", f"{p.state}.ends", axes))
            self.lines.append(f"{name}_pairing = block_sums(late, early, {ends}, blocks)")
            return
        totals = [self.names(leaf("sums", f"{p.state}.{kind}")) for kind in ("in", "out") if at_boundaries]
        self.lines.append(
            f"{name}_pairing = suffix_sum({', '.join(['late', 'early', start, 'lay', 'parts', *totals])})"
        )

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
        self.lines.append(f"{name}_pairing = border_sums(")
        self.lines.append(f"    {decay}_sums, {decay}_resets, {start}, lay, parts, config.exact,")
        self.lines += [f"    {slot.replace('.', '_')}={text}," for slot, text in found.items()]
        self.lines += ["    at_once=True,"] if p.state in self.fused.at_once else []
        self.lines.append(")")

    # --- who needs what ---------------------------------------------------------------------------------------------

    def _paired(self, state: str) -> set[str]:
        """The variables whose gradients use the state-adjoint product of a state."""
        return {
            v.name
            for v in self.c.step.variables
            if v.kind != "constant" and ("pairing", state) in leaf_names(self.fused.values.get(gradient_name(v), ZERO))
        }

    def _root_wants(self, root: str) -> set[str]:
        if "." in root:
            return self._paired(root.split(".")[0])
        return {v.name for v in self.c.step.variables if gradient_name(v) == root}

    def _wanted_by(self, k: int) -> set[str]:
        """The variables and states whose gradients need stage k."""
        if k not in self.wants:
            self.wants[k] = frozenset(self._found_wanted(k))
        return set(self.wants[k])

    def _found_wanted(self, k: int) -> set[str]:
        stage = self.plan.stages[k]
        assert isinstance(stage, Sweep)
        wanted: set[str] = set()
        for name in stage.finals:
            if any(name == s.name for s in self.c.step.states):
                wanted |= self._paired(name)
            else:
                wanted |= {name[1:]} | self._initial_wants(name[1:])
        for boundary in stage.boundary_sums:
            wanted |= self._paired(boundary.state)
        for x in (x for x in self.unrolls if set(stage.states) & {s.name for s in (*x.forward, *x.backward)}):
            wanted = wanted.union(*(self._paired(y.attrs[1]) for y in x.outputs))
        return wanted.union(*(self._store_wants(k, s) for s in self.fused.stores[k]))

    def _wants(self, k: int, read: Alone) -> str:
        """When somebody uses what a sweep stores for one of its reads."""
        stores = [self._store_wants(k, s) for s in self.fused.stores[k] if s.leaf in read.stores]
        wanted = set().union(*stores, *map(self._paired, read.states))
        return "bool(needs & {" + ", ".join(f'"{n}"' for n in sorted(wanted, key=plain_name)) + "})"

    def _store_wants(self, k: int, s: Store) -> set[str]:
        """The variables and states whose gradients need what stage k stores."""
        wanted = set().union(*map(self._root_wants, (s.root, *s.shared)))
        return wanted | self._leaf_wants(k, s.leaf) if s.kind in ("kept", "part", "final") else wanted

    def _leaf_wants(self, k: int, x: Node) -> set[str]:
        """What needs a leaf that stage k stores: all that the later sweeps do that load it, and what is made of it afterwards."""
        wanted: set[str] = set()
        for j, stage in enumerate(self.plan.stages):
            if j > k and isinstance(stage, Sweep):
                nodes = [*stage.given.values(), *(s.node for s in self.fused.stores[j])]
                if any(uses(n, x) for n in nodes):
                    wanted |= self._wanted_by(j)
        for unroll in self.unrolls:
            if any(uses(n, x) for n in unroll.streams.values()):
                wanted = wanted.union(*(self._paired(y.attrs[1]) for y in unroll.outputs))
        for name, node in self.fused.values.items():
            if uses(node, x):
                wanted |= self._root_wants(name)
        for state, pair in self.fused.state_adjoints.items():
            if any(uses(n, x) for n in pair):
                wanted |= self._paired(state)
        return wanted


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


def inputs(p: StepProgram, names: Names, first: Var | None = None) -> list[str]:
    """The statements that take what a function is given: tensors, and sizes. `some` is the first that has each step's, or
    `first`."""
    lines = []
    for v in p.variables:
        if v.kind != "constant":
            text = f'given["{v.name}"]'
            lines.append(f"{names(v.leaf)} = {f'steps({text})' if v.per_step else text}")
    stepwise = next(v for v in p.variables if v.per_step)
    lines.append(f"some = {names((first or stepwise).leaf)}")
    lines.append(f"B, T = {names(stepwise.leaf)}.shape[:2]")
    heads = [f"{names(v.leaf)}.shape[{2 if v.per_step else 0}]" for v in p.variables if v.kind != "constant"]
    lines.append(f"H = max({', '.join(heads)}, 0)")
    for v in p.variables:
        if v.kind != "constant" and not v.per_step:
            lines.append(f"{names(v.leaf)} = with_heads({names(v.leaf)}, H)")
    for d in p.dims:
        with_dim = next((v for v in p.variables if d in map(dim_of, v.axes)), None)
        if with_dim is None:
            s = next(s for s in p.states if d in map(dim_of, s.axes))
            at = [dim_of(a) for a in s.axes].index(d) - len(s.axes)
            lines.append(f'{size_name(d)} = states["{s.name}"].shape[{at}]')
        else:
            at = [dim_of(a) for a in with_dim.axes].index(d) - len(with_dim.axes)
            lines.append(f"{size_name(d)} = {names(with_dim.leaf)}.shape[{at}]")
    return lines


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
    """The sweep over the matrix of a part's map, where writes depend on reads; there may be none for such a sweep."""
    return linear_sweep(sweep.group, plan.form.reads) if feeds_back(sweep.group, sweep.solve) else None


def _turned_maps(forward: Plan, backward: Plan) -> set[str]:
    """The states with a matrix in the map of a part, which is, turned, in the map of their gradient: so the gates have proved."""
    rows: dict[str, str | None] = {}
    for plan in (forward, backward):
        alone = [s for s in plan.sweeps if len(s.group) == 1 and _matrix_map(s, plan) is not None]
        rows |= {s.group[0].name: s.group[0].row for s in alone}
    return {n for n in rows if rows.get(f"d{n}", "") == rows[n]}


def _plain(o: Opened, later: Opened) -> bool:
    """May the kernel that makes matrices of one make those of the other?"""
    return not (o.rename or later.rename or any((x.scaled or x.intra or x.products) for x in (o, later)))


def _streams_of(o: Opened, nodes: list[Node]) -> dict[Node, Node]:
    """The streams that nodes are made of, over rows or columns."""
    named = {y.attrs[1] for y in walk(*nodes) if y.op == "leaf" and y.attrs[0] == "stream"}
    return {y: n for y, n in o.streams.items() if y.attrs[1] in named}


def _streams_into(o: Opened, later: Opened, nodes: list[Node]) -> None:
    """Let a kernel that is for `o` make nodes of another sweep."""
    named = {y.attrs[1] for y in walk(*nodes) if y.op == "leaf" and y.attrs[0] == "stream"}
    o.streams.update(_streams_of(later, nodes))
    o.decays.update({y: n for y, n in later.decays.items() if y.attrs[1] in named})
    missing = [a for a in (*later.full, *later.tile) if a not in (*o.full, *o.tile)]
    o.full = (*o.full, *missing)


def _wide_leaves(node: Node, o: Opened) -> set[tuple[str, str]]:
    """What a kernel loads a tile of for a matrix."""
    nodes = walk(node, *_streams_of(o, [node]).values())
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


ASSIGNED = re.compile(r"^ *(\w+(?:, \w+)*) = (?:some\.new_empty|cumulate|cumulate_beside|spread|by_matrix)\(")


def freed(lines: list[str]) -> list[str]:
    """The lines of a function, with large tensors let go of after the statement that uses them last."""
    statements: list[list[str]] = []
    for line in lines:
        if line.startswith((" ", ")", "else")):
            statements[-1].append(line)
        else:
            statements.append([line])
    large = {name for line in lines for found in ASSIGNED.findall(line) for name in found.split(", ")}
    last = {name: n for n, x in enumerate(statements) for name in large & set(re.findall(r"\w+", " ".join(x)))}
    out: list[str] = []
    for n, statement in enumerate(statements):
        out += statement
        done = sorted((name for name, at in last.items() if at == n < len(statements) - 1), key=plain_name)
        if done:
            out.append(" = ".join([*done, "None"]))
    return out
