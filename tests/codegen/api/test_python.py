"""All that the command line does, from Python: results are objects with fields, text, HTML, LaTeX and JSON."""

import copy
import json
import pickle
from html.parser import HTMLParser

import pytest
import torch
from shared.forked import code

import chunkform
from chunkform.errors import LoadError, SpecError
from chunkform.spec.language import Attention, dot

GIVEN = torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 4), torch.rand(1, 9, 2)


def decayed_sum(name: str = "decayed_sum_here") -> chunkform.Recurrence:
    r = chunkform.Recurrence(name, doc="A decayed sum.")
    d, e = r.dims("d e")
    (q, k), v, lam = r.inputs("q k", d), r.inputs("v", e), r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@pytest.fixture(scope="module")
def r() -> chunkform.Recurrence:
    found = decayed_sum()
    t, S, do, dq, dk = found.quantities("t S do dq dk")
    found.claim("dq", dq(t), S(t) * do(t))
    found.claim("dk", dk(t), S(t) * do(t))
    return found


class _Balance(HTMLParser):
    """Are all elements closed in order?"""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def whole(html: str) -> bool:
    parser = _Balance()
    parser.feed(html)
    return not parser.open and "<script" not in html and "http" not in html.replace("http://www.w3.org", "")


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_has_what_the_command_prints(r):
    x = r.explain(width=32)
    assert (x.name, x.family, x.reason) == ("decayed_sum_here", "chunk-parallel", None)
    assert "dq_t = S_t do_t" in [f.plain for f in x.derivation["Its adjoint"].formulas]
    assert "for dims of 32" in str(x) and "dS_t = lam_{t+1} dS_{t+1} + q_t do_t^T" in str(x)
    assert repr(x) == "<Explanation of decayed_sum_here: chunk-parallel>"
    assert json.loads(x.to_json()) == json.loads(json.dumps(x.data)) and x.data["counted_for"]["dims"] == {
        "d": 32,
        "e": 32,
    }
    assert r"\subsection*{Its adjoint}" in x.to_latex()
    assert whole(x._repr_html_()) and "<math" in x._repr_html_()
    assert [s.title for s in x.derivation][:2] == ["The recurrence", "Its adjoint"] and len(x.derivation) > 5
    assert x.derivation[1] == x.derivation["Its adjoint"]
    with pytest.raises(KeyError, match="has The recurrence, Its adjoint"):
        _ = x.derivation["Nothing"]


@pytest.mark.parametrize(
    ("name", "family"),
    [("mesa", "program"), ("softmax_attention", "attention"), ("sherman_morrison", "sequential"), ("retention", None)],
)
def test_every_kind_is_explained(name, family):
    x = chunkform.explain(name)
    assert x.family == family or (family is None and x.family == "chunk-parallel")
    assert len(str(x).splitlines()) > 5 and x.derivation.sections and x.gates
    assert whole(x._repr_html_()) and json.loads(x.to_json())["name"] == name and x.to_latex()
    assert (x.reason is not None) == (family == "sequential")
    assert json.loads(x.derivation.to_json()) == x.derivation.data


def test_an_attention_of_ones_own_is_explained():
    a = Attention("own_attention")
    d, e = a.dims("D E")
    q, k, v = a.queries("q", d), a.keys("k", d), a.keys("v", e)
    a.softmax(dot(q, k))
    a.output("o", a.average(v))
    assert a.explain().family == "attention" and callable(a.compile())


def test_what_is_explained_is_named(tmp_path):
    with pytest.raises(LoadError, match="did you mean retention"):
        chunkform.explain("retentoin")
    with pytest.raises(SpecError, match="explain takes a Recurrence"):
        chunkform.explain(3)  # type: ignore[arg-type]


# --- verify, check ----------------------------------------------------------------------------------------------------


def test_verify_gives_verdicts_by_name(r):
    found = r.verify()
    assert [v.verdict for v in found] == ["holds", "fails"] and len(found) == 2 and not found.ok
    assert found["dk"].counterexample is not None and found[0] is found["dq"]
    assert found.summary == "2 claims: 1 holds, 1 fails; it has a repair"
    assert "nearest true formula" in str(found) and repr(found) == f"<Verdicts: {found.summary}>"
    assert [v["id"] for v in json.loads(found.to_json())] == ["dq", "dk"]
    assert whole(found._repr_html_()) and r"\item[dk] fails" in found.to_latex()
    with pytest.raises(KeyError, match="no claim is named 'dv'"):
        _ = found["dv"]


def test_verify_without_claims_says_so():
    with pytest.raises(LoadError, match="bare states no claims"):
        decayed_sum("bare").verify()


