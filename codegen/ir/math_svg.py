"""LaTeX formulas as self-contained SVG, set by matplotlib's mathtext: they look the same in every browser, without a network."""

from __future__ import annotations

import functools
import html
import re
from typing import Any

SIZE = 20.0  # points that mathtext sets at; what the page shows follows from `em`
_COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
# A space between two factors: mathtext would set them without one.
_GAP = re.compile(r"(?<=[\w})]) (?=[\\(\[\w])(?!\\(odot|quad|geq|leq|cdot|sum|prod))(?!\d)")
_POINTS = {1: 1, 2: 1, 3: 2, 4: 3, 79: 0}


@functools.lru_cache(maxsize=4096)
def math_svg(latex: str, label: str = "") -> str:
    """An inline <svg>, in the text's colour, as large as the text around it. `label` is read out where it can't be seen."""
    try:
        path = _text_path(latex)
    except ValueError:  # a command that mathtext lacks
        return f"<code>{html.escape(label or latex)}</code>"
    box = path.get_extents()
    ascent, descent = max(box.y1, 0.75 * SIZE), max(-box.y0, 0.2 * SIZE)
    left, width = box.x0 - 1, box.width + 2
    data = " ".join(_commands(path))
    em = 1 / SIZE
    return (
        f'<svg class="math" role="img" aria-label="{html.escape(label or latex, quote=True)}" '
        f'style="width:{width * em:.3f}em;height:{(ascent + descent) * em:.3f}em;vertical-align:{-descent * em:.3f}em" '
        f'viewBox="{left:.2f} {-ascent:.2f} {width:.2f} {ascent + descent:.2f}"><path fill="currentColor" d="{data}"/></svg>'
    )


def _text_path(latex: str) -> Any:
    import matplotlib
    from matplotlib.textpath import TextPath

    with matplotlib.rc_context({"mathtext.fontset": "stix"}):
        return TextPath((0, 0), f"${_for_mathtext(latex)}$", size=SIZE)


def _for_mathtext(latex: str) -> str:
    """The few commands that mathtext spells differently."""
    latex = latex.replace(r"\left\langle", r"\langle").replace(r"\right\rangle", r"\rangle")
    latex = re.sub(r"\\(le|ge)(?![a-z])", r"\\\1q", latex)
    return _GAP.sub(r"\,", latex)


def _commands(path: Any) -> list[str]:
    out, i = [], 0
    codes, points = path.codes, path.vertices
    while i < len(codes):
        code = int(codes[i])
        count = _POINTS[code]
        here = points[i : i + max(count, 1)]
        numbers = " ".join(f"{x:.1f} {-y:.1f}" for x, y in here) if count else ""
        out.append(_COMMANDS[code] + numbers)
        i += max(count, 1)
    return out
