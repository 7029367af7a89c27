"""Watching a pass run: the memory that it takes, the kernels that it launches, and the operations of torch that it calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction


class _Watching(threading.local):
    """Who wants to hear of what this thread does: `note` of launches, called with a kernel, it compiled, grid, arguments, options
    and the memory that it took, `instead` in the place of launches, and `act` in the place of `act` below. `fell`: how often
    a pass began anew with narrower tiles, so that what was seen of it isn't what it does; and `unlike` how often
    one was run whose work may depend on numbers."""

    note: Callable[..., None] | None = None
    instead: Callable[..., None] | None = None
    act: Callable[..., None] | None = None
    fell: int = 0
    unlike: int = 0


watching = _Watching()


def act(function: Callable[..., None], *tensors: Tensor) -> None:
    """function(*tensors), which fills tensors, or waits for them: one operation for whoever watches, whatever is in it."""
    (watching.act or _acted)(function, tensors)


def _acted(function: Callable[..., None], tensors: tuple[Tensor, ...]) -> None:
    function(*tensors)


class Unknown(Exception):
    """Something that can't be done again from what was seen of it."""


KernelArgument: TypeAlias = "Tensor | float | None"
KernelOption: TypeAlias = "float | str | torch.dtype | None"  # of a launch: constants of the kernel, warps and stages


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor in the memory of the tensor in a slot, from `offset` bytes after its first element on."""

    slot: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, slots: list[Tensor]) -> Tensor:
        x = slots[self.slot]
        if self.offset == 0 and x.shape == self.shape and x.stride() == self.stride:
            return x
        return x.as_strided(self.shape, self.stride, x.storage_offset() + self.offset // x.element_size())


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's launch, with `Part`s for tensors. `compiled` is None where the interpreter runs it. `scratch` is the memory that
    it takes for itself."""

    kernel: Any
    compiled: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]
    scratch: tuple[Part, ...] = ()

    @property
    def slots(self) -> set[int]:
        return {x.slot for x in (*self.args, *self.scratch) if type(x) is Part}


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of an operation of torch, with `Part`s for tensors, and the slots of the tensors that it makes."""

    function: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    makes: tuple[int, ...]

    @property
    def slots(self) -> set[int]:
        return {x.slot for x in tree_flatten((self.args, self.options))[0] if type(x) is Part} | set(self.makes)

    def __call__(self, slots: list[Tensor]) -> None:
        args = [x.of(slots) if type(x) is Part else _filled(x, slots) for x in self.args]
        options = {n: _filled(x, slots) for n, x in self.options.items()} if self.options else {}
        found = self.function(*args, **options)
        if len(self.makes) == 1 and isinstance(found, Tensor):
            slots[self.makes[0]] = found
        elif self.makes:
            for slot, x in zip(self.makes, found, strict=True):
                slots[slot] = x


class Quick:
    """An operation whose tensors are those of slots, as they are, and which makes none: whatever is asked of them is known."""

    def __init__(self, function: Callable[..., object], places: Sequence[int]) -> None:
        self.function, self.places = function, tuple(places)

    def __call__(self, slots: list[Tensor]) -> None:
        self.function(*[slots[n] for n in self.places])


def quick(step: Operation, wholes: Mapping[int, Part]) -> Operation | Quick:
    """An operation as a `Quick` one, if it is one. `wholes`: how the tensors in slots are laid out."""
    if step.makes or step.options or not all(type(x) is Part and wholes.get(x.slot) == x for x in step.args):
        return step
    return Quick(step.function, [x.slot for x in step.args])


def _filled(x: Any, slots: list[Tensor]) -> Any:
    if type(x) is Part:
        return x.of(slots)
    return [_filled(y, slots) for y in x] if isinstance(x, list | tuple) else x


EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


class Watch(TorchDispatchMode):
    """Notes what is done with `tensors`, which have the first slots, and with what is made of them."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.parts = WeakTensorKeyDictionary()
        self.wholes: dict[int, Part] = {}  # slot -> all of its tensor
        self.begins: dict[int, int] = {}  # slot -> address of the first element
        self.rooms: set[int] = set()  # slots of memory that is taken, and not yet filled
        self.steps: list[Launch | Operation] = []
        self.refused = False
        self.given = self.count = len(tensors)  # how many tensors were given, and how many slots there are
        self.device = next(x.device for x in tensors if x is not None)
        try:
            for slot, x in enumerate(tensors):
                if x is not None:
                    self._enter(slot, x)
        except Unknown:
            self.refused = True

    def __enter__(self) -> Self:
        watching.note, watching.act = self.launched, self.acted
        return super().__enter__()

    def __exit__(self, *why: object) -> None:
        watching.note = watching.act = None
        super().__exit__(*why)

    def dispatched(self, function: Any, types: Any, args: Sequence[KernelArgument] = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        found = function(*args, **options)
        if not self.refused:
            try:
                self._note(function, args, options, found)
            except Unknown:
                self.refused = True
        return found

    def launched(
        self,
        kernel: JITFunction,
        compiled: CompiledKernel | None,
        grid: tuple[int, ...],
        args: Sequence[KernelArgument],
        options: dict[str, KernelOption],
        scratch: Sequence[Tensor] = (),
    ) -> None:
        try:
            own, taken = tuple(self.seen(x) for x in args), tuple(self.seen(x) for x in scratch)
            self.steps.append(Launch(kernel, compiled, grid, own, options, taken))
        except Unknown:
            self.refused = True

    def acted(self, function: Callable[..., None], tensors: tuple[Tensor, ...]) -> None:
        with _disable_current_modes():
            function(*tensors)
        try:
            self.steps.append(Operation(function, tuple(self.seen(x) for x in tensors), {}, ()))
        except Unknown:
            self.refused = True

    def seen(self, x: object) -> Any:
        """An argument as it is kept: a `Part` for a tensor."""
        if not isinstance(x, Tensor):
            return x
        part = self.parts.get(x)
        if part is None:
            raise Unknown
        return part

    def _enter(self, slot: int, x: Tensor) -> None:
        """Give a tensor with memory of its own a slot."""
        if type(x) is not Tensor or x.device != self.device or x.layout != torch.strided or x.is_complex():
            raise Unknown
        self.begins[slot] = x.data_ptr()
        self.wholes[slot] = self._lies_in(slot, x)

    def _lies_in(self, slot: int, x: Tensor) -> Part:
        offset = x.data_ptr() - self.begins[slot] if x.numel() else 0
        self.parts[x] = part = Part(slot, offset, tuple(x.shape), x.stride(), x.dtype)
        return part

    def _made(self, x: Tensor) -> int:
        self.count += 1
        self._enter(self.count - 1, x)
        return self.count - 1

    def _note(self, function: Any, args: Sequence[KernelArgument], options: Any, found: Any) -> None:
        own, words = tree_map_only(Tensor, self.seen, (args, options))
        given = [x for x in tree_flatten((args, options))[0] if isinstance(x, Tensor)]
        made = [found] if isinstance(found, Tensor) else list(found) if isinstance(found, tuple | list) else [found]
        if not given and not any(isinstance(x, Tensor) for x in made):
            return  # such as a question about dtypes
        if not made or not all(isinstance(x, Tensor) for x in made):
            raise Unknown  # the host has read a number
        if function in EMPTY:
            self.rooms.add(self._made(found))
        elif (function.is_view or function is torch.ops.aten._unsafe_view.default) and _share(given[0], made):
            part = self.parts[given[0]]
            if any(x.dtype != part.dtype for x in made):
                raise Unknown
            for x in made:
                self._lies_in(part.slot, x)
        elif any(found is x for x in given):  # in place, or into an argument
            self.steps.append(Operation(function, own, words, ()))
        else:
            memory = [x.untyped_storage()._cdata for x in (*given, *made)]
            if set(memory[len(given) :]) & set(memory[: len(given)]) or len(set(memory[len(given) :])) < len(made):
                raise Unknown
            self.steps.append(Operation(function, own, words, tuple(self._made(x) for x in made)))


# Set here, as torch wraps what a class is made with in what loads its compiler when it is called, which takes seconds.
Watch.__torch_dispatch__ = Watch.dispatched


def _share(x: Tensor, made: Sequence[Tensor]) -> bool:
    """Do these lie in the memory of x? What may be a view, such as `contiguous`, may have memory of its own as well."""
    memory = x.untyped_storage()._cdata
    return all(y.untyped_storage()._cdata == memory for y in made)
