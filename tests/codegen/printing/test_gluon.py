"""What the functions of roles are given doesn't hang on the order of sets of names, which another process has otherwise."""

from chunkform.codegen.ir.code import Name, plus
from chunkform.codegen.ir.kernel_ir import KernelFunction, let
from chunkform.codegen.ir.warp_schedule import Accumulator, Plain, Ring, Role, Schedule
from chunkform.codegen.printing.gluon_names import ring_name
from chunkform.codegen.printing.gluon_role import RoleFunction

NAMES = tuple(f"tile{n}" for n in range(12))


def test_rings_are_given_in_their_own_order() -> None:
    step = Plain((let("x", plus(*map(Name, reversed(NAMES)))),), Accumulator("C", "D"))
    role = Role("consumer", 4, (), (step,), ())
    schedule = Schedule("some", (), (), (), tuple(Ring(n, ("C", "D")) for n in NAMES), (), (), (role,))
    kernel = KernelFunction("some_kernel", (), (), (), "Some.", ())
    places = RoleFunction(kernel, schedule, role).places()
    assert places == [ring_name(r) for r in schedule.rings]
