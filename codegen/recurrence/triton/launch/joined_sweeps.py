"""The functions that launch a pass whose sweeps are one kernel with their prologues, `triton_forward_joined` and
`triton_backward_joined`: the others hand over to them where roles are asked for, and sequences aren't cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ....ir.expr import dim_of
from ....ir.launch_ir import (
    Alloc,
    Call,
    Define,
    For,
    Function,
    If,
    Launch,
    Return,
    Set,
    Statement,
    Wanted,
    ref,
    takes,
)
from ....ir.python_code import TRUE, Fixed, also, beside, made_by
from ....ir.warp_schedule import Schedule
from ....printing.cannot_print import CannotPrint
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan, Sweep
from ..kernels.arguments import Role
from ..kernels.chunk_kernel import Kernel
from ..print.axis_names import size_name
from ..warp_roles.joined import joined_kernel
from ..warp_roles.loaded import schedule_of_loaded
from ..warp_roles.prepared import schedule_of_joined
from .launch_plan import Host
from .sweep_launches import SweepLaunches

STEPS, CHANNELS = 32, 128  # of a chunk, and of a state's axis, that bytes are counted for
PAYS = 1 / 5  # matrices that are neither stored nor loaded are at least this part of what a forward pass moves besides


class JoinedSweeps(Host):
    """Makes the function of one pass, and its kernels. A sweep that can't be joined with its prologue is launched after it."""

    def __init__(self, c: Compiled, plan: Plan, later: SweepLaunches | None, stem: str) -> None:
        """`later` is the host of the backward pass, where this one is of the forward pass."""
        super().__init__(c, plan, later is None, False, False, None, later, None, stem)

    def function_ir(self) -> Function:
        """The function as data.

        Raises CannotPrint: none of its sweeps is one kernel with its prologue.
        """
        self._open()
        at = next(n for n, x in enumerate(self.body) if isinstance(x, Define) and x.names == ("config",))
        self.body.insert(at + 1, Define(("config",), made_by("joined_config", "config")))
        self._sweeps()
        if not self.joined:
            raise CannotPrint("no sweep is one kernel with its prologue")
        if self.backward:
            self._gradients()
            head = takes(
                "given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs", packed=None
            )
            return self._function(
                f"{self.function}_backward_joined", head, "Gradients, by sweeps with their prologues."
            )
        self._outputs()
        head = takes("given", "states", "constants", packed=None, needs_backward=TRUE, finals=TRUE)
        made = "Outputs, last states and what the backward pass uses, by a kernel that makes all of them."
        return self._function(f"{self.function}_forward_joined", head, made)

    @property
    def joined(self) -> list[Kernel]:
        return [k for k in self.kernels if isinstance(k, Kernel) and k.roles is not None and k.roles.several]

    def _sweep(self, k: int, sweep: Sweep) -> None:
        there = len(self.kernels)
        with self._apart() as made:
            super()._sweep(k, sweep)
        added = [x for x in self.kernels[there:] if isinstance(x, Kernel)]
        pair = [x for x in added if x.queues] + [x for x in added if x.sweeps]
        kernel = self._one_kernel(k, *pair) if len(pair) == 2 and len(sweep.group) == 1 else None
        if kernel is not None:
            self.kernels[there:] = [kernel, *(x for x in self.kernels[there:] if x not in pair)]
            made = self._in_one_launch(made, kernel, *pair)
        elif self.backward and len(sweep.group) == 1 and pair:
            made = self._with_a_loader(made, pair[-1])
        self.body += made

    def _with_a_loader(self, made: list[Statement], sweep: Kernel) -> list[Statement]:
        """Statements that launch a sweep which has no prologue, and may launch it with roles, if there are any for it."""
        try:
            if self._has_wide(sweep):
                raise CannotPrint("operands of four bytes have no roles")
            kernel = replace(sweep, roles=schedule_of_loaded(sweep))
        except CannotPrint:
            return made
        self.kernels[self.kernels.index(sweep)] = kernel
        return [_launched_otherwise(x, sweep.name, lambda y: self.launches.with_roles(y, kernel)) for x in made]

    def _one_kernel(self, k: int, prologue: Kernel, sweep: Kernel) -> Kernel | None:
        """A sweep's kernel with its prologue in it, if there are roles for it; there are none for each of several reads."""
        if sweep.apart:
            return None
        later = {self.names(x) for j, o in self.opened.items() if j > k for x in o.matrices}
        name = sweep.name.replace("_sweep_1" if not self.backward else "_sweep", "_joined")
        try:
            kernel = joined_kernel(name, sweep, prologue, frozenset(later))
            if self._has_wide(kernel):
                raise CannotPrint("operands of four bytes have no roles")
            schedule = schedule_of_joined(kernel)
        except CannotPrint:
            return None
        return replace(kernel, roles=schedule) if self.backward or saved(schedule) >= PAYS else None

    def _has_wide(self, kernel: Kernel) -> bool:
        """Does it load tiles, or matrices, of four bytes?"""
        stored = {s.leaf: s for x in self.fused.stores.values() for s in x}
        wide = frozenset[str]().union(*(o.wide for o in self.opened.values())) | self._into_numbers
        return any(
            (a.source in stored and self._dtype(stored[a.source]) == "torch.float32")
            or (a.layout == "matrix" and a.source is not None and a.source.attrs[1] in wide)
            for a in kernel.arguments
            if a.loaded and (a.axes or a.layout == "matrix")
        )

    def _in_one_launch(self, made: list[Statement], kernel: Kernel, prologue: Kernel, sweep: Kernel) -> list[Statement]:
        """Statements that launch a sweep after its prologue, with one launch in the place of both."""
        both = [x for x in made if isinstance(x, Wanted) and _launches(x, prologue.name, sweep.name)]
        wanted = frozenset[str]().union(*(x.wanted for x in both))
        gone = {a.name for a in prologue.arguments if a.stored} - {a.name for a in kernel.arguments}
        found: list[Statement] = []
        for x in made:
            if not isinstance(x, Wanted) or not _launches(x, prologue.name, sweep.name):
                found.append(x)
                continue
            inside: list[Statement] = []
            for y in x.body:
                if isinstance(y, Launch) and y.kernel == sweep.name:
                    found += self._aligned(kernel)
                    inside = [z for z in inside if not (isinstance(z, Define) and z.names == ("sweep",))]
                    inside += self.launches.launch(kernel)
                elif not (isinstance(y, Alloc) and y.name in gone) and not (
                    isinstance(y, Launch) and y.kernel == prologue.name
                ):
                    inside.append(y)
            found.append(Wanted(wanted, tuple(inside)))
        return found

    def _aligned(self, kernel: Kernel) -> list[Statement]:
        """What isn't an input lies as the copy engine takes it."""
        sources = [a.source for a in kernel.arguments if a.layout == "step" and a.axes and a.role is Role.GIVEN]
        names = [self.names(x) for x in sources if x is not None and x.attrs[0] == "cotangent"]
        new = [n for n in names if n not in self.ready]
        self.ready |= set(new)
        return [Set((n,), made_by("aligned", ref(n))) for n in new]


