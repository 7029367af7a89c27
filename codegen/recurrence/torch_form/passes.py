"""Print a plan as torch: chunks in parallel, a short loop over chunks for the states, and the rest in parallel again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ...ir.code import (
    Attribute,
    Binary,
    Call,
    Code,
    Either,
    Group,
    Item,
    Items,
    Literal,
    Method,
    Name,
    Slice,
    Starred,
    atom,
    call,
    shape,
)
from ...ir.expr import ROW, Node, dim_of, expand, leaf, plain_name, terms_of, walk
from ...ir.launch_ir import (
    Function,
    If,
    Note,
    Return,
    Set,
    Statement,
    assign,
    put,
    ref,
)
from ...ir.notation import plain
from ...ir.python_code import EMPTY, Fixed, beside, dictionary
from ...ir.step_program import DECAYS, LOGARITHM_OF, PER_HEAD, WHOSE_LOGARITHM, StateVar, argument_name
from ...ir.words import Definitions
from ...printing.torch_expressions import TorchText, stored
from ...printing.walk import summed
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Accumulate, Map, Plan, Sweep, Unroll
from ..normal_form.matrix_parameters import outer_product
from ..notation.form_notation import Reader
from ..notation.formulas import order_of
from ..step.adjoint import gradient_name
from ..stepwise.initial import initial_adjoints
from .sweep import LIKE, SweepText, UnrollText, at_boundary, called, function, in_digits, printed


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


def by_length(c: Compiled, backward: bool) -> If:
    """What is packed is handed to the same function, a batch for each length."""
    kind = "backward" if backward else "forward"
    given = (Fixed(f"torch_{kind}"), Name("per_step"), *map(Name, arguments(backward)), Name("packed"))
    handed = Return(Call(f"{kind}_by_length", given))
    return If(Name("packed").given, (per_step_names(c), handed))


def per_step_names(c: Compiled) -> Set:
    return assign("per_step", shape(*(Literal(v.name) for v in c.step.variables if v.per_step)))


def arguments(backward: bool) -> tuple[str, ...]:
    """What the functions of a pass are given."""
    return ("given", "states", "constants", *(("saved", "cotangents", "final_cotangents", "needs") if backward else ()))


def torch_definitions(c: Compiled) -> Definitions:
    """`torch_forward` and `torch_backward` of a chunk-parallel recurrence."""
    assert c.forward is not None and c.backward is not None
    forward = PassText(c, c.forward, backward=False).functions()
    return printed([*forward, *PassText(c, c.backward, backward=True).functions()])


class PassText:
    """One of the two functions, with a function per sweep."""

    def __init__(self, c: Compiled, p: Plan, backward: bool) -> None:
        self.c, self.p, self.backward = c, p, backward
        self.kind = "backward" if backward else "forward"
        self.body: list[Statement] = []
        self.names: dict[Node, str] = {}
        self.leaves = _Names({}, Counter())
        self.text_of = TorchText(self.leaf, self.body, self.names)
        self.loaded: set[str] = set()
        self.sweeps: list[Function] = []
        self.reader = Reader(c, p.form)

    def called(self, x: Node) -> str:
        """What a stream is called inside of a function over chunks: as here, where it has a name."""
        known = self.leaves.taken.get(x.attrs[:2]) if x.op == "leaf" else None
        return called(x) if known is None else known

    def functions(self) -> list[Function]:
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
        what = "Gradients" if self.backward else "Outputs, last states and what the backward pass uses"
        doc = f"{what} of {self.c.name}, chunk by chunk, in torch."
        body = (by_length(self.c, self.backward), *self.body)
        whole = function(f"torch_{self.kind}", arguments(self.backward), doc, body, packed=None)
        return [*self.sweeps, whole]

    # --- inputs -----------------------------------------------------------------------------------------------------

    def assign(self, names: str | tuple[str, ...], value: Code, several: bool = False) -> None:
        self.body.append(assign(names, value, several))

    def _open(self) -> None:
        program = self.c.step
        stepwise = next(v for v in program.variables if v.per_step)
        self.assign(("dtype", "device", "lead"), call("call_of", "given", Literal(stepwise.name)))
        for dim in program.dims:
            v = next(v for v in program.variables if dim in map(dim_of, v.axes))
            at = [dim_of(a) for a in v.axes].index(dim) - len(v.axes)
            self.assign(f"size_{dim}", Item(Attribute(given(v.name), "shape"), Literal(at)))
        for s in program.states:
            self.assign(self.state_name(s.name), self._initial(s))
        if self.backward:
            for s in program.states:
                self.assign(f"d{s.name}_last", or_zeros("final_cotangents", s.name, shape_of(SEQUENCES, s.axes)))

    def _initial(self, s: StateVar) -> Code:
        shape = shape_of(SEQUENCES, s.axes)
        if s.initial is None:
            return or_zeros("states", s.name, shape)
        default: Code = Group(stored(self.text_of.value(s.initial), s.axes))
        if self._per_head(s.initial):
            default = Method(Method(default, "squeeze", (Literal(2),)), "expand", (shape,))
        else:
            default = call("torch.zeros", shape, **LIKE) + default
        return Either(Item(Name("states"), Literal(s.name)).to("dtype"), found("states", s.name).given, default)

    def _per_head(self, x: Node) -> bool:
        return any(y.op == "leaf" and y.attrs[0] != "constant" for y in walk(x))

    def state_name(self, name: str) -> str:
        return f"{name}_first"

    def leaf(self, x: Node) -> str:
        """The name of a step-level quantity, loaded where it is first used."""
        kind, name, _ = x.attrs
        if kind == "constant":
            text = self.leaves.get(kind, name, f"{name}_" if name in _PYTHON else name)
            return self.load(text, lambda: call("torch.tensor", Item(Name("constants"), Literal(name)), **LIKE))
        if kind in ("input", *DECAYS, *PER_HEAD, *WHOSE_LOGARITHM):
            text = argument_name(name, kind in WHOSE_LOGARITHM)
            text = self.leaves.get(kind, name, f"{text}_" if text in _PYTHON else text)
            return self.load(text, lambda: self._given(x))
        if kind == "cotangent":
            text = self.leaves.get(kind, name, name)
            return self.load(text, lambda: self._cotangent(name[1:]))
        if kind == "write" and x in self.p.saved and (kind, name) not in self.leaves.taken:
            text = self.leaves.get(kind, name, self._result_stem(x))
            self.assign(text, Item(Name("saved"), Literal(name)))
            return text
        return self.leaves.taken[kind, name]

    def load(self, name: str, value: Callable[[], Code]) -> str:
        """The name, which a statement gives to the value where it is first used."""
        if name not in self.loaded:
            self.loaded.add(name)
            self.assign(name, value())
        return name

    def _given(self, x: Node) -> Code:
        """What the op is given at each step, or of each head."""
        kind, name, order = x.attrs
        if kind in DECAYS:
            return Method(Name(self.leaf(leaf(LOGARITHM_OF[kind], name, order))), "exp", ())
        return call("per_head" if WHOSE_LOGARITHM.get(kind, kind) in PER_HEAD else "steps_first", given(name), "dtype")

    def _cotangent(self, output: str) -> Code:
        shape = shape_of(STEPS, self.c.step.output_axes[output])
        return call("steps_or_zeros", found("cotangents", output), shape, *LIKE)

    # --- stages -----------------------------------------------------------------------------------------------------

    def _sweep(self, s: Sweep) -> None:
        edges = self.edges(s)
        sweep = SweepText(self, s, edges)
        self.sweeps.append(sweep.made())
        streams = self.text_of.arguments(sweep.streams.nodes)
        forward_state = s.direction > 0
        firsts = [self.state_name(n) if forward_state else f"{n}_last" for n in s.states]
        results = [self.leaves.get(x.attrs[0], x.attrs[1], self._result_stem(x)) for x in s.chunk.outputs]
        for x, name in zip(s.chunk.outputs, results, strict=True):  # what each result is
            number = self.c.numbers.get((x.attrs[0], plain_name(x.attrs[1])))
            self.body.append(Note(f"{'' if number is None else f'({number}) '}{name}: {self.meaning(x)}"))
        results += [at_boundary(n, s.direction) for n in edges]
        lasts = [f"{n}_last" if forward_state else f"{n}_first" for n in s.states]
        if self.backward and forward_state:
            lasts = [f"{n}_end" for n in s.states]
        self.swept(sweep, streams, firsts, s.direction, self._size(s), (*results, *lasts))

    def swept(
        self, sweep: SweepText, streams: Items, firsts: list[str], direction: int, size: Code, names: tuple[str, ...]
    ) -> None:
        """The statement that sweeps over all chunks, from the states of these names."""
        states = Items(tuple(map(Name, firsts)))
        chunk = sweep.s.chunk
        digits = in_digits(sweep.name, chunk.outputs.values(), chunk.definitions)
        made = call("in_segments", digits, streams, states, "lead", direction, size, *sweep.own[2:])
        self.assign(names, made)

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
        name = f"_{self.kind}_state_adjoint_{len(self.sweeps) + 1}"
        unrolled = UnrollText(name, stage, self.c.step.dims, self.called)
        self.sweeps.append(unrolled.made())
        streams = self.text_of.arguments(unrolled.streams.nodes)
        edges = Items(tuple(map(Name, unrolled.at_boundaries.values())))
        names = [x.attrs[1] for x in stage.outputs]
        results = [
            self.leaves.get("state-adjoint product", n, f"paired_{n.replace('.', '_').replace('|', '_')}")
            for n in names
        ]
        for x, result in zip(stage.outputs, results, strict=True):
            self.body.append(Note(f"{result}: {self.shown(self.reader.spelled(x))}"))
        size = self._size(next(x for x in self.p.sweeps if stage.forward[0].name in x.states))
        digits = in_digits(name, stage.outputs.values(), stage.definitions)
        made = call("from_boundaries", digits, streams, edges, "lead", size, *unrolled.own[2:])
        self.assign(tuple(results), made, several=True)

    def _size(self, s: Sweep) -> Code:
        """The name of the chunk length for the states of a sweep; a state and its gradient share it."""
        own = {n.removeprefix("d") if n not in self.c.step.updates else n for n in s.states}
        own |= {f"d{n}" for n in own}
        related = [x for x in self.p.sweeps if own & set(x.states)]
        nodes = [
            n for x in related for r in (*x.chunk.definitions.values(), *x.chunk.outputs.values()) for n in walk(r)
        ]
        if any(n.op == "inverse" and len(n.axes) > 2 for n in nodes):
            return Fixed("CHANNEL_CHUNK")
        return Fixed("CHUNK")

    def _whole(self, x: Node, axes: tuple[str, ...]) -> Code:
        """A step-level node as [B, H, T, *axes], also where it is constant."""
        value = self.text_of.value(expand(x, axes))
        if any(y.op == "leaf" for y in walk(x)):
            return value
        shape = shape_of(STEPS, axes)
        if axes:
            return Method(value, "expand", shape.values)
        return call("torch.full", shape, value, **LIKE)

    def _results(self, stage: Map) -> None:
        if self.backward:
            self._gradients(stage)
            return
        outputs = []
        for name, node in stage.values.items():
            self.text_of.count([node])
            axes = self.c.step.output_axes[name]
            value = stored(self._whole(node, tuple(sorted(axes))), axes)
            kind = Name("dtype") if name in self.c.step.handed else self._output_dtype()
            outputs.append((name, call("from_steps", value, "lead", len(axes), kind)))
        finals = dictionary((s.name, ref(f"{s.name}_last")) for s in self.c.step.states)
        writes = self.p.form.write_leaves()
        saved = dictionary((x.attrs[1], ref(self.leaves.taken["write", x.attrs[1]])) for x in writes)
        self.body.append(Return(beside(dictionary(outputs), finals, saved)))

    def _output_dtype(self) -> Code:
        """That of the first input; or of the first argument, unless that is of whole numbers."""
        if self.c.step.leading.kind == "input":
            return dtype_of(self.c.step.leading.name)
        first = next(v.name for v in self.c.step.variables if v.per_step)
        return Either(dtype_of(first), Method(given(first), "is_floating_point", ()), Name("dtype"))

    def _gradients(self, stage: Map) -> None:
        self.assign("gradients", EMPTY)
        for v in self.c.step.variables:
            if v.kind == "constant":
                continue
            node = stage.values[gradient_name(v)]
            pairs = [outer_product(x, v.axes) for x in terms_of(node)] if len(v.axes) == 2 and not v.per_step else []
            if pairs and None not in pairs:
                value: Code = Method(self._outer([p for p in pairs if p]), "to", (dtype_of(v.name),))
            else:
                self.text_of.count([node])
                value = stored(self._whole(node, tuple(sorted(v.axes))), v.axes)
                how = "from_steps" if v.per_step else "from_heads"
                value = call(how, value, "lead", len(v.axes), dtype_of(v.name))
            self.body.append(put(gradient(v.name), value))
        self._initial_gradients()
        firsts = dictionary((s.name, ref(f"d{s.name}_first")) for s in self.c.step.states)
        self.body.append(Return(beside(ref("gradients"), firsts)))

    def _outer(self, pairs: list[tuple[Node, Node]]) -> Code:
        """The sum over sequences and steps of products of two vectors of each step."""
        self.text_of.count([x for pair in pairs for x in pair])
        spread = (STEPS, Literal(-1))
        values = [[Method(Group(self.text_of.value(x)), "expand", spread) for x in pair] for pair in pairs]
        return atom(summed([call("torch.einsum", Literal("bhti,bhtj->hij"), left, right) for left, right in values]))

    def _initial_gradients(self) -> None:
        """Gradients of parameters through the spec's own initial states."""
        for state, program in initial_adjoints(self.c).items():
            body: list[Statement] = []

            def of_leaf(x: Node, state: str = state) -> Code | str:
                if x.attrs[0] != "cotangent":
                    return self.leaf(x)
                return Method(Name(f"d{state}_first"), "unsqueeze", (Literal(2),))

            printer = TorchText(of_leaf, body, {}, f"d{state}_t")
            one = Items((Item(Name("lead"), Literal(0)), Item(Name("lead"), Literal(1)), Literal(1)))
            for v in program.variables:
                if gradient_name(v) not in program.outputs:
                    continue
                value = stored(printer.value(program.outputs[gradient_name(v)]), v.axes)
                own = gradient(v.name)
                more = call("from_heads", value, one, len(v.axes), Attribute(own, "dtype"))
                body.append(put(own, more, "+="))
            self.body.append(If(Binary("is", found("states", state), Literal(None)), tuple(body)))


SEQUENCES, STEPS = (
    Starred(Item(Name("lead"), Slice(stop=Literal(2)))),
    Starred(Name("lead")),
)  # the first sizes of tensors of sequences, and of steps


def shape_of(lead: Code, axes: tuple[str, ...]) -> Items:
    """The shape of a tensor with these axes behind those of `lead`."""
    return Items((lead, *(Name(f"size_{dim_of(a)}") for a in axes)))


def given(name: str) -> Code:
    return Item(Name("given"), Literal(name))


def gradient(name: str) -> Code:
    return Item(Name("gradients"), Literal(name))


def dtype_of(name: str) -> Code:
    """The dtype of an argument."""
    return Attribute(given(name), "dtype")


def found(table: str, name: str) -> Code:
    """An entry of a dictionary, or None."""
    return Method(Name(table), "get", (Literal(name),))


def or_zeros(table: str, name: str, shape: Items, dtype: Code | None = None) -> Code:
    return call("or_zeros", found(table, name), shape, dtype or LIKE["dtype"], LIKE["device"])


_PYTHON = frozenset(
    "dtype device lead some given states constants saved cotangents final_cotangents needs torch".split()
)
