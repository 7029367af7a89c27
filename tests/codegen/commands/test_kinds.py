"""The kinds of declarations are behind one protocol, which says of each function what it takes and makes."""

import ast
import inspect
from types import ModuleType
from typing import get_type_hints

import pytest

from chunkform.codegen.commands import attention_kind, kinds, program_kind, recurrence_kind

MODULES = (recurrence_kind, attention_kind, program_kind)
FUNCTIONS = [n for n in vars(kinds.Kind) if not n.startswith("_")]


def annotations(module: ModuleType) -> dict[str, list[str]]:
    """What the functions of a module, and the methods of its classes, take, as they say it."""
    found = {}
    for f in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(f, ast.FunctionDef):
            given = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]
            found[f.name] = [ast.unparse(x.annotation) for x in given if x.annotation is not None]
    return found


@pytest.mark.parametrize("module", [kinds, *MODULES], ids=lambda m: m.__name__.rpartition(".")[2])
def test_what_functions_of_a_kind_take_has_a_type(module: ModuleType) -> None:
    assert {n: said for n, said in annotations(module).items() if "Any" in " ".join(said)} == {}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_kind_takes_what_it_makes(module: ModuleType) -> None:
    """`make lint` holds each module against the protocol; here that the module has one type of what is compiled."""
    assert [n for n in FUNCTIONS if not callable(getattr(module, n, None))] == []
    compiled = get_type_hints(module.compile_spec)["return"]
    assert compiled.__name__.startswith("Compiled") and {"name", "family", "gates"} <= {
        *dir(compiled),
        *compiled.__annotations__,
    }
    assert annotations(module)["check_one"][1] == compiled.__name__ == annotations(module)["subject"][1]
