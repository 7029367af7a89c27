"""What goes wrong with one claim is its own verdict, `error`, and takes no other's; and every kind of file is judged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chunkform.codegen.claims import alone, command, verifier
from chunkform.codegen.claims.alone import judged_alone
from chunkform.codegen.claims.command import as_json, judged, table, verify
from chunkform.codegen.claims.html_page import page
from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.errors import LoadError

GATED = """
from chunkform.spec.language import Recurrence, diag

r = Recurrence("gated")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
alpha = r.decay("alpha", d)
S = r.state("S", d, e)
r.update(S, diag(alpha) * S.prev + k * v.T)
r.output("o", S.next.T * q)
t, i, q, k, v, alpha, S, do, dS, dq, dk = r.quantities("t i q k v alpha S do dS dq dk")
"""
RIDGE = """
from chunkform.spec.language.claims import Document, Setting
from chunkform.spec.language.formula import eye, gradient

s = Setting("ridge")
n, d = s.dims("n d")
X, y, w = s.given("X", n, d), s.given("y", n), s.given("w", d)
loss = s.define("loss", (), (X * w - y).T * (X * w - y))
DOCUMENT = Document("A note", "001")
claim = DOCUMENT.section("the normal equations", s)
claim("right", "a", gradient(loss, w), 2 * X.T * (X * w - y))
claim("wrong", "b", gradient(loss, w), X.T * (X * w - y))
"""
ATTENTION = """
from chunkform.spec.language import Attention, dot

a = Attention("attention")
d, e = a.dims("D E")
q, k, v = a.queries("q", d), a.keys("k", d), a.keys("v", e)
a.softmax(dot(q, k))
a.output("o", a.average(v))
"""


def file_of(folder: Path, text: str, *claims: str) -> Path:
    file = folder / "a_file.py"
    file.write_text("\n".join([text, *claims]) + "\n")
    return file


def verdicts(file: Path) -> dict[str, Any]:
    """The verdicts on a file's claims by name; the exit code says whether one fails, or is an error."""
    out = file.with_suffix(".json")
    code = verify([str(file)], json_path=out, console=Console(quiet=True), jobs=1)
    found = {x["id"]: x for x in json.loads(out.read_text())}
    assert code == int(any(x["verdict"] in ("fails", "error") for x in found.values()))
    return found


def test_a_claim_that_cant_be_judged_takes_no_other_with_it(tmp_path: Path) -> None:
    deep = "x = q(t)\nfor _ in range(2000):\n    x = 2 * (x + k(t))"
    file = file_of(
        tmp_path,
        GATED,
        'r.claim("dq", dq(t), S(t) * do(t))',
        'r.claim("same", dk(t), dk(t))',
        'r.claim("never", dk(t), q(0))',
        'r.claim("indices", dk(t, 2), q(t))',
        'r.claim("unknown", dk(t), nothing(t))',
        deep,
        'r.claim("deep", dq(t), x)',
        'r.claim("shapes", dk(t), dS(t).T * v(t) + q(t) + k(t))',
        'for name in ["one side"]:\n    r.claim(name, S(t))',
        'r.claim("dk", dk(t), dS(t) * v(t))',
    )
    found = verdicts(file)
    assert {n: x["verdict"] for n, x in found.items()} == {
        "dq": "holds",
        "same": "error",
        "never": "error",
        "indices": "error",
        "unknown": "error",
        "deep": "error",
        "shapes": "fails",
        f"line {len(file.read_text().splitlines()) - 1}": "error",
        "dk": "holds",
    }
    for name in ("same", "never", "indices", "unknown"):
        error = found[name]["error"]
        assert error["message"] and error["expected"]
        assert error["where"].startswith("a_file.py:") and f'r.claim("{name}"' in error["where"]
    assert found["unknown"]["error"]["message"].startswith("NameError: name 'nothing'")
    assert found["shapes"]["repair"]["formula"] == "dk(t) = dS(t) * v(t)"


