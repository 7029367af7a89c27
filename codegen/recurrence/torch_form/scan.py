"""Print a recurrence whose states' entries go through maps that compose as torch: the maps of all steps at once, a scan of these
for each state, forwards and backwards, and what is made of each step from the states before and after it."""

from __future__ import annotations

from ...ir.expr import Node, dim_of
from ...ir.step_program import StepProgram
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Map, Plan
from ..normal_form.form import NormalForm
from ..step.adjoint import gradient_name
from ..step.elementwise import AFTER, BEFORE, Entry, entrywise, over_stored
from .passes import PassText, packed_lines
from .sweep import INDENT


def scan_torch_source(c: Compiled) -> str:
    """`torch_forward` and `torch_backward` of a recurrence whose states are scanned."""
    texts = []
    for backward in (False, True):
        texts += ScanText(c, backward).text()
        kind = "backward" if backward else "forward"
        rest = "saved, cotangents, final_cotangents, needs, " if backward else ""
        texts.append(StatesText(c, backward).text()[0])
        lines = [
            f"def torch_{kind}(given, states, constants, {rest}packed=None):",
            f'{INDENT}"""{"Gradients" if backward else "Outputs and last states"} of {c.name}, by scans, in torch."""',
            *(INDENT + x for x in packed_lines(c, backward)),
            f"{INDENT}per_step = [{', '.join(_quoted(v.name) for v in c.step.variables if v.per_step)}]",
            f"{INDENT}return {kind}_in_segments(_{kind}_part, per_step, given, states, constants, {rest}LONG)",
        ]
        texts.append("\n".join(lines))
    return "\n\n\n".join(texts)


def _quoted(name: str) -> str:
    return f'"{name}"'


class ScanText(PassText):
    """One of the two functions, of some steps."""

    def __init__(self, c: Compiled, backward: bool) -> None:
        program = c.adjoint.program if backward else c.step
        variables = [v for v in c.step.variables if v.kind != "constant"]
        wanted = [gradient_name(v) for v in variables] if backward else list(c.step.outputs)
        values = {n: over_stored(program.outputs[n], c.step, backward) for n in wanted}
        super().__init__(c, Plan(NormalForm((), {}, values), (Map(values),), ()), backward)
        self.program = program

    def text(self) -> list[str]:
        c, rest = self.c, "saved, cotangents, final_cotangents, needs" if self.backward else ""
        self._open()
        for e in _entries(c.step):
            self._scan(c.step, e)
        for e in _entries(self.program) if self.backward else ():
            self._scan(self.program, e)
        (stage,) = self.p.stages
        assert isinstance(stage, Map)
        self._results(stage)
        head = f"def _{self.kind}_part(given, states, constants{f', {rest}' if rest else ''}):"
        doc = f'{INDENT}"""{"Gradients" if self.backward else "Outputs and last states"} of some steps of {c.name}."""'
        return ["\n".join([head, doc, *(INDENT + x for x in self.lines)])]

    def _scan(self, program: StepProgram, e: Entry) -> None:
        """The statements that scan a state, before and after each step."""
        s = program.state(e.state)
        forward = program.direction > 0
        maps = ", ".join(self._over_all(over_stored(x, self.c.step, self.backward, s.name), s.axes) for x in e.maps)
        first = self.state_name(s.name) if forward else f"{s.name}_last"
        names = [f"{s.name}_{when}" for when in (BEFORE, AFTER)]
        last = f"{s.name}_last" if forward and not self.backward else f"{s.name}_end" if forward else f"{s.name}_first"
        call = f'scan_maps("{e.kind}", ({maps}), {first}{"" if forward else ", False"})'
        self.lines.append(f"{', '.join([*names, last])} = {call}")
        for when, name in zip((BEFORE, AFTER), names, strict=True):
            self.leaves.taken["stored", f"{s.name}.{when}"] = name

    def _over_all(self, x: Node, axes: tuple[str, ...]) -> str:
        """A value of each step, whole: [B, H, T, *axes]."""
        self.text_of.count([x])
        sizes = "".join(f", size_{dim_of(a)}" for a in axes)
        return f"({self._whole(x, axes).text}).expand(*lead{sizes})"


class StatesText(ScanText):
    """The states that enter a part of a sequence whose others lie elsewhere, or the gradients of those that leave it."""

    def text(self) -> list[str]:
        kind = "backward_states" if self.backward else "forward_states"
        rest = "saved, cotangents, final_cotangents, exchange" if self.backward else "exchange"
        what = "The gradients of the states that leave" if self.backward else "The states that enter"
        self._open()
        for e in _entries(self.c.step) if self.backward else ():
            self._scan(self.c.step, e)
        entries = _entries(self.program)
        for n, e in enumerate(entries):
            s = self.program.state(e.state)
            maps = ", ".join(self._over_all(over_stored(x, self.c.step, self.backward, s.name), s.axes) for x in e.maps)
            first = self._first(s.name)
            direction = "" if self.program.direction > 0 else ", False"
            name = s.name[1:] if self.backward else s.name
            self.lines.append(f'{first} = entering("{name}", "{e.kind}", ({maps}), {first}, exchange{direction})')
            if n + 1 < len(entries):
                self._scan(self.program, e)
        found = (f'"{n}": {self._first(f"d{n}" if self.backward else n)}' for n in self.c.step.updates)
        self.lines.append(f"return {{{', '.join(found)}}}")
        lines = [
            f"def torch_{kind}(given, states, constants, {rest}):",
            f'{INDENT}"""{what} this part of a sequence, by the maps of all parts."""',
            *(INDENT + x for x in self.lines),
        ]
        return ["\n".join(lines)]

    def _first(self, name: str) -> str:
        """What a scan of a state begins with."""
        return f"{name}_last" if self.program.direction < 0 else self.state_name(name)


def _entries(program: StepProgram) -> list[Entry]:
    found = entrywise(program)
    assert found is not None
    return found
