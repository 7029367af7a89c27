"""A user's own file of claims: published backward formulas hold, and planted mistakes are found and repaired."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from chunkform.codegen.claims.command import judged, verify
from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language import Recurrence, load

DOCS = Path(__file__).parents[3] / "docs"

GATED_DELTA_RULE = """
from chunkform.spec.language import Recurrence
from chunkform.spec.language.formula import eye, inner

r = Recurrence("my_gated_delta_rule", source="a derivation")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
alpha = r.decay("alpha")
S = r.state("S", d, e)
r.update(S, alpha * S.prev + beta * k * (v - alpha * S.prev.T * k).T)
r.output("o", S.next.T * q)

t, q, k, v, beta, alpha, S = r.quantities("t q k v beta alpha S")
do, dS, dq, dk, dv, dbeta, dalpha = r.quantities("do dS dq dk dv dbeta dalpha")
u = r.define("u", t, v(t) - alpha(t) * S(t - 1).T * k(t))
"""

RIGHT = {
    "dS": "dS(t), alpha(t + 1) * (eye(d) - beta(t + 1) * k(t + 1) * k(t + 1).T) * dS(t + 1) + q(t) * do(t).T",
    "dq": "dq(t), S(t) * do(t)",
    "dv": "dv(t), beta(t) * dS(t).T * k(t)",
    "dk": "dk(t), beta(t) * dS(t) * u(t) - alpha(t) * beta(t) * S(t - 1) * dS(t).T * k(t)",
    "dbeta": "dbeta(t), u(t).T * dS(t).T * k(t)",
    "dalpha": "dalpha(t), inner(dS(t), (eye(d) - beta(t) * k(t) * k(t).T) * S(t - 1))",
}
PLANTED = {
    "dS": "dS(t), alpha(t) * (eye(d) - beta(t + 1) * k(t + 1) * k(t + 1).T) * dS(t + 1) + q(t) * do(t).T",
    "dv": "dv(t), beta(t) * dS(t) * k(t)",
    "dk": "dk(t), beta(t) * dS(t) * u(t)",
    "dbeta": "dbeta(t), -u(t).T * dS(t).T * k(t)",
}


def spec_file(folder: Path, claims: dict[str, str]) -> Path:
    lines = [f'r.claim("{name}", {sides})' for name, sides in claims.items()]
    file = folder / "my_gated_delta_rule.py"
    file.write_text(GATED_DELTA_RULE + "\n".join(lines) + "\n")
    return file


def test_the_published_backward_of_the_gated_delta_rule_holds(tmp_path: Path) -> None:
    (r,) = load(spec_file(tmp_path, RIGHT))
    assert {v.claim.id: v.verdict for v in judged(r.claims)} == dict.fromkeys(RIGHT, "holds")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    (r,) = load(spec_file(tmp_path, {name: PLANTED[name]}))
    (found,) = judged(r.claims)
    assert found.verdict == "fails"
    assert found.counterexample is not None
    assert found.repairs, "no repair found"
    # The repair is true: stated as a claim of its own, it holds.
    right, wrong = found.repaired.split(" = ", 1), PLANTED[name]
    again = {name: f"{right[0]}, {python(right[1])}"}
    (fixed,) = judged(load(spec_file(tmp_path, again))[0].claims)
    assert fixed.verdict == "holds", (wrong, found.repaired)


FUNCTIONS = """
from chunkform.spec.language import Recurrence, hadamard, sigmoid
from chunkform.spec.language.formula import inner, sum_over

r = Recurrence("with_functions")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
gamma = r.head_decay("gamma")
w = r.parameters("w", d)
S = r.state("S", d, e)
r.update(S, gamma * S.prev + sigmoid(b) * k * v.T)
r.output("o", S.next.T * hadamard(q, w))

