"""Calls whose arguments don't fit by name or number: what is wrong, and the nearest name."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chunkform.errors import ArgumentError

Function = TypeVar("Function", bound=Callable[..., Any])


def named(function: Function, pooled: Callable[..., object] | None = None) -> Function:
    """The function, with an `ArgumentError` in the place of Python's TypeError where arguments don't fit by name or number.

    pooled: what a call with `state_indices`, `state_pool` or `deterministic="chunk"` is, of its arguments and options."""
    refused, misfit = ArgumentError, _misfit

    def call(*arguments: object, **options: object) -> Any:
        if pooled is not None and (
            "state_indices" in options or "state_pool" in options or options.get("deterministic") == "chunk"
        ):
            return pooled(arguments, options)
        try:
            return function(*arguments, **options)
        except TypeError as error:
            begun = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            problem = None if begun else misfit(function, arguments, options)
            if problem is None:
                raise
        raise refused(problem)

    # With the globals of its module, as a function of that module has them.
    made = types.FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    return functools.update_wrapper(made, function)  # type: ignore[return-value]


def _misfit(function: Callable[..., Any], arguments: tuple[object, ...], options: Mapping[str, object]) -> str | None:
    """What is wrong with the names and the number of arguments, in one sentence; None where nothing is."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters, arguments = parameters[1:], arguments[1:]
    said = _said(function, parameters)
    known = [p.name for p in parameters]
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = {*places[: len(arguments)], *options}
    for n in options:
        if n not in known:
            near = difflib.get_close_matches(n, [x for x in known if x not in given], 1, 0.5)
            return f"{said} has no argument {n!r}: " + (f"did you mean {near[0]}?" if near else _taken(parameters))
    if len(arguments) > len(places):
        return f"{said} takes at most {len(places)} arguments by position, got {len(arguments)}: {_taken(parameters)}"
    for n in places[: len(arguments)]:
        if n in options:
            return f"{said}: {n} is given twice, by position and by name"
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
    return f"{said} needs {_listed(missing)} as well: {_taken(parameters)}" if missing else None


def _said(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> str:
    """What users call it."""
    name = function.__qualname__
    own = getattr(getattr(getattr(function, "__globals__", {}).get("OP"), "signature", None), "name", None)
    if own is None:
        return name.removesuffix(".__init__").removesuffix("_op")
    return own if name == own or parameters[0].name != "state" else f"{own}.step"


def _taken(parameters: list[inspect.Parameter]) -> str:
    needed = [p.name for p in parameters if p.default is p.empty]
    more = [p.name for p in parameters if p.default is not p.empty]
    return "it takes " + _listed(needed) + (f", and may be given {_listed(more)}" if needed and more else _listed(more))


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
