"""Puts generated ops in the place of the functions that models of transformers call for their recurrences."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType, ModuleType, TracebackType
from typing import SupportsIndex
from weakref import WeakKeyDictionary

from torch.nn import Module

from chunkform.errors import ArgumentError

Replacement = Callable[[object], object]  # of what a modeling module has by a name: what stands there instead
Place = tuple[object, str, Replacement]  # an owner, and its attribute that is to be replaced

MODELS = "transformers.models"
OPS = {
    "torch_chunk_gated_delta_rule": "gated_delta_rule",
    "chunk_kimi_delta_attention": "kimi_delta_attention",
    "mamba2_chunk_scan": "lightning_attention",
    "MiniMaxLightningAttention": "retention",
    "xLSTMBackend": "lightning_attention",
}


def models() -> dict[str, str]:
    """The models of the installed transformers that have a recurrence of the catalogue: folder -> op.

    Found by the names that their modeling files define, so that a later version's models are found too.
    """
    return {folder: op for folder, op, _ in _found()}


def enable(model: Module | None = None) -> Enabled:
    """Have models of transformers run on generated ops: forwards, backwards, with caches and in `generate`.

        enable()                      # every model of this process, also those that exist, until .disable()
        with enable(): ...            # for a while
        enable(model)                 # the layers of one model

    Args:
        model: a model (any torch module) whose layers are meant; None for all models of the library.

    Returns:
        What was replaced, with `disable()`; it is a context, too.

    Raises:
        chunkform.errors.ArgumentError: transformers isn't installed, or the model has no layer that calls such a recurrence.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ArgumentError("enable: transformers isn't installed: pip install 'transformers>=5.17'")
    if not isinstance(model, Module | None):
        raise ArgumentError(f"enable: model must be a torch module, or None for all models, got {model!r:.60}")
    if model is None:
        return Enabled(tuple(_everywhere()))
    places = tuple(_in_model(model))
    if not places:
        raise ArgumentError(
            f"enable: {type(model).__name__} has no layer with a recurrence of the catalogue; there are "
            f"{', '.join(models())} in transformers {sys.modules['transformers'].__version__}"
        )
    return Enabled(places)


@dataclass(frozen=True)
class Replaced:
    """An attribute that was set, and what it was before."""

    owner: object
    name: str
    before: object

    def __repr__(self) -> str:
        owner = self.owner.__name__ if isinstance(self.owner, ModuleType | type) else type(self.owner).__name__
        return f"{owner}.{self.name}"


@dataclass
class _Held:
    """What an attribute was before, and who has it replaced."""

    before: object
    by: set[object]


_LOCK = threading.RLock()
_HELD: WeakKeyDictionary[object, dict[str, _Held]] = WeakKeyDictionary()  # by owner and name


