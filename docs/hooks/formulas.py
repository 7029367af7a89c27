"""Formulas between dollar signs become MathML while the site is built: no script and no font is fetched to read them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from chunkform.codegen.claims.mathml import mathml

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    html = INLINE.sub(lambda m: mathml(unescape(m[1]), block=False), html)
    return DISPLAY.sub(lambda m: mathml(unescape(m[1])), html)
