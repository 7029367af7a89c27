"""The graph of a program as SVG: layers from left to right, an arrow for each quantity that one op hands to another."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import Any

import networkx as nx

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 40, 70, 22, 20
FILLS = {
    "argument": "#eef2f7",
    "recurrence": "#dcefe0",
    "solve": "#fde6cf",
    "map": "#e6e0f5",
    "sum": "#ffffff",
    "output": "#eef2f7",
}


def svg(graph: nx.DiGraph, labels: dict[str, str] | None = None, title: str = "") -> str:
    """A directed acyclic graph as SVG text. Nodes have a `kind`; edges may have a `quantity`, which is written beside them."""
    labels = labels or {}
    places, width, height = layout(graph)
    top = 28 if title else 0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + top}" width="{width}" height="{height + top}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#68707a"/></marker></defs>',
        f'<rect width="{width}" height="{height + top}" fill="#ffffff"/>',
    ]
    if title:
        out.append(f'<text x="{MARGIN}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>')
    for a, b, data in graph.edges(data=True):
        out.append(_arrow(places[a], places[b], top, data.get("quantity", "")))
    for n, data in graph.nodes(data=True):
        x, y = places[n]
        kind = data.get("kind", "map")
        round_ = 18 if kind in ("argument", "output", "sum") else 4
        out.append(
            f'<rect x="{x}" y="{y + top}" width="{WIDTH}" height="{HEIGHT}" rx="{round_}" fill="{FILLS[kind]}" stroke="#8a929c"/>'
        )
        text = labels.get(n, n)
        out.append(f"<title>{escape(text)}</title>")
        shown = text if len(text) <= 30 else text[:29] + "…"
        out.append(
            f'<text x="{x + WIDTH // 2}" y="{y + top + HEIGHT // 2 + 4}" text-anchor="middle">{escape(shown)}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def layout(graph: nx.DiGraph) -> tuple[dict[Any, tuple[int, int]], int, int]:
    """(where each node's corner is, width, height). A node's layer is the longest way to it; within a layer nodes stand in the
    order of what leads to them."""
    layers = [list(layer) for layer in nx.topological_generations(graph)]
    late = {n: k for k, layer in enumerate(layers) for n in layer}
    for n in graph:  # an argument stands right before its first reader
        if not graph.in_degree(n) and graph.out_degree(n):
            late[n] = min(late[m] for m in graph.successors(n)) - 1
    for n, data in graph.nodes(data=True):
        if data.get("kind") == "output":
            late[n] = max(late.values()) if graph.in_degree(n) else late[n]
    columns: list[list[Any]] = [[] for _ in range(max(late.values(), default=0) + 1)]
    for n in nx.lexicographical_topological_sort(graph, key=str):
        columns[late[n]].append(n)
    rows: dict[Any, float] = {n: float(i) for column in columns for i, n in enumerate(column)}
    for before, column in pairwise(columns):
        inside = set(before)
        center = {n: [rows[m] for m in graph.predecessors(n) if m in inside] or [rows[n]] for n in column}
        column.sort(key=lambda n: sum(center[n]) / len(center[n]))
        rows |= {n: float(i) for i, n in enumerate(column)}
    tallest = max((len(c) for c in columns), default=1)
    height = 2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y
    places = {}
    for k, column in enumerate(columns):
        used = len(column) * (HEIGHT + GAP_Y) - GAP_Y
        for i, n in enumerate(column):
            places[n] = MARGIN + k * (WIDTH + GAP_X), (height - used) // 2 + i * (HEIGHT + GAP_Y)
    return places, 2 * MARGIN + len(columns) * (WIDTH + GAP_X) - GAP_X, height


def _arrow(a: tuple[int, int], b: tuple[int, int], top: int, quantity: str) -> str:
    x1, y1, x2, y2 = a[0] + WIDTH, a[1] + top + HEIGHT // 2, b[0], b[1] + top + HEIGHT // 2
    middle = (x1 + x2) // 2
    line = (
        f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}" fill="none" stroke="#68707a" marker-end="url(#tip)">'
        f"<title>{escape(quantity)}</title></path>"
    )
    if not quantity:
        return line
    return line + (
        f'<text x="{x2 - 8}" y="{y2 - 5}" text-anchor="end" font-size="10" fill="#4a5058">{escape(quantity)}</text>'
    )
