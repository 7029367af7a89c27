"""Kernels are data: fields say what the text says, passes change the data, and a gate runs it over exact numbers."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
import sympy
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.exact.rationals import array
from chunkform.codegen.exact.run_kernel import Tensor, run
from chunkform.codegen.ir.code import Attribute, Code, Item, Items, Literal, Load, Method, Name, Not, call
from chunkform.codegen.ir.code_parts import rebuilt, walk_code
from chunkform.codegen.ir.kernel_ir import (
    Barrier,
    Do,
    For,
    If,
    KernelFunction,
    Let,
    Note,
    Parameter,
    Return,
    Statement,
    Store,
    added,
    assigned,
    changed,
    expressions,
    inner,
    let,
    loads,
    reads,
    statements,
    stores,
)
from chunkform.codegen.printing.code_passes import finished_kernel as finished
from chunkform.codegen.printing.code_passes.guarded import guarded
from chunkform.codegen.printing.kernel_text import kernel_function_text, lines_of
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import kernels_after, section, triton_form
from chunkform.codegen.recurrence.triton.gates.kernel_gate import gate_kernel
from chunkform.codegen.recurrence.triton.kernels.coupling_weights import TransitionKernel
from chunkform.codegen.recurrence.triton.kernels.per_step import RowKernel
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, ones, sigmoid, tanh

OPS = ["mamba2", "leaky_integrator", "gradient_descent_squared_momentum", "bounded_normaliser"]
SWEPT = ["lightning_attention", "kimi_delta_attention"]
Made = tuple[RowKernel | TransitionKernel, KernelFunction]


@pytest.fixture(scope="module")
def kernels() -> list[Made]:
    """The kernels of some ops that are data, and what passes have made of them."""
    found: list[Made] = []
    with instead(section, gate_kernel=lambda k, f: found.append((k, f))):
        for name in OPS:
            section.made_form(compiled(name))
    return found


def everything(f: KernelFunction) -> Iterator[Code]:
    return (y for x in statements(f.body) for e in expressions(x) for y in walk_code(e))


def test_fields_say_what_the_text_says(kernels: list[Made]) -> None:
    for _, f in kernels:
        known = {n for x in f.body for n in assigned(x)} | {p.name for line in f.parameters for p in line}
        for x in (x for x in statements(f.body) if not inner(x)):
            tree = [y for y in ast.walk(ast.parse("\n".join(lines_of((x,))))) if isinstance(y, ast.Name)]
            stored = {y.id for y in tree if isinstance(y.ctx, ast.Store)}
            read = {y.id for y in tree if isinstance(y.ctx, ast.Load)}
            again = stored if isinstance(x, Let) and x.sign != "=" else set()
            assert assigned(x) == stored and reads(x) & known == (read | again) & known, lines_of((x,))


def edited(f: KernelFunction, number: int, change: Callable[[Load | Store], Load | Store]) -> KernelFunction:
    """A kernel with a change of one of its loads and stores that have a mask."""
    seen = -1

    def of(x: Code) -> Code:
        nonlocal seen
        if isinstance(x, Load) and x.mask is not None:
            seen += 1
            return change(x) if seen == number else x
        return rebuilt(x, of)

    def statement(x: Statement) -> tuple[Statement, ...]:
        nonlocal seen
        if isinstance(x, Let):
            x = replace(x, value=of(x.value))
        if isinstance(x, Store) and x.mask is not None:
            seen += 1
            x = change(x) if seen == number else x
        return (x,)

    return replace(f, body=changed(f.body, statement))


NOWHERE = Name("i_ok") & (Name("i_ok") < 0)


def masked(f: KernelFunction) -> int:
    return sum(x.mask is not None for x in (*loads(f.body), *stores(f.body)))


def test_each_mask_is_needed(kernels: list[Made]) -> None:
    """Without any of them, something is read or stored where it isn't there; or steps beyond the end count."""
    for k, f in kernels[::3]:
        for n in range(masked(f)):
            with pytest.raises(GateError, match=f.name):
                gate_kernel(k, edited(f, n, lambda x: replace(x, mask=None)))


def test_a_wrong_mask_is_refused(kernels: list[Made]) -> None:
    """One that holds nowhere."""
    for k, f in kernels[::4]:
        for n in range(masked(f)):
            wrong = edited(f, n, lambda x: replace(x, mask=_with(x.mask, "i_ok", NOWHERE)))
            if wrong != f:
                with pytest.raises(GateError, match=f.name):
                    gate_kernel(k, wrong)


