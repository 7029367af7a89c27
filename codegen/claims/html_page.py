"""The report as one page: each document's formulas in order, typeset, with verdict, counterexample and repair;
nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from chunkform.spec.claims import documents as own_documents
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.notation import latex
from chunkform.spec.language.statements import Equal, SameAs

from .counterexample_page import typeset
from .derived_claims import Derived
from .mathml import mathml
from .scope import used_names
from .stability import figure
from .verdict import Verdict

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif;
  max-width: 62rem;
  margin: 2rem auto;
  padding: 0 1rem;
  color: #222;
  background: #fff }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc } h3 { margin: 2rem 0 .5rem }
.formula { border-left: .3rem solid #bbb; padding: .2rem 0 .2rem 1rem; margin: 1rem 0 }
.holds { border-color: #2a8a3e } .fails { border-color: #c02f2f } .depends { border-color: #c98a00 }
.badge { font-weight: 600; padding: .05rem .5rem; border-radius: .6rem; color: #fff; font-size: .85rem }
.holds > header .badge, td .holds { background: #2a8a3e } .fails > header .badge, td .fails { background: #c02f2f }
.depends > header .badge, td .depends { background: #c98a00 }
.error { border-color: #8a2be2 } .error > header .badge, td .error { background: #8a2be2 }
td .badge { white-space: nowrap }
.derived td:first-child { width: 20% } .derived td:nth-child(2) { width: 42% }
.id { font-family: ui-monospace, monospace; font-size: .9rem; color: #555 }
math { overflow-x: auto; overflow-y: hidden; max-width: 100%; padding: .2rem 0 }
code { font-size: .85rem;
  overflow-wrap: anywhere }
  ul { margin: .2rem 0 }
  dl { margin: .2rem 0 }
  dt { font-weight: 600 }
table { border-collapse: collapse;
  width: 100% }
  td, th { border: 1px solid #ddd;
  padding: .4rem;
  vertical-align: top;
  text-align: left }
details { font-size: .9rem;
  color: #444 }
  svg { max-width: 100%;
  height: auto }
.wide { overflow-x: auto }
@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .6rem }
  td, th { padding: .25rem; font-size: .85rem }
  td { min-width: 4rem }
  .formula { padding-left: .5rem }
  }
  .small { font-size: .9rem;
  color: #555 }
@media (prefers-color-scheme: dark) { body { background: #191919;
  color: #ddd }
  .small, .id, details { color: #aaa }
  svg { background: #fff }
  td, th { border-color: #444 }
  }
"""


def page(verdicts: list[Verdict], derived: Iterable[Derived] = ()) -> str:
    """The whole page as text."""
    from .verdict import summary

    derived = list(derived)
    documents = list(dict.fromkeys(v.claim.document or v.claim.spec for v in verdicts))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>chunkform verify</title><style>{STYLE}</style></head><body>",
        "<h1>Formulas, judged</h1>",
        f"<p>{escape(summary(verdicts))}.</p>",
        overview(verdicts, documents),
    ]
    for k, name in enumerate(documents):
        mine = [v for v in verdicts if (v.claim.document or v.claim.spec) == name]
        key = mine[0].claim.id.split(".")[0]
        parts.append(f'<h2 id="d{k}">{escape(name)}</h2>')
        section = None
        for v in mine:
            if v.claim.section != section:
                section = v.claim.section
                parts.append(f"<h3>{escape(section)}</h3>" if section else "")
            parts.append(shown_entry(v))
        parts.append(beside(mine, [x for x in derived if x.document in (key, name)]))
        if any("stability" in v.claim.section for v in mine) and any(d.title == name for d in own_documents()):
            parts.append(f"<h3>Stability</h3>{figure()}")
    parts.append("</body></html>")
    return "\n".join(p for p in parts if p) + "\n"


def overview(verdicts: list[Verdict], documents: list[str]) -> str:
    """Counts by document."""
    rows = []
    kinds = ["holds", "fails", "depends", *(["error"] if any(v.verdict == "error" for v in verdicts) else [])]
    for k, name in enumerate(documents):
        mine = [v for v in verdicts if (v.claim.document or v.claim.spec) == name]
        counts = "".join(f"<td>{sum(v.verdict == x for v in mine)}</td>" for x in kinds)
        fixed = sum(bool(v.repairs) for v in mine if v.verdict == "fails")
        rows.append(f'<tr><td><a href="#d{k}">{escape(name)}</a></td>{counts}<td>{fixed}</td></tr>')
    head = "".join(f"<th>{x}</th>" for x in ("document", *kinds, "repaired"))
    head = f"<tr>{head}</tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def shown_entry(v: Verdict) -> str:
    """One formula; where it can't be typeset, its verdict and why."""
    try:
        return entry(v)
    except Exception as error:
        return (
            f'<article class="formula {v.verdict}"><header><span class="badge">{v.verdict}</span> '
            f'<span class="id">{escape(v.claim.id)}</span></header>'
            f'<p class="small">The formula can\'t be shown: {escape(f"{type(error).__name__}: {error}"[:200])}</p></article>'
        )


