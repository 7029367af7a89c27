"""The functions of a recurrence that multiplies each entry of its states, and adds to it: scans, forwards and backwards, and
kernels of rows that make what is scanned, and what is made of the states at each step."""

from __future__ import annotations

from ..adjoint import gradient_name
from ..entrywise import Entry, entrywise
from ..ir import ONE, ZERO, Node, dim_of, leaf, walk
from ..ir import replace as replaced
from ..pipeline import Compiled
from ..read_write import NormalForm
from ..stages import Map, Plan
from ..step import StepProgram
from .host import Host
from .rows import Result, printable
from .tile import size_name

BEFORE, AFTER = "before", "after"  # a step


class ScanHost(Host):
    """Prints one of the two functions. States lie in memory, as stored values of each step."""

    def __init__(self, c: Compiled, backward: bool, stem: str = "triton") -> None:
        self.program = c.adjoint.program if backward else c.step
        self.scans = _entries(c.step)
        self.known: dict[Node, Node] = {}
        for e in self.scans:
            update = c.step.updates[e.state]
            if update.op != "leaf":
                self.known[update] = leaf("stored", f"{e.state}.{AFTER}", c.step.state(e.state).axes)
        if backward:
            self.known = {}
            self.scans = [*self.scans, *_entries(c.adjoint.program)]
        outputs = self.program.outputs
        wanted = [gradient_name(v) for v in c.step.variables if v.kind != "constant"] if backward else list(outputs)
        values = {n: self._over_stored(outputs[n]) for n in wanted}
        self.read = [*values.values(), *(self._over_stored(x) for e in self.scans for x in (e.factor, e.added))]
        super().__init__(c, Plan(NormalForm((), {}, values), (Map(values),), ()), backward, False, False, stem=stem)

    def _over_stored(self, x: Node) -> Node:
        """x over states as they are stored."""
        x = replaced(x, self.known)
        states = [y for y in walk(x) if y.op == "leaf" and y.attrs[0] in ("state", "trajectory")]
        return replaced(x, {y: leaf("stored", f"{y.attrs[1]}.{BEFORE}", y.attrs[2]) for y in states})

    def _walks(self) -> None:
        for e in self.scans:
            own = e.state in {s.name for s in self.c.step.states}
            if not self.backward or not own or self._uses(e.state, BEFORE):
                self._scan(e, own)

    def _uses(self, state: str, when: str) -> bool:
        return any(y.op == "leaf" and y.attrs[:2] == ("stored", f"{state}.{when}") for x in self.read for y in walk(x))

    def _scan(self, e: Entry, forward: bool) -> None:
        """The statement that scans a state, after those that make what it takes."""
        axes = (self.c.step if forward else self.program).state(e.state).axes
        factor, added = self._over_stored(e.factor), self._over_stored(e.added)
        log = factor.op == "leaf" and factor.attrs[0].startswith("decay")
        texts = self._given({"factor": factor, "added": added}, axes)
        name = self.names(leaf("state", e.state))
        words = [f"{when}={self._dtype_of(e.state, when)}" for when in (BEFORE, AFTER) if self._uses(e.state, when)]
        made = [
            self.names(leaf("stored", f"{e.state}.{when}", axes)) if self._uses(e.state, when) else "_"
            for when in (BEFORE, AFTER)
        ]
        words += ["log=True"] * log + ["early=True"] * e.early + ["forward=False"] * (not forward)
        again = self.backward and forward
        words.append("last=False" if again else "last=finals" if forward else "last=True")
        made.append("_" if again else f"{name}_last")
        dims = "".join(f"{size_name(dim_of(a))}, " for a in axes)
        first = f"{name}_first"
        self.lines.append(
            f"{', '.join(made)} = scan(some, {texts['factor']}, {texts['added']}, {first}, lay, ({dims}), {', '.join(words)})"
        )

    def _dtype_of(self, state: str, when: str) -> str:
        """Of a state in memory: that of outputs, where it is nothing but outputs."""
        x = leaf("stored", f"{state}.{when}", self.c.step.state(state).axes) if not self.backward else None
        alone = all(y is x or all(z is not x for z in walk(y)) for y in self.read)
        return "some.dtype" if x is not None and alone else "torch.float32"

    def _given(self, nodes: dict[str, Node], axes: tuple[str, ...]) -> dict[str, str]:
        """The texts of what a scan takes: tensors that are there, or that are made."""
        out: dict[str, str] = {}
        rows: list[Result] = []
        for key, x in self._multiplied(nodes).items():
            neutral = x is (ONE if key == "factor" else ZERO)
            kind = x.attrs[0] if x.op == "leaf" else None
            if neutral:
                out[key] = "None"
            elif kind in ("input", "cotangent", "stored", "multiplied", "decay") and (
                key == "factor" or x.axes == axes
            ):
                out[key] = self.names(x)
            elif kind != "decay parameter" and printable(x, x.axes if key == "factor" else axes):
                self.numbered += 1
                own = x.axes if key == "factor" else axes
                out[key] = self.names(leaf("stored", f"rows.{self.numbered}", own))
                rows.append(Result(out[key], x, own, "torch.float32"))
            else:
                own = x.axes if key == "factor" else axes
                shape = ", ".join(["B", "T", "H", *(size_name(dim_of(a)) for a in own)])
                text = self.names(x) if kind == "decay parameter" else self.torch_text({"x": x}, {"x": own})["x"]
                out[key] = f"spread({text}, ({shape}), some)"
        self.lines += self._by_rows(rows) if rows else []
        return out

    def _values(self, values: dict[str, Node], orders: dict, made: dict) -> dict[str, str]:  # type: ignore[override]
        out = super()._values(values, orders, made)
        if not self.backward:
            wide = {n for n, x in values.items() if x.op == "leaf" and x.attrs[0] == "stored"}
            out |= {n: f"{out[n]}.to(some.dtype)" for n in wide}
        return out


def _entries(program: StepProgram) -> list[Entry]:
    found = entrywise(program)
    assert found is not None
    return found


def scanned(c: Compiled) -> bool:
    """Are the states of both passes scanned?"""
    return entrywise(c.step) is not None and entrywise(c.adjoint.program) is not None
