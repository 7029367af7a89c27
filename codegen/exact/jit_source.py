"""Functions of the runtime that kernels call, as data: their own source, statement by statement, so that a kernel is run with
what it really calls."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from ..ir.code import (
    Attribute,
    Binary,
    Call,
    Cast,
    Code,
    Either,
    Expanded,
    Inverted,
    Item,
    Items,
    Literal,
    Load,
    Method,
    Name,
    Negative,
    Not,
)
from ..ir.kernel_ir import Barrier, Body, Do, For, If, Let, Return, Statement, Store

OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&",
    ast.BitOr: "|", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.LShift: "<<", ast.RShift: ">>", ast.Is: "is", ast.IsNot: "is not", ast.And: "and", ast.Or: "or",
}  # fmt: skip


MODULES = {"tl": "tl", "gl": "tl", "triton": "triton"}  # Gluon's functions mean what Triton's of the same name do


class NoMeaning(Exception):
    """There is no exact meaning for what a kernel does."""


@dataclass(frozen=True)
class Helper:
    """A function: its parameters, what those are by default, what it does, and what its names stand for where it is defined."""

    parameters: tuple[str, ...]
    defaults: dict[str, Any]
    body: Body
    known: dict[str, object]


def helper(function: Callable[..., object]) -> Helper:
    """A function that Triton compiles, from its source."""
    return _helper(getattr(function, "fn", function))  # what Triton makes of it has a hash of all that it calls


@cache
def _helper(plain: Callable[..., object]) -> Helper:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    assert isinstance(node, ast.FunctionDef)
    parameters = inspect.signature(plain).parameters
    defaults = {n: x.default for n, x in parameters.items() if x.default is not inspect.Parameter.empty}
    return Helper(tuple(a.arg for a in node.args.args), defaults, _body(node.body), plain.__globals__)


def body_of(text: str) -> Body:
    """The statements of a text in Python, as kernels have them."""
    return _body(ast.parse(textwrap.dedent(text)).body)


def _body(nodes: list[ast.stmt]) -> Body:
    return tuple(x for node in nodes for x in _statement(node))


def _statement(node: ast.stmt) -> Body:
    match node:
        case ast.Expr(value=ast.Constant()):
            return ()
        case ast.Assign(targets=[target], value=value):
            return (Let(_names(target), _code(value)),)
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return (Let((name,), _code(value)),)
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            return (Let((name,), _code(value), f"{OPERATORS[type(op)]}="),)
        case ast.If(test=test, body=body, orelse=otherwise):
            return (If(_code(test), _body(body), _body(otherwise)),)
        case ast.For(target=ast.Name(id=name), iter=over, body=body):
            return (For(name, _code(over), _body(body)),)
        case ast.Return(value=value):
            return (Return(None if value is None else _code(value)),)
        case ast.Expr(value=ast.Call() as call):
            return (_called(call),)
    raise NoMeaning(ast.unparse(node))


def _called(call: ast.Call) -> Statement:
    made = _code(call)
    assert isinstance(made, Call)
    if made.function == "tl.debug_barrier":
        return Barrier()
    if made.function == "tl.store":
        return Store(made.arguments[0], made.arguments[1], dict(made.keywords).get("mask"))
    return Do(made)


def _names(target: ast.expr) -> tuple[str, ...]:
    found = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(x, ast.Name) for x in found):
        raise NoMeaning(ast.unparse(target))
    return tuple(x.id for x in found if isinstance(x, ast.Name))


def _code(node: ast.expr) -> Code:
    match node:
        case ast.Name(id=name):
            return Name(name)
        case ast.Constant(value=None | str() | int() | float() as value):
            return Literal(value)
        case ast.Attribute(value=ast.Name(id="tl" | "gl" | "triton" as module), attr=name):
            return Name(f"{MODULES[module]}.{name}")
        case ast.Attribute(value=value, attr=name):
            return Attribute(_code(value), name)
        case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() | ast.Compare():
            return _operation(node)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return Either(_code(body), _code(test), _code(otherwise))
        case ast.Tuple(elts=values):
            return Items(tuple(map(_code, values)))
        case ast.List(elts=values):
            return Items(tuple(map(_code, values)), shape=True)
        case ast.Subscript(value=value, slice=index):
            return _indexed(_code(value), index)
        case ast.Call():
            return _call(node)
    raise NoMeaning(ast.unparse(node))


def _operation(node: ast.expr) -> Code:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return Binary(OPERATORS[type(op)], _code(left), _code(right))
        case ast.BoolOp(op=op, values=values):
            return reduce(lambda a, b: Binary(OPERATORS[type(op)], a, b), map(_code, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Negative(_code(operand))
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return Inverted(_code(operand))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(_code(operand))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return Binary(OPERATORS[type(op)], _code(left), _code(right))
    raise NoMeaning(ast.unparse(node))


def _indexed(value: Code, index: ast.expr) -> Code:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if all(isinstance(x, ast.Slice) or (isinstance(x, ast.Constant) and x.value is None) for x in parts):
        return Expanded(value, tuple(isinstance(x, ast.Slice) for x in parts))
    return Item(value, _code(index))


def _call(node: ast.Call) -> Code:
    arguments = tuple(_code(x) for x in node.args if not _is_layout(x))
    keywords = tuple((str(k.arg), _code(k.value)) for k in node.keywords if not _is_layout(k.value))
    match node.func:
        case ast.Name(id=name):
            return Call(name, arguments, keywords)
        case ast.Attribute(value=ast.Name(id="tl", ctx=_), attr="load"):
            known = dict(keywords)
            return Load(arguments[0], known.get("mask"), known.get("other"))
        case ast.Attribute(value=ast.Name(id="tl" | "gl" | "triton" as module), attr=name):
            return Call(f"{MODULES[module]}.{name}", arguments, keywords)
        case ast.Attribute(value=value, attr="to"):
            return Cast(_code(value), arguments[0].text)
        case ast.Attribute(value=value, attr=name):
            return Method(_code(value), name, arguments, keywords)
    raise NoMeaning(ast.unparse(node))


def _is_layout(node: ast.expr) -> bool:
    """Does it say where a value lies, which changes no value?"""
    match node:
        case ast.Attribute(attr="layout"):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="gl"), attr=name)):
            return name.endswith("Layout")
    return False
