"""Print a plan as torch: chunks in parallel, a short loop over chunks for the states, and the rest in parallel again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import sympy

from .adjoint import gradient_name
from .functions import TABLE
from .ir import ROW, Node, dim_of, expand, factors_of, leaf, total, walk
from .log_decay import log_of
from .pipeline import Compiled
from .plan import Accumulate, Map, Plan, Sweep
from .sequential.initial import initial_adjoints
from .show import plain
from .step import StateVar

Leaf = Callable[[Node], str]
INDENT = "    "


class TorchText:
    """Statements for nodes. Tensors have leading batch axes, then the node's axes in sorted order."""

    def __init__(self, leaf_text: Leaf, lines: list[str], names: dict[Node, str], prefix: str = "t") -> None:
        self.leaf_text, self.lines, self.names, self.prefix = leaf_text, lines, names, prefix
        self.uses: Counter[Node] = Counter()

    def count(self, roots: Iterable[Node]) -> None:
        for root in roots:
            self.uses[root] += 1
            for x in walk(root):
                self.uses.update(x.args)

    def value(self, x: Node) -> str:
        """The text of x: a name, or an expression in brackets where it is used once."""
        if x not in self.names:
            text = self.expression(x)
            if x.op in ("leaf", "const", "number", "size") or (
                self.uses[x] <= 1 and x.op in ("add", "mul", "pow", "fn") and len(text) < 60
            ):
                return text
            name = f"{self.prefix}{len(self.lines)}"
            self.lines.append(f"{name} = {text}")
            self.names[x] = name
        return self.names[x]

    def aligned(self, x: Node, axes: tuple[str, ...]) -> str:
        text = self.value(x)
        if x.op in ("const", "number", "size") or x.axes == axes or not axes:
            return text
        if all(a in x.axes for a in axes):
            return text
        index = ", ".join(":" if a in x.axes else "None" for a in axes)
        return f"{self._atom(text)}[..., {index}]"

    def _atom(self, text: str) -> str:
        return text if text.replace("_", "").isalnum() or (text.startswith("(") and text.endswith(")")) else f"({text})"

    def expression(self, x: Node) -> str:
        match x.op:
            case "leaf":
                return swapped(self.leaf_text(x), x.attrs[2])
            case "const":
                return repr(float(x.attrs[0]))
            case "number":
                return repr(float(sympy.N(sympy.sympify(x.attrs[0]), 20)))
            case "size":
                return f"size_{x.attrs[0]}"
            case "eye":
                return f"torch.eye(size_{dim_of(x.axes[0])}, dtype=dtype, device=device)"
            case "add":
                return self._sum_text(x)
            case "mul":
                return self._product_text(x)
            case "pow":
                return self._power_text(x)
            case "fn":
                return TABLE[x.attrs[0]].torch.format(self.value(x.args[0]))
            case "sum":
                return self._contraction(x)
            case "expand":
                return self._expand(x)
        return self.leaf_text(x)

    def _sum_text(self, x: Node) -> str:
        out = ""
        for a in x.args:
            sign, text = " + ", self.aligned(a, x.axes)
            if text.startswith("-"):
                sign, text = " - ", text[1:]
            out += (sign if out else "-" if sign == " - " else "") + text
        return f"({out})"

    def _product_text(self, x: Node) -> str:
        parts = [self.aligned(a, x.axes) for a in x.args]
        if parts[0] == "-1.0":
            return "-" + " * ".join(parts[1:])
        return " * ".join(parts)

    def _power_text(self, x: Node) -> str:
        (base,), n = x.args, x.attrs[0]
        text = self._atom(self.value(base))
        special = {-1: "{}.reciprocal()", 2: "{}.square()", 0.5: "{}.sqrt()", -0.5: "{}.rsqrt()"}
        return special.get(float(n), "{} ** " + str(n.numerator if n.denominator == 1 else float(n))).format(text)

    def _expand(self, x: Node) -> str:
        shape = ", ".join(f"size_{dim_of(a)}" if a in x.attrs else "-1" for a in x.axes)
        count = len(x.axes)
        text = self.aligned(x.args[0], x.axes)
        if x.args[0].op in ("const", "number", "size"):
            text = f"torch.full({(1,) * count}, {text}, dtype=dtype, device=device)"
        return f"expanded({text}, ({shape},))"

    def _contraction(self, x: Node) -> str:
        (b,), body = x.attrs, x.args[0]
        mask = next((f for f in factors_of(body) if f.op == "decay_mask" and len(f.axes) == 3), None)
        if mask is not None:
            return self._decayed(b, mask, [f for f in factors_of(body) if f is not mask])
        groups = [([f], set(f.axes)) for f in factors_of(body)]
        while len(groups) > 1:
            pair = next(
                (
                    (i, j)
                    for i, (_, a) in enumerate(groups)
                    for j, (_, c) in enumerate(groups)
                    if i != j and a <= c and not (len(groups) == 2 and len(a | c) > len(c))
                ),
                None,
            )
            if pair is None and len(groups) == 2:
                break
            i, j = pair or (0, 1)
            if len(groups) == 2 and groups[i][1] == {b} and len(groups[j][1]) == 2:
                break  # a vector times a matrix
            groups[j] = (groups[i][0] + groups[j][0], groups[i][1] | groups[j][1])
            del groups[i]
        texts = []
        for factors, axes in groups:
            order = tuple(sorted(axes))
            if len(factors) == 1:
                texts.append((self.value(factors[0]), order))
            else:
                texts.append((" * ".join(self.aligned(f, order) for f in factors), order))
        if len(texts) == 1:
            text, order = texts[0]
            return f"({text}).sum({order.index(b) - len(order)})"
        return self._einsum(texts, x.axes)

    def _decayed(self, b: str, mask: Node, factors: list[Node]) -> str:
        """A contraction with one decay a channel: over the channels, or over the steps that write."""
        row, col, channel = mask.axes
        if b == channel:
            right = [f for f in factors if col in f.axes]
            sides, function = ((row, channel), (col, channel)), "channel_product"
        else:
            right = [f for f in factors if channel in f.axes]
            sides, function = ((row, col), (col, channel)), "channel_apply"
        left = [f for f in factors if f not in right]
        texts = [
            " * ".join(self.aligned(f, axes) for f in group) or "1.0"
            for group, axes in zip((left, right), sides, strict=True)
        ]
        decay = self.decay_text(mask)
        flags = ", ".join(str(a) for a in mask.attrs)
        return f"{function}({', '.join(texts)}, {decay}, {flags})"

    def decay_text(self, mask: Node) -> str:
        raise NotImplementedError

    def _einsum(self, texts: list[tuple[str, tuple[str, ...]]], out: tuple[str, ...]) -> str:
        (left, a), (right, c) = texts
        b = next(iter((set(a) & set(c)) - set(out)))
        if len(a) == len(c) == 2 and len(out) == 2 and len(set(a) & set(c)) == 1:
            if out[0] not in a:
                left, a, right, c = right, c, left, a
            left = self._atom(left) + ("" if a == (out[0], b) else ".mT")
            right = self._atom(right) + ("" if c == (b, out[1]) else ".mT")
            return f"{left} @ {right}"
        letters = {x: "abcdefgh"[n] for n, x in enumerate(sorted(set(a) | set(c)))}
        spec = ",".join("..." + "".join(letters[x] for x in axes) for axes in (a, c))
        return f'torch.einsum("{spec}->...{"".join(letters[x] for x in out)}", {left}, {right})'