def test_check_gives_errors(r):
    found = r.check(quick=True, device="cpu")
    assert found.ok and not found.bad and {"o", "final S", "dq", "dlog_lam"} <= {x.quantity for x in found}
    assert found.worst.error == max(x.error for x in found)
    assert [x["quantity"] for x in json.loads(found.to_json())] == [x.quantity for x in found]
    assert "worst error" in str(found) and "all within their bounds" in repr(found)
    assert whole(found._repr_html_()) and r"dlog\_lam & float32" in found.to_latex()


def test_the_catalogue_is_listed():
    assert [x.name for x in chunkform.catalogue("gradient", family="sequential")] == [
        "gradient_descent_logistic",
        "gradient_descent_logistic_momentum",
    ]
    with pytest.raises(LoadError, match="did you mean sequential"):
        chunkform.catalogue(family="sequentiell")


# --- ops --------------------------------------------------------------------------------------------------------------


def test_an_op_says_what_it_was_made_of(r):
    op = r.compile()
    assert op.spec is r and "Its adjoint" in str(op.derivation)
    assert "def decayed_sum_here(" in op.source() and "@triton.jit" in op.source()


def test_the_derivation_of_an_op_is_a_sequence(r):
    assert [s.title for s in r.compile().derivation] == [s.title for s in r.explain().derivation]


def test_an_op_of_the_catalogue_loads_the_compiler_when_it_is_asked():
    text = """
import sys
from chunkform.generated import retention
assert "def retention(" in retention.source()
assert "sympy" not in sys.modules
assert retention.spec.name == "retention"
assert repr(retention.spec) == "Recurrence('retention')"
from chunkform import Recurrence
assert isinstance(retention.spec, Recurrence)
assert retention.derivation["The recurrence"].formulas[0].plain == "S_t = gamma S_{t-1} + k_t v_t^T"
assert repr(retention.derivation).startswith("<Derivation of retention: The recurrence, ")
"""
    done = code(text)
    assert done.returncode == 0, done.stderr


def test_a_file_of_ones_own_does_not_hold_its_spec(r, tmp_path, monkeypatch):
    from chunkform.codegen.commands.build import build

    build([r], tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from decayed_sum_here import decayed_sum_here  # type: ignore[import-not-found]

    assert "def decayed_sum_here(" in decayed_sum_here.source()
    with pytest.raises(LoadError, match="doesn't hold its spec"):
        _ = decayed_sum_here.spec.name


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_have_names():
    from chunkform.generated import delta_rule, mesa, relay_nodes, softmax_attention

    r = delta_rule(*GIVEN, output_final_state=True)
    o, state = r
    assert r._fields == ("o", "final_state") and r.o is o and r.final_state is state and isinstance(r, tuple)
    assert delta_rule(*GIVEN).final_state is None
    with torch.no_grad():
        now = delta_rule.step(None, *(x[:, 0] for x in GIVEN))
    assert now._fields == ("o", "state")
    q, u, log_lam, lam_0 = GIVEN[0], GIVEN[1], -GIVEN[3], GIVEN[3][0, 0]
    assert mesa(q, u, log_lam, lam_0)._fields == ("o", "final_state")
    assert mesa(q, u, log_lam, lam_0, output_residual=True)._fields == ("o", "x_residual", "final_state")
    assert isinstance(softmax_attention(*GIVEN[:3]), torch.Tensor)
    assert softmax_attention(*GIVEN[:3], output_lse=True)._fields == ("o", "lse")
    x, mu, W = torch.randn(1, 5, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 3)
    assert relay_nodes(x, mu, W)._fields == tuple(n for n, *_ in relay_nodes.__globals__["SIGNATURE"].outputs)


def test_results_are_copied_and_pickled():
    from chunkform.generated import delta_rule

    r = delta_rule(*GIVEN, output_final_state=True)
    for other in (pickle.loads(pickle.dumps(r)), copy.deepcopy(r)):
        assert type(other) is type(r) and torch.equal(other.o, r.o)
    assert torch.utils._pytree.tree_map(lambda x: x + 1, r).o.shape == r.o.shape


def test_results_have_names_in_compiled_code():
    from chunkform.generated import delta_rule

    compiled = torch.compile(lambda *x: delta_rule(*x, output_final_state=True), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*GIVEN).final_state, delta_rule(*GIVEN, output_final_state=True).final_state)


def test_names_that_tuples_have_are_the_outputs():
    r = chunkform.Recurrence("named_final")
    d = r.dims("d")
    x = r.inputs("x", d)
    h = r.state("h", d)
    r.update(h, h.prev + x)
    r.output("count", h.next)
    found = r.compile()(torch.ones(1, 3, 1, 2), output_final_state=True)
    assert found._fields == ("count", "final_state") and torch.equal(found.count, found[0])
    with torch.no_grad():
        assert r.compile().step(None, torch.ones(1, 1, 2))._fields == ("count", "state")