def _with(x: Code, name: str, instead: Code) -> Code:
    return instead if x == Name(name) else rebuilt(x, lambda y: _with(y, name, instead))


def test_a_dropped_guard_is_refused(kernels: list[Made]) -> None:
    some = [(k, f) for k, f in kernels if f.optional]
    assert len(some) > 3
    for k, f in some:
        unguarded = changed(f.body, lambda x: x.body if isinstance(x, If) and " is not " in x.condition.text else (x,))
        with pytest.raises(GateError, match=f.name):
            gate_kernel(k, replace(f, body=unguarded))


def test_an_argument_that_may_be_missing_is_used_where_it_is_given() -> None:
    x, tile = Load(Name("x_p") + "i"), Load(Name("x_p") + "tile")
    body = (
        let("x", x, fallback=Literal(0.0)),
        For("tile", call("range", 2), (added("x", tile),)),
        For("n", call("range", 2), (Store(Name("y_p") + "n", Name("x")),)),
        If(Name("LAST"), (Store(Name("x_p") + "n", Name("x")),)),
    )
    f = kernel(*body, optional="x_p")
    assert lines_of(finished(f).body) == [
        "x = 0.0",
        "if x_p is not None:",
        "    x = tl.load(x_p + i)",
        "if x_p is not None:",
        "    for tile in range(2):",
        "        x += tl.load(x_p + tile)",
        "for n in range(2):",
        "    tl.store(y_p + n, x)",
        "if LAST:",
        "    if x_p is not None:",
        "        tl.store(x_p + n, x)",
    ]
    assert guarded(replace(f, parameters=())).body == body


def test_statements_print_as_python_reads_them() -> None:
    """As many parentheses as needed, and no more."""
    a, b, one = Name("a"), Name("b"), Items((Name("a"),))
    body = (
        Let(("a", "b"), Items((b, -(a + b)), bare=True)),
        Let(("SUMS",), Not(Name("EXACT") & a), constant=True),
        let("a", Item(one, b - 1) * Not(a), note="of one"),
        Do(Method(Name("rows"), "store", (Items((a, b), shape=True), Attribute(a * b, "dtype")))),
        Note("behind"),
        If(Not(a.given), (Return(),)),
    )
    assert lines_of(body) == [
        "a, b = b, -(a + b)",
        "SUMS: tl.constexpr = not EXACT & a",
        "a = (a,)[b - 1] * (not a)  # of one",
        "rows.store([a, b], (a * b).dtype)",
        "# behind",
        "if not a is not None:",
        "    return",
    ]
    assert reads(body[3]) == {"rows", "a", "b"} and assigned(body[1]) == {"SUMS"}


# --- what the interpreter refuses -------------------------------------------------------------------------------------


def kernel(*body: Statement, optional: str = "") -> KernelFunction:
    return KernelFunction("some_kernel", ((Parameter(optional, optional=True),),), (), (), "Some.", body)


def memory(*numbers: int) -> Tensor:
    return Tensor("x", array([Fraction(n) for n in numbers]))


def launched(programs: int, x: Tensor, *body: Statement) -> list[Fraction]:
    run(kernel(*body), programs, {"x_p": x})
    return list(x.cells)


PLACE = Name("x_p") + call("tl.program_id", 0)


def test_a_program_waits_for_what_it_has_stored() -> None:
    store, load = Store(PLACE, Literal(2.0)), let("x", Load(PLACE))
    last = Store(PLACE, Name("x") * Name("x"))
    assert launched(1, memory(1), store, Barrier(), load, last) == [4]
    with pytest.raises(GateError, match="no barrier is between a store to x and a load of it"):
        launched(1, memory(1), store, load, last)


def test_no_two_programs_store_to_one_place() -> None:
    assert launched(2, memory(1, 1), Store(PLACE, Literal(2.0))) == [2, 2]
    with pytest.raises(GateError, match="two stores go to one place of x"):
        launched(2, memory(1, 1), Store(Name("x_p") + 0, Literal(2.0)))
    with pytest.raises(GateError, match="two stores go to one place of x"):
        launched(1, memory(1, 1), Store(Name("x_p") + call("tl.arange", 0, 2) * 0, Literal(2.0)))


def test_no_program_loads_what_another_stores() -> None:
    with pytest.raises(GateError, match="a program loads what another one stores, in x"):
        launched(2, memory(1, 1), let("y", Load(Name("x_p") + 0)), Store(PLACE, Name("y")))


