"""Where a spec file would branch on a term: each test and each comparison for equality is looked at as it is made.

Python takes any term for true, and two that are spelt otherwise for unequal, so that one branch would be taken without a word.
"""

from __future__ import annotations

import ast

import sympy

from chunkform.errors import SpecError

from .expression import Matrix
from .source import caller

TRUE, EQUAL = "__chunkform_true__", "__chunkform_equal__"  # what a file calls them while it runs
_HOW = "a spec has no branches; write Max, Min, relu or sigmoid"


def looked_at(tree: ast.Module) -> ast.Module:
    """The same program, whose tests and comparisons are looked at."""
    _Tests().visit(tree)
    return tree


def names() -> dict[str, object]:
    """What such a program calls."""
    return {TRUE: _true, EQUAL: _equal}


class _Tests(ast.NodeTransformer):
    def _test(self, node: ast.If | ast.IfExp | ast.While | ast.Assert) -> ast.AST:
        self.generic_visit(node)
        node.test = _call(TRUE, node.test)
        return node

    visit_If = visit_IfExp = visit_While = visit_Assert = _test

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        self.generic_visit(node)
        node.values[:-1] = [_call(TRUE, x) for x in node.values[:-1]]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.UnaryOp:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            node.operand = _call(TRUE, node.operand)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs = [_call(TRUE, x) for x in node.ifs]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if any(isinstance(x, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for x in node.ops):
            node.left = _call(EQUAL, node.left)
        for i, x in enumerate(node.ops):
            if isinstance(x, ast.Eq | ast.NotEq):
                node.comparators[i] = _call(EQUAL, node.comparators[i])
        return node


def _call(function: str, x: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name(function, ast.Load()), x), [x], []), x)


def _term(x: object) -> bool:
    """Is this a term of a spec, whose value isn't known?"""
    return isinstance(x, Matrix) or (isinstance(x, sympy.Basic) and bool(x.free_symbols))


def _true(x: object) -> object:
    if _term(x):
        raise SpecError(f"{x} has no truth value: {_HOW}", caller())
    return x


def _equal(x: object) -> object:
    if _term(x):
        raise SpecError(
            f"{x} is compared: {_HOW}. Whether two are one and the same quantity is asked by `is`", caller()
        )
    return x
