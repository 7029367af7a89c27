"""What must hold of a kernel whose tiles have places: each is read behind the wait for what fills it, and none is filled anew
while a product reads it; and its steps, one after the other, leave in memory what the kernel is for."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import in_field
from ....ir.code import Binary, Call, Cast, Code, Expanded, Literal, Name, call, names_in, where
from ....ir.code_parts import rebuilt
from ....ir.kernel_ir import KernelFunction, Let, Statement, Store
from ....ir.placed_tiles import (
    CopiesAwaited,
    Copy,
    Kept,
    Left,
    Made,
    Operand,
    PlacedKernel,
    ProductAwaited,
    ProductBegun,
    Step,
)
from ..gates.cases import CHUNK, Case
from ..gates.output_gate import Blocks
from ..kernels.chunk_kernel import Kernel


@in_field
def gate_placed(k: Kernel, p: PlacedKernel) -> None:
    """Raises GateError where the steps of a kernel whose tiles have places don't wait for what they read, or don't leave what the
    kernel is for."""
    gate_waits(p.name, p.steps)
    try:
        for even in (True, False):
            memory = Blocks(k, Case(CHUNK, even=even), random.Random(p.name))
            memory.launch((one_after_the_other(p),))
            memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{p.name}: there is no exact meaning for {why}") from why


# --- waits ----------------------------------------------------------------------------------------------------------


def gate_waits(name: str, steps: Iterable[Step]) -> None:
    """Raises GateError where a step reads what isn't there yet."""
    waits = _Waits(name)
    for x in steps:
        waits.step(x)
    if waits.products:
        raise GateError(f"{name}: nothing waits for {', '.join(waits.products)}")


@dataclass
class _Waits:
    """What is under way, in the order in which it began."""

    name: str
    copies: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # by what is read there
    products: dict[str, ProductBegun] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # products that began

    def step(self, x: Step) -> None:
        match x:
            case Copy(place=place):
                if place.name in self.places:
                    self.refuse(f"{place.name} is copied twice")
                self.copies.append(place.name)
                self.places[place.name] = place.name
            case CopiesAwaited(under_way=n):
                self.copies = self.copies[len(self.copies) - n :] if n else []
            case ProductBegun(name=name, left=left, right=right):
                self.read((left.place, right.place))
                self.products[name] = x
                self.known.add(name)
            case ProductAwaited(name=name, under_way=n):
                if name not in self.products or len(self.products) - 1 - list(self.products).index(name) < n:
                    self.refuse(f"a wait for {name}, which may not be there after it")
                for other in list(self.products)[: len(self.products) - n]:
                    if other != name:
                        self.refuse(f"a wait for {name} is one for {other} too")
                self.products.pop(name)
            case Made(value=value):
                self.read(names_in(value))
            case Kept(name=name, place=place, value=value):
                self.read(names_in(value))
                if any(place in (y.left.place, y.right.place) for y in self.products.values()):
                    self.refuse(f"{place} is filled while a product reads it")
                self.places[name] = place
            case Left(pointer=pointer, value=value, mask=mask):
                self.read(names_in(pointer) | names_in(value) | (frozenset() if mask is None else names_in(mask)))

    def read(self, names: Iterable[str]) -> None:
        for n in names:
            if n in self.products:
                self.refuse(f"{n} is read before it is there")
            if self.places.get(n) in self.copies:
                self.refuse(f"{n} is read before its copy is there")

    def refuse(self, why: str) -> None:
        raise GateError(f"{self.name}: {why}")


# --- what the steps leave -------------------------------------------------------------------------------------------


def one_after_the_other(p: PlacedKernel) -> KernelFunction:
    """The steps as a kernel of Triton, which loads each tile where its copy begins."""
    body: list[Statement] = [*p.setup]
    defined = {n for x in p.setup if isinstance(x, Let) for n in x.names}
    indices = {x.names[0]: x for x in p.indices if isinstance(x, Let)}
    for n, x in indices.items():
        body.append(x)
        defined.add(n)
    turned = {}
    for y in p.steps:
        match y:
            case Copy(place=place):
                body.append(Let((place.name,), place.load))
                turned[place.name] = place.turned
            case ProductBegun(name=name, left=left, right=right):
                body.append(Let((name,), call("tl.dot", *(_operand(z, turned[z.place]) for z in (left, right)))))
            case Made(name=name, value=value):
                body.append(Let((name,), _of_triton(value)))
            case Kept(name=name, value=value):
                body.append(Let((name,), _of_triton(value)))
            case Left(pointer=pointer, value=value, mask=mask):
                body.append(Store(pointer, _of_triton(value), mask))
    return replace(p.function, body=tuple(body))


def _operand(x: Operand, turned: bool) -> Code:
    own: Code = Cast(Name(x.place), "DT")
    return call("tl.trans", own) if x.turned != turned else own


def _of_triton(x: Code) -> Code:
    """An expression of steps as kernels of Triton have it."""
    x = rebuilt(x, _of_triton)
    match x:
        case Call(function="added_sum", arguments=(total, p, writer, _, forward, diagonal, _)):
            row, column = (Expanded(call("tl.arange", 0, "C"), own) for own in ((True, False), (False, True)))
            after = row - column if forward == Literal(True) else column - row
            seen = where(Binary(">=" if diagonal == Literal(True) else ">", after, Literal(0)), p, 0.0)
            return total + call("tl.dot", seen, writer)
        case Call(function="from_state", arguments=(value, dtype)):
            return call("from_state", value, 0, 0, True, False, dtype)
        case Call(function="from_start" | "to_start" as function):
            return replace(x, function=f"{function}_gluon")
        case Call(function="diagonal", arguments=(value,)):
            return call("diagonal", value, "C")
        case Call(function="later_sums", arguments=(value, _)):
            return call("later_sums", value, "C", True, "DT")
    return x
