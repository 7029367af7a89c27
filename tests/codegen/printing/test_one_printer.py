"""One walk makes expressions of operations: no other function of the compiler has its own case for each of several of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from chunkform.codegen.attention.print_maps import FeatureText
from chunkform.codegen.printing.expressions import TermWalk
from chunkform.codegen.printing.torch_expressions import TorchText
from chunkform.codegen.printing.walk import Walk
from chunkform.codegen.recurrence.triton.kernels.tile_lowering import Tiles

ROOT = Path(__file__).resolve().parents[3]
ARITHMETIC = {"add", "mul", "pow", "fn", "max", "sum", "peak", "expand"}
FOR_PEOPLE = {"ir/notation.py"}  # formulas as one reads them, plain or in LaTeX
PRINTED = ("str", "Code", "Value", "Made")  # what printers make of an operation


def test_one_function_says_what_each_operation_becomes() -> None:
    found = {file for file, name, operations in printers() if len(operations) > 2}
    assert found - FOR_PEOPLE == {"printing/walk.py"}


def test_code_is_printed_by_no_printer_of_sympy() -> None:
    names = {"StrPrinter", "PythonCodePrinter", "pycode", "lambdify", "doprint", "CodePrinter"}
    for path in (ROOT / "codegen").rglob("*.py"):
        tree = ast.parse(path.read_text())
        used = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
        used |= {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
        assert not names & used, path


def test_this_would_see_another_printer() -> None:
    another = """
def text(self, x: Node) -> str:
    match x.op:
        case "add" | "mul":
            return "+".join(map(self.text, x.args))
        case "pow":
            return "**"
"""
    table = 'def code(x: Node) -> Code:\n    return {"add": plus, "mul": times, "fn": call}[x.op](x)\n'
    tests = 'def text(x: Node) -> str:\n    return "a" if x.op == "add" else "b" if x.op == "mul" else "c" * (x.op in ("fn",))\n'
    for source in (another, table, tests):
        assert [len(x) for _, x in operations_of(ast.parse(source))] == [3], source


def test_each_printer_takes_the_walk() -> None:
    """And each operation has one method there, which no printer goes around."""
    names = [x.__name__ for x in below(Walk)]
    assert {TermWalk, TorchText, FeatureText, Tiles} <= set(below(Walk)) and len(set(names)) == len(names)
    methods = {n for n, x in vars(Walk).items() if getattr(x, "__isabstractmethod__", False)}
    cases = {x.func.attr for x in ast.walk(ast.parse(source_of("printing/walk.py"))) if is_own_call(x)}
    assert methods == cases


def below(of: type) -> Iterator[type]:
    for x in of.__subclasses__():
        yield x
        yield from below(x)


def is_own_call(x: ast.AST) -> bool:
    return isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute) and ast.unparse(x.func.value) == "self"


def source_of(file: str) -> str:
    return (ROOT / "codegen" / file).read_text()


def printers() -> Iterator[tuple[str, str, set[str]]]:
    """(file, function, operations) of each function of the compiler that makes text, or an expression, by operations."""
    for path in sorted((ROOT / "codegen").rglob("*.py")):
        file = path.relative_to(ROOT / "codegen").as_posix()
        if not file.startswith(("claims/", "paper/")):  # which have expressions of their own
            yield from ((file, *x) for x in operations_of(ast.parse(path.read_text())))


def operations_of(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """The operations that each function which makes text asks for, by a case, a comparison, or a key."""
    for f in ast.walk(tree):
        if isinstance(f, ast.FunctionDef) and f.returns is not None and ast.unparse(f.returns) in PRINTED:
            operations = {name for x in ast.walk(f) for name in asked(x)} & ARITHMETIC
            if operations:
                yield f.name, operations


def asked(x: ast.AST) -> Iterator[str]:
    match x:
        case ast.Match(subject=ast.Attribute(attr="op"), cases=cases):
            patterns = [y for case in cases for y in ast.walk(case.pattern)]
            yield from (words for y in patterns if isinstance(y, ast.MatchValue) for words in constants(y.value))
        case ast.Compare(left=ast.Attribute(attr="op"), comparators=others):
            yield from (words for y in others for words in constants(y))
        case ast.Dict(keys=keys):
            yield from (words for y in keys if y is not None for words in constants(y))


def constants(x: ast.AST) -> Iterator[str]:
    yield from (y.value for y in ast.walk(x) if isinstance(y, ast.Constant) and isinstance(y.value, str))
