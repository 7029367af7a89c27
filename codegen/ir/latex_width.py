"""How wide a formula is in print, about, in letters."""

from __future__ import annotations

import re

_WORDS = re.compile(
    r"\\(?:mathrm|mathbf|boldsymbol|operatorname|text|left|right|Bigl|Bigr|cfbreak|displaystyle)(?![a-zA-Z])"
)
_SCRIPTS = re.compile(r"[_^](?:\{([^{}]*)\}|(\\[a-zA-Z]+|.))")


def width(text: str) -> float:
    """In letters: a script counts half, a command one; of a fraction both parts count."""
    text = _WORDS.sub("", text)
    scripts = sum(width(a or b) for a, b in _SCRIPTS.findall(text))
    rest = re.sub(r"\\[a-zA-Z]+ ?", "x", _SCRIPTS.sub("", text))
    return len(re.sub(r"[{}\s]", "", rest)) + scripts / 2
