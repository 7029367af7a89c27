"""Products of states with their gradients: at ends of segments, from checkpoints, and at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ....ir.code import Group, Literal
from ....ir.expr import (
    ZERO,
    Node,
    add,
    leaf,
    rename,
    terms_of,
    walk,
)
from ....ir.launch_ir import (
    NONE,
    Alloc,
    Call,
    Code,
    If,
    Set,
    any_wanted,
    put,
    ref,
)
from ....ir.python_code import Fixed, Named, also, beside, isin, made_by, method, said, several
from ....ir.step_program import StepProgram, Var
from ....printing.cannot_print import CannotPrint
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import ENTERING, LEAVING, Accumulate, Plan, Unroll
from ...normal_form.form import StateAdjointProduct
from ...step.adjoint import gradient_name
from ..kernels.coupling_weights import (
    unroll_with_transitions,
)
from ..kernels.fused_backward import FusedBackward
from ..kernels.output_kernels import kept_apart, unroll_kernel
from ..kernels.per_step import Result, printable
from ..kernels.tile_values import Fine
from ..plan_passes.decay_sums import ENDS, OWN, STATE_ADJOINT, decay_sum, state_of, whole_of
from ..plan_passes.hoist import in_prologue, uses
from ..plan_passes.roles import is_state
from ..plan_passes.unroll_prologue import hoisted
from ..print.sizes import cdiv, size, sizes
from .one_pass import OnePass
from .prologue_launches import PrologueLaunches


class StateAdjointLaunches(PrologueLaunches):
    """Launches what gradients of decays and of parameters are summed from."""

    def __init__(
        self,
        c: Compiled,
        plan: Plan,
        backward: bool,
        fine: Fine | None = None,
        later: OnePass | None = None,
        whole: FusedBackward | None = None,
        stem: str = "triton",
    ) -> None:
        super().__init__(c, plan, backward, fine, later, whole, stem)
        self.entered: set[str] = set()  # states whose values before each segment are known
        self.left: set[str] = set()  # states whose last values are known
        self.paired: set[str] = set()  # states whose state-adjoint products at the ends of segments are known
        self.counts: Counter[str] = Counter()  # kernels that there is one of for each part

    def _numbered(self, stem: str) -> str:
        """The name of the next kernel of its sort."""
        self.counts[stem] += 1
        return f"{self.kind}_{stem}_{self.counts[stem]}"

    def _unroll(self, stage: Unroll) -> None:
        """The products at each step, by a kernel over all blocks."""
        swept = {n for s in self.schedule.sweeps.values() for n in s.states}
        swept |= self.schedule.given
        if not self._unrolled_from() <= swept:
            raise CannotPrint(f"no sweep over {', '.join(sorted(self._unrolled_from() - swept))}")
        stage, transitions = unroll_with_transitions(stage)
        stage = kept_apart(stage)  # before streams are named: a kernel loads them by the axes that they have there
        streams: dict[Node, Node] = {}
        for x, node in stage.streams.items():
            if in_prologue(node):
                self.origins[leaf("prologue", node.key[:12], node.axes)] = node
                node = leaf("prologue", node.key[:12], node.axes)
            streams[x] = node
        kernels = []
        channels = next((x.axes[0] for x in stage.outputs if x.axes), None)
        given = [n for s in self.plan.sweeps for n in s.given.values()]
        if channels is not None and any(uses(n, x) for n in given for x in stage.outputs):
            raise CannotPrint("a sweep loads what is made of the gradient of a decay for each channel")
        stage, ahead = hoisted(stage, channels, streams)
        wanted = set().union(*(self.wants.paired(x.attrs[1]) for x in stage.outputs))
        made_ahead = {**ahead.prologue.matrices, **ahead.prologue.scaled}
        if made_ahead:
            name = self._numbered("prologue_unroll")
            self._launch_prologue_by_intervals(ahead, made_ahead, wanted, name, frozenset(ahead.prologue.matrices))
        for part in [stage] if channels is not None else _parts_of(stage):
            kernel = unroll_kernel(self._numbered("unroll"), part, streams, self.names, ahead)
            self._inputs(kernel, "block_")
            self.kernels.append(kernel)
            kernels.append((kernel, list(part.outputs)))
        with self._apart() as found:
            self._launch_transitions(transitions, "block_")
            made: dict[str, list[Code]] = {x.attrs[1]: [] for x in stage.outputs}
            for kernel, outputs in kernels:
                axis = kernel.tiled
                tiles = Literal(1) if axis is None else cdiv(size(axis), self.launches.tile(axis, reads=True))
                for x in outputs:
                    made[whole_of(x)].append(ref(self.names(x)))
                    shape = self._numbers(tiles) if channels is None else beside("B", "T", "H", size(channels))
                    found.append(Alloc(self.names(x), shape))
                found += self.launches.launch(kernel, block="block_")
            for state_adjoint, parts in made.items():
                name = f"{self.names(leaf('state', state_adjoint))}_state_adjoint"
                whole = several("B", "T", "H")
                if channels is not None:
                    found.append(Set((name,), parts[0]))
                elif parts:
                    found.append(Call((name,), "total", (whole, Fixed("torch.float32"), *parts)))
                else:
                    found.append(Call((name,), "spread", (Literal(0.0), whole, Fixed("some"))))
        self._under(wanted, found)

    def _summed_over_steps(self, v: Var, node: Node, made: Mapping[str, str]) -> Code | None:
        """The gradient of a parameter: the sum over sequences and steps of what it is at each."""
        name = gradient_name(v)
        if name in made:
            return method(ref(made[name]), "sum", 0)
        if _is_zero(node):
            shape = Group(beside("H", *sizes(v.axes)))
            return made_by("some.new_zeros", shape, dtype="torch.float32")
        value = self._outer(node, v.axes) if len(v.axes) == 2 else None
        return value or method(
            method(self._values({name: node}, {name: v.axes}, made)[name], "float"), "sum", several(0, 1)
        )

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
            shape = several("layout.sequences", "H", *sizes(v.axes))
            value = method(made_by("spread", results["x"], shape, "some"), "sum", 0)
            adds = put(ref("gradients")[v.name], value, "+=")
            given = also(isin(said(v.name), "needs"), made_by("states.get", said(state)).missing)
            self.body.append(If(given, (*made, adds), wanted=frozenset({v.name})))

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
            arguments = (ref(f"{name}_last"), ref(f"{gradient}_starts"), several(*dims))
            self._under(wanted, [Call((f"{name}_at_ends",), "pair", arguments)])

    def _state_adjoint(self, stage: Accumulate) -> None:
        p = stage.state_adjoint
        wanted = self.wants.paired(p.state)
        if not wanted:
            return
        name, axes = self.names(leaf("state", p.state)), p.leaf.axes
        target = f"{name}_state_adjoint"
        if p.state in self.schedule.spans and (not axes or p.state in self.schedule.whole):
            made = ref(self.names(decay_sum(p.state, STATE_ADJOINT, axes=axes, kind="stored" if axes else "sums")))
            if not axes:
                self._under(wanted, [Call((target,), "total", (several("B", "T", "H"), Fixed("torch.float32"), made))])
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
        shape = several("B", "T", "H", *sizes(axes))
        sides = {"late": late, "early": early}
        rows = [Result(n, x, axes, "torch.float32") for n, x in sides.items() if x.op != "leaf" and printable(x, axes)]
        self.body += self._per_step(rows) if rows else []
        for side in (n for n in sides if all(r.name != n for r in rows)):
            value = self.torch_text({side: sides[side]}, {side: axes})[side]
            if sides[side] is not ZERO:
                self.body.append(Call((side,), "spread", (value, shape, Fixed("some"))))
            else:
                zeros = NONE if side == "early" else made_by("some.new_zeros", shape, dtype="torch.float32")
                self.body.append(Set((side,), zeros))
        made = (ref("late"), ref("early"))
        if p.state in self.schedule.spans:
            ends = ref(self.names(decay_sum(p.state, ENDS, axes=axes)))
            self.body.append(Call((f"{name}_state_adjoint",), "block_sums", (*made, ends, Fixed("blocks"))))
            return
        totals = [ref(self.names(decay_sum(p.state, kind))) for kind in (ENTERING, LEAVING) if at_boundaries]
        arguments = (*made, ref(start), Fixed("layout"), Fixed("segments"), *totals)
        self.body.append(Call((f"{name}_state_adjoint",), "suffix_sum", arguments))

    def _from_checkpoints(self, p: StateAdjointProduct, name: str, start: str) -> None:
        """What the sweeps over the state and over its gradient have summed, put together."""
        found: dict[str, str] = {}
        for sums in (s for o in self.opened.values() for s in o.sums if s.state == p.state):
            made = {(sums.kind, n): decay_sum(p.state, sums.kind, n) for n in sums.reads}
            made |= {(OWN, n): sums.prologue.get(n, decay_sum(p.state, OWN, n)) for n in sums.slots}
            found |= {"_".join(part): self.names(x) for part, x in made.items()}
        scale = self.plan.form.state(p.state).decay
        assert scale is not None
        decay = self.names(scale)
        given = (ref(f"{decay}_sums"), ref(f"{decay}_rests"), ref(start))
        arguments = [
            beside(*given, "layout", "segments", "config.exact"),
            *(Named(slot, ref(x)) for slot, x in found.items()),
        ]
        arguments += [Named("at_once", Literal(True))] if p.state in self.fused.at_once else []
        self.body.append(Call((f"{name}_state_adjoint",), "boundary_sums", tuple(arguments), lines=True))

    def _decay_of(self, state_adjoint: Node, k: int) -> str:
        """The name of the decay whose gradient a state-adjoint product goes into, as the piece of stage k has it."""
        decay = self.plan.form.state(state_of(state_adjoint)).decay
        assert decay is not None
        return self.names(rename(decay, self.from_checkpoints[k].rename))


def _parts_of(stage: Unroll) -> list[Unroll]:
    """What is of states, and what is of pairs of steps inside a block alone: no program has the registers for both."""
    parts: dict[tuple[str, ...], dict[Node, Node]] = {}
    for x, node in stage.outputs.items():
        for term in () if node == ZERO else terms_of(node):
            part = () if any(map(is_state, walk(term))) else (OWN,)
            made = parts.setdefault(part, {})
            y = decay_sum(x.attrs[1], *part)
            made[y] = add(made[y], term) if y in made else term
    return [replace(stage, outputs=made) for made in parts.values()]


def _orders(variables: list[Var]) -> dict[str, tuple[str, ...]]:
    """The axes of variables, by the names of their gradients."""
    return {gradient_name(v): v.axes for v in variables}


def _is_zero(node: Node) -> bool:
    """Is a value zero, over whichever axes?"""
    return node is ZERO or (node.op == "expand" and _is_zero(node.args[0]))
