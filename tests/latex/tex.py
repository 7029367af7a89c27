"""LaTeX documents judged: by LaTeX itself where it is installed, and by a reader of what derivations use of it.

`problems(text)` is what the reader finds: braces and fences that don't match, two exponents or indices on one thing, commands
that nobody defines.
"""

import re
import subprocess
from pathlib import Path

HEAD = r"""\documentclass[a4paper,11pt]{article}
\usepackage{amsmath}
\usepackage[margin=25mm]{geometry}
\begin{document}
"""
KNOWN = set(
    "frac sqrt sum prod max min exp log sin cos tanh sigma mathrm mathbf boldsymbol text top odot cdot cdots langle rangle left "
    "right Bigl Bigr le ge leftarrow quad subsection section begin end item providecommand cfd cfbreak cfformula penalty "
    "relax mathbf alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega textbackslash textasciicircum textasciitilde".split()
)
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}^_$]|[^\s\\{}^_$]+|\s+")


def compiled(documents: dict[str, str], folder: Path) -> dict[str, tuple[list[str], float]]:
    """For each document what LaTeX calls an error, and by how many points its widest line is too wide."""
    parts = (f"\n\\begingroup\\typeout{{DOC {n}}}\n{x}\n\\clearpage\\endgroup\n" for n, x in documents.items())
    (folder / "all.tex").write_text(HEAD + "".join(parts) + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "all.tex"]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    log = (folder / "all.log").read_text(errors="replace")
    found = re.split(r"^DOC (.*)$", log, flags=re.MULTILINE)
    wide = re.compile(r"Overfull \\hbox \(([\d.]+)pt")
    return {
        name: (re.findall(r"^! (.*)", text, re.MULTILINE), max(map(float, wide.findall(text)), default=0.0))
        for name, text in zip(found[1::2], found[2::2], strict=True)
    }


def problems(text: str) -> list[str]:
    defined = KNOWN | set(re.findall(r"\\providecommand\{\\([a-zA-Z]+)\}", text))
    found = []
    for n, line in enumerate(text.splitlines(), 1):
        if line.startswith((r"\providecommand", "%", "  ")):
            continue
        found += [f"line {n}: {x}" for x in _problems(line, defined)]
    return found


def _problems(line: str, defined: set[str]) -> list[str]:
    tokens = [t for t in TOKEN.findall(line) if not t.isspace()]
    found = [f"nobody defines {t}" for t in tokens if t[0] == "\\" and t[1:].isalpha() and t[1:] not in defined]
    if tokens.count(r"\left") != tokens.count(r"\right"):
        found.append(r"\left without \right")
    if tokens.count("$") % 2:
        found.append("an odd number of dollar signs")
    rest, messages = _group(tokens, 0, False)
    if rest != len(tokens):
        messages.append("a brace closes what isn't open")
    return found + messages


def _group(tokens: list[str], at: int, inner: bool) -> tuple[int, list[str]]:
    """Read up to the brace that closes this group; a thing may have one exponent and one index."""
    scripts: set[str] = set()
    found: list[str] = []
    while at < len(tokens):
        token = tokens[at]
        if token == "}":
            return (at + inner, found)
        if token in "^_":
            if token in scripts:
                found.append(f"two of {token} on one thing")
            scripts.add(token)
            at += 1
            if at < len(tokens) and tokens[at] == "{":
                at, more = _group(tokens, at + 1, True)
                found += more
            else:
                at += 1
            continue
        scripts = set()
        if token == "{":
            at, more = _group(tokens, at + 1, True)
            found += more
        else:
            at += 1
    return at, [*found, "a brace isn't closed"] if inner else found
