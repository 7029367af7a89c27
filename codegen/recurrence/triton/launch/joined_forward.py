"""The function that launches a forward pass as one kernel whose warps have roles, `triton_forward_joined`: `triton_forward` hands
over to it where that is asked for, and no gradient is recorded."""

from __future__ import annotations

from dataclasses import replace

from ....ir.expr import dim_of, leaf
from ....ir.launch_ir import Call, Define, Expr, Function, If, Return, Set, Statement, joined, py, ref
from ....ir.warp_schedule import Schedule
from ....printing.cannot_print import CannotPrint
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Sweep
from ..kernels.chunk_kernel import Kernel
from ..kernels.prologue_kernels import intra_chunk_kernel
from ..kernels.sweep_kernels import sweep_kernel
from ..plan_passes.value_placement import Store
from ..print.axis_names import size_name
from ..warp_roles.joined import joined_kernel
from ..warp_roles.prepared import schedule_of_joined
from .launch_plan import Host
from .sweep_launches import SweepLaunches

STEPS, CHANNELS = 32, 128  # of a chunk, and of a state's axis, that bytes are counted for
PAYS = 1 / 5  # matrices that are neither stored nor loaded are at least this part of what a pass moves besides


class JoinedForward(Host):
    """Makes that function, and its kernel."""

    def __init__(self, c: Compiled, later: SweepLaunches, stem: str) -> None:
        assert c.forward is not None
        super().__init__(c, c.forward, False, False, False, None, later, None, stem)

    def function_ir(self) -> Function:
        """The function as data.

        Raises CannotPrint: the forward pass isn't one kernel with roles.
        """
        if len(self.schedule.sweeps) != 1:
            raise CannotPrint("a forward pass of several sweeps isn't joined with its prologues yet")
        self._open()
        at = next(n for n, x in enumerate(self.body) if isinstance(x, Define) and x.names == ("config",))
        self.body.insert(at + 1, Define(("config",), Expr("joined_config(config)")))
        self._sweeps()
        self._outputs()
        doc = "Outputs and last states, by a kernel that makes all of them."
        return self._function(
            f"{self.function}_forward_joined", "(given, states, constants, packed=None, finals=True)", doc
        )

    def _sweep(self, k: int, sweep: Sweep) -> None:
        kernel = self._joined(k, sweep)
        self._inputs(kernel)
        self.kernels.append(kernel)
        made: list[Statement] = [self._allocated(k, s) for s in self._stores(k)]
        for s in sweep.group:
            if s.name in sweep.finals:
                name = self.names(leaf("state", s.name))
                made.append(self._new_state(f"{name}_last", s, "layout.sequences", self._wants_last(s, False)))
        self._under(self._everything(), [*made, *self.launches.launch(kernel)])

    def _stores(self, k: int) -> list[Store]:
        return [s for s in self.fused.stores[k] if s.leaf not in self.spare]

    def _joined(self, k: int, sweep: Sweep) -> Kernel:
        """The sweep's kernel with its prologue in it."""
        o = self.opened[k]
        alone = sweep_kernel(f"{self.kind}_sweep", sweep, o, self._stores(k), self.names, ends=False)
        prologue = intra_chunk_kernel(f"{self.kind}_prepare", o, self.names)
        kernel = joined_kernel(f"{self.kind}_joined", alone, prologue)
        schedule = schedule_of_joined(kernel)
        if saved(schedule) < PAYS:
            raise CannotPrint("the memory that a joined kernel saves doesn't pay")
        return replace(kernel, roles=schedule)

    def _save(self) -> None:
        self.body.append(Set(("saved",), Expr("{}")))


def saved(s: Schedule) -> float:
    """What a joined kernel neither stores nor loads, its matrices, over what it moves."""
    matrices = sum(r.operand for r in s.rings)
    tiles = sum(r.tile is not None for r in s.rings) + sum(b.tile is not None for b in s.buffers)
    return 2 * matrices * STEPS / (tiles * CHANNELS)


def joined_if_any(c: Compiled, later: SweepLaunches, stem: str) -> tuple[JoinedForward, Function] | None:
    """What makes the function, and it, if the forward pass is one kernel with roles."""
    host = JoinedForward(c, later, stem)
    try:
        return host, host.function_ir()
    except CannotPrint:
        return None


def handed_over(host: Host) -> If:
    """What a forward pass begins with where there is such a function."""
    p = host.c.step
    wide = [ref(host.names(v.leaf)) for v in p.variables if v.kind == "input" and v.per_step and v.axes]
    (o,) = host.opened.values()
    most = joined([Expr(size_name(dim_of(a))) for a in o.full], " + ")
    alone = "not needs_backward and segments == 1" + (" and exchange is None" if host.exchanges else "")
    call = Call((), f"{host.function}_forward_joined", (Expr("given, states, constants, packed, finals"),), lines=True)
    return If(py("{} and may_join(config, {}, {})", alone, most, joined(wide)), (Return(call),))
