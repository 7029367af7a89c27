"""Tables that can be read on narrow screens: one that has sentences or formulas in three columns or more is marked, so that there
each row stands as a block (stylesheets/extra.css), and a name in code may break behind its underscores, not within a word."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>\s*(?=<td).*?</tr>", re.DOTALL)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
CODE = re.compile(r"(<code[^>]*>)(.*?)(</code>)", re.DOTALL)
BREAK = re.compile(r"(?<=[A-Za-z0-9]{3})_(?=[A-Za-z0-9]{3})")
INDEX = re.compile(r"\w*_\{[^{}\s<]*-[^{}\s<]*\}(?:\^\w)?")
LONG = 40  # characters of a cell that four columns can't have side by side on 400 pixels


def on_page_content(html: str, **_: Any) -> str:
    return TABLE.sub(lambda found: table(found[0]), html)


def table(html: str) -> str:
    """A table as narrow screens want it."""
    heads = [plain(x) for x in HEAD.findall(html)]
    cells = [plain(x) for _, x in CELL.findall(html)]
    html = CODE.sub(lambda m: m[1] + code(m[2]) + m[3], html)
    if len(heads) < 3 or not ("<math" in html or any(len(x) > LONG for x in cells)):
        return html
    html = ROW.sub(lambda row: labelled(row[0], heads), html)
    return html.replace("<table>", "<table data-stacked>", 1)


def labelled(row: str, heads: list[str]) -> str:
    """A row whose cells know what their columns are called; the first cell is what the row is about."""
    names = iter(["", *heads[1:]])

    def cell(found: re.Match[str]) -> str:
        name = next(names, "")
        label = f' data-label="{name}"' if name and plain(found[2]) else ""
        return f"<td{found[1]}{label}>{found[2]}</td>"

    return CELL.sub(cell, row)


def code(text: str) -> str:
    """Code of a cell: a name breaks between its words, and no index at its minus. An escaped bar, which the Markdown of a table
    needs, is a bar."""
    whole = INDEX.sub(lambda m: f'<span class="whole">{m[0]}</span>', text.replace("\\|", "|"))
    return BREAK.sub("_<wbr>", whole)


def plain(html: str) -> str:
    """The text of a piece of a page, as an attribute may hold it."""
    return unescape(re.sub(r"<[^>]+>", "", html)).strip().replace('"', "&quot;")
