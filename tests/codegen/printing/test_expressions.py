"""Printed torch statements compute what the evaluator does, for the steps and adjoints of the whole catalogue."""

import pytest
import torch
from shared.spec_files import catalogue, compiled_once

from chunkform.codegen.ir.evaluate import evaluate_all
from chunkform.codegen.ir.expr import Node, add, const, dim_of, expand, eye, fn, leaf, leaves, mul, power, total
from chunkform.codegen.ir.launch_ir import Statement
from chunkform.codegen.printing.expressions import NodePrinter, Torch
from chunkform.codegen.printing.launch_text import lines_of
from chunkform.codegen.printing.torch_expressions import TorchText
from chunkform.codegen.recurrence.oracle import TorchNumbers
from chunkform.runtime.torch_form.chunks import expanded

SIZES = {"d": 3, "e": 4, "m": 3, "n": 4}
BATCH, HEADS = 2, 3


def values_of(nodes: list) -> dict:
    torch.manual_seed(0)
    env = {}
    for x in sorted(leaves(*nodes)):
        kind, name, order = x.attrs
        lead = {"constant": (), "parameter": (HEADS,), "decay parameter": (HEADS,)}.get(kind, (BATCH, HEADS))
        if (kind, name) not in env:
            env[kind, name] = torch.rand((*lead, *(SIZES[dim_of(a)] for a in order)), dtype=torch.float64) + 0.1
    return env


def printed(nodes: dict, env: dict, names: dict | None = None, orders: dict | None = None) -> dict:
    """Run the printed statements."""
    variables = {f"{kind.replace(' ', '_')}_{name}": x for (kind, name), x in env.items()}
    variables = {n: x if x.dim() else x.item() for n, x in variables.items()}
    variables |= {f"size_{dim_of(d)}": size for d, size in SIZES.items()}
    printer = NodePrinter(Torch(lambda d: f"size_{d}", like="like"), taken=set(variables))
    made, results = printer.values(nodes, leaf_name, names=names, orders=orders)
    return run([f"{name} = {x.text}" for name, x in made], {n: x.text for n, x in results.items()}, variables)


def leaf_name(x: Node) -> str:
    return f"{x.attrs[0].replace(' ', '_')}_{x.attrs[1]}"


def run(lines: list[str], results: dict[str, str], variables: dict) -> dict:
    like = torch.zeros((), dtype=torch.float64)
    scope = {
        "torch": torch,
        "like": like,
        "dtype": like.dtype,
        "device": like.device,
        "expanded": expanded,
        **variables,
    }
    scope |= {f"size_{d}": n for d, n in SIZES.items()}
    exec("\n".join(lines), scope)
    return {n: torch.as_tensor(eval(text, scope), dtype=torch.float64) for n, text in results.items()}


def printed_by_names(node: Node, env: dict) -> torch.Tensor:
    """The same by the printer that knows axes by their names, which takes tensors alone."""
    variables = {leaf_name(leaf(*key)): x for key, x in env.items()}
    made: list[Statement] = []
    printer = TorchText(leaf_name, made, {})
    printer.count([node])
    value = printer.value(node).text
    return run(lines_of(tuple(made)), {"value": value}, variables)["value"]


def check(nodes: dict, names: dict | None = None) -> None:
    env = values_of(list(nodes.values()))
    expected = evaluate_all(list(nodes.values()), env, TorchNumbers(), SIZES)
    for (name, node), right in zip(nodes.items(), expected, strict=True):
        got = printed(nodes, env, names)[name]
        shape = torch.broadcast_shapes(right.shape, tuple(SIZES[dim_of(a)] for a in node.axes))
        torch.testing.assert_close(got.expand(shape), right.expand(shape), rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("spec", catalogue(), ids=lambda r: r.name)
def test_every_step_and_adjoint(spec) -> None:
    c = compiled_once(spec)
    for program in (c.step, c.adjoint.program):
        check({**program.updates, **{f"out_{n}": x for n, x in program.outputs.items()}}, program.names)


A, A2, B = leaf("input", "A", ("d", "e")), leaf("input", "A2", ("e", "d")), leaf("parameter", "B", ("e", "m"))
M = leaf("input", "M", ("d", "d'"))
MT = leaf("input", "M", ("d'", "d"))
x, y, s, c = leaf("input", "x", ("d",)), leaf("input", "y", ("e",)), leaf("input", "s"), leaf("constant", "c")


@pytest.mark.parametrize(
    "node",
    [
        M + MT,
        mul(M, MT),
        total(mul(A, B, x), "e"),
        total(mul(A, B, y, leaf("parameter", "p", ("m",))), "e", "m"),
        total(mul(A, A2, x), "e"),
        total(mul(A, B, leaf("input", "C", ("m", "e"))), "e"),
        mul(total(mul(M, MT), "d'"), x),
        expand(mul(c, const(2)), ("d", "e")),
        expand(x, ("d", "e")),
        mul(fn("exp", mul(c, c)), x, power(c, -1)),
        add(fn("tanh", mul(c, x)), power(c, "1/2"), mul(s, power(add(1, mul(x, x)), "-1/2"))),
        add(mul(-1, x), mul(-3, s), power(x, -3), power(s, "3/2")),
        add(eye("d", "d'"), mul(-1, x, leaf("input", "x", ("d'",)))),
        fn("exp", mul(const(-1), power(const(2), "1/2"))),
        mul(power(x, -1), y, power(y, -2), power(s, -1)),
        fn("step", add(x, const(-1))),
        fn("softplus", fn("sign", fn("relu", fn("erf", fn("abs", fn("log", x)))))),
    ],
    ids=repr,
)
def test_odd_nodes(node) -> None:
    check({"value": node})
    env = values_of([node])
    (expected,) = evaluate_all([node], env, TorchNumbers(), SIZES)
    shape = torch.broadcast_shapes(expected.shape, tuple(SIZES[dim_of(a)] for a in node.axes))
    found = printed_by_names(node, env)
    torch.testing.assert_close(found.expand(shape), expected.expand(shape), rtol=1e-12, atol=1e-12)


def test_values_that_differ_in_axis_names_only_are_computed_once() -> None:
    read = total(mul(M, leaf("input", "x", ("d'",))), "d'")
    renamed = total(mul(MT, x), "d")
    printer = NodePrinter(Torch(str, like="M"))
    made, results = printer.values({"a": read, "b": renamed}, lambda node: node.attrs[1])
    assert len(made) == 1 and results["a"] == results["b"]


def test_orders_of_results_can_be_asked_for() -> None:
    env = values_of([A])
    out = printed({"plain": A, "turned": A}, env, orders={"turned": ("e", "d")})
    assert torch.equal(out["turned"], out["plain"].mT)
