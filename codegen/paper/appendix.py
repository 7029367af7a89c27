"""The appendix that a document may have: what is derived of its recurrence, numbered, as LaTeX that compiles by itself."""

from __future__ import annotations

from collections.abc import Sequence

from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.recurrence.explain import latex_document
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import ChunkformError, LoadError

from .paper import Paper

HEAD = r"""\documentclass{article}
\usepackage{amsmath, amssymb}
\newcommand{\cfformula}[1]{{\par\smallskip\refstepcounter{equation}\leftskip 3em\parindent -3em\rightskip 0pt plus 1fil
  \binoppenalty 200\relpenalty 400\hbadness 10000\indent\makebox[3em][l]{(\theequation)}$\displaystyle #1$\par}}
\begin{document}
\appendix
"""


def appendix(paper: Paper, verdicts: Sequence[Verdict]) -> str:
    """The derived adjoint and chunk form of the document's recurrence, and the formulas that were repaired.

    Raises:
        LoadError: no recurrence could be read from the document.
    """
    r = paper.recurrence
    if r is None:
        why = f": {paper.symbols.refused}" if paper.symbols.refused else ""
        raise LoadError(f"{paper.path} has no recurrence to derive an appendix from{why}")
    try:
        body = latex_document(compile_spec(r))
    except ChunkformError as error:
        raise LoadError(f"the recurrence of {paper.path} can't be compiled: {error}") from error
    body = body.replace("\\subsection*", "\\subsection")
    fixed = [v for v in verdicts if v.repairs and v.repaired_latex]
    lines = [HEAD, f"\\section{{Derivations: {escaped(paper.document.source.title)}}}\n", body]
    if fixed:
        lines.append("\\subsection{Corrections}\n")
        for v in fixed:
            line = v.claim.where.line if v.claim.where else 0
            lines.append(f"In line {line}:\n\\cfformula{{{v.repaired_latex}}}\n")
    return "\n".join([*lines, "\\end{document}\n"])


def escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "#$%&_{}" else c for c in text if c.isascii() and c != "\\")
