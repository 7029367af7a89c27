"""Which sweep computes what of the values that a plan is for: outputs and gradients made of several sweeps' reads.

A value's terms are computed in the sweep that makes the last of their reads, where that read is still in registers in float32;
what comes before is handed on in float32. What no sweep can compute (a state-adjoint product's sum over the sequence, a product
of two sums) is left to per-step kernels, or to torch, over the tensors that the sweeps have stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....ir.expr import ZERO, Node, add, dim_of, leaf, mul, rebuild, rename, terms_of, walk
from ...chunkwise.plan import Accumulate, Map, Plan, Sweep, Unroll
from ...normal_form.form import StateAdjointProduct

ELEMENTWISE = ("const", "number", "size", "add", "mul", "pow", "fn", "max", "expand")


@dataclass
class Store:
    """What a sweep writes besides its states. kind:

    kept      a read or solved write in the dtype of the operands, for later stages
    final     a whole value, in its final dtype
    part      a value's terms so far, float32, for a later sweep or for torch
    sums      for each tile of the sweep, the sum of `node` over that tile, float32
    """

    leaf: Node  # names the stored tensor: kinds kept (read | write), stored, sums
    node: Node  # step-level
    kind: str
    root: str
    shared: list[str] = field(default_factory=list)  # other values that use it


@dataclass
class Fused:
    """`stores` by stage; `values` and `state_adjoints` (late, early) are over inputs and stored leaves, for torch.

    State-adjoint products of decays that are one scalar a step aren't among them: sweeps sum these. `at_once`: those states whose
    early terms stand in the value that has the state-adjoint product, for the step itself, so that all terms together count as
    late.
    """

    stores: dict[int, list[Store]]
    values: dict[str, Node]
    state_adjoints: dict[str, tuple[Node, Node]]
    made: dict[tuple[str, str], int] = field(default_factory=dict)
    at_once: set[str] = field(default_factory=set)


def is_made(x: Node) -> bool:
    return x.op == "leaf" and x.attrs[0] in ("read", "write")


def fuse(plan: Plan, saved: tuple[Node, ...] = ()) -> Fused:
    """The stores of each sweep. `saved`: leaves that must be kept for another plan."""
    return _Fusion(plan, saved).run()


class _Fusion:
    def __init__(self, plan: Plan, saved: tuple[Node, ...]) -> None:
        self.plan, self.saved = plan, saved
        self.stores: dict[int, list[Store]] = {k: [] for k, s in enumerate(plan.stages) if isinstance(s, Sweep)}
        self.made: dict[tuple[str, str], int] = {}
        self.tile: dict[int, str | None] = {}
        self.given = {x.attrs[:2] for x in plan.saved}
        for k, stage in enumerate(plan.stages):
            if isinstance(stage, Sweep):
                axes = [s.col if stage.side == "row" else s.row for s in stage.group]
                self.tile[k] = next((a for a in axes if a is not None), None)
                for x in stage.chunk.outputs:
                    self.made[x.attrs[:2]] = k

    def run(self) -> Fused:
        values = {n: node for stage in self.plan.stages if isinstance(stage, Map) for n, node in stage.values.items()}
        state_adjoints: dict[str, tuple[Node, Node]] = {}
        at_once: set[str] = set()
        for stage in (x for x in self.plan.stages if isinstance(x, Accumulate)):
            p = stage.state_adjoint
            if stage.by_channel:
                late, early = _as_one(p, values)
                state_adjoints[p.state] = (self.root(f"{p.state}.late", late), self.root(f"{p.state}.early", early))
            elif p.early is not ZERO and any({p.leaf, *terms_of(p.early)} <= set(terms_of(x)) for x in values.values()):
                at_once |= {p.state} if _as_one(p, values)[1] is ZERO else set()
        values = {name: self.root(name, node) for name, node in values.items()}
        unrolled = [x for s in self.plan.stages if isinstance(s, Unroll) for x in s.streams.values()]
        self.keep([*values.values(), *(x for pair in state_adjoints.values() for x in pair), *unrolled])
        return Fused(self.stores, values, state_adjoints, self.made, at_once)

    # --- values -----------------------------------------------------------------------------------------------------

    def root(self, name: str, node: Node) -> Node:
        """The node that is left of a value once its terms are given to sweeps."""
        if is_made(node) and node.attrs[:2] not in self.given:
            return self.final(name, node, self.made[node.attrs[:2]])
        buckets: dict[int, list[Node]] = {}
        sums: dict[int, list[Node]] = {}
        rest: list[Node] = []
        for term in terms_of(node):
            k = self.stage_of(term)
            summed = None if k is None else self.summed(term, k)
            here = None if k is None else self.over_tile(term, k)
            if k is None:
                rest.append(self.inside(name, term))
            elif here is not None and set(term.axes) == set(node.axes):
                buckets.setdefault(k, []).append(here)
            elif summed is not None:
                sums.setdefault(k, []).append(summed)
            else:
                rest.append(self.inside(name, term))
        for k, terms in sorted(sums.items()):
            x = leaf("sums", f"{name}.{k}")
            self.stores[k].append(Store(x, add(*terms), "sums", name))
            rest.append(x)
        before: Node | None = None
        for k, terms in sorted(buckets.items()):
            total = add(*terms, *([before] if before is not None else []))
            if k == max(buckets) and not rest:
                return self.final(name, total, k)
            before = self.part(name, total, k, node.axes)
            later = [j for j in buckets if j > k]
            if later:
                before = self.over_tile(before, min(later))
        return add(*rest, *([before] if before is not None else []))

    def part(self, name: str, node: Node, k: int, axes: tuple[str, ...]) -> Node:
        """The stored leaf of a value's terms so far: one that another value has stored already, where they are the same."""
        for s in self.stores[k]:
            if s.kind == "part" and s.node is node and s.leaf.axes == axes:
                s.shared.append(name)
                return s.leaf
        x = leaf("stored", f"{name}.{k}", axes)
        self.stores[k].append(Store(x, node, "part", name))
        return x

    def final(self, name: str, node: Node, k: int) -> Node:
        x = leaf("stored", name, node.axes)
        self.made[x.attrs[:2]] = k
        here = self.over_tile(node, k)
        assert here is not None
        self.stores[k].append(Store(x, here, "final", name))
        return x

    def over_tile(self, x: Node, k: int) -> Node | None:
        """x over the tile axis of stage k, as the states of its group name it; None where x isn't a term for that sweep."""
        tile = self.tile[k]
        if len(x.axes) == 1 and tile is not None and x.axes[0] != tile and dim_of(x.axes[0]) == dim_of(tile):
            x = rename(x, {x.axes[0]: tile})
        return x if self.elementwise(x, k) else None

    def inside(self, name: str, x: Node) -> Node:
        """x with the sums inside it given to sweeps."""
        if x.op == "leaf" or not any(is_made(y) for y in walk(x)):
            return x
        k = self.stage_of(x)
        summed = None if k is None or x.op != "sum" else self.summed(x, k)
        if k is not None and summed is not None:
            key = f"{name}.{k}.{summed.key[:6]}"
            self.stores[k].append(Store(leaf("sums", key), summed, "sums", name))
            return leaf("sums", key)
        return rebuild(x, (self.inside(name, a) for a in x.args))

    def stage_of(self, x: Node) -> int | None:
        """The stage that makes the last of the reads in x; None where x has none, or what a sweep can't load."""
        found = [self.made[y.attrs[:2]] for y in walk(x) if is_made(y) and y.attrs[:2] not in self.given]
        if any(y.op == "leaf" and y.attrs[0] in ("state-adjoint product", "sums", "trajectory") for y in walk(x)):
            return None
        return max(found, default=None)

    def elementwise(self, x: Node, k: int) -> bool:
        allowed = {self.tile[k]} - {None}
        return set(x.axes) <= allowed and all(
            (y.op in ELEMENTWISE or y.op == "leaf") and set(y.axes) <= allowed for y in walk(x)
        )

    def summed(self, x: Node, k: int) -> Node | None:
        """What x is the sum of, over the tile axis of stage k; None where it isn't such a sum, times scalars."""
        tile = self.tile[k]
        if x.axes or tile is None:
            return None
        factors = x.args if x.op == "mul" else (x,)
        inner = [f for f in factors if f.op == "sum"]
        if len(inner) != 1 or not all(self.elementwise(f, k) for f in factors if f is not inner[0]):
            return None
        (bound,), body = inner[0].attrs, inner[0].args[0]
        if dim_of(bound) != dim_of(tile):
            return None
        body = rename(body, {bound: tile})
        outside = (f for f in factors if f is not inner[0])
        return mul(*outside, body) if self.elementwise(body, k) and tile in body.axes else None

    # --- what is kept -----------------------------------------------------------------------------------------------

    def keep(self, roots: list[Node]) -> None:
        """Keep the reads and writes that later stages, torch or another plan load."""
        wanted = {x.attrs[:2]: x for x in self.saved}
        for x in walk(*roots):
            if is_made(x):
                wanted.setdefault(x.attrs[:2], x)
        for k, stage in enumerate(self.plan.stages):
            if not isinstance(stage, Sweep):
                continue
            nodes = [*stage.given.values(), *(s.node for s in self.stores[k])]
            for x in walk(*nodes):
                if is_made(x) and self.made.get(x.attrs[:2], k) != k:
                    wanted.setdefault(x.attrs[:2], x)
        for k, stage in enumerate(self.plan.stages):
            if isinstance(stage, Sweep):
                own = [x for x in stage.chunk.outputs if x.attrs[:2] in wanted and x.attrs[:2] not in self.given]
                kept = [Store(x, self.over_tile(x, k) or x, "kept", "") for x in own]
                self.stores[k] = kept + self.stores[k]


def _as_one(p: StateAdjointProduct, values: dict[str, Node]) -> tuple[Node, Node]:
    """The late and early terms of a state-adjoint product; where one value has other terms beside the state-adjoint product, as
    if all were late.

    Early terms count from the next step on, so that value loses those of its own step: one tensor less, between sweeps and torch.
    """
    users = [name for name, node in values.items() if p.leaf in walk(node)]
    terms = terms_of(values[users[0]]) if len(users) == 1 else ()
    if p.early is ZERO or p.leaf not in terms or len(terms) < 2 or sum(p.leaf in walk(x) for x in terms) > 1:
        return p.late, p.early
    values[users[0]] = add(values[users[0]], mul(-1, p.early))
    return add(p.late, p.early), ZERO