t, n, q, k, v, b, gamma, w, S = r.quantities("t n q k v b gamma w S")
do, dS, dk, db, dgamma, dw = r.quantities("do dS dk db dgamma dw")
r.claim("db", db(t), sigmoid(b(t)) * (1 - sigmoid(b(t))) * (k(t).T * dS(t) * v(t)))
r.claim("dgamma", dgamma, sum_over(t, 1, n, inner(dS(t), S(t - 1))))
r.claim("dw", dw, sum_over(t, 1, n, hadamard(q(t), S(t) * do(t))))
r.claim("dk without its gate", dk(t), dS(t) * v(t))
r.claim("db without half", db(t), sigmoid(b(t)) * (k(t).T * dS(t) * v(t)))
r.claim("dS without the output", dS(t), gamma * dS(t + 1))
"""


def test_functions_and_parameters_are_judged_and_repaired_too(tmp_path: Path) -> None:
    file = tmp_path / "with_functions.py"
    file.write_text(FUNCTIONS)
    found = {v.claim.id: v for v in judged(load(file)[0].claims)}
    assert [v.verdict for v in found.values()] == ["holds"] * 3 + ["fails"] * 3
    assert "sigmoid(b(t))" in found["dk without its gate"].repaired
    assert "1 - sigmoid(b(t))" in found["db without half"].repaired
    assert "(w o q(t)) * do(t).T" in found["dS without the output"].repaired


def test_the_page_of_a_users_file_shows_the_derived_adjoint(tmp_path: Path) -> None:
    file, out = spec_file(tmp_path, PLANTED), tmp_path / "page.html"
    assert verify([str(file)], html_path=out, console=Console(quiet=True)) == 1
    text = out.read_text()
    assert "derived by the machine" in text
    assert "not proved" not in text


def python(text: str) -> str:
    """A printed formula as Python: the identity's dim in brackets, indices with spaces."""
    return re.sub(r"I_(\w+)", r"eye(\1)", text)


