"""An op as users call it: checks its arguments, chooses a backend, and hands on to autograd or torch's library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError
from chunkform.types import PublicOp

from ..launch.varlen import check_starts, packed_of
from .about import about
from .arguments import FLOATS, Checked, check_call, check_deterministic, check_flag, one_of, states_of
from .backend_choice import chosen_backend
from .call import Call, Wants, is_empty, make_call
from .chunk_replay import call_by_chunks, step_by_chunks
from .decode import Step
from .drafts import commit, draft
from .forward_mode import is_on, refuse_tangents
from .front import Asked, results_of, wants_gradients
from .naming import named
from .passes import Passes
from .pools import call_in_pool, step_in_pool
from .prefixes import with_prefixes
from .results import Public, Results
from .signature import Argument, Backend, Signature, States
from .torch_library import Option, Registered, register
from .traced import InLibrary

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Argument", "Backend", "Op", "Signature"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class Known:
    """A kind of call: what was found out about its arguments, and the call itself, but for where packed sequences start."""

    op: Op
    checked: Checked
    casting: bool
    options: Options
    call: Call | None = None
    whole: Passes | None = None  # of calls whose sequences aren't packed

    @property
    def constants(self) -> dict[str, float]:
        return self.checked.constants

    def prepared(self, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if not self.casting:
            return tensors
        casts = zip(tensors, self.checked.casts, strict=True)
        return [x if kind is None or x is None else x.to(kind) for x, kind in casts]

    def passes(self, tensors: Sequence[Tensor | None], starts: Tensor | None) -> Passes:
        if starts is None and self.whole is not None:
            return self.whole
        call, s = self.call, self.op.signature
        if call is None:
            o, c = self.options, self.checked
            called = c.backend, c.constants, c.sizes["H"], None, o.precision, tensors, o.deterministic
            wants = Wants(o.finals, wants_gradients(tensors), o.recompute)
            call = make_call(s, self.op.backends, *called, wants)
            if "replays" in call.backend.features and not is_empty(tensors):
                call.replays = {}
            self.call = call
        if starts is not None:
            return Passes(replace(call, packed=packed_of(s.name, starts, self.checked.sizes["T"])))
        self.whole = Passes(call)
        return self.whole

    def in_library(self, tensors: Sequence[Tensor | None]) -> Sequence[Option]:
        o, c = self.options, self.checked
        keep = o.recompute != "always" and wants_gradients(tensors)
        return c.sizes["H"], c.backend, o.precision, keep, o.deterministic


class Options(NamedTuple):
    """What a call says beside arguments. finals: are the final states wanted?"""

    precision: str
    backend: str | None
    recompute: str
    state_dtype: torch.dtype | None
    finals: bool
    deterministic: bool


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """A generated op. Calling it validates and dispatches; `backends` has `torch` and, where triton is installed, `triton`.

    `step` computes one step, for generation. `module` is the name of the module that the op is in, whose last part names it in
    `torch.ops.chunkform`.
    """

    signature: Signature
    backends: dict[str, Backend]
    step: Step | None = None
    module: str = ""
    registered: Registered | None = field(init=False, default=None)
    public: Public | None = field(init=False, default=None)
    known: dict[Any, Known] = field(init=False, default_factory=dict)  # kinds of calls that were checked before

    def __post_init__(self) -> None:
        if self.module:
            name = self.module.rpartition(".")[2]
            object.__setattr__(self, "registered", register(name, InLibrary(self.signature, self.backends)))

    def __call__(
        self,
        given: dict[str, Tensor | float],
        initial_state: States = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
        context_parallel: ProcessGroup | None = None,
        recompute: str = "auto",
        precision: str = "default",
        state_dtype: torch.dtype | None = None,
        backend: str | None = None,
        deterministic: bool = False,
    ) -> Any:
        """(outputs.., final state): `given` by declared names; see the generated function for the public signature."""
        s = self.signature
        unknown = bool(self.module) and self.registered is None
        if (unknown or is_on()) and torch.compiler.is_compiling():  # graphs hold neither it, nor tangents
            options = (cu_seqlens, context_parallel, recompute, precision, state_dtype, backend, deterministic)
            return torch.compiler.disable(self)(given, initial_state, output_final_state, *options)
        if is_on():
            refuse_tangents(s.name, [*given.values(), *states_of(s, initial_state)])
        if context_parallel is not None:
            _check_options(s.name, recompute, precision, state_dtype, deterministic)
            if backend is not None or precision != "default":
                raise ArgumentError(f"{s.name}: context_parallel takes neither backend nor precision")
            *outputs, last = _over_ranks()(
                self, given, initial_state, output_final_state, cu_seqlens, context_parallel, deterministic
            )
            return s.result()(*outputs, _stored(last, state_dtype))
        if not isinstance(deterministic, bool):  # which may be equal to one that is
            _check_options(s.name, recompute, precision, state_dtype, deterministic)
        if not isinstance(output_final_state, bool):
            check_flag(s.name, "output_final_state", output_final_state)
        tensors: list[Any] = [given[a.name] for a in s.tensors] + states_of(s, initial_state)
        numbers = [given[a.name] for a in s.constants]
        options = precision, backend, recompute, state_dtype, bool(output_final_state), deterministic
        asked = Asked(s, tensors, numbers, options, backend, cu_seqlens, s.state_layouts, s.result_layouts)
        found = results_of(self.registered, self.known, asked, self._check)
        outputs = found[: len(s.outputs)]
        if not output_final_state:
            return s.result()(*outputs, None)
        finals = tuple(found[len(s.outputs) :])
        return s.result()(*outputs, _stored(finals[0] if len(finals) == 1 else finals, state_dtype))

    def __repr__(self) -> str:
        return f"<Op {self.signature.name}({', '.join(a.key for a in self.signature.arguments)})>"

    def named(self, function: Callable[P, R]) -> PublicOp[P, R]:
        """The function that users call, or its step: whose errors name arguments, and which says what it was made of."""
        plain: Any = named(function)
        if function.__name__ != self.signature.name:
            return named(function, functools.partial(served_step, self, plain))
        found: Any = named(function, functools.partial(served_call, self, plain))
        found.states = self.signature.states  # names and dims, for who makes room for them
        if (step := self.step) is not None:
            found.draft = lambda *arguments, **options: draft(step, arguments, options)
            found.commit = lambda drafts, accepted: commit(step, drafts, accepted)
            found.prefixes = lambda *arguments, **options: with_prefixes(self.signature, plain, arguments, options)
            object.__setattr__(self, "public", plain)
        return about(found)

    def _check(self, asked: Asked) -> Known:
        s, tensors, starts, o = self.signature, asked.tensors, asked.starts, Options(*asked.options)
        _check_options(s.name, o.recompute, o.precision, o.state_dtype, o.deterministic)
        sequences = starts.shape[0] - 1 if isinstance(starts, Tensor) and starts.dim() == 1 else None
        constants = dict(zip((a.name for a in s.constants), asked.numbers, strict=True))
        found = check_call(s, tensors, constants, sequences)
        some: Any = tensors[0]
        if starts is not None:
            check_starts(s.name, starts, found.sizes["B"], some.device)
        name = chosen_backend(self, o.backend, {a.name: x for a, x in zip(s.tensors, tensors, strict=False)})
        self._supports(name, starts is not None)
        checked = Checked(found.casts, found.constants, found.sizes, name)
        return Known(self, checked, any(kind is not None for kind in found.casts), o)

    def _supports(self, backend: str, packed: bool) -> None:
        """Refuse what a backend can't do, and nothing else can do for it."""
        features, name = self.backends[backend].features, self.signature.name
        if packed and "packed" not in features:
            raise BackendError(
                f"{name}: cu_seqlens: the {backend} backend of this op takes no packed sequences yet; use backend='torch'"
            )


