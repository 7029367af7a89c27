r"""What a document writes gradients of the loss with, where it names no loss: \nabla_{v_t} alone, and \delta v_t where the text
says so."""

from __future__ import annotations

import re

from .lexer import Token, argument_at
from .reader import Source
from .words import RELATIONS

ENDS = frozenset({"&", "+", "-", ",", ".", ";", "=", ")", "]"})
SAID = re.compile(r"\b(?:gradients?|derivatives?|adjoints?|cotangents?)\b", re.I)
SENTENCE = re.compile(r"(?<=[.;:!?])\s|\n\s*\n")


def gradient_marks(source: Source) -> frozenset[str]:
    """nabla and delta, as far as a document writes gradients with them."""
    found = set()
    if any(stands_alone(r.tokens, k) for r in source.rows for k, t in enumerate(r.tokens) if t.text == "nabla"):
        found.add("nabla")
    if says_of_delta(source.visible) and not has_indices(source, "delta"):
        found.add("delta")
    return frozenset(found)


def stands_alone(tokens: list[Token], k: int) -> bool:
    r"""Whether nothing follows a \nabla_x that it could be the gradient of."""
    k += 1
    while k + 1 < len(tokens) and tokens[k].text in ("_", "^"):
        _, k = argument_at(tokens, k + 1)
    return k >= len(tokens) or tokens[k].kind == "row" or tokens[k].text in ENDS or tokens[k].text in RELATIONS


def says_of_delta(text: str) -> bool:
    r"""Whether a sentence with \delta x in a formula speaks of gradients."""
    return any(
        re.search(r"\$[^$]*\\delta\b[^$]*\$|\\\(.*?\\delta\b", x) and SAID.search(x) for x in SENTENCE.split(text)
    )


def has_indices(source: Source, name: str) -> bool:
    """Whether a letter has an index somewhere, or stands alone, and so is a symbol of its own."""
    for tokens in (*(r.tokens for r in source.rows), *source.inline):
        for t, after in zip(tokens, [*tokens[1:], None]):
            if t.kind == "command" and t.text == name and (after is None or after.kind not in ("letter", "command")):
                return True
    return False