def test_the_example_in_the_documentation_does_what_it_says(tmp_path: Path) -> None:
    text = (DOCS / "claims.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code
    file = tmp_path / "my_recurrence.py"
    file.write_text(code.group(1))
    out = tmp_path / "verdicts.json"
    assert verify([str(file)], json_path=out, console=Console(quiet=True)) == 1
    found = {x["id"]: x for x in json.loads(out.read_text())}
    assert {name: x["verdict"] for name, x in found.items()} == {"dq": "holds", "dS": "holds", "dk": "fails"}
    assert found["dk"]["repair"]["formula"] == "dk(t) = dS(t) * v(t)"
    fields = {"id", "spec", "document", "section", "verdict", "counterexample", "repair", "conditions"}
    assert fields <= found["dk"].keys()


def test_the_documentations_document_is_judged(tmp_path: Path) -> None:
    """The gradient in the example lacks a factor 2, under one reading; the other reading has a wrong sign as well."""
    *_, code = re.findall(r"```python\n(.*?)```", (DOCS / "claims.md").read_text(), re.S)
    file, out = tmp_path / "ridge.py", tmp_path / "verdicts.json"
    file.write_text(code)
    assert verify([str(file)], json_path=out, console=Console(quiet=True)) == 1
    first, second = json.loads(out.read_text())
    assert (first["verdict"], second["verdict"]) == ("fails", "holds")
    assert first["repair"]["formula"] and first["repair"]["reading"] == "r is X w - y"


def test_a_claim_whose_sides_are_the_same_is_refused(tmp_path: Path) -> None:
    (r,) = load(spec_file(tmp_path, {"nothing": "u(t), u(t)"}))
    (found,) = judged(r.claims)
    assert found.verdict == "error" and found.error is not None
    assert "says nothing: both sides are u(t)" in found.error.message


FORGOTTEN = """
from chunkform.spec.language import Recurrence, dot

r = Recurrence("two")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
u = r.parameter("u", d)
S = r.state("S", d, e)
r.update(S, S.prev + beta * k * (v - S.prev.T * k).T)
r.output("o", S.prev.T * q + dot(u, q) * dot(q, k) * v)
t, q, k, v, beta, u, S, do, dS, dq, dv, dbeta = r.quantities("t q k v beta u S do dS dq dv dbeta")
r.claim("read", dbeta(t), k(t).T * dS(t) * v(t))
r.claim("factor", dv(t), beta(t) * dS(t).T * k(t) + (u.T * q(t)) * do(t))
r.claim("term", dq(t), S(t - 1) * do(t) + (v(t).T * do(t)) * (q(t).T * k(t)) * u)
r.claim("sign", (1 + beta(t) * k(t).T * k(t)) * (v(t) - S(t - 1).T * k(t)), v(t) - S(t).T * k(t))
"""


def forgotten(folder: Path, term: bool) -> dict[str, Verdict]:
    """What is made of the claim with a missing term, which is far away; or of the others."""
    file = folder / "two.py"
    file.write_text(FORGOTTEN)
    some = [c for c in load(file)[0].claims if (c.id == "term") is term]
    return {v.claim.id: v for v in judged(some, jobs=1, effort=20)}


@pytest.mark.long
def test_a_forgotten_term_is_found_though_it_is_far_away(tmp_path: Path) -> None:
    found = forgotten(tmp_path, term=True)
    assert found["term"].verdict == "fails"
    (term,) = found["term"].repairs[0].edits
    assert term.startswith("the missing term") and "* u" in term and "k(t)" in term


def test_a_forgotten_read_or_factor_and_a_sign_on_the_left_are_repaired(tmp_path: Path) -> None:
    found = forgotten(tmp_path, term=False)
    assert {v.verdict for v in found.values()} == {"fails"}
    assert found["read"].repaired == "dbeta(t) = k(t).T * dS(t) * (v(t) - S(t-1).T * k(t))"
    assert found["factor"].repairs[0].edits == ("the factor q(t).T * k(t) on u.T * q(t) * do(t)",)
    assert found["sign"].repairs[0].edits == ("the sign of beta(t) * k(t).T * k(t)",)


def test_a_counterexample_has_the_gradient_by_the_last_state_as_formulas_mean_it(tmp_path: Path) -> None:
    """dS(1) = q(1) do(1)^T + what the loss has of the last state itself."""
    (r,) = load(spec_file(tmp_path, {"dS": "2 * dS(t), q(t) * do(t).T + dS(t)"}))
    (found,) = judged(r.claims, jobs=1)
    assert found.counterexample is not None
    given, sides = dict(found.counterexample.given), [value for _, value in found.counterexample.sides]
    one, q, do = (float(given[name]) for name in ("dS(1)", "q(1)", "do(1)"))
    assert [2 * one, q * do + one] == [float(x) for x in sides]


RECTIFIED = """
from chunkform.spec.language import Recurrence, absolute, relu, silu

r = Recurrence("rectified")
d = r.dims("d")
x, z = r.inputs("x z", d)
h = r.state("h", d)
r.update(h, relu(x) + silu(z))
r.output("y", h.next)
t, x, z, y = r.quantities("t x z y")
r.claim("as it is", y(t), relu(x(t)) + silu(z(t)))
r.claim("absolute", y(t), absolute(x(t)) + silu(z(t)))
"""


def test_functions_of_specs_stand_in_claims(tmp_path: Path) -> None:
    file = tmp_path / "rectified.py"
    file.write_text(RECTIFIED)
    assert [v.verdict for v in judged(load(file)[0].claims, jobs=1)] == ["holds", "fails"]


def test_an_output_that_is_a_let_of_its_own_name_is_judged() -> None:
    r = Recurrence("solved")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    w = r.let("w", v - S.prev.T * q)
    r.update(S, S.prev + k * w.T)
    r.output("w", w)
    t, q, k, v, w, S, dv, dw, dS = r.quantities("t q k v w S dv dw dS")
    r.claim("w", w(t), v(t) - S(t - 1).T * q(t))
    r.claim("dv", dv(t), dw(t) + dS(t).T * k(t))
    r.claim("wrong", dv(t), dw(t) - dS(t).T * k(t))
    verifier = Verifier(thorough=False)
    assert [verifier.judge(c).verdict for c in r.claims] == ["holds", "holds", "fails"]