class Enabled:
    """What `enable` has replaced, until `disable()` or the end of a with block.

    What was replaced before is left to who did it. A with block keeps all of it meanwhile, also where that is disabled first,
    so that blocks may be nested, and overlap in several threads.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._mark, self._places = object(), []
        replaced = []
        with _LOCK:
            for owner, name, make in places:
                held = _HELD.setdefault(owner, {})
                self._places.append((weakref.ref(owner), name))
                if name not in held:
                    found = getattr(owner, name)
                    before = getattr(found, "_chunkform", found)  # of a copy of a layer on our ops: the library's class
                    held[name] = _Held(before, {self._mark})
                    setattr(owner, name, make(before))
                    replaced.append(Replaced(owner, name, before))
        self.replaced = tuple(replaced)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.replaced[:3]))
        return f"<Enabled: {len(self.replaced)} replaced, {shown}{', ..' if len(self.replaced) > 3 else ''}>"

    def disable(self) -> None:
        """Put back what was there; a second time there is nothing to do."""
        with _LOCK:
            for owner, name, held in reversed([*self._held()]):
                held.by.discard(self._mark)
                if not held.by:
                    setattr(owner, name, held.before)
                    del _HELD[owner][name]

    def __enter__(self) -> Enabled:
        with _LOCK:
            for _, _, held in self._held():
                held.by.add(self._mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()

    def _held(self) -> Iterator[tuple[object, str, _Held]]:
        """All that this means and that is replaced."""
        for reference, name in self._places:
            owner = reference()
            held = None if owner is None else _HELD.get(owner, {}).get(name)
            if held is not None:
                yield owner, name, held


# --- what stands in whose place ---------------------------------------------------------------------------------------


@functools.cache
def functions() -> Mapping[str, Replacement]:
    """By name in a modeling module: what stands in the place of its function."""
    from . import functions as f

    return {
        "torch_chunk_gated_delta_rule": lambda _: f.chunk_gated_delta_rule,
        "torch_recurrent_gated_delta_rule": lambda _: f.recurrent_gated_delta_rule,
        "chunk_kimi_delta_attention": lambda _: f.chunk_kda,
        "recurrent_kimi_delta_attention": lambda _: f.recurrent_kda,
        "mamba2_chunk_scan": lambda _: f.chunk_scan,
        "mamba2_selective_state_update": lambda _: f.selective_state_update,
        "mamba2_split_conv1d_scan_combined": lambda _: f.split_conv1d_scan_combined,
        "causal_conv1d_fn": f.causal_conv1d,
        "causal_conv1d_update": f.causal_conv1d_step,
    }


@functools.cache
def methods() -> Mapping[str, Replacement]:
    """By class in a modeling module: what stands in the place of its forward."""
    from . import layers
    from . import model_calls as calls

    return {
        "MiniMaxLightningAttention": lambda _: layers.lightning_attention_layer,
        "xLSTMBackend": lambda _: layers.mlstm_backend,
        "Mamba2ForCausalLM": functools.partial(calls.on_sequences, drops=True),
        "GraniteMoeHybridModel": functools.partial(calls.on_sequences, mixes=calls.FLASH),
        "Glm5NextTextModel": functools.partial(calls.on_sequences, mixes=calls.INDEXED),
        "xLSTMForCausalLM": functools.partial(calls.on_sequences, mixes=calls.UNTOLD),
        "xLSTMModel": functools.partial(calls.on_sequences, mixes=calls.UNTOLD),
    }


def _method(cls: type) -> Replacement | None:
    """What stands in the place of a class's forward: by its name, by how that ends in every model, or as a model of tokens."""
    from transformers import PreTrainedModel

    from . import layers, model_calls

    endings = {"RMSNormGated": layers.gated_norm, "ForgetGate": layers.forget_gate}
    other = next((make for end, make in endings.items() if cls.__name__.endswith(end)), None)
    if issubclass(cls, PreTrainedModel) and "forward" in vars(cls):
        other = model_calls.on_sequences if "input_ids" in inspect.signature(cls.forward).parameters else None
    return methods().get(cls.__name__, other)


@functools.cache
def _found() -> tuple[tuple[str, str, str], ...]:
    """(folder, op, module) of each model of the installed version."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return ()
    defined = re.compile(rf"^\s*(?:def|class) ({'|'.join(OPS)})\b", re.MULTILINE)
    found = []
    for path in sorted(Path(spec.submodule_search_locations[0], "models").glob("*/modeling_*.py")):
        match = defined.search(path.read_text(encoding="utf-8"))
        if match is not None:
            found.append((path.parent.name, OPS[match[1]], f"{MODELS}.{path.parent.name}.{path.stem}"))
    return tuple(found)


def _replaceable(module: ModuleType) -> dict[str, Replacement]:
    """The names of a modeling module's functions in whose place others stand."""
    return {name: make for name, make in functions().items() if getattr(module, name, None) is not None}


def _is_ours(x: object) -> bool:
    return getattr(x, "__module__", "").startswith(__package__)