def _launches(x: Statement, *kernels: str) -> bool:
    """Does it launch one of these kernels?"""
    return isinstance(x, Wanted) and any(isinstance(y, Launch) and y.kernel in kernels for y in x.body)


def _launched_otherwise(x: Statement, kernel: str, change: Callable[[Launch], Launch]) -> Statement:
    """A statement in which the launches of a kernel are changed."""
    match x:
        case Launch() if x.kernel == kernel:
            return change(x)
        case Wanted() | For():
            return replace(x, body=tuple(_launched_otherwise(y, kernel, change) for y in x.body))
    return x


def saved(s: Schedule) -> float:
    """What a joined kernel neither stores nor loads, its matrices, over what it moves."""
    matrices = sum(r.operand for r in s.rings)
    tiles = sum(r.tile is not None for r in s.rings) + sum(b.tile is not None and not b.maybe for b in s.buffers)
    return 2 * matrices * STEPS / (tiles * CHANNELS)


def joined_if_any(
    c: Compiled, plan: Plan, later: SweepLaunches | None, stem: str, by_head: Mapping[str, None] | None = None
) -> tuple[JoinedSweeps, Function] | None:
    """What makes the function of a pass, and it, if sweeps of it are one kernel with their prologues. `by_head`: numbers of each
    step that the forward pass keeps."""
    host = JoinedSweeps(c, plan, later, stem)
    host.kept_by_head = dict(by_head or {})
    if later is not None and len(host.schedule.sweeps) != 1:
        return None
    if all(len(x.group) > 1 for x in plan.sweeps):  # sweeps of several states have no roles
        return None
    try:
        return host, host.function_ir()
    except CannotPrint:
        return None


def handed_over(host: Host, joined: JoinedSweeps) -> If:
    """What a pass begins with where there is such a function."""
    p = host.c.step
    wide = [ref(host.names(v.leaf)) for v in p.variables if v.kind == "input" and v.per_step and v.axes]
    axes = dict.fromkeys(a for k in joined.joined for a in k.axes if a != k.tiled or k.one_tile)
    sizes = [Fixed(x) for x in dict.fromkeys(size_name(dim_of(a)) for a in axes)]
    most = sizes[0] if len(sizes) == 1 else made_by("max", *sizes)
    alone = [Fixed("segments").equals(1), *([Fixed("exchange").missing] if host.exchanges else [])]
    rest = ["saved", "cotangents", "final_cotangents", "needs", "packed"]
    if not host.backward:
        rest = ["packed", "needs_backward", "finals"]
    handed = beside("given", "states", "constants", *rest)
    call = Call((), f"{host.function}_{host.kind}_joined", (handed,), lines=True)
    return If(also(*alone, made_by("may_join", "config", most, *wide)), (Return(call),))
