"""An op as users call it: checks its arguments, chooses a backend, and hands on to autograd or torch's library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError
from chunkform.types import PublicOp

from ..launch.replay import layouts
from ..launch.varlen import check_starts, packed_of
from . import debugging
from .about import about
from .arguments import FLOATS, Checked, autocast_dtype, check_call, check_flag, one_of, states_of
from .autograd import apply
from .backend_choice import chosen_backend, interprets, is_traced
from .call import Call, is_empty, make_call
from .chunk_replay import call_by_chunks, step_by_chunks
from .decode import Step
from .drafts import commit, draft
from .forward_mode import is_on, refuse_tangents
from .naming import named
from .passes import Passes
from .pools import call_in_pool, step_in_pool
from .prefixes import with_prefixes
from .results import Public, Results
from .signature import Argument, Backend, Signature, States
from .torch_library import Registered, register
from .traced import InLibrary

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Argument", "Backend", "Op", "Signature"]

P = ParamSpec("P")
R = TypeVar("R")
REMEMBERED = 256  # kinds of calls whose arguments need no second look


@dataclass(eq=False)
class Known:
    """A kind of call: what was found out about its arguments, and the call itself, but for where packed sequences start."""

    checked: Checked
    casting: bool
    call: Call | None = None


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
        looking = debugging._on and context_parallel is None and debugging.can_look()
        if looking:
            debugging.look(s, [given[a.name] for a in s.tensors] + states_of(s, initial_state), cu_seqlens)
        if context_parallel is not None:
            _check_options(s.name, recompute, precision, state_dtype, deterministic)
            if backend is not None or precision != "default":
                raise ArgumentError(f"{s.name}: context_parallel takes neither backend nor precision")
            from .context_parallel import run

            *outputs, last = run(
                self, given, initial_state, output_final_state, cu_seqlens, context_parallel, deterministic
            )
            return s.result()(*outputs, _stored(last, state_dtype))
        tensors = [given[a.name] for a in s.tensors] + states_of(s, initial_state)
        spoilt: list[bool] = []
        if looking:
            tensors = debugging.watched(s, tensors, spoilt)
        traced = self.registered is not None and is_traced(tensors)
        if not isinstance(deterministic, bool):
            _check_options(s.name, recompute, precision, state_dtype, deterministic)
        if not isinstance(output_final_state, bool):
            check_flag(s.name, "output_final_state", output_final_state)
        options = (precision, backend, recompute, state_dtype, bool(output_final_state), deterministic)
        known = self._known(tensors, given, cu_seqlens, options, remember=not traced)
        if known.casting:
            casts = known.checked.casts
            tensors = [x if kind is None else x.to(kind) for x, kind in zip(tensors, casts, strict=True)]
        run_it = self._traced if traced else self._run
        found = run_it(known, tensors, cu_seqlens, options)
        if looking:
            debugging.look_at_results(s, found, spoilt)
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

    def _run(
        self, known: Known, tensors: list[Tensor | None], starts: Tensor | None, options: tuple[Any, ...]
    ) -> Sequence[Tensor]:
        call = known.call
        if call is None:
            precision, _, recompute, _, finals, deterministic = options
            c = known.checked
            called = c.backend, c.constants, c.sizes["H"], None, precision, tensors, deterministic
            call = make_call(self.signature, self.backends, *called)
            call.recompute, call.finals = recompute, finals
            call.needs_backward = _wants_gradients(tensors)
            if "replays" in call.backend.features and not is_empty(tensors):
                call.replays = {}
            known.call = call
        if starts is not None:
            call = replace(call, packed=packed_of(self.signature.name, starts, known.checked.sizes["T"]))
        return apply(Passes(call), tensors)

    def _traced(
        self, known: Known, tensors: list[Tensor | None], starts: Tensor | None, options: tuple[Any, ...]
    ) -> Sequence[Tensor]:
        assert self.registered is not None
        precision, _, recompute, *_, deterministic = options
        c, keep = known.checked, recompute != "always" and _wants_gradients(tensors)
        more = c.sizes["H"], c.backend, precision, keep, deterministic
        return self.registered(tensors, starts, c.constants, more)

    def _known(
        self,
        tensors: list[Tensor | None],
        given: dict[str, Tensor | float],
        starts: Tensor | None,
        options: tuple[Any, ...],
        remember: bool,
    ) -> Known:
        """What is known of a call; the same for calls of the same kind, which differ in the numbers in tensors only.

        options: precision, backend, recompute, state_dtype, whether final states are wanted, and deterministic.
        """
        if not remember:
            return self._check(tensors, given, starts, options)
        try:
            numbers = [(given[a.name], type(given[a.name])) for a in self.signature.constants]
            modes = autocast_dtype(tensors[0].device.type), torch.is_grad_enabled(), interprets(options[1])
            key = (layouts(tensors), None if starts is None else layouts([starts]), options, modes, *numbers)
            found = self.known.get(key)
        except (AttributeError, TypeError, RuntimeError):  # something that isn't a tensor: the check says which
            return self._check(tensors, given, starts, options)
        if found is None:
            found = self._check(tensors, given, starts, options)
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known[key] = found
        return found

    def _check(
        self,
        tensors: list[Tensor | None],
        given: dict[str, Tensor | float],
        starts: Tensor | None,
        options: tuple[Any, ...],
    ) -> Known:
        precision, backend, recompute, state_dtype, _, deterministic = options
        _check_options(self.signature.name, recompute, precision, state_dtype, deterministic)
        sequences = starts.shape[0] - 1 if isinstance(starts, Tensor) and starts.dim() == 1 else None
        found = check_call(self.signature, tensors, given, sequences)
        if starts is not None:
            check_starts(self.signature.name, starts, found.sizes["B"], tensors[0].device)
        name = chosen_backend(self, backend, {a.name: x for a, x in zip(self.signature.tensors, tensors, strict=False)})
        self._supports(name, starts is not None)
        checked = Checked(found.casts, found.constants, found.sizes, name)
        return Known(checked, any(kind is not None for kind in found.casts))

    def _supports(self, backend: str, packed: bool) -> None:
        """Refuse what a backend can't do, and nothing else can do for it."""
        features, name = self.backends[backend].features, self.signature.name
        if packed and "packed" not in features:
            raise BackendError(
                f"{name}: cu_seqlens: the {backend} backend of this op takes no packed sequences yet; use backend='torch'"
            )


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


def _wants_gradients(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


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
    if not isinstance(deterministic, bool):
        raise ArgumentError(f"{name}: deterministic must be True or False, got {deterministic!r}")