def swapped(text: str, order: tuple[str, ...]) -> str:
    """A tensor stored in `order`, with its axes sorted."""
    if tuple(sorted(order)) == tuple(order):
        return text
    assert len(order) == 2, order
    return f"{text}.mT"


# --- functions ------------------------------------------------------------------------------------------------------


@dataclass
class _Names:
    """Python names for leaves, in order of appearance."""

    taken: dict[tuple[str, str], str]
    counts: Counter[str]

    def get(self, kind: str, name: str, stem: str) -> str:
        if (kind, name) not in self.taken:
            self.counts[stem] += 1
            n = self.counts[stem]
            self.taken[kind, name] = stem if n == 1 and stem not in self.taken.values() else f"{stem}_{n}"
        return self.taken[kind, name]


def torch_source(c: Compiled) -> str:
    """`torch_forward` and `torch_backward` of a chunk-parallel recurrence."""
    assert c.forward is not None and c.backward is not None
    forward = _Function(c, c.forward, backward=False).text()
    backward = _Function(c, c.backward, backward=True).text()
    return "\n\n\n".join([*forward, *backward])


class _Function:
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
            "def torch_backward(given, states, constants, saved, cotangents, final_cotangents, needs):"
            if self.backward
            else "def torch_forward(given, states, constants):"
        )
        body = self.lines
        self._open()
        for stage in self.p.stages:
            match stage:
                case Sweep():
                    self._sweep(stage)
                case Accumulate():
                    self._accumulate(stage)
                case Map():
                    self._results(stage)
        doc = '"""Gradients' if self.backward else '"""Outputs, last states and what the backward pass uses'
        lines = [head, f'{INDENT}{doc} of {c.name}, chunk by chunk, in torch."""', *(INDENT + x for x in body)]
        return [*self.sweeps, "\n".join(lines)]

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        program, add = self.c.step, self.lines.append
        stepwise = next(v for v in program.variables if v.per_step)
        add("dtype = dtype_of(given)")
        add(f'some = given["{stepwise.name}"]')
        add("device, lead = some.device, (some.shape[0], some.shape[2], some.shape[1])")
        for dim in program.dims:
            v = next((v for v in program.variables if dim in map(dim_of, v.axes)), None)
            if v is not None:
                at = [dim_of(a) for a in v.axes].index(dim) - len(v.axes)
                add(f'size_{dim} = given["{v.name}"].shape[{at}]')
            else:
                s = next(s for s in program.states if dim in map(dim_of, s.axes))
                add(f'size_{dim} = states["{s.name}"].shape[{[dim_of(a) for a in s.axes].index(dim) - len(s.axes)}]')
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
                else f"({default}).expand({shape})"
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
        paired = {x for p in self.p.form.pairings for x in (p.state, f"d{p.state}")}
        edges = tuple(n for n in s.finals if n in paired) if self.backward else ()
        printer = _SweepText(self, s, edges)
        self.sweeps.append(printer.text())
        arguments = []
        for node in printer.stream_nodes:
            self.text_of.count([node])
            arguments.append(self.text_of.value(node))
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
        p = stage.pairing
        s = p.state
        state = self.c.step.state(s)
        axes = p.leaf.axes
        self.text_of.count([p.late, p.early])
        late, early = (self._whole(x, axes) for x in (p.late, p.early))
        product = leaf("edge", s, state.axes) * leaf("edge", f"d{s}", state.axes)
        node = total(product, *(set(state.axes) - set(axes)))
        ends = f"after_chunks({s}_edges, {s}_end)"
        names = {leaf("edge", s, state.axes): ends, leaf("edge", f"d{s}", state.axes): f"d{s}_edges"}
        edges = TorchText(lambda x: names[x], self.lines, {}).expression(node)
        name = self.leaves.get("pairing", s, f"pairing_{s}")
        size = self._size(next(x for x in self.p.sweeps if s in x.states))
        self.lines.append(f"# {name}: the decay times <{s}_(t-1), d{s}_t>, from what later steps read and wrote")
        self.lines.append(f"{name} = reverse_sum({late}, {early}, {edges}, lead, {size})")

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
        decays = {x.decay for x in s.group if x.decay is not None and x.decay.axes}
        if not decays:
            return "CHUNK"
        calls = [f"chunk_for({self.text_of.value(log_of(d))}, lead)" for d in sorted(decays)]
        text = calls[0] if len(calls) == 1 else f"min({', '.join(calls)})"
        if text not in self.sizes:
            self.sizes[text] = f"size_{len(self.sizes) + 1}"
            self.lines.append(f"{self.sizes[text]} = {text}")
        return self.sizes[text]

    def _whole(self, x: Node, axes: tuple[str, ...]) -> str:
        """A step-level node as [B, H, T, *axes], also where it is constant."""
        text = self.text_of.value(expand(x, axes))
        if not any(y.op == "leaf" for y in walk(x)):
            shape = ", ".join(["*lead", *(f"size_{dim_of(a)}" for a in axes)])
            return (
                f"torch.full(({shape},), {text}, dtype=dtype, device=device)" if not axes else f"{text}.expand({shape})"
            )
        return text

    def _results(self, stage: Map) -> None:
        add = self.lines.append
        if not self.backward:
            outputs = []
            out_type = "some.dtype if some.is_floating_point() else dtype"
            first = next((v for v in self.c.step.variables if v.kind == "input"), None)
            if first is not None:
                out_type = f'given["{first.name}"].dtype'
            for name, node in stage.values.items():
                self.text_of.count([node])
                axes = self.c.step.output_axes[name]
                text = swapped(self._whole(node, tuple(sorted(axes))), axes)
                outputs.append(f'"{name}": from_steps({text}, lead, {len(axes)}, {out_type})')
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
            self.text_of.count([node])
            text = swapped(self._whole(node, tuple(sorted(v.axes))), v.axes)
            how = "from_steps" if v.per_step else "from_heads"
            add(f'gradients["{v.name}"] = {how}({text}, lead, {len(v.axes)}, given["{v.name}"].dtype)')
        self._initial_gradients()
        firsts = ", ".join(f'"{s.name}": d{s.name}_first' for s in self.c.step.states)
        add(f"return gradients, {{{firsts}}}")

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