UNSTATED = {  # lines that fail, in many ways, and the names of the errors that they are
    "by another name": ('c = r.claim\nc("x", dq(t), 1 / 0)', ["x"]),
    "by a function": ('def c(name, f):\n    r.claim(name, dq(t), f())\nc("x", lambda: 1 / 0)', ["x"]),
    "by a function of a function": (
        "def c():\n    r.claim('x', dq(t), nothing)\ndef main():\n    c()\nmain()",
        ["line 16"],
    ),
    "in a match": ("match 1:\n    case 1:\n        r.claim('x', dq(t), 1 / 0)", ["line 17"]),
    "with a type": ("x: object = r.claim('x', dq(t), 1 / 0)", ["line 15"]),
    "in a class": ("class A:\n    r.claim('x', dq(t), 1 / 0)", ["line 16"]),
    "named on the way": ("(c := r.claim)('x', dq(t), 1 / 0)", ["x"]),
    "misspelt": ("r.clam('x', dq(t), S(t) * do(t))", ["x"]),
    "an exit": ("r.claim('x', dq(t), exit(0))", ["x"]),
    "a definition": ("p = r.define('p', t, nothing(t))\nr.claim('x', dq(t), p(t))", ["p", "x"]),
    "a definition of what there was": ("q = r.define('q', t, S(t) * do(t))\nr.claim('x', dq(t), q(t))", ["q", "x"]),
    "a recursion": (
        "A = r.recursive('A', t, 0, 1, lambda A: 1 / 0)\nB = A(t)\nr.claim('x', B, B * 2)",
        ["A", "line 16", "x"],
    ),
    "a size": ("w = r.given('w', 3)\nr.claim('x', dq(t), w)", ["w", "x"]),
}


@pytest.mark.parametrize(("lines", "names"), UNSTATED.values(), ids=UNSTATED)
def test_whatever_fails_where_something_is_stated_is_an_error_of_its_own(lines, names, tmp_path):
    found = verdicts(
        file_of(
            tmp_path, GATED, "r.claim('before', dq(t), S(t) * do(t))", lines, "r.claim('after', dk(t), dS(t) * v(t))"
        )
    )
    assert {n: x["verdict"] for n, x in found.items()} == {
        "before": "holds",
        "after": "holds",
        **dict.fromkeys(names, "error"),
    }


def test_what_failed_is_told_where_it_is_used(tmp_path):
    lines = "p = r.define('p', t, nothing(t))", "r.claim('x', dq(t), p(t))", "r.claim('y', dq(t), q(t), latx='a')"
    found = verdicts(file_of(tmp_path, GATED, *lines))
    assert found["x"]["error"]["message"] == "there is no p: line 14, which would have made it, failed"
    assert found["y"]["error"]["message"].startswith("r.claim() takes no 'latx': did you mean latex?")


def test_other_lines_refuse_the_file(tmp_path):
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        verdicts(file_of(tmp_path, GATED, "r.claim('x', dq(t), S(t) * do(t))", "n = 1 / 0"))


def test_errors_are_told_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    file = file_of(tmp_path, GATED, 'r.claim("dq", dq(t), S(t) * do(t))', 'r.claim("same", dk(t), dk(t))')
    out = tmp_path / "page.html"
    shown = Console(record=True, width=150, file=(tmp_path / "shown.txt").open("w"))
    assert verify([str(file)], html_path=out, console=shown) == 1
    text = shown.export_text()
    assert "says nothing: both sides are dk(t); expected: two sides that differ" in " ".join(text.split())
    assert "2 claims: 1 holds, 1 couldn't be judged" in text
    html = out.read_text()
    assert "Not judged: the claim same says nothing: both sides are dk(t)." in html
    assert "Expected: two sides that differ." in html
    assert 'class="formula holds"' in html


@pytest.mark.parametrize("error", [TypeError("of the verifier"), RecursionError(), MemoryError(), AssertionError()])
def test_whatever_the_judge_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where the verifier fails on one claim, and on the bare verdict as well."""
    file = file_of(tmp_path, GATED, 'r.claim("bad", dk(t), q(t))', 'r.claim("dq", dq(t), S(t) * do(t))')
    whole = Verifier.readings

    def readings(self: Verifier, claim: Any) -> Any:
        if claim.id == "bad":
            raise error
        return whole(self, claim)

    monkeypatch.setattr(Verifier, "readings", readings)
    found = verdicts(file)
    assert [x["verdict"] for x in found.values()] == ["error", "holds"]
    assert found["bad"]["error"]["expected"]


def test_a_search_that_fails_leaves_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(tmp_path, GATED, 'r.claim("wrong", dk(t), q(t))', 'r.claim("dq", dq(t), S(t) * do(t))')

    def failing(*given: Any, **words: Any) -> Any:
        raise TypeError("of the search")

    monkeypatch.setattr(verifier, "smallest", failing)
    monkeypatch.setattr(verifier, "symbolic_proof", failing)
    found = verdicts(file)
    assert [x["verdict"] for x in found.values()] == ["fails", "holds"]
    assert "ended early: TypeError: of the search" in found["wrong"]["how"]


def test_a_claim_that_takes_too_long_is_an_error_and_so_is_a_search_a_bare_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path, GATED, 'r.claim("wrong", dk(t), q(t))', 'r.claim("dq", dq(t), S(t) * do(t))')
    claims = command.claims_of([str(file)])

    def endless(*given: Any, **words: Any) -> Any:
        while True:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(verifier, "smallest", endless)
        found, sound = judged_alone(Verifier(), claims[0], 0.5)
        assert (found.verdict, sound) == ("fails", False)
        assert "not judged within 0.5 s" in found.how
    monkeypatch.setattr(Verifier, "readings", endless)
    found, _ = judged_alone(Verifier(), claims[1], 0.2)
    assert found.verdict == "error" and found.error is not None
    assert found.error.message == "not judged within 0.2 s"


def test_a_process_that_ends_costs_one_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a claim takes all memory, and the system ends its process."""
    text = [GATED.replace('"gated"', f'"gated_{n}"').replace("r = ", f"r{n} = r = ") for n in range(2)]
    claims = [f'r.claim("dq{n}", dq(t), S(t) * do(t))' for n in range(10)]
    lines = [text[0], *claims, text[1], *claims]
    stated = command.claims_of([str(file_of(tmp_path, "\n".join(lines)))])
    whole = alone.judged_alone

    def ends(verifier: Verifier, claim: Any, seconds: float) -> Any:
        if claim.id == "dq3" and claim.spec == "gated_0":
            os._exit(1)
        return whole(verifier, claim, seconds)

    monkeypatch.setattr(alone, "judged_alone", ends)
    found = judged(stated, jobs=2)
    assert [v.verdict for v in found] == ["holds" if k != 3 else "error" for k in range(20)]


