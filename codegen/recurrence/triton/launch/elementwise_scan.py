"""The functions of a recurrence that multiplies each entry of its states, and adds to it: scans, forwards and backwards, which
make what they can of each step on their way, and per-step kernels for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ....ir.expr import Node, leaf, walk
from ....ir.launch_ir import Call, Code, ref
from ....ir.python_code import FALSE, TRUE, Fixed, several
from ....ir.ranges import Range, Ranges
from ....ir.step_program import StepProgram
from ....printing.terms import Axes
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Map, Plan
from ...normal_form.form import NormalForm
from ...step.adjoint import gradient_name
from ...step.decays import known_range
from ...step.elementwise import AFTER, BEFORE, Entry, entrywise, over_stored, scans, value_of
from ..kernels.elementwise_scan import beside, launched, scan_kernel
from ..kernels.per_step import Result, printable
from ..print.sizes import sizes
from .launch_plan import Host

# Functions that a scan computes for the values of a step, at most. It has one warp, whose threads hold 32 entries of every value:
# more are made by per-step kernels, which have many warps. On an H200 both passes of minGRU take 1.5 ms with 4 and 2.1 with 8,
# those of minLSTM 3.1 with 2, which prints the same as 4, and 6.0 with 8; with 12 a scan spills 1.5 KB a thread.
FUNCTIONS = 4
POWERS = (-1, 2)  # that are no functions: a quotient, and a product


class ScanHost(Host):
    """Prints one of the two functions. States that a kernel has to hand on lie in memory, as stored values of each step."""

    def __init__(self, c: Compiled, backward: bool, stem: str = "triton") -> None:
        program = c.adjoint.program if backward else c.step
        self.step, self.backward = c.step, backward
        self.scans = [*((c.step, e) for e in _entries(c.step)), *((program, e) for e in _entries(program) * backward)]
        wanted = (
            [gradient_name(v) for v in c.step.variables if v.kind != "constant"] if backward else list(c.step.outputs)
        )
        values = {n: self._over_stored(program.outputs[n]) for n in wanted}
        self.made: dict[str, str] = {}  # values that scans make, and their tensors
        self.rows: dict[Node, Node] = {}  # values in memory, and what they are
        self.ranges = Ranges(self._known)
        super().__init__(c, Plan(NormalForm((), {}, values), (Map(values),), ()), backward, False, False, stem=stem)

    def _known(self, x: Node) -> Range | None:
        """What is known of a leaf's values."""
        if x in self.rows:
            return self.ranges(self.rows[x])
        name, _, when = x.attrs[1].rpartition(".")
        stored = x.attrs[0] == "stored" and when in (BEFORE, AFTER)
        return known_range(self.step, leaf("state", name, x.axes) if stored else x)

    def _over_stored(self, x: Node) -> Node:
        """x over states as values of the step."""
        return over_stored(x, self.step, self.backward)

    def _sweeps(self) -> None:
        values = self.fused.values
        for n, (program, e) in enumerate(self.scans):
            after = self.scans[n + 1 :]
            later = [over_stored(x, self.step, self.backward, f.state) for _, f in after for x in f.printed]
            own = not self.backward or program is not self.c.step
            here = {name: x for name, x in values.items() if n == self._last_of(x) and name not in self.made}
            if not own and not any(_states(x) & {e.state} for x in (*later, *values.values())):
                continue  # nothing uses a state of the forward pass
            self._scan(program, e, here, [*later, *(x for name, x in values.items() if name not in here)])

    def _last_of(self, x: Node) -> int:
        """The place of the last scan whose states a value is made of; the last of all where it is made of none."""
        places = [n for n, (_, e) in enumerate(self.scans) if e.state in _states(x)]
        return max(places, default=len(self.scans) - 1)

    def _scan(self, program: StepProgram, e: Entry, here: dict[str, Node], later: list[Node]) -> None:
        """One scan, with those of these values that it can make, and its states where something else is made of them."""
        axes, forward = program.state(e.state).axes, program.direction > 0
        again = self.backward and forward
        printed = [over_stored(x, self.step, self.backward, e.state) for x in e.printed]
        nodes = self._multiplied(dict(enumerate(printed)))
        e = e.over(self._maps([*nodes.values()], axes))
        orders = self.c.adjoint.program.output_axes if self.backward else self.c.step.output_axes
        variables = {gradient_name(v): v for v in self.c.step.variables}
        results: list[Result] = []
        for name, x in here.items():
            v = variables.get(name) if self.backward else None
            among = functions([*e.printed, *(r.node for r in results), x])
            if (v is not None and not v.per_step) or not beside(x, orders[name], axes) or among > FUNCTIONS:
                later = [*later, x]
                continue
            self.made[name] = self.names(leaf("stored", name, axes))
            results.append(
                Result(self.made[name], x, axes, self._value_dtype(name), wanted=None if v is None else v.name)
            )
        for x in (value_of(e.state, when, axes) for when in (BEFORE, AFTER)):
            if any(y.op == "leaf" and y.attrs[:2] == x.attrs[:2] for z in later for y in walk(z)):
                results.append(Result(self.names(x), x, axes, "torch.float32"))
        number = sum(k.sweeps for k in self.kernels) + 1
        kernel = scan_kernel(f"{self.kind}_scan_{number}", e, axes, forward, results, self.names, self._tensor)
        known = {y.attrs[:2]: self.ranges(y) for x in e.printed for y in walk(x) if y.op == "leaf"}
        self.kernels.append(replace(kernel, ranges=known))
        first = ref(f"{self.names(leaf('state', e.state))}_first")
        self.body += launched(kernel, first, FALSE if again else Fixed("finals") if forward else TRUE)

    def _maps(self, nodes: list[Node], axes: Axes) -> list[Node]:
        """The numbers of a scan's maps, as it has them: made there, or loaded, which those of the most functions are first."""
        inside = [x for x in nodes if self._beside(x, axes)]
        while functions(inside) > FUNCTIONS:
            inside.remove(max(inside, key=lambda x: functions([x])))
        return [x if x in inside else self._row_of(x) for x in nodes]

    def _beside(self, x: Node, axes: Axes) -> bool:
        """Can a scan over these axes make x?"""
        return not any(y.op == "leaf" for y in walk(x)) or beside(x, axes, axes) or beside(x, (), axes)

    def _row_of(self, x: Node) -> Node:
        """A value of each step that a scan loads."""
        self.numbered += 1
        made = leaf("stored", f"rows.{self.numbered}", x.axes)
        self.rows[made] = x
        if printable(x, x.axes):
            self.body += self._per_step([Result(self.names(made), x, x.axes, "torch.float32")])
        else:
            shape = several("B", "T", "H", *sizes(x.axes))
            value = self.torch_text({"x": x}, {"x": x.axes})["x"]
            self.body.append(Call((self.names(made),), "spread", (value, shape, Fixed("some"))))
        return made

    def _per_step_results(self, values: dict[str, Node], orders: dict[str, Axes]) -> dict[str, Result]:
        return super()._per_step_results({n: x for n, x in values.items() if n not in self.made}, orders)

    def _values(self, values: dict[str, Node], orders: dict[str, Axes], made: Mapping[str, str]) -> dict[str, Code]:
        return super()._values(values, orders, {**made, **self.made})


def functions(nodes: Iterable[Node]) -> int:
    """How many functions are computed for these values, each of them once."""
    found = {y for x in nodes for y in walk(x)}
    return sum(y.op == "fn" or (y.op == "pow" and y.attrs[0] not in POWERS) for y in found)


def _states(x: Node) -> set[str]:
    """The states that a value is made of."""
    stored = [y.attrs[1].rpartition(".") for y in walk(x) if y.op == "leaf" and y.attrs[0] == "stored"]
    return {name for name, _, when in stored if when in (BEFORE, AFTER)}


def _entries(program: StepProgram) -> list[Entry]:
    found = entrywise(program)
    assert found is not None
    return found


def scanned(c: Compiled) -> bool:
    """Are the states of both passes scanned?"""
    return not c.strata and scans(c.step, c.adjoint) is not None