def _everywhere() -> Iterator[Place]:
    for _, _, name in _found():
        module = importlib.import_module(name)
        for attribute, make in _replaceable(module).items():
            yield module, attribute, make
        for cls in [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == name]:
            method = _method(cls)
            if method is not None and "forward" in vars(cls):
                yield cls, "forward", method


# --- one model --------------------------------------------------------------------------------------------------------


def _in_model(model: Module) -> Iterator[Place]:
    """Layers of the model become of a class of their own, whose methods see other functions than the module's."""
    for layer in model.modules():
        if _on_ops(getattr(type(layer), "_chunkform", type(layer))) is not None:
            yield layer, "__class__", _on_ops


def _on_ops(cls: type) -> type | None:
    """A class as this one, on our ops; None where it is of no model with a recurrence, or calls none."""
    known = {name for _, _, name in _found()}
    home = next((c.__module__ for c in cls.__mro__ if c.__module__ in known), None)
    return None if home is None else _own_class(cls, home)


def _reduced(layer: Module, protocol: SupportsIndex) -> tuple[object, ...]:
    """A layer on our ops as it is pickled: by the library's class, which every process has."""
    own = type(layer)
    make, given, *rest = own._chunkform.__reduce_ex__(layer, protocol)
    return _remade, (make, *(own._chunkform if x is own else x for x in given)), *rest


def _remade(make: Callable[..., Module], *given: object) -> Module:
    layer = make(*given)
    layer.__class__ = _on_ops(type(layer))
    return layer


@functools.cache
def _own_class(cls: type, home: str) -> type | None:
    """A class as cls whose methods call generated ops; None where none of them calls a recurrence."""
    view = _view(home)
    own: dict[str, object] = {}
    for base in cls.__mro__:
        make = _method(base) if base.__module__ == home else None
        for name, method in vars(base).items() if base.__module__ == home else ():
            if inspect.getattr_static(cls, name) is not method or not isinstance(method, FunctionType):
                continue  # a subclass has its own
            new = make(method) if make is not None and name == "forward" else _seeing(method, home, view)
            if new is not method:
                own[name] = new
    if not own:
        return None
    made = type(cls.__name__, (cls,), own | {"_chunkform": cls, "__reduce_ex__": _reduced, "__module__": view.__name__})
    setattr(view, cls.__name__, made)
    return made


@functools.cache
def _view(home: str) -> ModuleType:
    """A modeling module with other functions: torch.compile looks names up in it, by its own name."""
    module = importlib.import_module(home)
    view = ModuleType(f"{home}_on_chunkform", module.__doc__)
    view.__dict__.update({n: x for n, x in vars(module).items() if n not in ("__name__", "__spec__", "__loader__")})
    functions = {n: (make, getattr(module, n)) for n, make in _replaceable(module).items()}
    view.__dict__.update({n: x if _is_ours(x) else make(x) for n, (make, x) in functions.items()})
    sys.modules[view.__name__] = view
    return view


def _seeing(function: object, home: str, view: ModuleType, within: tuple[object, ...] = ()) -> object:
    """A function with the view's names in the place of its module's, through decorators; itself where it uses none of them."""
    if not isinstance(function, FunctionType) or function in within:
        return function
    within = *within, function
    cells = function.__closure__ or ()
    inner = [_seeing(c.cell_contents, home, view, within) if _is_filled(c) else None for c in cells]
    changed = [_is_filled(c) and x is not c.cell_contents for c, x in zip(cells, inner, strict=True)]
    uses = function.__globals__.get("__name__") == home and any(n in functions() for n in function.__code__.co_names)
    if not uses and not any(changed):
        return function
    closure = tuple(CellType(x) if new else c for c, x, new in zip(cells, inner, changed, strict=True))
    names = view.__dict__ if uses else function.__globals__
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure or None)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def _is_filled(cell: CellType) -> bool:
    """Whether a closure's variable has a value: one that is set later has none yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
