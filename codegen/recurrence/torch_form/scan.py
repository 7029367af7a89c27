"""Print a recurrence whose states' entries go through maps that compose as torch: the maps of all steps at once, a scan of these
for each state, forwards and backwards, and what is made of each step from the states before and after it."""

from __future__ import annotations

from ...ir.code import Code, Group, Items, Literal, Method, call
from ...ir.launch_ir import Function, Return, ref
from ...ir.python_code import Fixed, dictionary
from ...ir.step_program import StateVar, StepProgram
from ...ir.words import Definitions
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Map, Plan
from ..normal_form.form import NormalForm
from ..step.adjoint import gradient_name
from ..step.elementwise import AFTER, BEFORE, Entry, entrywise, over_stored
from .passes import SEQUENCES, STEPS, PassText, arguments, by_length, or_zeros, per_step_names, shape_of
from .sweep import function, printed


def scan_definitions(c: Compiled) -> Definitions:
    """`torch_forward` and `torch_backward` of a recurrence whose states are scanned."""
    found: list[Function] = []
    for backward in (False, True):
        found += [*ScanText(c, backward).functions(), *StatesText(c, backward).functions()]
        kind, own = "backward" if backward else "forward", arguments(backward)
        in_segments = call(f"{kind}_in_segments", Fixed(f"_{kind}_part"), "per_step", *own, Fixed("LONG"))
        doc = f"{'Gradients' if backward else 'Outputs and last states'} of {c.name}, by scans, in torch."
        body = (by_length(c, backward), per_step_names(c), Return(in_segments))
        found.append(function(f"torch_{kind}", own, doc, body, packed=None))
    return printed(found)


class ScanText(PassText):
    """One of the two functions, of some steps. `wide`: sums of angles come in float64."""

    wide = True

    def __init__(self, c: Compiled, backward: bool) -> None:
        program = c.adjoint.program if backward else c.step
        variables = [v for v in c.step.variables if v.kind != "constant"]
        wanted = [gradient_name(v) for v in variables] if backward else list(c.step.outputs)
        values = {n: over_stored(program.outputs[n], c.step, backward) for n in wanted}
        super().__init__(c, Plan(NormalForm((), {}, values), (Map(values),), ()), backward)
        self.program = program

    def functions(self) -> list[Function]:
        c = self.c
        self._open()
        for e in _entries(c.step):
            self._scan(c.step, e)
        for e in _entries(self.program) if self.backward else ():
            self._scan(self.program, e)
        (stage,) = self.p.stages
        assert isinstance(stage, Map)
        self._results(stage)
        doc = f"{'Gradients' if self.backward else 'Outputs and last states'} of some steps of {c.name}."
        return [function(f"_{self.kind}_part", arguments(self.backward), doc, tuple(self.body))]

    def _initial(self, s: StateVar) -> Code:
        if not (s.turns and self.wide):
            return super()._initial(s)
        return or_zeros("states", s.name, shape_of(SEQUENCES, s.axes), Fixed("torch.float64"))

    def _scan(self, program: StepProgram, e: Entry) -> None:
        """The statements that scan a state, before and after each step."""
        s = program.state(e.state)
        forward = program.direction > 0
        first = self.state_name(s.name) if forward else f"{s.name}_last"
        names = [f"{s.name}_{when}" for when in (BEFORE, AFTER)]
        last = f"{s.name}_last" if forward and not self.backward else f"{s.name}_end" if forward else f"{s.name}_first"
        backwards = () if forward else (Literal(False),)
        scan = "scan_turns" if e.turns else "scan_maps"
        self.assign((*names, last), call(scan, Literal(e.kind), self._maps(e, s), first, *backwards))
        for when, name in zip((BEFORE, AFTER), names, strict=True):
            self.leaves.taken["stored", f"{s.name}.{when}"] = name

    def _maps(self, e: Entry, s: StateVar) -> Items:
        """What the map of each step is made of, whole: [B, H, T, *axes]."""
        found = []
        for x in e.maps:
            value = over_stored(x, self.c.step, self.backward, s.name)
            self.text_of.count([value])
            sizes = shape_of(STEPS, s.axes).values
            found.append(Method(Group(self._whole(value, s.axes)), "expand", sizes))
        return Items(tuple(found))


class StatesText(ScanText):
    """The states that enter a part of a sequence whose others lie elsewhere, or the gradients of those that leave it."""

    wide = False  # what ranks send to each other is of one dtype

    def functions(self) -> list[Function]:
        kind = "backward_states" if self.backward else "forward_states"
        rest = ["saved", "cotangents", "final_cotangents"] if self.backward else []
        what = "The gradients of the states that leave" if self.backward else "The states that enter"
        self._open()
        for e in _entries(self.c.step) if self.backward else ():
            self._scan(self.c.step, e)
        entries = _entries(self.program)
        for n, e in enumerate(entries):
            s = self.program.state(e.state)
            first = self._first(s.name)
            backwards = () if self.program.direction > 0 else (Literal(False),)
            name = Literal(s.name[1:] if self.backward else s.name)
            self.assign(first, call("entering", name, Literal(e.kind), self._maps(e, s), first, "exchange", *backwards))
            if n + 1 < len(entries):
                self._scan(self.program, e)
        found = ((n, ref(self._first(f"d{n}" if self.backward else n))) for n in self.c.step.updates)
        self.body.append(Return(dictionary(found)))
        own = ["given", "states", "constants", *rest, "exchange"]
        doc = f"{what} this part of a sequence, by the maps of all parts."
        return [function(f"torch_{kind}", own, doc, tuple(self.body))]

    def _first(self, name: str) -> str:
        """What a scan of a state begins with."""
        return f"{name}_last" if self.program.direction < 0 else self.state_name(name)


def _entries(program: StepProgram) -> list[Entry]:
    found = entrywise(program)
    assert found is not None
    return found
