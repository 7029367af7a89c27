"""Counterexamples on the page are mathematics, and the page fits on a telephone."""

import re
import xml.etree.ElementTree as ET

from chunkform.codegen.claims.command import judged
from chunkform.codegen.claims.counterexample_page import name, typeset, value
from chunkform.codegen.claims.html_page import page, shown_names
from chunkform.spec.language import Recurrence


def gated() -> Recurrence:
    r = Recurrence("gated")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    t, S, k, dS, dv, do, dq = r.quantities("t S k dS dv do dq")
    r.claim("dv", dv(t), 2 * dS(t).T * k(t))
    r.claim("dq", dq(t), S(t).T * do(t))  # whose shapes don't fit
    return r


def test_what_is_given_and_both_sides_are_typeset():
    verdict, shapes = judged(gated().claims, jobs=1)
    text = typeset(verdict.counterexample, verdict.claim, shown_names(verdict.claim.setting))
    assert "<code>" not in text and text.count("<math") > 5 and "all" in text
    ET.fromstring(text.replace("&#xA0;", " ").replace("&#x2061;", ""))
    told = typeset(shapes.counterexample, shapes.claim, {})
    assert "<code>can't multiply" in told or "<code>can&#x27;t multiply" in told


def test_values_of_all_shapes():
    assert value("1/2") == r"\frac{1}{2}" and value("-1/2") == r"-\frac{1}{2}"
    assert value("(1, 0)^T") == r"(1, 0)^\top"
    assert value("[1 2/3; 3 4]") == r"\begin{pmatrix}1 & \frac{2}{3} \\ 3 & 4\end{pmatrix}"


def test_names_of_what_is_given():
    assert name("dS(2)", {}) == r"\mathrm{d}\mathbf{S}_{2}"
    assert name("lam", {"lam": r"\gamma"}) == r"\gamma"


def test_tables_of_the_page_scroll_by_themselves():
    text = page(judged(gated().claims, jobs=1))
    assert len(re.findall("<table", text)) == len(re.findall('<div class="wide"><table', text)) > 0
    assert "@media (max-width: 40rem)" in text
