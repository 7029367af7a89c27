"""Values of each step, and what torch makes: in the function of one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ....ir.code import Attribute, Code, Item, Literal, Method, Name, call, plus
from ....ir.expr import (
    Node,
    dim_of,
    leaf,
    rename,
    terms_of,
    walk,
)
from ....ir.expr import replace as replaced
from ....ir.launch_ir import (
    Call,
    Function,
    Given,
    Set,
    Statement,
    Wanted,
    ref,
)
from ....ir.python_code import Fixed, made_by, method, said, several
from ....ir.step_program import DECAYS
from ....printing.expressions import NodePrinter, Torch
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan
from ...step.adjoint import gradient_name
from ..kernels.chunk_kernel import Kernel
from ..kernels.coupling_weights import (
    TransitionKernel,
)
from ..kernels.fused_backward import FusedBackward
from ..kernels.per_step import Result, RowKernel, launched, matrix_product, outer_vectors, printable, row_kernel
from ..kernels.tile_values import Fine
from ..plan_passes.value_placement import is_made
from ..print.axis_names import size_name
from ..print.sizes import sizes
from .one_pass import OnePass

TERMS = 3  # that `total` adds


class PassValues(OnePass):
    """The statements of a function so far, and values that per-step kernels and torch make."""

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
        """`whole`: the backward pass as a fused backward, if it may be one. `stem`: how the function's name begins."""
        super().__init__(c, plan, backward, fine, later)
        self.whole, self.function = whole, stem
        self.kernels: list[Kernel | RowKernel | TransitionKernel] = []
        self.body: list[Statement] = []
        self.numbered = 0  # values of each step that have a number for a name
        self.initial_gradient = ""
        self.printer = NodePrinter(Torch(lambda d: size_name(d), like="some"), taken=self.names.reserved | {"some"})

    def torch_leaf(self, x: Node) -> Code:
        """A step-level leaf as [B, T, H, *axes] float32 (per head: [H, *axes])."""
        kind, name, _ = x.attrs
        if kind == "constant":
            return Item(Name("constants"), Literal(name))
        if kind == "sums":
            return Attribute(Method(Name(self.names(x)), "sum", (Literal(2),)), "mT")
        if kind == "state-adjoint product":
            return Name(f"{self.names(leaf('state', name))}_state_adjoint")
        if kind == "cotangent" and name[1:] in {s.name for s in self.c.step.states}:
            return Name(self.initial_gradient)
        tensor: Code = Name(self.names(x))
        if kind in ("input", "decay"):
            tensor = call("each_head", tensor, "H")
        wide = Method(tensor, "float", ())
        return Method(wide, "exp", ()) if kind in DECAYS else wide

    def _tensor(self, x: Node) -> str:
        """The name of a leaf's tensor."""
        return (
            f"{self.names(leaf('state', x.attrs[1]))}_state_adjoint"
            if x.attrs[0] == "state-adjoint product"
            else self.names(x)
        )

    def _per_step(self, results: list[Result]) -> list[Statement]:
        """The launch of a kernel that makes these."""
        number = sum(isinstance(x, RowKernel) for x in self.kernels) + 1
        kernel = row_kernel(f"{self.stem}_per_step_{number}", results, self.names, self._tensor)
        self.kernels.append(kernel)
        return launched(kernel)

    def _in_memory(self, x: Node) -> Code:
        """A value of each step, [B, T, H, *axes], which a per-step kernel makes unless it is there."""
        if x.op == "leaf" and x.attrs[0] == "input":
            return made_by("each_head", ref(self.names(x)), "H")
        if x.op == "leaf" and x.attrs[0] in ("cotangent", "read", "write", "stored", "multiplied"):
            return ref(self.names(x))
        self.numbered += 1
        name = self.names(leaf("stored", f"rows.{self.numbered}", x.axes))
        self.body += self._per_step([Result(name, x, x.axes, "torch.float32")])
        return ref(name)

    def _multiplied(self, nodes: Mapping[Any, Node]) -> dict[Any, Node]:
        """Nodes, with products of parameters that are matrices made by torch: over all steps of a head at once."""
        found, made = self._products(nodes)
        self.body += [x for _, statements in made for x in statements]
        return found

    def _products(self, nodes: Mapping[Any, Node]) -> tuple[dict[Any, Node], list[tuple[set[Any], list[Statement]]]]:
        """Nodes with such products as leaves; and the statements that make these, for which of the nodes."""
        out: dict[Any, Node] = {}
        made: dict[tuple[Node, bool, Node], tuple[str, set[Any], list[Statement]]] = {}  # whatever axes are called
        for user, node in nodes.items():
            found: dict[Node, Node] = {}
            for x in walk(node):
                parts = matrix_product(x)
                if parts is None:
                    continue
                matrix, vector = parts[0], replaced(parts[1], found)
                vector = rename(vector, {a: dim_of(a) for a in vector.axes})
                per_row = x.axes == matrix.attrs[2][:1]
                key = leaf(*matrix.attrs[:2]), per_row, vector
                if key not in made and printable(vector, vector.axes):
                    with self._apart() as statements:
                        text, letters = self._in_memory(vector), "bthj,hij->bthi" if per_row else "bthi,hij->bthj"
                    self.numbered += 1
                    product = leaf("multiplied", f"product.{self.numbered}", x.axes)
                    arguments = (said(letters), text, self.torch_leaf(matrix))
                    statements.append(Call((self.names(product),), "by_matrix", arguments))
                    made[key] = product.attrs[1], set(), statements
                if key in made:
                    made[key][1].add(user)
                    found[x] = leaf("multiplied", made[key][0], x.axes)
            out[user] = replaced(node, found) if found else node
        return out, [(users, statements) for _, users, statements in made.values()]

    def _outer(self, node: Node, order: tuple[str, ...]) -> Code | None:
        """The gradient of a parameter that is a matrix, where it sums products of two vectors of each step."""
        pairs = [outer_vectors(x, order) for x in terms_of(node)]
        if not pairs or None in pairs:
            return None
        texts = [[self._in_memory(x) for x in pair] for pair in pairs if pair is not None]
        sums = [made_by("outer_sum", left, right) for left, right in texts]
        return plus(*sums)

    def torch_text(self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> dict[str, Code]:
        made, results = self._torch(nodes, orders)
        self.body += made
        return results

    def _torch(
        self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]
    ) -> tuple[list[Statement], dict[str, Code]]:
        """Statements of torch, and the results."""
        made, results = self.printer.values(nodes, self.torch_leaf, orders=orders)
        return [Set((name,), x) for name, x in made], results

    @contextmanager
    def _apart(self) -> Iterator[list[Statement]]:
        """What is added to the body meanwhile, in a list of its own."""
        before, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = before

    def _terms(self, node: Node, order: tuple[str, ...]) -> list[str]:
        """The tensors whose sum a value is, where it is no more than that of a few that kernels have stored."""
        terms = node.args if node.op == "add" else (node,)
        if len(terms) > TERMS or any(x.op != "leaf" or x.attrs[2] != order for x in terms):
            return []
        kinds = {x.attrs[0] for x in terms}
        if not kinds <= {"sums", "state-adjoint product", "stored"} or kinds == {"state-adjoint product"}:
            return []
        return [
            f"{self.names(leaf('state', x.attrs[1]))}_state_adjoint"
            if x.attrs[0] == "state-adjoint product"
            else self.names(x)
            for x in terms
        ]

    def _per_step_results(self, values: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> dict[str, Result]:
        """Those among values that a per-step kernel makes."""
        found = {}
        for name, node in values.items():
            if node.op != "leaf" and not self._terms(node, orders[name]) and printable(node, orders[name]):
                tensor = self.names(leaf("stored", name, orders[name]))
                found[name] = Result(tensor, node, orders[name], self._value_dtype(name))
        return found

    def _value_dtype(self, name: str) -> str:
        return "torch.float32" if self._wide(name) else "some.dtype"

    def _values(
        self, values: dict[str, Node], orders: dict[str, tuple[str, ...]], made: Mapping[str, str]
    ) -> dict[str, Code]:
        """Whole values: tensors as stored, or torch expressions over them; `made` names those that are there."""
        out: dict[str, Code] = {}
        for name, node in values.items():
            if name in made:
                out[name] = ref(made[name])
                continue
            if node.op == "leaf" and (node.attrs[0] == "stored" or is_made(node)) and len(orders[name]) < 2:
                out[name] = ref(self.names(node))
                continue
            shape = several("B", "T", "H", *sizes(orders[name]))
            terms = self._terms(node, orders[name])
            if terms:
                out[name] = made_by("total", shape, self._value_dtype(name), *map(ref, terms))
                continue
            results = self.torch_text({"x": node}, {"x": orders[name]})
            whole = made_by("spread", results["x"], shape, "some")
            out[name] = whole if self._wide(name) else method(whole, "to", "some.dtype")
        return out

    def _number_of_steps(self, x: Node) -> Code:
        """A tensor [B, T, H] of a number of each step, or of one that is the same at each."""
        if printable(x, ()) or (x.op == "leaf" and x.attrs[0] == "input"):
            return self._in_memory(x)
        self.numbered += 1
        name = self.names(leaf("stored", f"number.{self.numbered}"))
        value = self.torch_text({"x": x}, {"x": ()})["x"]
        self.body.append(Call((name,), "spread", (value, several("B", "T", "H"), Fixed("some"))))
        return ref(name)

    def _under(self, wanted: set[str], made: Sequence[Statement]) -> None:
        """Add statements that are for these results."""
        self.body.append(Wanted(frozenset(wanted), tuple(made)))

    def _function(self, name: str, head: tuple[Given, ...], doc: str) -> Function:
        return Function(name, head, doc, tuple(self.body), frozenset(self._everything()))

    def _wide(self, root: str) -> bool:
        """Is this value float32 whatever the inputs are?"""
        if not self.backward:
            return root in self.c.step.handed
        v = next((v for v in self.c.step.variables if gradient_name(v) == root), None)
        return v is None or v.kind != "input" or v.handed or self._handed_on(v.name)

    @property
    def _takes_blocks(self) -> bool:
        return self.whole is not None and not self.backward

    def _handed_on(self, variable: str) -> bool:
        """Do others add to the gradient of a variable, before it is rounded?"""
        return self.fine is not None and variable in self.fine.gradients