def test_places_are_inside_of_tensors() -> None:
    with pytest.raises(GateError, match="it loads beyond x"):
        launched(1, memory(1), let("y", Load(PLACE + 1)))
    with pytest.raises(GateError, match="it stores beyond x"):
        launched(1, memory(1), Store(PLACE + 1, Literal(0.0)))


def test_a_name_is_assigned_before_it_is_read() -> None:
    with pytest.raises(GateError, match="y is read, and isn't assigned before"):
        launched(1, memory(1), Store(PLACE, Name("y")), let("y", 1.0))


def test_a_stale_prefetch_shows() -> None:
    """Each round of the loop takes what was loaded in the one before."""

    def total(then: Code) -> list[Fraction]:
        ahead = let("ahead", Load(Name("x_p") + call("tl.minimum", then, 2)))
        loop = For("n", call("range", 3), (added("x", Name("ahead")), ahead))
        first = let("x", 0.0), let("ahead", Load(Name("x_p") + 0))
        return launched(1, memory(1, 10, 100), *first, loop, Store(Name("x_p") + 0, Name("x")))

    assert total(Name("n") + 1)[0] == 111 and total(Name("n"))[0] != 111


def test_what_a_decimal_stands_for_is_known_exactly() -> None:
    """Products of numbers are rounded where they are printed; the gate takes what they are."""
    r = Recurrence("of_roots")
    x, lam, h = r.inputs("x"), r.decay("lam"), r.state("h")
    r.update(h, lam * h.prev + 3 * sympy.sqrt(2) * sigmoid(7 * sympy.sqrt(3) * sympy.pi * x))
    r.output("y", 3 * sympy.pi * sympy.sqrt(5) * h.next + tanh(x / 3 * sympy.pi))
    found = {y for f in triton_form(compile_spec(r)).parts if isinstance(f, KernelFunction) for y in everything(f)}
    rounded = [y for y in found if isinstance(y, Literal) and y.exact is not None and float(y.exact) != y.value]
    assert rounded and all(abs(float(y.exact or 0) - float(y.value or 0)) < 1e-12 for y in rounded)


def test_what_keeps_zero_needs_no_mask() -> None:
    r = Recurrence("unmasked")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S = r.state("S", e, d)
    r.update(S, S.prev + tanh(v) * (ones(d).T * k * k).T)
    r.output("o", ones(e).T * (S.next * q))
    text = triton_form(compile_spec(r)).text  # which the gate has let pass
    (line,) = re.findall(r"^ *t\d+ = .*tl\.sigmoid\(2\.0 \* \(v\)\).*$", text, re.MULTILINE)
    assert re.search(r"= tl\.sum\(tl\.where\(tl\.abs\(v\) < 0\.55, .* - 1\.0\), axis=1\)$", line), "of v, as it is"


def test_kernels_are_printed_after_each_pass() -> None:
    c = compiled("leaky_integrator")
    before, last = kernels_after(c, "falling_back"), kernels_after(c, "guarded")
    assert before.count("is not None:") < last.count("is not None:")
    assert "static_range" in before and "static_range" not in "".join(map(kernel_function_text, triton_form(c).built))
    text = triton_form(c).text
    assert last != before and all(x in text for x in last.split("\n\n"))
    with pytest.raises(
        ValueError, match="one of in_slices, falling_back, guarded, rounds_at_once, prefetched, got 'fused'"
    ):
        kernels_after(c, "fused")


def test_a_state_of_which_nothing_stays_is_made_of_inputs() -> None:
    """What is added to it is all of its update, which isn't the state after the step yet."""
    r = Recurrence("forgetful")
    x, h = r.inputs("x"), r.state("h")
    r.update(h, x - h.prev + h.prev)
    r.output("y", h.next)
    (scan,) = [f for f in triton_form(compile_spec(r)).parts if f.name == "forward_scan_1"]
    assert isinstance(scan, KernelFunction) and any(x.pointer.text.startswith("x_p") for x in loads(scan.body))


def test_the_gate_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for each kernel, with what is printed."""
    seen = []
    monkeypatch.setattr(section, "gate_kernel", lambda k, f: seen.append(f))
    section.made_form(compiled("leaky_integrator"))
    parts = triton_form(compiled("leaky_integrator")).parts
    assert seen and all(f in parts for f in seen)