def test_what_cant_be_shown_takes_nothing_else_from_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = file_of(tmp_path, GATED, 'r.claim("dq", dq(t), S(t) * do(t), latex=r"\\frac{a}{")')
    found = judged(command.claims_of([str(file)]))
    assert isinstance(found[0], Verdict)
    assert "dq" in page(found) and "holds" in page(found)
    assert table(found).row_count == 1 and json.loads(as_json(found))[0]["verdict"] == "holds"
    monkeypatch.setattr("chunkform.codegen.claims.html_page.mathml", lambda *x, **y: 1 / 0)
    assert "can't be shown: ZeroDivisionError" in page(found)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_document_alone(tmp_path: Path) -> None:
    found = verdicts(file_of(tmp_path, RIDGE))
    assert {n: x["verdict"] for n, x in found.items()} == {"001.right": "holds", "001.wrong": "fails"}


def test_documents_beside_recurrences_and_attentions_in_the_order_of_the_file(tmp_path: Path) -> None:
    second = RIDGE.replace('"001"', '"B"').replace("DOCUMENT", "OTHER").replace('"wrong", "b"', '"third", "c"')
    speaks = [
        "u = Setting('of the recurrence', r)",
        "t, S, k, v, alpha = u.names('t S k v alpha')",
        "beside = DOCUMENT.section('the state', u)",
        "beside('step', 'S', S(t), diag(alpha(t)) * S(t - 1) + k(t) * v(t).T)",
    ]
    own = 'r.claim("dq", dq(t), S(t) * do(t))'
    text = "\n".join([ATTENTION, GATED, own, RIDGE, *speaks, second])
    found = verdicts(file_of(tmp_path, text))
    assert {n: x["verdict"] for n, x in found.items()} == {
        "dq": "holds",
        "001.right": "holds",
        "001.wrong": "fails",
        "001.step": "holds",
        "B.right": "holds",
        "B.third": "fails",
    }


def test_a_users_key_may_be_that_of_another_document(tmp_path: Path) -> None:
    """What the machine derives beside its own document 001 isn't shown for a user's."""
    out = tmp_path / "page.html"
    verify([str(file_of(tmp_path, RIDGE))], html_path=out, console=Console(quiet=True))
    assert "derived by the machine" not in out.read_text()


def test_an_attention_says_where_its_claims_go(tmp_path: Path) -> None:
    found = verdicts(file_of(tmp_path, ATTENTION + RIDGE, 'a.claim("o", 1, 2)'))
    assert "are stated in a Document with a Setting" in found["o"]["error"]["message"]
    assert found["001.right"]["verdict"] == "holds"


def test_a_file_without_claims_is_refused(tmp_path: Path) -> None:
    for text in (GATED, ATTENTION, "x = 1"):
        with pytest.raises(LoadError, match="states no claims"):
            verify([str(file_of(tmp_path, text))], console=Console(quiet=True))
    with pytest.raises(LoadError, match=r"NameError: name 'nothing' is not defined"):
        verify([str(file_of(tmp_path, RIDGE, "x = nothing"))], console=Console(quiet=True))


@pytest.mark.parametrize("name", ["3", "None", "''", "'  '"])
def test_a_claim_without_a_name_takes_no_other_verdict(name: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, GATED, f"r.claim({name}, dq(t), q(t))", 'r.claim("dk", dk(t), dS(t) * v(t))')
    found = verdicts(file)
    assert [x["verdict"] for x in found.values()] == ["error", "holds"]
    assert "the name of a claim must be a string that says something" in str(found)