@functools.cache
def _over_ranks() -> Callable[..., Results]:
    """A call on a sequence whose segments lie on several ranks; loaded when it is first wanted."""
    from .context_parallel import run

    return run


def served_call(op: Op, plain: Public, arguments: tuple[object, ...], options: dict[str, object]) -> Results:
    """A call with a pool of states, or whose state goes on by chunks."""
    if "state_indices" in options or "state_pool" in options:
        return call_in_pool(op.signature, plain, arguments, options)
    if op.step is None:
        raise ArgumentError(
            f'{op.signature.name}: deterministic must be True or False, got "chunk", which is for decoding steps, '
            "and this op has none"
        )
    return call_by_chunks(op.signature, plain, arguments, options)


def served_step(op: Op, plain: Public, arguments: tuple[object, ...], options: dict[str, object]) -> Results:
    """The same for a step."""
    assert op.step is not None and op.public is not None
    if options.get("deterministic") == "chunk":
        return step_by_chunks(op.step, op.public, plain, arguments, options)
    return step_in_pool(op.step, plain, arguments, options)


def _stored(state: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
    """A final state, or a tuple of them, in a dtype."""
    if dtype is None or state is None:
        return state
    return tuple(x.to(dtype) for x in state) if isinstance(state, tuple) else state.to(dtype)


def _check_options(
    name: str, recompute: str, precision: str, state_dtype: torch.dtype | None, deterministic: object
) -> None:
    one_of(name, "recompute", recompute, ("auto", "always", "never"))
    one_of(name, "precision", precision, ("fast", "default", "high"))
    if state_dtype is not None and state_dtype not in FLOATS:
        raise ArgumentError(f"{name}: state_dtype must be a floating-point torch.dtype or None, got {state_dtype!r}")
    check_deterministic(name, deterministic)
