"""What must hold of the launches of kernels over chunks: as many programs take a kernel as there are parts of sequences, heads
and tiles, where tiles are as wide as the kernel is compiled for; and each argument is what the kernel takes it for.

Grids are numbers here: whatever isn't computed in them stands for a number that follows from how it is written.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from chunkform.errors import GateError

from ....ir.code import Binary, Call, Code, Group, Item, Literal, Starred, call
from ....ir.code_parts import walk_code
from ....ir.expr import Node, dim_of
from ....ir.launch_ir import Do, Function, Launch, Set, assigned, ref, statements
from ....ir.python_code import Fixed, made_by
from ..kernels.chunk_kernel import Kernel, slow_path_name
from ..print.axis_names import block_name, size_name

OPERATIONS = {"*": lambda a, b: a * b, "+": lambda a, b: a + b, "//": lambda a, b: a // b}
AT_ONCE, SWEPT = "at_once", "swept"


def gate_grids(f: Function, kernels: Iterable[Kernel]) -> None:
    """Raises GateError where a function launches a kernel over chunks on another grid than it is for, or with other tensors than
    it takes."""
    known = {name: k for k in kernels for name in (k.name, slow_path_name(k.name))}
    holds: dict[str, str] = {}  # what is in a tensor, where a launch has stored it, or a caller has given it
    for x in statements(f.body):
        if not isinstance(x, Launch) or x.kernel not in known:
            for n in assigned(x) | (x.stores if isinstance(x, Launch | Do) else frozenset()):
                holds.pop(n, None)
            if isinstance(x, Set) and len(x.names) == 1 and (given := _given(x.value)) is not None:
                holds[x.names[0]] = given
            continue
        launched = _Launched(f.name, x, known[x.kernel])
        launched.check()
        for one, a in zip(x.arguments, known[x.kernel].arguments, strict=True):
            names = one.value.names
            if len(names) != 1 or a.source is None:
                continue
            (name,), own = names, _what(a.source)
            if one.stores:
                holds[name] = own
            elif holds.get(name, own) != own:
                launched.refuse(f"{name} is handed over for {a.name}")


def _what(x: Node) -> str:
    """What a tensor is of."""
    return str(x.attrs[1]) if x.op == "leaf" else x.key


def _given(x: Code) -> str | None:
    """The variable that a caller gives, of which a value is made."""
    found = [
        y.index.value
        for y in walk_code(x)
        if isinstance(y, Item) and y.value == Fixed("given") and isinstance(y.index, Literal)
    ]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


@dataclass(frozen=True)
class _Launched:
    function: str
    launch: Launch
    k: Kernel

    def check(self) -> None:
        x, k = self.launch, self.k
        given = [(a.loads, a.stores) for a in x.arguments]
        if given != [(a.loaded, a.stored) for a in k.arguments]:
            self.refuse("an argument is handed over where another one is taken")
        expected = self.grid()
        if any(number(x.grid, seed) != number(expected, seed) for seed in range(3)):
            self.refuse(f"the grid is {x.grid.text}, and what there is to do is {expected.text}")

    def grid(self) -> Code:
        """How many programs there are, as the words of the launch say that the kernel is compiled."""
        k, words, layout = self.k, dict(self.launch.words), self.layout()
        grid: Code = Fixed(f"{layout}.programs")
        if k.sweeps:
            grid = Fixed("layout.sequences") * Fixed("segments") * Fixed("H")
        if self.launch.kernel != k.name:  # a program looks at some chunks
            grid = call("cdiv", grid, words["GROUP"])
        if k.queues:
            grid = made_by("config.queues", grid)
        if k.tiled is None:
            return grid
        tile = words[block_name(k.tiled)]
        tiles = call("cdiv", words[size_name(dim_of(k.tiled))], tile)
        if k.inner is None or words["YIELD"] != Literal(False):
            return grid * tiles
        columns = call("cdiv", words[size_name(dim_of(k.inner))], tile)
        return grid * Group(tiles * ref("ends").given + columns * ref("linear").given)

    def layout(self) -> str:
        """What says where chunks are: of sequences for a sweep, of all at once for another kernel."""
        first = self.launch.places[0]
        name, _, way = first.value.text.partition(".") if isinstance(first, Starred) else ("", "", "")
        if way != (SWEPT if self.k.sweeps else AT_ONCE):
            self.refuse(f"it is told of {first.text}")
        return name

    def refuse(self, why: str) -> None:
        raise GateError(f"{self.function}: the launch of {self.launch.kernel}: {why}")


def number(x: Code, seed: int) -> int:
    """What a grid stands for."""
    match x:
        case Group(value=value):
            return number(value, seed)
        case Binary(operator="*" | "+" | "//", left=a, right=b):
            return OPERATIONS[x.operator](number(a, seed), number(b, seed))
        case Call(function="cdiv", arguments=(a, b)):
            return -(-number(a, seed) // number(b, seed))
        case Literal(value=int() as value):
            return value
    return random.Random(f"{seed} {x.text}").randrange(2, 40)
