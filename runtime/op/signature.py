"""What an op takes and returns, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from .results import result_type

if TYPE_CHECKING:
    from torch import Tensor

States: TypeAlias = "Tensor | Sequence[Tensor | None] | None"  # of a call: one, or those of all states in order
Folded: TypeAlias = "tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]"  # what vmap returns, and its axes

Domain: TypeAlias = "tuple[float | None, float | None]"  # two bounds; None where there is none


@dataclass(frozen=True)
class Argument:
    """One argument. kind: input | decay | parameter | decay parameter | constant; decays are given as natural logarithms."""

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    default: Any = None
    domain: Domain | None = None  # its values lie between

    @property
    def key(self) -> str:
        """The name under which it is passed."""
        return f"log_{self.name}" if self.kind.startswith("decay") else self.name

    @property
    def per_step(self) -> bool:
        return self.kind in ("input", "decay")

    @property
    def is_input(self) -> bool:
        """Has it the dtype that products are computed in? Others are float32 at least."""
        return self.kind == "input"

    @property
    def values(self) -> str:
        """What may be in it: finite | log decay."""
        return "log decay" if self.kind.startswith("decay") else "finite"

    @property
    def head_axis(self) -> int:
        return 2 if self.per_step else 0

    @property
    def layout(self) -> tuple[str, ...]:
        return (("B", "T", "H") if self.per_step else ("H",)) + self.dims


@dataclass(frozen=True)
class Arguments:
    """The name of an op of any kind, and what it is given."""

    name: str
    arguments: tuple[Argument, ...]

    def settle(self) -> None:
        """Compute all cached properties: Python 3.11 takes a lock at the first look, which no graph of torch.compile can hold."""
        for cls in type(self).__mro__:
            for name, found in vars(cls).items():
                if isinstance(found, cached_property):
                    getattr(self, name)

    @cached_property
    def tensors(self) -> tuple[Argument, ...]:
        """The arguments that are tensors."""
        return tuple(a for a in self.arguments if a.kind != "constant")

    @cached_property
    def constants(self) -> tuple[Argument, ...]:
        """The arguments that are numbers."""
        return tuple(a for a in self.arguments if a.kind == "constant")

    @cached_property
    def layouts(self) -> tuple[tuple[str, ...], ...]:
        """Of `tensors`, as they are given."""
        return tuple(a.layout for a in self.tensors)

    @property
    def domains(self) -> dict[str, Domain]:
        """Between which bounds states lie, by what they are called."""
        return {}

    @property
    def even(self) -> tuple[str, ...]:
        """Dims of which halves are turned."""
        return ()


@dataclass(frozen=True)
class Signature(Arguments):
    """The arguments, states and outputs of an op, with the dims of each. Outputs that are `hidden` are returned on request;
    those that are `wide` are float32 at least. Entries of states lie within their domains, where they have one."""

    states: tuple[tuple[str, tuple[str, ...]], ...]
    outputs: tuple[tuple[str, tuple[str, ...]], ...]
    hidden: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    state_domains: tuple[tuple[str, Domain], ...] = ()

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Between which bounds states lie, by what they are called."""
        return {f"the {which}{n}": domain for n, domain in self.state_domains for which in ("state ", "last state ")}

    @cached_property
    def leading(self) -> Argument:
        """The argument whose dtype the outputs have: the first input with dims, or else the first input or tensor."""
        inputs = [a for a in self.tensors if a.kind == "input"]
        return next((a for a in inputs if a.dims), (inputs or self.tensors)[0])

    def __post_init__(self) -> None:
        self.result(hidden=False)
        self.result(hidden=True)
        self.settle()

    def result(self, hidden: bool = True) -> Any:
        """The named tuple of outputs, with those that are hidden or without them, and the final state."""
        names = tuple(n for n, _ in self.outputs if hidden or n not in self.hidden)
        return result_type(self.name, (*names, "final_state"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Everything that may have a gradient, in order: arguments, then states."""
        return (*(a.name for a in self.tensors), *(n for n, _ in self.states))

    @cached_property
    def state_layouts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Of each state, by name."""
        return tuple((n, ("B", "H", *dims)) for n, dims in self.states)

    @cached_property
    def result_layouts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What each result is, and its layout: outputs, then final states."""
        outputs = ((f"the output {n}", ("B", "T", "H", *dims)) for n, dims in self.outputs)
        return (*outputs, *((f"the last state {n}", layout) for n, layout in self.state_layouts))

    @cached_property
    def head_axes(self) -> tuple[int, ...]:
        """Where the heads are in each of `names`."""
        return (*(a.head_axis for a in self.tensors), *(1 for _ in self.states))

    @cached_property
    def result_head_axes(self) -> tuple[int, ...]:
        """Where the heads are in each result: outputs, then final states."""
        return (*(2 for _ in self.outputs), *(1 for _ in self.states))


OVERWRITE = "may be overwritten"  # a key of what is saved, where it is


@dataclass(frozen=True)
class Backend:
    """The two passes of one backend, as printed in the generated file.

    forward(given, states, constants, packed=None) -> (outputs, finals, saved)
    backward(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None) -> (gradients, initial gradients)

    All are dicts by declared names. `needs` names the arguments and states whose gradient is wanted. `features` says what the
    two passes take beyond the plain case; what they don't take, the op does for them, or refuses:

    - "packed": the argument `packed`, a `Packed`: tensors are [1, T, H, ...], states and finals [N, H, ...].
    - "groups": arguments with fewer heads than H. Gradients may have H heads; the op sums those of a group.
    - "mixed": arguments of several dtypes; a gradient has the dtype of its argument.
    - "inference": the argument `needs_backward` of forward; where it is False, nothing need be saved, and where it is
      "announced", nothing beside what `saved` below has.
    - "finals": the argument `finals` of forward; where it is False, nobody wants the final states, and they may be None.
    - "exchange": the argument `exchange`, as below, for one segment of a sequence: what enters it is found on the way.
    - "replays": nothing to take; what the passes put on the device depends on how their tensors are laid out, not on what is in
      them, and goes through `launch` and torch. So calls that differ in numbers only may be replayed (`runtime.replay`).
    - "overwrites": where `saved` has the key `OVERWRITE`, the backward pass may put gradients in its place, and it is lost.
    - "own start": nothing to take; where no initial state is given, the state starts from what is made of parameters.

    Where sequences may be in segments (`parallel`), two more find what enters a segment, without running it:

    forward_states(given, states, constants, exchange) -> states
    backward_states(given, states, constants, saved, cotangents, final_cotangents, exchange) -> final cotangents

    `exchange` takes the maps of this segment (`Segment`) and returns what enters it, for each its states.

    `saved` is the layout of tensors that the forward pass always saves, over B, H, T ("2 T" for two of each step), "T intervals"
    and dims, with "input" or "wide" (float32, or float64) for the dtype; so torch.compile knows it without a run. With
    `saved_packed` it also holds for packed sequences.
    Compiled code keeps these only, and where the backward pass asks for something else, computes the forward pass again.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    features: frozenset[str] = frozenset()
    forward_states: Callable[..., Any] | None = None
    backward_states: Callable[..., Any] | None = None
    saved: dict[str, tuple[tuple[str, ...], str]] | None = None
    saved_packed: bool = False
