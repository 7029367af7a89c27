"""What a spec may say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import sympy
from mpmath import mp

from chunkform.codegen.ir.evaluate import Reals, evaluate
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import LoadError, NameError_, SpecError
from chunkform.spec.language import (
    Max,
    Min,
    Recurrence,
    apply,
    catalogue,
    dot,
    exp,
    find,
    latex,
    load,
    logsigmoid,
    relu,
    sigmoid,
)


def test_the_example_of_the_design_works_as_printed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("""
from chunkform.spec.language import Recurrence
r = Recurrence("lightning_attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
""")
    (r,) = load(file)
    assert compile_spec(r).family == "chunk-parallel"


def test_every_file_of_the_catalogue_is_short() -> None:
    for r in catalogue():
        lines = Path(r.where.file).read_text().splitlines()
        assert len(lines) <= 40, r.name


def test_the_catalogue_is_found_by_name() -> None:
    assert [r.name for r in find("delta_rule")] == ["delta_rule"]


def test_an_output_may_have_the_name_of_the_let_that_it_is() -> None:
    r = Recurrence("named")
    d = r.dims("d")
    k = r.inputs("k", d)
    s = r.state("s", d)
    y = r.let("y", s.prev + k)
    r.update(s, y)
    r.output("y", y)
    compiled = compile_spec(r)
    assert list(compiled.step.outputs) == ["y"]
    assert compiled.family == "chunk-parallel"


def test_an_output_may_not_have_the_name_of_another_let() -> None:
    r = Recurrence("named")
    d = r.dims("d")
    k = r.inputs("k", d)
    r.let("y", 2 * k)
    with pytest.raises(NameError_, match="'y' is used twice"):
        r.output("y", k)


def test_several_decays_in_one_line() -> None:
    r = Recurrence("two")
    d = r.dims("d")
    a, b = r.decay("a b", d)
    assert a.shape == b.shape and [v.kind for v in r.variables] == ["decay", "decay"]


def test_any_function_with_a_derivative_may_be_a_coefficient() -> None:
    r = Recurrence("functions")
    d = r.dims("d")
    k = r.inputs("k", d)
    a, b = r.inputs("a b")
    s = r.state("s", d)
    weight = sympy.Max(a, b, 1) + sympy.tan(a) + sympy.cosh(b) + sympy.sqrt(1 + a**2) + relu(a) + 2**b
    r.update(s, sigmoid(a) * s.prev + weight * k)
    r.output("o", s.next)
    compiled = compile_spec(r)
    assert compiled.family == "chunk-parallel"


def test_a_number_to_the_power_of_a_vector() -> None:
    r = Recurrence("powers")
    d = r.dims("d")
    k = r.inputs("k", d)
    s = r.state("s", d)
    r.update(s, s.prev + 2**k)
    r.output("o", s.next)
    assert compile_spec(r).family == "chunk-parallel"


def test_a_state_that_is_forgotten_and_one_with_a_constant_decay() -> None:
    r = Recurrence("extremes")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    F = r.state("F", d, e)
    G = r.state("G", d, e)
    r.update(F, k * v.T)
    r.update(G, G.prev / 2 + k * v.T)
    r.output("o", F.next.T * q + G.next.T * q)
    assert compile_spec(r).family == "chunk-parallel"


def test_a_term_prints_as_it_was_written() -> None:
    r = Recurrence("printed")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    beta = r.inputs("beta")
    S = r.state("S", d, e)
    assert str(S.prev + beta * k * (v - S.prev.T * k).T) == "S.prev + beta * k * (v - S.prev.T * k).T"
    assert repr(S) == "S" and repr(d) == "d"
    assert str(q.T * k) == "(q.T * k)"


def test_maxima_of_vectors_and_scalars() -> None:
    r = Recurrence("maxima")
    d = r.dims("d")
    a, b = r.inputs("a b", d)
    s = r.inputs("s")
    h = r.state("h", d)
    r.update(h, Max(a, h.prev))
    assert r.equation("h").term == apply(sympy.Max, a, h.prev)
    assert latex(Max(a, b, s, 0)) and str(Min(s, 2)) == str(sympy.Min(s, 2))
    r.output("o", h.next + Max(a, s) + logsigmoid(b) * logsigmoid(s))
    (o,) = compile_spec(r.validate()).step.outputs.values()
    env = {("input", "a"): [3, -1], ("input", "b"): [2, 0], ("input", "s"): 1, ("state", "h"): [0, 5]}
    values = evaluate(o, {k: np.array(v, dtype=object) for k, v in env.items()}, Reals(), {"d": 2})
    expected = [3 + 3 + mp.log1p(mp.exp(-2)) * mp.log1p(mp.exp(-1)), 5 + 1 + mp.log(2) * mp.log1p(mp.exp(-1))]
    assert all(abs(x - y) < 1e-12 for x, y in zip(values, expected, strict=True))


def test_a_number_of_numpy_is_a_number() -> None:
    r = Recurrence("numbers")
    d = r.dims("d")
    k, s = r.inputs("k", d), r.inputs("s")
    half = np.float64(0.5)
    assert half * k == 0.5 * k and k * half == k * 0.5 and half - k == 0.5 - k and k / half == k / 0.5
    assert (half * s, s - half, half / s, s**half) == (0.5 * s, s - 0.5, 0.5 / s, s**0.5)


def test_the_same_spec_may_be_written_twice() -> None:
    """What SymPy remembers of the first isn't taken for a mistake in the second."""

    def made() -> Recurrence:
        r = Recurrence("again")
        d, e = r.dims("d e")
        q, k, v, b = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e), r.inputs("b")
        S = r.state("S", d, e)
        w = r.let("w", exp(-2 * b * dot(k, k)))
        r.update(S, w * S.prev + 2 * b * k * v.T)
        r.output("o", S.next.T * q * dot(q, k))
        return r.validate()

    assert made().equation("S").term == made().equation("S").term