def entry(v: Verdict) -> str:
    """One formula."""
    c = v.claim
    if v.error is not None:
        return (
            f'<article class="formula error" id="{escape(c.id)}"><header><span class="badge">error</span> '
            f'<span class="id">{escape(c.id)}</span></header><p>Not judged: {escape(v.error.message)}.</p>'
            f"<p>Expected: {escape(v.error.expected)}.</p><p><code>{escape(v.error.where)}</code></p></article>"
        )
    lines = [
        f'<article class="formula {v.verdict}" id="{escape(c.id)}"><header><span class="badge">{v.verdict}</span> '
        f'<span class="id">{escape(c.id)}</span></header>',
        mathml(c.latex or claim_latex(c)),
    ]
    if c.note:
        lines.append(f'<p class="small">{escape(c.note)}</p>')
    if v.counterexample is not None:
        lines.append(shown_counterexample(v))
    if v.repairs:
        under = f" ({escape(v.repair_reading)})" if v.repair_reading else ""
        lines.append(f"<p>The nearest true formula{under}:</p>{mathml(v.repaired_latex)}")
        lines.append(f'<p class="small">by {escape("; ".join(v.repairs[0].edits))}</p>')
    elif v.defined:
        lines.append(f'<p class="small">By definition <code>{escape(v.defined)}</code></p>')
    elif v.verdict == "fails" and v.searched:
        lines.append('<p class="small">No true formula was found within two edits.</p>')
    if v.conditions:
        lines.append("<ul>" + "".join(f"<li>{escape(condition(x))}</li>" for x in v.conditions) + "</ul>")
    lines.append(
        f"<details><summary>how</summary><p>{escape(v.how)}.</p><p>As stated: <code>{escape(stated(c))}</code></p>"
    )
    if v.proof:
        lines.append(f"<p>By SymPy, with every entry a symbol: <code>{escape(v.proof)}</code></p>")
    lines.append(definitions(c) + "</details></article>")
    return "\n".join(lines)


def shown_counterexample(v: Verdict) -> str:
    """Typeset where that can be done."""
    assert v.counterexample is not None
    try:
        return typeset(v.counterexample, v.claim, shown_names(v.claim.setting))
    except Exception:  # a document's own LaTeX of a name may be anything
        return f"<p>Counterexample: <code>{escape(v.counterexample.text())}</code></p>"


def condition(x: object) -> str:
    kind, text, holds = x.kind, x.text, x.holds  # type: ignore[attr-defined]
    if kind == "where defined":
        return f"where {text}"
    if kind == "not tried":
        return f"true wherever it was tried; not tried where {text}"
    if kind == "trivial":
        return f"{'true' if holds else 'false'} only where {text}"
    return f"{'true' if holds else 'false'} {'if read:' if kind == 'reading' else 'when'} {text}"


def shown_names(s: Setting) -> dict[str, str]:
    return {q.name: q.shown for q in s.quantities.values() if q.shown}


def claim_latex(c: Claim) -> str:
    if isinstance(c.statement, Equal):
        return " = ".join(latex(x, shown_names(c.setting)) for x in c.statement.sides)
    return rf"\text{{{c.id}}}"


def stated(c: Claim) -> str:
    """The statement as text."""
    return statement_text(c.statement)


def statement_text(s: object) -> str:
    if isinstance(s, Equal):
        return " = ".join(str(x) for x in s.sides)
    if isinstance(s, Formula | str | int | SameAs):
        return str(s)
    if isinstance(s, tuple):
        return ", ".join(statement_text(x) for x in s)
    fields = {k: v for k, v in vars(s).items() if k != "over" and v != ()}
    return f"{type(s).__name__}({', '.join(f'{k}: {statement_text(v)}' for k, v in fields.items())})"


def definitions(c: Claim) -> str:
    lines = [f"<li><code>{escape(x)}</code></li>" for x in defined(c)]
    return f"<p>where</p><ul>{''.join(lines)}</ul>" if lines else ""


def defined(c: Claim) -> list[str]:
    """What the names in a claim stand for, where they are defined by formulas."""
    lines = []
    for name in used_names(c.statement, c.setting):
        q = c.setting.quantities[name]
        if q.kind == "defined" and not q.alternatives and q.body is not None:
            head = Formula("at", tuple(Formula("index", (), (p,)) for p in q.parameters), (name,))
            lines.append(f"{head} = {q.body}")
    return lines


def beside(verdicts: list[Verdict], derived: list[Derived]) -> str:
    """What was derived, beside what the document has for the same quantity; then what the document leaves out."""
    if not derived:
        return ""
    rows = []
    for x in derived:
        left, right = x.claim.statement.sides  # type: ignore[attr-defined]
        names = shown_names(x.claim.setting)
        theirs = [v for v in verdicts if head_of(v.claim) == head_name(left) and head_name(left)]
        cell = "".join(
            f'<p><a href="#{escape(v.claim.id)}">{escape(v.claim.id)}</a> <span class="badge {v.verdict}">{v.verdict}</span></p>'
            + (mathml(v.claim.latex, block=False) if v is theirs[-1] else "")
            for v in theirs
        )
        formula = mathml(f"{latex(left, names)} = {latex(right, names)}", block=False)
        badge = f'<span class="badge {x.verdict}">{"proved" if x.verdict == "holds" else "not proved"}</span>'
        rows.append(
            f"<tr><td>{escape(x.what)}<br>{badge}{definitions(x.claim)}</td><td>{formula}</td><td>{cell}</td></tr>"
        )
    head = "<tr><th>quantity</th><th>derived by the machine</th><th>the document's formulas for it</th></tr>"
    table = f'<table class="derived">{head}{"".join(rows)}</table>'
    return f'<h3>Derived, beside the document</h3><div class="wide">{table}</div>'


def head_name(x: Formula) -> str:
    while x.op in ("transpose", "named"):
        x = x.args[0]
    return x.attrs[0] if x.op == "at" else ""


def head_of(c: Claim) -> str:
    return head_name(c.statement.sides[0]) if isinstance(c.statement, Equal) else ""