class _SweepText:
    """The function of one sweep."""

    def __init__(self, parent: _Function, s: Sweep, edges: tuple[str, ...]) -> None:
        self.parent, self.s = parent, s
        self.edges = edges  # states whose value before each chunk is returned too
        self.name = f"_{parent.kind}_sweep_{len(parent.sweeps) + 1}"
        self.pre: list[str] = []
        self.loop: list[str] = []
        self.post: list[str] = []
        self.stream_nodes: list[Node] = []
        self.stream_text: dict[tuple[str, bool], str] = {}
        self.depends_memo: dict[Node, bool] = {}
        self.bare_memo: dict[Node, bool] = {}
        self.pre_text = _Phase(self, self._pre_leaf, self.pre, "a")
        self.loop_text = _Phase(self, self._loop_leaf, self.loop, "b")
        self.post_text = _Phase(self, self._post_leaf, self.post, "c")
        self.stacked: dict[Node, str] = {}

    def text(self) -> str:
        s, chunk = self.s, self.s.chunk
        roots = [*chunk.states.values(), *chunk.outputs.values(), *chunk.definitions.values()]
        for t in (self.pre_text, self.loop_text, self.post_text):
            t.count(roots)
        lasts = {}
        for name, node in chunk.states.items():
            axes = chunk.state_axes[name]
            lasts[name] = swapped(self.loop_text.value(expand(node, axes)), axes)
        results = []
        for x, node in chunk.outputs.items():
            axes = tuple(sorted({ROW, *x.axes}))
            text = self.post_text.value(node)
            if node.axes != axes:
                index = ", ".join(":" if a in node.axes else "None" for a in axes)
                text = f"({text})[..., {index}]"
            results.append(f"from_chunks({text}, lead, {len(x.axes)})")
        lines = []
        for (key, logged), name in self.stream_text.items():
            node = self._stream_node(key, logged)
            lines.append(f"{name} = to_chunks({self._argument(node)}, lead, size, {len(node.axes)})")
        lines += self.pre
        states = list(chunk.states)
        for n in states:
            lines.append(f"{n} = {n}_0")
            lines.append(f"{n}_in = []")
        for name in self.stacked.values():
            lines.append(f"{name}_all = []")
        count = next(iter(self.stream_text.values()))
        order = "range(count)" if s.direction > 0 else "range(count - 1, -1, -1)"
        lines.append(f"count = {count}.shape[2]")
        lines.append(f"for n in {order}:")
        for n in states:
            lines.append(f"{INDENT}{n}_in.append({n})")
        lines += [INDENT + x for x in self.loop]
        for name in self.stacked.values():
            lines.append(f"{INDENT}{name}_all.append({name})")
        lines.append(f"{INDENT}{', '.join(states)} = {', '.join(lasts[n] for n in states)}")
        back = "" if s.direction > 0 else "[::-1]"
        if self.post or results or self.edges:
            body = "\n".join([*self.post, *results])
            for n in states:
                if f"{n}_in" in body or n in self.edges:
                    lines.append(f"{n}_in = torch.stack({n}_in{back}, 2)")
            for name in self.stacked.values():
                lines.append(f"{name} = torch.stack({name}_all{back}, 2)")
        lines += self.post
        lines.append(f"return {', '.join([*results, *(f'{n}_in' for n in self.edges), *states])}")
        arguments = [
            *(self._argument(x) for x in self.stream_nodes),
            *(f"{n}_0" for n in states),
            "lead",
            "size",
            "dtype",
            "device",
        ]
        arguments += [f"size_{d}" for d in self.parent.c.step.dims]
        way = "forwards" if s.direction > 0 else "backwards"
        doc = f'"""A walk {way} over chunks, carrying {", ".join(states)}."""'
        return "\n".join([f"def {self.name}({', '.join(arguments)}):", INDENT + doc, *(INDENT + x for x in lines)])

    # --- streams ----------------------------------------------------------------------------------------------------

    def _stream_node(self, key: str, logged: bool) -> Node:
        node = next(n for x, n in self.s.chunk.streams.items() if x.attrs[1] == key)
        return log_of(node) if logged else node

    def _stream(self, x: Node, logged: bool = False) -> str:
        key = (x.attrs[1], logged)
        if key not in self.stream_text:
            node = self._stream_node(*key)
            if node not in self.stream_nodes:
                self.stream_nodes.append(node)
            self.stream_text[key] = f"x{self.stream_nodes.index(node) + 1}"
        return self.stream_text[key]

    def _argument(self, node: Node) -> str:
        return f"s{self.stream_nodes.index(node) + 1}"

    # --- leaves of the three phases ---------------------------------------------------------------------------------

    def depends(self, x: Node) -> bool:
        """Does x depend on the incoming states?"""
        if x not in self.depends_memo:
            if x.op == "leaf":
                kind = x.attrs[0]
                self.depends_memo[x] = kind == "state in" or (kind == "inner" and self.depends(self.definition(x)))
            else:
                self.depends_memo[x] = any(self.depends(a) for a in x.args)
        return self.depends_memo[x]

    def bare(self, x: Node) -> bool:
        """Is x the same for all chunks, made of no stream?"""
        if x not in self.bare_memo:
            if x.op == "leaf":
                self.bare_memo[x] = x.attrs[0] == "inner" and self.bare(self.definition(x))
            else:
                self.bare_memo[x] = all(self.bare(a) for a in x.args)
        return self.bare_memo[x]

    def definition(self, x: Node) -> Node:
        return next(n for d, n in self.s.chunk.definitions.items() if d.attrs[1] == x.attrs[1])

    def _operation(self, x: Node) -> str:
        direction = "1" if self.s.direction > 0 else "-1"
        match x.op:
            case "order_mask":
                like = self._stream(next(iter(self.s.chunk.streams)))
                return f"order_mask(size, {x.attrs[0]}, {direction}, {like})"
            case "inverse":
                channels = "" if len(x.axes) == 2 else ", channels=True"
                return f"triangular_inverse({self.pre_text.value(x.args[0])}, {direction}{channels})"
        g = self._stream(x.args[0], logged=True)
        dim = ", dim=-2" if len(x.args[0].axes) > 1 else ""
        flags = "".join(f", {a}" for a in x.attrs[:-1])
        return f"{x.op}({g}{flags}{'' if x.op == 'decay_all' else ', ' + direction}{dim})"

    def _pre_leaf(self, x: Node) -> str:
        if x.op != "leaf":
            return self._operation(x)
        if x.attrs[0] == "stream":
            return self._stream(x)
        return self.pre_text.value(self.definition(x))

    def _loop_leaf(self, x: Node) -> str:
        if x.attrs[0] == "state in":
            return x.attrs[1]
        return self.loop_text.value(self.definition(x))

    def _post_leaf(self, x: Node) -> str:
        if x.attrs[0] == "state in":
            return f"{x.attrs[1]}_in"
        node = self.definition(x)
        if node in self.loop_text.names:
            name = self.loop_text.names[node]
            self.stacked[node] = name
            return name
        return self.post_text.value(node)


class _Phase(TorchText):
    """Statements inside or after the loop over chunks; what doesn't depend on the states is computed before it."""

    def __init__(self, sweep: _SweepText, leaf_text: Leaf, lines: list[str], prefix: str) -> None:
        super().__init__(leaf_text, lines, {}, prefix)
        self.sweep = sweep

    def decay_text(self, mask: Node) -> str:
        text = self.sweep._stream(mask.args[0], logged=True)
        return f"{text}[:, :, n]" if self.prefix == "b" else text

    def value(self, x: Node) -> str:
        if self.prefix == "a" or x.op in ("const", "number", "size"):
            return super().value(x)
        if self.sweep.depends(x):
            return super().value(x)
        text = self.sweep.pre_text.value(x)
        if not self.sweep.bare(x) and text not in self.sweep.pre_text.names.values() and x.op != "leaf":
            name = f"{self.sweep.pre_text.prefix}{len(self.sweep.pre)}"
            self.sweep.pre.append(f"{name} = {text}")
            self.sweep.pre_text.names[x] = text = name
        if self.sweep.bare(x) or self is self.sweep.post_text:
            return text
        return f"{text}[:, :, n]" if not text.endswith(".mT") else f"{text[:-3]}[:, :, n].mT"
