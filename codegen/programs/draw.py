"""The graph of a program as SVG, laid out by Graphviz: layers from left to right, an arrow for each quantity that one op hands
to another."""

from __future__ import annotations

import importlib.util
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import networkx as nx

from chunkform.errors import BuildError

FONT, SIZE = "Helvetica", 12
FILLS = {
    "argument": "#eef2f7",
    "recurrence": "#dcefe0",
    "solve": "#fde6cf",
    "map": "#e6e0f5",
    "attention": "#f7e1ea",
    "sum": "#ffffff",
    "output": "#eef2f7",
}
ROUND = ("argument", "output", "sum")
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawing:
    """A drawing: SVG elements, and how much room they take."""

    text: str
    width: float
    height: float


def can_draw() -> bool:
    return importlib.util.find_spec("pygraphviz") is not None


def drawing(graph: nx.DiGraph, labels: dict[str, str] | None = None, title: str = "") -> Drawing:
    """A directed graph. Nodes have a `kind`; edges may have a `quantity`, which is written beside them.

    Graphviz places labels where they cover nothing. Long ones go over several lines; the tooltip has them whole.
    """
    if not can_draw():
        raise BuildError("a drawing needs pygraphviz, which isn't installed: pip install pygraphviz")
    import pygraphviz

    labels = labels or {}
    g = pygraphviz.AGraph(
        directed=True, rankdir="LR", nodesep="0.25", ranksep="0.5", bgcolor="transparent", forcelabels="true"
    )
    if title:
        g.graph_attr.update(label=title, labelloc="t", labeljust="l", fontname=f"{FONT} bold", fontsize=str(SIZE + 2))
    g.node_attr.update(
        fontname=FONT, fontsize=str(SIZE), style="filled", color="#8a929c", height="0.42", margin="0.14,0.06"
    )
    g.edge_attr.update(fontname=FONT, fontsize=str(SIZE - 2), color="#68707a", fontcolor="#4a5058", arrowsize="0.7")
    ids = {n: f"n{i}" for i, n in enumerate(graph)}
    for n, data in graph.nodes(data=True):
        kind, text = data.get("kind", "map"), labels.get(n, str(n))
        style = "rounded,filled" if kind in ROUND else "filled"
        shown = _literal("\n".join(wrapped(text)))
        g.add_node(ids[n], label=shown, tooltip=_literal(text), shape="box", style=style, fillcolor=FILLS[kind])
    for a, b, data in graph.edges(data=True):
        quantity = _literal(data.get("quantity", ""))
        g.add_edge(ids[a], ids[b], label=f" {quantity} " if quantity else "", tooltip=quantity)
    g.layout(prog="dot")
    return _parsed(g.draw(format="svg").decode())


def svg(parts: Iterable[Drawing]) -> str:
    """Drawings, one below the other, as an SVG that shrinks to the page's width."""
    drawn = list(parts)
    width, height = max(x.width for x in drawn), sum(x.height for x in drawn)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    out = [
        f'<svg {names} viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" style="max-width:100%;height:auto">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    y = 0.0
    for x in drawn:
        out.append(f'<g transform="translate(0 {y:.0f})">{x.text}</g>')
        y += x.height
    return "\n".join([*out, "</svg>"]) + "\n"


def wrapped(text: str, width: int = 30) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False) or [""]


def _literal(text: str) -> str:
    """Text for Graphviz, to which a backslash is the begin of something; lines are centred."""
    return escape(text.replace("\\", "\\\\"), quote=False).replace("\n", "\\n")


def _parsed(text: str) -> Drawing:
    """What Graphviz has drawn, without its header."""
    root = ET.fromstring(text)
    _, _, width, height = map(float, re.split(r"[ ,]+", root.attrib["viewBox"]))
    (whole,) = root.findall(f"{SVG}g")
    for element in whole.iter():  # ids of Graphviz's would be there twice on a page of two drawings
        element.attrib.pop("id", None)
    for node in _titled(whole):
        title = node.find(f"{SVG}title")
        if title is not None:
            node.remove(title)
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    shown = ET.tostring(whole, encoding="unicode").replace(' xmlns="http://www.w3.org/2000/svg"', "")
    return Drawing(shown.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', ""), width, height)


def _titled(whole: Any) -> list[Any]:
    """Elements whose title is a name that Graphviz has for them."""
    return [whole, *(g for g in whole.iter(f"{SVG}g") if g.get("class") in ("node", "edge"))]