def test_a_spec_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'from chunkform import Recurrence\nr = Recurrence("sums")\nx = r.inputs("x")\nh = r.state("h")\n'
    text += 'r.update(h, h.prev + x)\nr.output("y", h.next)\n'
    for name in ("Sums", "sums.spec"):
        (tmp_path / name).write_text(text)
        assert [x.name for x in load(tmp_path / name)] == ["sums"]
        monkeypatch.chdir(tmp_path)
        assert [x.name for x in find(name)] == ["sums"]
        assert [x.name for x in find(f"./{name}")] == ["sums"]


def test_a_name_whose_file_is_here_is_asked_for_with_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match=r"no spec named 'mine': did you mean mine\.py\?"):
        find("mine")


def test_a_function_of_the_language_that_is_not_imported_is_named_with_its_import(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('from chunkform.spec.language import Recurrence\nr = Recurrence("mine")\nx = sqrt(2)\n')
    with pytest.raises(LoadError, match=r"'sqrt' is not defined: write `from chunkform\.spec\.language import sqrt`"):
        find(str(file))


@pytest.mark.parametrize("name", ["states", "outputs", "updates", "lets", "claims"])
def test_a_list_that_is_called_says_what_declares_one(name: str) -> None:
    with pytest.raises(SpecError, match=rf"declared already; r.{name[:-1]}\(\.\.\) declares one {name[:-1]}$"):
        getattr(Recurrence("mine"), name)("S")


def test_two_recurrences_may_name_their_scalars_alike() -> None:
    """SymPy keeps the expressions that it has made, and gives those of the first again."""
    for name in ("one", "two"):
        r = Recurrence(name)
        d, e = r.dims("d e")
        k, v = r.inputs("k", d), r.inputs("v", e)
        a, b = r.inputs("a b")
        S = r.state("S", d, e)
        r.update(S, exp(0 + a) * S.prev + (2 * b) * (k * v.T) / 2)
        r.output("o", S.next.T * k)


def test_an_edit_of_one_second_is_read(tmp_path, monkeypatch):
    """Python's own bytecode can't tell two texts of one length and one second apart."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, text = (
        tmp_path / "edited.py",
        """
from chunkform.spec.language import Recurrence
r = Recurrence("{}")
x, h = r.inputs("x"), r.state("h")
r.update(h, h.prev + x)
r.output("y", h.next)
""",
    )
    for name in ("one", "two"):
        file.write_text(text.format(name))
        os.utime(file, (1e9, 1e9))
        assert load(file)[0].name == name
