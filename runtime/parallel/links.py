"""How maps travel between ranks, by what each way takes over the links: written into others' memory, gathered, or in a scan.

Within a node GPUs write their maps into the memory of those that need them (`mailboxes.py`), or maps are gathered where GPUs
can't. With an all-gather every rank receives the maps of all. In a scan ranks pass on what they have composed so far, to the rank
that is 1, 2, 4, .. places further: the first messages stay within nodes, the last go between them, and each round brings one map.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """Speeds between GPUs: bytes a second that reach one GPU, and seconds of one hop.

    Defaults are stated, not measured: NVLink 4 at three quarters of its 450 GB/s, and a 400 Gb/s network card for each GPU.
    """

    per_node: int = 8
    link: float = 340e9
    link_latency: float = 3e-6
    network: float = 45e9
    network_latency: float = 8e-6
    start: float = 15e-6  # of a collective, or of a message
    written: float = 6e-6  # of two kernels that write and wait, measured on two H200s


LINKS = Links()  # that calls count with, but for the ranks of a node


def writing(size: int, ranks: int, links: Links) -> float:
    """Seconds until a rank of a node has in its memory the maps of all others, of `size` bytes each."""
    return links.written + (ranks - 1) * size / links.link


def gathering(size: int, ranks: int, links: Links) -> float:
    """Seconds until every rank has the maps of all, of `size` bytes each.

    One hop for each GPU of a node, as in a ring, and one for each doubling of the nodes, as in a tree.
    """
    inside, nodes = min(ranks, links.per_node), math.ceil(ranks / links.per_node)
    over_links = (ranks - 1) * size / links.link
    over_network = (ranks - inside) * size / (inside * links.network) if nodes > 1 else 0.0
    hops = (inside - 1) * links.link_latency + math.ceil(math.log2(nodes)) * links.network_latency
    return links.start + hops + max(over_links, over_network)


def scanning(size: int, ranks: int, links: Links) -> float:
    """Seconds until every rank has the composition of the maps before it. All ranks of a node send at once in each round."""
    total = 0.0
    for k in range(rounds(ranks)):
        inside = 2**k < links.per_node and ranks <= links.per_node
        speed, latency = (links.link, links.link_latency) if inside else (links.network, links.network_latency)
        total += links.start + latency + size / speed
    return total


def rounds(ranks: int) -> int:
    """Of a scan."""
    return math.ceil(math.log2(ranks))


def way(size: int, ranks: int, links: Links) -> str:
    """ "write" up to a node, where GPUs can, and beyond it whatever is sooner, "gather" or "scan"."""
    if ranks <= links.per_node:
        return "write"
    return min(("gather", "scan"), key=lambda how: seconds_of(how, size, ranks, links))


def seconds_of(how: str, size: int, ranks: int, links: Links) -> float:
    """Of one exchange, in one of these ways."""
    return {"write": writing, "gather": gathering, "scan": scanning}[how](size, ranks, links)


def ranks_of_a_node() -> int:
    """By torchrun, or else by the defaults."""
    found = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(found) if found.isdecimal() and int(found) > 0 else LINKS.per_node
