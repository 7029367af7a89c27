"""Print a plan as torch: chunks in parallel, a short loop over chunks for the states, and the rest in parallel again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...ir.code import Code, Group, Items, Literal, Method, Name, Text, atom, call
from ...ir.expr import ROW, Node, dim_of, expand, leaf, plain_name, terms_of, walk
from ...ir.notation import plain
from ...ir.step_program import StateVar
from ...printing.torch_expressions import TorchText, stored
from ...printing.walk import summed
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Accumulate, Map, Plan, Sweep, Unroll
from ..normal_form.matrix_parameters import outer_product
from ..notation.form_notation import Reader
from ..notation.formulas import order_of
from ..step.adjoint import gradient_name
from ..stepwise.initial import initial_adjoints
from .sweep import INDENT, SweepText, UnrollText, at_boundary, called


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
        self.reader = Reader(c, p.form)

    def called(self, x: Node) -> str:
        """What a stream is called inside of a function over chunks: as here, where it has a name."""
        known = self.leaves.taken.get(x.attrs[:2]) if x.op == "leaf" else None
        return called(x) if known is None else known

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
        add(f'dtype, device, lead = call_of(given, "{stepwise.name}")')
        for dim in program.dims:
            v = next(v for v in program.variables if dim in map(dim_of, v.axes))
            at = [dim_of(a) for a in v.axes].index(dim) - len(v.axes)
            add(f'size_{dim} = given["{v.name}"].shape[{at}]')
        for s in program.states:
            add(f"{self.state_name(s.name)} = {self._initial(s)}")
        if self.backward:
            for s in program.states:
                shape = shape_of("*lead[:2]", s.axes)
                add(f'd{s.name}_last = or_zeros(final_cotangents.get("{s.name}"), {shape}, dtype, device)')

    def _initial(self, s: StateVar) -> str:
        shape = shape_of("*lead[:2]", s.axes)
        if s.initial is None:
            return f'or_zeros(states.get("{s.name}"), {shape}, dtype, device)'
        given = f'states["{s.name}"].to(dtype)'
        default = stored(self.text_of.value(s.initial), s.axes).text
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
                shape = shape_of("*lead", self.c.step.output_axes[output])
                add(f'{text} = steps_or_zeros(cotangents.get("{output}"), {shape}, dtype, device)')
            return text
        if kind == "write" and x in self.p.saved and (kind, name) not in self.leaves.taken:
            text = self.leaves.get(kind, name, self._result_stem(x))
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
        results = [self.leaves.get(x.attrs[0], x.attrs[1], self._result_stem(x)) for x in s.chunk.outputs]
        size = self._size(s)
        for x, name in zip(s.chunk.outputs, results, strict=True):  # what each result is
            number = self.c.numbers.get((x.attrs[0], plain_name(x.attrs[1])))
            self.lines.append(f"# {'' if number is None else f'({number}) '}{name}: {self.meaning(x)}")
        results += [at_boundary(n, s.direction) for n in edges]
        lasts = [f"{n}_last" if forward_state else f"{n}_first" for n in s.states]
        if self.backward and forward_state:
            lasts = [f"{n}_end" for n in s.states]
        rest = ", ".join([size, *printer.own[2:]])
        streams, states = (f"({', '.join(x)}{',' if len(x) == 1 else ''})" for x in (arguments, firsts))
        call = f"in_segments({printer.name}, {streams}, {states}, lead, {s.direction}, {rest})"
        self.lines.append(
            f"{', '.join([*results, *lasts])} = {call}" if len(results + lasts) > 1 else f"{lasts[0]} = {call}"
        )

    def _result_stem(self, x: Node) -> str:
        """What a result of a sweep is called: an output, or a gradient, by its name."""
        if x.attrs[0] == "write":
            return self.reader.symbols[x].attrs[1]
        return next(
            (n for stage in self.p.stages if isinstance(stage, Map) for n, y in stage.values.items() if y is x), "y"
        )

    def edges(self, s: Sweep) -> tuple[str, ...]:
        """The states whose values before each chunk are used later."""
        paired = {x for p in self.p.form.state_adjoints for x in (p.state, f"d{p.state}")}
        paired |= {
            s.name for stage in self.p.stages if isinstance(stage, Unroll) for s in (*stage.forward, *stage.backward)
        }
        return tuple(n for n in s.finals if n in paired) if self.backward else ()

    def meaning(self, x: Node) -> str:
        """What a read or a solved write is, at each step."""
        node = (
            self.reader.read(x) if x.attrs[0] == "read" else self.reader.spelled(self.p.form.write_leaves()[x][1].right)
        )
        return self.shown(node)

    def shown(self, x: Node) -> str:
        """A quantity of a step, as the derivation has it."""
        return plain(x, order=order_of(self.c))

    def _accumulate(self, stage: Accumulate) -> None:
        self._unroll(stage.direct)

    def _unroll(self, stage: Unroll) -> None:
        printer = UnrollText(f"_{self.kind}_state_adjoint_{len(self.sweeps) + 1}", stage, self.c.step.dims, self.called)
        self.sweeps.append(printer.text())
        arguments = self.text_of.arguments(printer.streams.nodes)
        edges = list(printer.at_boundaries.values())
        names = [x.attrs[1] for x in stage.outputs]
        results = [self.leaves.get("pairing", n, f"paired_{n.replace('.', '_').replace('|', '_')}") for n in names]
        for x, result in zip(stage.outputs, results, strict=True):
            self.lines.append(f"# {result}: {self.shown(self.reader.spelled(x))}")
        streams, states = (f"({', '.join(x)}{',' if len(x) == 1 else ''})" for x in (arguments, edges))
        size = self._size(next(x for x in self.p.sweeps if stage.forward[0].name in x.states))
        call = f"from_boundaries({printer.name}, {streams}, {states}, lead, {', '.join([size, *printer.own[2:]])})"
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

    def _whole(self, x: Node, axes: tuple[str, ...]) -> Code:
        """A step-level node as [B, H, T, *axes], also where it is constant."""
        value = self.text_of.value(expand(x, axes))
        if any(y.op == "leaf" for y in walk(x)):
            return value
        shape = (Text("*lead"), *(Name(f"size_{dim_of(a)}") for a in axes))
        if axes:
            return Method(value, "expand", shape)
        return call("torch.full", Items(shape), value, **self.text_of.dialect.made_like())

    def _results(self, stage: Map) -> None:
        add = self.lines.append
        if not self.backward:
            outputs = []
            stepwise = next(v for v in self.c.step.variables if v.per_step)
            out_type = f'given["{stepwise.name}"].dtype if given["{stepwise.name}"].is_floating_point() else dtype'
            if self.c.step.leading.kind == "input":
                out_type = f'given["{self.c.step.leading.name}"].dtype'
            for name, node in stage.values.items():
                self.text_of.count([node])
                axes = self.c.step.output_axes[name]
                text = stored(self._whole(node, tuple(sorted(axes))), axes).text
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
            text = stored(self._whole(node, tuple(sorted(v.axes))), v.axes).text
            how = "from_steps" if v.per_step else "from_heads"
            add(f'gradients["{v.name}"] = {how}({text}, lead, {len(v.axes)}, given["{v.name}"].dtype)')
        self._initial_gradients()
        firsts = ", ".join(f'"{s.name}": d{s.name}_first' for s in self.c.step.states)
        add(f"return gradients, {{{firsts}}}")

    def _outer(self, pairs: list[tuple[Node, Node]]) -> str:
        """The sum over sequences and steps of products of two vectors of each step."""
        self.text_of.count([x for pair in pairs for x in pair])
        spread = (Text("*lead"), Literal(-1))
        values = [[Method(Group(self.text_of.value(x)), "expand", spread) for x in pair] for pair in pairs]
        products = [call("torch.einsum", Literal("bhti,bhtj->hij"), left, right) for left, right in values]
        return atom(summed(products)).text

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
                value = stored(printer.value(node), v.axes).text
                one = "(lead[0], lead[1], 1)"
                lines.append(
                    f'gradients["{v.name}"] += from_heads({value}, {one}, {len(v.axes)}, gradients["{v.name}"].dtype)'
                )
            self.lines.append(f'if states.get("{state}") is None:')
            self.lines += [INDENT + x for x in lines]


def shape_of(lead: str, axes: tuple[str, ...]) -> str:
    """The shape of a tensor with these axes behind those of `lead`."""
    return f"({', '.join([lead, *(f'size_{dim_of(a)}' for a in axes)])}{'' if axes else ','})"


_PYTHON = frozenset(
    "dtype device lead some given states constants saved cotangents final_cotangents needs torch".split()
)
