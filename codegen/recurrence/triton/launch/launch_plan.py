"""The functions that launch the kernels of a plan: `triton_forward` and `triton_backward`, as the op calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....ir.code import Attribute, Binary, Literal, Not, times
from ....ir.expr import (
    Node,
    dim_of,
    leaf,
    plain_name,
    rename,
    walk,
)
from ....ir.launch_ir import (
    Call,
    Code,
    Define,
    Function,
    If,
    Return,
    Set,
    Statement,
    Update,
    put,
    ref,
    takes,
)
from ....ir.python_code import EMPTY, TRUE, Fixed, Part, also, beside, choice, isin, made_by, method, said, several
from ....ir.step_program import StateVar
from ....printing.code_passes import finished_function
from ....printing.launch_text import launch_text
from ...chunkwise.plan import Accumulate, Map, Plan, Stage, Sweep
from ...step.adjoint import gradient_name
from ...stepwise.initial import initial_adjoints
from ..kernels.chunk_kernel import Kernel
from ..plan_passes.value_placement import is_made
from ..print.axis_names import size_name
from ..print.sizes import sizes
from .inputs import entries, if_wanted, inputs
from .sweep_launches import SweepLaunches
from .warp_roles import with_roles_chosen

HASH = "hash of the kernels"  # stands for it in the text that it is of


class Host(SweepLaunches):
    """Makes the function of one pass; which first asks whether others make it `instead`."""

    instead: Sequence[Statement] = ()

    def text(self) -> str:
        return launch_text(finished_function(self.function_ir()))

    def function_ir(self) -> Function:
        """The function as data."""
        if self.whole is not None and self.backward:
            rest = ["packed", *(["exchange"] if self.exchanges else [])]
            handed = beside("given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs", *rest)
            call = Call((), f"{self.function}_backward_whole", (handed,), lines=True)
            self.body.append(If(isin(said(f"{self.whole.state.name} checkpoints"), "saved"), (Return(call),)))
        self._open()
        self.body += self.instead
        self._sweeps()
        self.body = with_roles_chosen(self.body, self.kernels)
        if self.backward:
            self._gradients()
        else:
            self._outputs()
        exchange = self._exchange()
        head = takes("given", "states", "constants", packed=None, **exchange, needs_backward=TRUE, finals=TRUE)
        doc = "Outputs, last states and what the backward pass uses."
        if self.backward:
            head, doc = (
                takes(
                    "given",
                    "states",
                    "constants",
                    "saved",
                    "cotangents",
                    "final_cotangents",
                    "needs",
                    packed=None,
                    **exchange,
                ),
                "Gradients.",
            )
        return self._function(f"{self.function}_{self.kind}", head, doc)

    def _exchange(self) -> dict[str, Part]:
        """What hands on states between segments that are elsewhere."""
        return {"exchange": None} if self.exchanges else {}

    def _open(self) -> None:
        p, add = self.c.step, self.body.append
        given = frozenset() if self.fine is None else self.fine.given
        narrow = [v for v in p.variables if v.kind == "input" and v.name not in given]
        first = p.leading if p.leading in narrow else narrow[0] if given else None
        self.body += inputs(p, self.names, first)
        sizes = several(*map(size_name, p.dims))
        add(Define(("config",), made_by("choose", "some.dtype", sizes, said(HASH))))
        add(Define(("layout",), made_by("chunk_layout", "packed", several("B", "T", "H"), "config.chunk")))
        if self.from_checkpoints or self.schedule.stored or self._takes_blocks:
            add(Define(("blocks",), made_by("chunk_layout", "packed", several("B", "T", "H"), self.block)))
        if self.whole is not None and not self.backward:
            wide = [ref(self.names(v.leaf)) for v in p.variables if v.kind == "input" and v.per_step and v.axes]
            jointly = also(Binary("is", Fixed("needs_backward"), TRUE), made_by("may_be_fused", "config", sizes, *wide))
            add(Define(("jointly",), jointly))
        parts: Code = Literal(1)
        if self.cuts:
            most = max(self.opened.values(), key=lambda o: size_name(dim_of(o.tile[0])) if len(o.tile) == 1 else "")
            parts = made_by("segments_for", "layout", times(Fixed("B"), Fixed("H"), self.launches.tile_count(most)))
        add(Define(("segments",), parts))
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
            value = made_by("whole", made_by("final_cotangents.get", said(s.name)))
            add(Set((f"{name}_first", f"{name}_starts"), value, each=True))
        for s in self.c.step.states:
            name = self.names(leaf("state", s.name))
            if s.name in self.again:
                first = choice(Fixed("saved")[f"{s.name} starts"], Fixed("segments") > 1, ref(f"{name}_first"))
                add(Set((f"{name}_starts",), first))
            if s.name in self.schedule.given:
                add(Set((f"{name}_checkpoints",), Fixed("saved")[f"{s.name} checkpoints"]))
        for x in self.plan.saved:
            add(Set((self.names(x),), Fixed("saved")[x.attrs[1]]))
        for name, axes in self.c.step.output_axes.items():
            x = leaf("cotangent", f"d{name}", axes)
            arguments = (made_by("cotangents.get", said(name)), Fixed("some"), several("B", "T", "H", *sizes(axes)))
            add(Call((self.names(x),), "cotangent", arguments))

    def _first_state(self, s: StateVar) -> None:
        name = self.names(leaf("state", s.name))
        self.body.append(Set((f"{name}_first",), made_by("whole", made_by("states.get", said(s.name)))))
        if s.initial is None:
            return
        made, results = self._torch({"first": s.initial}, {"first": s.axes})
        shape = several("layout.sequences", "H", *sizes(s.axes))
        value = made_by("whole", made_by("spread", results["first"], shape, "some"))
        missing = ref(f"{name}_first").missing
        self.body.append(If(missing, (*made, Set((f"{name}_first",), value))))

    def _outputs(self) -> None:
        orders = self.c.step.output_axes
        values = self._multiplied(self.fused.values)
        rows = self._per_step_results(values, orders)
        self.body += self._per_step([*rows.values()]) if rows else []
        results = self._values(values, orders, {n: r.name for n, r in rows.items()})
        outputs = entries({n: results[n] for n in orders})
        finals = entries({s.name: ref(f"{self.names(leaf('state', s.name))}_last") for s in self.c.step.states})
        self._save()
        self.body.append(Return(beside(outputs, finals, ref("saved"))))

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
            add(If(Fixed("jointly"), (_saved({f"{n} checkpoints": ref(f"{names[n]}_checkpoints")}),)))
        if self.by_head:
            alone: list[Code] = [Binary("is", Fixed("needs_backward"), TRUE), Not(Fixed("config.exact"))]
            alone += [Not(Fixed("jointly"))] if self.whole is not None else []
            if any(isinstance(k, Kernel) and k.roles is not None for k in self.kernels):
                alone.append(Fixed("config.roles").missing)  # whose chunks are others than the backward pass has
            add(If(also(*alone), (_saved({n: ref(n) for n in self.by_head}),)))
        checkpoints = {f"{n} checkpoints": ref(f"{names[n]}_checkpoints") for n in names if n in self.schedule.stored}
        if spare or checkpoints:
            add(If(Fixed("needs_backward"), (_saved(spare | checkpoints),)))
        starts = {f"{n} starts": ref(f"{names[n]}_starts") for n in names if n in self.kept_starts}
        if self.cuts and starts:
            add(If(Fixed("segments") > 1, (_saved(starts),)))
        if self.turned:
            linear = {n: f"{self.names(leaf('state', n))}_linear" for n in sorted(self.turned, key=plain_name)}
            add(If(self._in_segments, (_saved({f"{n} linear": ref(x) for n, x in linear.items()}),)))

    def _gradients(self) -> None:
        add = self.body.append
        add(Set(("gradients", "initial"), beside(EMPTY, EMPTY)))
        for unroll in self.unrolls:
            self._unroll(unroll)
        for stage in self.plan.stages:
            if isinstance(stage, Accumulate):
                self._state_adjoint(stage)
        variables = [v for v in self.c.step.variables if v.kind != "constant" and gradient_name(v) in self.fused.values]
        found, products = self._products({v.name: self.fused.values[gradient_name(v)] for v in variables})
        for users, statements in products:
            self._under(users, statements)
        values = {gradient_name(v): _along(found[v.name], v.axes) for v in variables}
        made = self._gradients_per_step(variables, values)
        for v in variables:
            name = gradient_name(v)
            with self._apart() as inner:
                value = self._summed_over_steps(v, values[name], made) if not v.per_step else None
                value = value or self._values({name: values[name]}, {name: v.axes}, made)[name]
                if not self._handed_on(v.name):
                    value = method(value, "to", Attribute(Fixed("given")[v.name], "dtype"))
                inner.append(put(ref("gradients")[v.name], value))
            add(if_wanted(v.name, inner))
        for state, program in initial_adjoints(self.c).items():
            self._through_initial(state, program)
        for s in self.c.step.states:
            last = ref(f"{self.names(leaf('state', f'd{s.name}'))}_last")
            add(if_wanted(s.name, [put(ref("initial")[s.name], last)]))
        add(Return(beside(ref("gradients"), ref("initial"))))


def _saved(values: Mapping[str, Code]) -> Update:
    return Update("saved", entries(values))


def _along(node: Node, axes: tuple[str, ...]) -> Node:
    """A vector's value along the vector's own axis, which may be the other one of a square state where it is made."""
    return rename(node, dict(zip(node.axes, axes, strict=True))) if len(node.axes) == len(axes) == 1 else node


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
