"""Print a plan as torch: chunks in parallel, a short loop over chunks for the states, and the rest in parallel again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...ir.expr import ROW, Node, dim_of, expand, leaf, plain_name, terms_of, walk
from ...ir.notation import plain
from ...ir.step_program import StateVar
from ...printing.torch_expressions import TorchText, swapped, taken_whole
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Accumulate, Map, Plan, Sweep, Unroll
from ..normal_form.matrix_parameters import outer_product
from ..step.adjoint import gradient_name
from ..stepwise.initial import initial_adjoints
from .sweep import INDENT, SweepText, UnrollText


@dataclass
class _Names:
    """Python names for leaves, in order of appearance."""

    taken: dict[tuple[str, str], str]
    counts: Counter[str]
    plain: set[str] = field(default_factory=set)  # these in plain letters

    def get(self, kind: str, name: str, stem: str) -> str:
        if (kind, name) not in self.taken:
            self.counts[plain_name(stem)] += 1
            n = self.counts[plain_name(stem)]
            self.taken[kind, name] = stem if n == 1 and plain_name(stem) not in self.plain else f"{stem}_{n}"
            self.plain.add(plain_name(self.taken[kind, name]))
        return self.taken[kind, name]


def torch_saved(c: Compiled) -> dict[str, tuple[tuple[str, ...], str]]:
    """The layout of what `torch_forward` saves: the writes, as `Backend.saved` has it."""
    assert c.forward is not None
    return {
        x.attrs[1]: (("B", "H", "T", *(dim_of(a) for a in x.axes if a != ROW)), "wide")
        for x in c.forward.form.write_leaves()
    }


def packed_lines(c: Compiled, backward: bool) -> list[str]:
    """Statements that hand packed sequences to the same function, a batch for each length."""
    kind = "backward" if backward else "forward"
    per_step = ", ".join(f'"{v.name}"' for v in c.step.variables if v.per_step)
    rest = ", saved, cotangents, final_cotangents, needs" if backward else ""
    return [
        "if packed is not None:",
        f"{INDENT}per_step = [{per_step}]",
        f"{INDENT}return {kind}_by_length(torch_{kind}, per_step, given, states, constants{rest}, packed)",
    ]


def torch_source(c: Compiled) -> str:
    """`torch_forward` and `torch_backward` of a chunk-parallel recurrence."""
    assert c.forward is not None and c.backward is not None
    forward = PassText(c, c.forward, backward=False).text()
    backward = PassText(c, c.backward, backward=True).text()
    return "\n\n\n".join([*forward, *backward])


class PassText:
    """One of the two functions, with a function per sweep."""

    def __init__(self, c: Compiled, p: Plan, backward: bool) -> None:
        self.c, self.p, self.backward = c, p, backward
        self.kind = "backward" if backward else "forward"
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self.leaves = _Names({}, Counter())
        self.text_of = TorchText(self.leaf, self.lines, self.names)
        self.loaded: set[str] = set()
        self.sizes: dict[str, str] = {}
        self.sweeps: list[str] = []

    def text(self) -> list[str]:
        c = self.c
        head = (
            "def torch_backward(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None):"
            if self.backward
            else "def torch_forward(given, states, constants, packed=None):"
        )
        body = self.lines
        self._open()
        for stage in self.p.stages:
            match stage:
                case Sweep() if stage.yields:
                    self._sweep(stage)
                case Accumulate():
                    self._accumulate(stage)
                case Unroll():
                    self._unroll(stage)
                case Map():
                    self._results(stage)
        doc = '"""Gradients' if self.backward else '"""Outputs, last states and what the backward pass uses'
        lines = [head, f'{INDENT}{doc} of {c.name}, chunk by chunk, in torch."""']
        lines += [INDENT + x for x in (*packed_lines(c, self.backward), *body)]
        return [*self.sweeps, "\n".join(lines)]

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        program, add = self.c.step, self.lines.append
        stepwise = next(v for v in program.variables if v.per_step)
        add("dtype = dtype_of(given)")
        add(f'some = given["{stepwise.name}"]')
        add("device, lead = some.device, (some.shape[0], some.shape[2], some.shape[1])")
        for dim in program.dims:
            v = next(v for v in program.variables if dim in map(dim_of, v.axes))
            at = [dim_of(a) for a in v.axes].index(dim) - len(v.axes)
            add(f'size_{dim} = given["{v.name}"].shape[{at}]')
        for s in program.states:
            add(f"{self.state_name(s.name)} = {self._initial(s)}")
        if self.backward:
            for s in program.states:
                shape = ", ".join(["lead[0]", "lead[1]", *(f"size_{dim_of(a)}" for a in s.axes)])
                add(f'last_d{s.name} = final_cotangents.get("{s.name}")')
                add(
                    f"d{s.name}_last = torch.zeros({shape}, dtype=dtype, device=device) "
                    f"if last_d{s.name} is None else last_d{s.name}.to(dtype)"
                )

    def _initial(self, s: StateVar) -> str:
        shape = ", ".join(["lead[0]", "lead[1]", *(f"size_{dim_of(a)}" for a in s.axes)])
        given = f'states["{s.name}"].to(dtype)'
        if s.initial is None:
            default = f"torch.zeros({shape}, dtype=dtype, device=device)"
        else:
            default = f"{swapped(self.text_of.value(s.initial), s.axes)}"
            default = (
                f"({default}).squeeze(2).expand({shape})"
                if self._per_head(s.initial)
                else f"torch.zeros({shape}, dtype=dtype, device=device) + ({default})"
            )
        return f'{given} if states.get("{s.name}") is not None else {default}'

    def _per_head(self, x: Node) -> bool:
        return any(y.op == "leaf" and y.attrs[0] != "constant" for y in walk(x))

    def state_name(self, name: str) -> str:
        return f"{name}_first"

    def leaf(self, x: Node) -> str:
        """The name of a step-level quantity, loaded where it is first used."""
        kind, name, _ = x.attrs
        add = self.lines.append
        if kind == "constant":
            text = self.leaves.get(kind, name, f"{name}_" if name in _PYTHON else name)
            if text not in self.loaded:
                self.loaded.add(text)
                add(f'{text} = torch.tensor(constants["{name}"], dtype=dtype, device=device)')
            return text
        if kind in ("input", "decay", "log decay", "log decay parameter", "parameter", "decay parameter"):
            log = kind.startswith("log ")
            text = f"log_{name}" if log else name
            text = self.leaves.get(kind, name, f"{text}_" if text in _PYTHON else text)
            if text not in self.loaded:
                self.loaded.add(text)
                load = "per_head" if kind.endswith("parameter") else "steps_first"
                if kind.startswith("decay"):
                    logged = self.leaf(leaf(f"log {kind}", name, x.attrs[2]))
                    add(f"{text} = {logged}.exp()")
                else:
                    add(f'{text} = {load}(given["{name}"], dtype)')
            return text
        if kind == "cotangent":
            text = self.leaves.get(kind, name, name)
            if text not in self.loaded:
                self.loaded.add(text)
                output = name[1:]
                shape = [
                    "lead[0]",
                    "lead[1]",
                    "lead[2]",
                    *(f"size_{dim_of(a)}" for a in self.c.step.output_axes[output]),
                ]
                add(f'{text} = cotangents.get("{output}")')
                add(
                    f"{text} = torch.zeros({', '.join(shape)}, dtype=dtype, device=device) if {text} is None "
                    f"else steps_first({text}, dtype)"
                )
            return text
        if kind == "write" and x in self.p.saved and (kind, name) not in self.leaves.taken:
            text = self.leaves.get(kind, name, "w")
            add(f'{text} = saved["{name}"]')
            return text
        return self.leaves.taken[kind, name]

    # --- stages -----------------------------------------------------------------------------------------------------

    def _sweep(self, s: Sweep) -> None:
        edges = self.edges(s)
        printer = SweepText(self, s, edges)
        self.sweeps.append(printer.text())
        arguments = self.text_of.arguments(printer.streams.nodes)
        forward_state = s.direction > 0
        firsts = [self.state_name(n) if forward_state else f"{n}_last" for n in s.states]
        results = [
            self.leaves.get(x.attrs[0], x.attrs[1], {"read": "y", "write": "w"}[x.attrs[0]]) for x in s.chunk.outputs
        ]
        size = self._size(s)
        for x, name in zip(s.chunk.outputs, results, strict=True):  # what each result is
            if x.attrs[0] == "read":
                self.lines.append(f"# {name}: {self.meaning(x)}")
            else:
                solved = self.p.form.write_leaves()[x][1]
                self.lines.append(f"# {name}: {plain(solved.right, self.read_names())}")
        results += [f"{n}_edges" for n in edges]
        lasts = [f"{n}_last" if forward_state else f"{n}_first" for n in s.states]
        if self.backward and forward_state:
            lasts = [f"{n}_end" for n in s.states]
        sizes = ", ".join(f"size_{d}" for d in self.c.step.dims)
        streams, states = (f"({', '.join(x)}{',' if len(x) == 1 else ''})" for x in (arguments, firsts))
        call = f"in_segments({printer.name}, {streams}, {states}, lead, {s.direction}, {size}, dtype, device, {sizes})"
        self.lines.append(
            f"{', '.join([*results, *lasts])} = {call}" if len(results + lasts) > 1 else f"{lasts[0]} = {call}"
        )

    def edges(self, s: Sweep) -> tuple[str, ...]:
        """The states whose values before each chunk are used later."""
        paired = {x for p in self.p.form.state_adjoints for x in (p.state, f"d{p.state}")}
        paired |= {
            s.name for stage in self.p.stages if isinstance(stage, Unroll) for s in (*stage.forward, *stage.backward)
        }
        return tuple(n for n in s.finals if n in paired) if self.backward else ()

    def read_names(self) -> dict[Node, str]:
        return {
            x: self.leaves.taken[x.attrs[0], x.attrs[1]]
            for x in (*self.p.form.reads, *self.p.form.write_leaves())
            if (x.attrs[0], x.attrs[1]) in self.leaves.taken
        }

    def meaning(self, x: Node) -> str:
        r = self.p.form.reads[x]
        shown = {"prev": f"{r.state}_(t-1)", "mid": f"{r.state}_t", "next": f"{r.state}_t"}[r.snapshot]
        s = self.c.step if not r.state.startswith("d") else self.c.adjoint.program
        axes = next((v.axes for v in (*s.states, *self.c.adjoint.program.states) if v.name == r.state), ())
        state = self.p.form.state(r.state)
        contracted = state.row if r.side == "row" else state.col
        transposed = "^T" if len(axes) == 2 and contracted == axes[0] else ""
        return f"{shown}{transposed} {plain(r.vector, self.read_names())}"

    def _accumulate(self, stage: Accumulate) -> None:
        self._unroll(stage.direct)

    def _unroll(self, stage: Unroll) -> None:
        printer = UnrollText(f"_{self.kind}_unroll_{len(self.sweeps) + 1}", stage, self.c.step.dims)
        self.sweeps.append(printer.text())
        arguments = self.text_of.arguments(printer.streams.nodes)
        edges = [f"{s.name}_edges" for s in (*stage.forward, *stage.backward)]
        sizes = [f"size_{d}" for d in self.c.step.dims]
        names = [x.attrs[1] for x in stage.outputs]
        results = [self.leaves.get("pairing", n, f"pairing_{n.replace('.', '_')}") for n in names]
        meaning = ", ".join(f"<{s.name}_(t-1), {g.name}_t>" for s, g in zip(stage.forward, stage.backward, strict=True))
        self.lines.append(f"# {', '.join(results)}: {meaning} at each step, with the scalars that multiply the state")
        streams, states = (f"({', '.join(x)}{',' if len(x) == 1 else ''})" for x in (arguments, edges))
        size = self._size(next(x for x in self.p.sweeps if stage.forward[0].name in x.states))
        call = f"in_parts({printer.name}, {streams}, {states}, lead, {size}, dtype, device, {', '.join(sizes)})"
        self.lines.append(f"({', '.join(results)},) = {call}")

    def _size(self, s: Sweep) -> str:
        """The name of the chunk length for the states of a sweep; a state and its gradient share it."""
        own = {n.removeprefix("d") if n not in self.c.step.updates else n for n in s.states}
        own |= {f"d{n}" for n in own}
        related = [x for x in self.p.sweeps if own & set(x.states)]
        nodes = [
            n for x in related for r in (*x.chunk.definitions.values(), *x.chunk.outputs.values()) for n in walk(r)
        ]
        if any(n.op == "inverse" and len(n.axes) > 2 for n in nodes):
            return "CHANNEL_CHUNK"
        return "CHUNK"

    def _whole(self, x: Node, axes: tuple[str, ...]) -> str:
        """A step-level node as [B, H, T, *axes], also where it is constant."""
        text = self.text_of.value(expand(x, axes))
        if not any(y.op == "leaf" for y in walk(x)):
            shape = ", ".join(["*lead", *(f"size_{dim_of(a)}" for a in axes)])
            return (
                f"torch.full(({shape},), {text}, dtype=dtype, device=device)"
                if not axes
                else f"{taken_whole(text)}.expand({shape})"
            )
        return text

    def _results(self, stage: Map) -> None:
        add = self.lines.append
        if not self.backward:
            outputs = []
            out_type = "some.dtype if some.is_floating_point() else dtype"
            if self.c.step.leading.kind == "input":
                out_type = f'given["{self.c.step.leading.name}"].dtype'
            for name, node in stage.values.items():
                self.text_of.count([node])
                axes = self.c.step.output_axes[name]
                text = swapped(self._whole(node, tuple(sorted(axes))), axes)
                kind = "dtype" if name in self.c.step.handed else out_type
                outputs.append(f'"{name}": from_steps({text}, lead, {len(axes)}, {kind})')
            finals = ", ".join(f'"{s.name}": {s.name}_last' for s in self.c.step.states)
            saved = ", ".join(
                f'"{x.attrs[1]}": {self.leaves.taken["write", x.attrs[1]]}' for x in self.p.form.write_leaves()
            )
            add(f"return {{{', '.join(outputs)}}}, {{{finals}}}, {{{saved}}}")
            return
        add("gradients = {}")
        for v in self.c.step.variables:
            if v.kind == "constant":
                continue
            node = stage.values[gradient_name(v)]
            pairs = [outer_product(x, v.axes) for x in terms_of(node)] if len(v.axes) == 2 and not v.per_step else []
            if pairs and None not in pairs:
                add(f'gradients["{v.name}"] = {self._outer([p for p in pairs if p])}.to(given["{v.name}"].dtype)')
                continue
            self.text_of.count([node])
            text = swapped(self._whole(node, tuple(sorted(v.axes))), v.axes)
            how = "from_steps" if v.per_step else "from_heads"
            add(f'gradients["{v.name}"] = {how}({text}, lead, {len(v.axes)}, given["{v.name}"].dtype)')
        self._initial_gradients()
        firsts = ", ".join(f'"{s.name}": d{s.name}_first' for s in self.c.step.states)
        add(f"return gradients, {{{firsts}}}")

    def _outer(self, pairs: list[tuple[Node, Node]]) -> str:
        """The sum over sequences and steps of products of two vectors of each step."""
        self.text_of.count([x for pair in pairs for x in pair])
        texts = [[f"({self.text_of.value(x)}).expand(*lead, -1)" for x in pair] for pair in pairs]
        products = [f'torch.einsum("bhti,bhtj->hij", {left}, {right})' for left, right in texts]
        return products[0] if len(products) == 1 else f"({' + '.join(products)})"

    def _initial_gradients(self) -> None:
        """Gradients of parameters through the spec's own initial states."""
        for state, program in initial_adjoints(self.c).items():
            lines: list[str] = []

            def text(x: Node, state: str = state) -> str:
                return f"d{state}_first.unsqueeze(2)" if x.attrs[0] == "cotangent" else self.leaf(x)

            printer = TorchText(text, lines, {}, f"d{state}_t")
            for v in program.variables:
                if gradient_name(v) not in program.outputs:
                    continue
                node = program.outputs[gradient_name(v)]
                value = swapped(printer.value(node), v.axes)
                one = "(lead[0], lead[1], 1)"
                lines.append(
                    f'gradients["{v.name}"] += from_heads({value}, {one}, {len(v.axes)}, gradients["{v.name}"].dtype)'
                )
            self.lines.append(f'if states.get("{state}") is None:')
            self.lines += [INDENT + x for x in lines]


_PYTHON = frozenset(
    "dtype device lead some given states constants saved cotangents final_cotangents needs torch".split()
)
