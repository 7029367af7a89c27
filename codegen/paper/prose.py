r"""What the sentence in front of a display says of when its formulas hold, as in `If $k_t^\top k_t = 1$ then` or `For
$\beta_t = 1$ we have`."""

from __future__ import annotations

import re

from .words import ROWS

LONGEST = 600  # characters in front of a display that are looked at
_MATH = re.compile(r"(?<![\\$])\$(?![$\s])([^$]{1,400}?)(?<!\\)\$(?!\$)|(?<!\\)\\\((.{1,400}?)\\\)", re.S)
_CUT = re.compile(
    r"\n[ \t]*\n|\$\$|\\\]|\\(?:end|begin)\{[^}]*\}|\\(?:sub)*(?:section|paragraph)\*?\{[^}]*\}|^[ \t]*#.*$|\\par\b|\\item\b",
    re.M,
)
_ENDS = re.compile(r"[.;:!?](?=\s|$)")
_IF = re.compile(
    r"(?:(?:so|now|hence|thus|also|moreover|further|furthermore|and|but|then|in particular|similarly|finally|conversely)\b,?\s*)?"
    r"(?:if|when|whenever|assuming|assume|provided|suppose|for)\b(?:\s+that)?",
    re.I,
)
_BEHIND = re.compile(r"\b(?:then|we|one|it|this|the|holds?|gives?|follows)\b|\b(?:so that|such that)\b", re.I)
_AFTER_A_SENTENCE = re.compile(r"\s*then\b[\s,\w]{0,40}$", re.I)


def conditions_before(text: str, start: int) -> tuple[list[tuple[int, int]], str]:
    """(start, end) of the formulas of the sentence that a display at an offset goes on with, where they say when it holds; and
    what the sentence says so far."""
    first = max(0, start - LONGEST)
    piece = re.sub(r"\\begin\{(?:" + "|".join(sorted(ROWS)) + r")\*?\}\s*$", _blank, text[first:start])
    piece = re.sub(r"(?:\$\$|\\\[)\s*$", _blank, piece)
    piece = re.sub(r"\\label\{[^}]*\}", _blank, piece)
    cuts = [m.end() for m in _CUT.finditer(piece)]
    begin = cuts[-1] if cuts else 0
    words = _MATH.sub(_hidden, piece)
    stops = [m.end() for m in _ENDS.finditer(words, begin) if words[m.end() :].strip()]
    sentence = stops[-1] if stops else begin
    if _AFTER_A_SENTENCE.match(words, sentence) and stops:  # Suppose that .. . Then
        sentence = stops[-2] if len(stops) > 1 else begin
    said = _IF.match(words[sentence:].lstrip())
    if said is None:
        return [], ""
    opening = sentence + len(words[sentence:]) - len(words[sentence:].lstrip()) + said.end()
    behind = _BEHIND.search(words, opening)
    end = behind.start() if behind is not None else len(words)
    found = [m for m in _MATH.finditer(piece, opening) if m.end() <= end]
    spans = [m.span(1 if m.group(1) is not None else 2) for m in found]
    return [(first + a, first + b) for a, b in spans], words[opening:end]


def _blank(m: re.Match[str]) -> str:
    return " " * len(m.group(0))


def _hidden(m: re.Match[str]) -> str:
    return "x" * len(m.group(0))
