"""The field's words (docs/glossary.md) stand in the names of the compiler and of the runtime, and not what was there before."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from chunkform.codegen.ir.expr import IN_KEYS

ROOT = Path(__file__).parents[1]
FORMER = {  # as words of a name: what stands for them
    "walks walked walker": "sweep, swept",
    "border borders": "chunk boundary, checkpoint",
    "pairing pairings": "state-adjoint product",
    "mixing mixed": "coupled states, transition matrix",
    "world worlds": "random instance",
    "steep": "large decay range, slow path",
    "floor floors": "memory lower bound",
    "lay": "chunk layout",
}
IN_KERNELS = {  # the same in generated files and in what kernels of the runtime share, where they mean nothing else
    "walk": "sweep",
    "parts": "segment, sequence split",
    "piece pieces": "segment tail",
    "together": "fused backward",
    "ahead": "prefetch, prologue",
    "prepare": "prologue",
    "places": "chunk layout",
    "flat": "small decay range",
    "others": "slow path",
    "mix": "transition matrix",
}


def by_word(table: dict[str, str]) -> dict[str, str]:
    return {word: now for words, now in table.items() for word in words.split()}


WORDS = by_word(FORMER)
KERNEL_WORDS = WORDS | by_word(IN_KERNELS)
KERNELS = (
    "generated",
    "runtime/chunk_kernels",
    "codegen/printing/code_passes",
)  # the last: passes over kernels, by name
# Words that mean something else.
KEPT = {
    # a grid that is not as high as there are batch entries; places in memory; chunks of a stage
    "generated": "flat places_of_checkpoints solved_places TOGETHER",
    # rows but a row's own; what is done before a launch; chunks of a stage
    "runtime/chunk_kernels": "sum_of_others _prepare TOGETHER",
    "codegen/recurrence/check.py": "FLOORS floor",  # the least error that is allowed
    "integrations/engines": "mixed mixed_qkv",  # an argument of vLLM and of SGLang
    "runtime/compat/fla_layers.py": "mixed",
    "codegen/attention/split.py": "mixed",
    "codegen/claims": "mixed",
    "codegen/recurrence/gates/run_form.py": "mixed",
}
# Words with numbers that stand in generated text until it changes: arguments and names of what a prologue hands on. None comes
# to them.
NUMBERED = {"generated": "ahead1 ahead2 ahead3 ahead4 ahead22"}


@functools.cache
def names(path: Path) -> frozenset[str]:
    """What a file defines: modules, functions, classes, arguments and variables."""
    found = {path.stem}
    for x in ast.walk(ast.parse(path.read_text())):
        if isinstance(x, ast.FunctionDef | ast.ClassDef):
            found.add(x.name)
        elif isinstance(x, ast.arg):
            found.add(x.arg)
        elif isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
            found.add(x.id)
    return frozenset(found)


def said(text: str) -> list[str]:
    """The lines of the comments and of the docstrings of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    texts = [x.string for x in tokens if x.type == tokenize.COMMENT or x.string.lstrip("r").startswith('"""')]
    return [line.strip() for x in texts for line in x.splitlines()]


PHRASES = re.compile(rf"\b({'|'.join(WORDS)}|walk|step by step|pieces)\b", re.IGNORECASE)
UNREADABLE = re.compile(r"_mask\b|mask}|\bmix_|\b[0-9a-f]{10}\b")  # names that the compiler has for itself


def words_of(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def former(name: str, words: dict[str, str] = WORDS, but: Collection[str] = ()) -> list[str]:
    """The former words of a name, whichever numbers follow them."""
    return [word for own in words_of(name) if own not in but and (word := own.rstrip("0123456789")) in words]


@pytest.mark.parametrize("package", ["chunkform", "codegen", "runtime", "integrations", "spec", "generated"])
def test_names_have_the_fields_words(package):
    bad = []
    for path in sorted((ROOT / package).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        kept = {n for folder, listed in KEPT.items() if place.startswith(folder) for n in listed.split()}
        words, but = KERNEL_WORDS if place.startswith(KERNELS) else WORDS, NUMBERED.get(package, "").split()
        bad += [f"{place}: {n} ({words[w]})" for n in sorted(names(path) - kept) for w in former(n, words, but)]
    assert not bad, bad


def words_of_nodes(path: Path) -> Iterator[str]:
    """The kinds of leaves and the operations that a file makes or asks for."""
    for x in ast.walk(ast.parse(path.read_text())):
        match x:
            case ast.Call(func=ast.Name(id="leaf" | "make") | ast.Attribute(attr="startswith"), args=[first, *_]):
                yield from (
                    y.value for y in ast.walk(first) if isinstance(y, ast.Constant) and isinstance(y.value, str)
                )
            case ast.Compare(left=ast.Attribute(attr="op") | ast.Subscript() | ast.Name(id="kind")):
                values = (y.value for c in x.comparators for y in ast.walk(c) if isinstance(y, ast.Constant))
                yield from (v for v in values if isinstance(v, str))


def test_operations_and_kinds_of_leaves_have_the_fields_words():
    """What `chunkform explain --after` shows. Keys have what was there before: they order terms."""
    words = KERNEL_WORDS | {"mix": "transition", "weight": "transition"}
    found = {}
    for path in sorted((ROOT / "codegen" / "recurrence").rglob("*.py")):
        for word in words_of_nodes(path):
            if former(re.sub(r"\W+", "_", word), words):
                found.setdefault(word, path.name)
    assert not found
    assert not [x for x in IN_KEYS if former(re.sub(r"\W+", "_", x), words)]
    assert all(former(x.replace(" ", "_"), words) for x in IN_KEYS.values())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "generated").glob("**/*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_generated_text_has_the_fields_words(path):
    """And mathematics, where it says what is computed."""
    lines = said(path.read_text())
    assert not [x for x in lines if PHRASES.search(x) or UNREADABLE.search(x)]


@pytest.mark.parametrize("place", KEPT)
def test_what_is_kept_is_there(place):
    files = [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")
    there = {n for path in files for n in names(path)}
    assert set(KEPT[place].split()) <= there


@pytest.mark.parametrize("package", NUMBERED)
def test_numbered_words_that_are_kept_are_there(package):
    there = {word for path in (ROOT / package).rglob("*.py") for n in names(path) for word in words_of(n)}
    assert set(NUMBERED[package].split()) <= there


def test_a_former_word_is_seen():
    assert PHRASES.search(said("x = 1  # A walk forwards over chunks")[0]) and UNREADABLE.search("[order_{mask}]_{i,j}")
    for word in KERNEL_WORDS:
        assert former(f"a_{word}", KERNEL_WORDS) == former(word.title(), KERNEL_WORDS) == [word]
    assert former("borders2_out") == former("Borders2State") == ["borders"] and not former("borders2", but=["borders2"])
    assert former("_WalkedState") == ["walked"] and former("at_borders") == ["borders"] and not former("worldwide")
