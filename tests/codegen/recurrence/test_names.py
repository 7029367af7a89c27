"""A name of a spec may be any word that the compiler, Python, torch or Triton uses: it never meets theirs, or it is refused."""

import ast
import random

import pytest
import torch
from shared import spec_names
from shared.definitions import read_definitions
from shared.forked import script
from shared.spec_names import SPECS, batches, difference, of_files, refused, words

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.ir.expr import plain_name
from chunkform.codegen.ir.letters import RUN, Alphabet, capital, lettered
from chunkform.codegen.ir.words import Definition, text_of
from chunkform.codegen.printing.spelling import check_spelled, spelled
from chunkform.errors import BuildError, NameError_
from chunkform.spec.language import Attention, Program, Recurrence

CHEAP = [x for x in SPECS if x.__name__ in ("stepwise", "scanned", "pairs", "rows")]
REPORTED = [  # what was once wrong without a word, or crashed
    ("chunked", {"p": "y_2", "c": "t11", "q": "per_head", "k": "gradients", "v": "size_d", "o": "saved", "b": "lead"}),
    ("chunked", {"p": "λ", "c": "κ", "lam": "γ", "S": "Σ", "d": "δ", "e": "ε", "o": "ω", "key": "k̂", "q": "ϕ"}),
    ("chunked", {"d": "row", "e": "col", "S": "d", "lam": "e", "op": "launch", "q": "T0", "k": "i", "v": "j"}),
    (
        "stepwise",
        {"d": "row", "x": "t", "W": "steps", "h0": "start", "lam": "heads", "h": "then", "c": "once", "o": "λ"},
    ),
    ("program", {"x": "y", "w": "x", "u": "x_right", "o": "sums", "S": "p", "G": "inner", "c": "cotangent", "q": "λ"}),
    ("pairs", {"x": "λ", "Q": "Θ", "K": "κ", "b": "T0", "c": "E", "o": "ψ", "d": "δ", "e": "num_warps"}),
]


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path_factory.getbasetemp() / "names"))


@pytest.mark.parametrize(("spec", "names"), REPORTED, ids=[f"{x}-{n}" for n, (x, _) in enumerate(REPORTED)])
def test_numbers_are_those_under_neutral_names(spec, names):
    assert difference(getattr(spec_names, spec), names, torch.float64, "torch") < 1e-9


@pytest.mark.parametrize("spec", CHEAP, ids=lambda x: x.__name__)
def test_numbers_do_not_depend_on_names(spec):
    """Words of generated files, several at once; `python tests/shared/spec_names.py` tries all words in all roles."""
    found = list(batches(spec, tuple(random.Random(spec.__name__).sample(of_files(), 60))))
    for names in found[:3]:
        assert difference(spec, names, torch.float64, "torch") < 1e-9, names


@pytest.fixture(scope="module")
def printed():
    """Code in letters of its own, with the names that are in it: of a recurrence and of pairs."""
    found = []

    def keep(some, alphabet):
        some = tuple(some)
        found.append((some, alphabet))
        return spelled(some, alphabet)

    from chunkform.codegen.attention import emit as other
    from chunkform.codegen.recurrence import emit as one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "spelled", keep)
        patch.setattr(other, "spelled", keep)
        for spec in (spec_names.scanned, spec_names.pairs):
            declared = spec(lambda role: role)
            kind_of(declared).emit(kind_of(declared).compile_spec(declared), tidy=False)
    return found


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.long)])
def test_every_word_can_be_spelt_in_every_section(printed, one_in):
    """The same code for other names. Each word that isn't refused comes in `make test-all`, and one in eight in `make test`;
    Python must read what is printed, and one text in ten is compared as a tree as well."""
    left = [w for w in words()[::one_in] if not refused(lambda n: Recurrence("tried").inputs(n("word")), {"word": w})]
    n = 0
    while n < len(left):
        some, alphabet = printed[n % len(printed)]
        own = [x for x in alphabet.names if plain_name(x) != "op"]
        chosen = left[n : n + len(own)]
        n += len(chosen)
        new = dict(zip(own, map(lettered, chosen), strict=False))
        rest = {x for x in alphabet.names if x not in new}
        if any(f"{a}{b}" in rest for a in ("", "d", "log_") for b in new.values()):
            continue  # the other name of a pair that a spec can't have
        large = {capital(x): capital(y) for x, y in new.items()}
        other = [with_letters(x, new | large) for x in some]
        found = text_of(spelled(other, Alphabet({x: plain_name(x) for x in [*new.values(), *rest]})))
        tree = ast.parse(found)
        if n // len(own) % 10 == 1:
            same_names(ast.parse(text_of(other)), tree)


def with_letters(x, names):
    """A definition with other letters for names of the spec, and for parts of names."""
    words = (y if y.isascii() else type(y)(RUN.sub(lambda m: names.get(m[0], m[0]), y)) for y in x.words)
    return Definition(tuple(words), x.is_function)


def same_names(before, after):
    """Two files whose trees differ in names alone: in each function one of each for one of the other."""
    outside = {}, {}
    for x, y in zip(before.body, after.body, strict=True):
        there, back = ({}, {}) if isinstance(x, ast.FunctionDef) else outside
        for a, b in zip(ast.walk(x), ast.walk(y), strict=True):
            assert type(a) is type(b)
            for field in ("id", "arg", "name"):
                one, other = getattr(a, field, None), getattr(b, field, None)
                assert there.setdefault(one, other) == other and back.setdefault(other, one) == one, (one, other)


def test_a_spelling_that_merges_two_names_is_refused():
    a, b = lettered("x"), "x"
    text = f"def f({a}, {b}):\n    return {a} - {b}\n"
    assert text_of(spelled(read_definitions(text), Alphabet.of(["x"]))) == "def f(x_, x):\n    return x_ - x\n"
    with pytest.raises(BuildError, match="the name x stands for two things in the generated file"):
        compared(f"def f({a}):\n    {b} = 1\n    return {a}\n", "def f(x):\n    x = 1\n    return x\n")
    with pytest.raises(BuildError, match="the name y stands for two things in the generated file"):
        compared(f"{a} = 1\n{b}(y=2)\n", "y = 1\nx(y=2)\n")
    with pytest.raises(BuildError, match="names of the spec have changed the code"):
        compared(f"{a} = 1\n", "x = 1\nx = 1\n")
    with pytest.raises(BuildError, match="it has joined names of the spec to xy"):
        spelled(read_definitions(f"{a}{lettered('y')} = 1\n"), Alphabet.of(["x", "y"]))


def compared(before, after):
    def words(text):
        return tuple(y for x in read_definitions(text) for y in x.words)

    check_spelled(words(before), words(after), ({}, {}))


@pytest.mark.parametrize("kind", [Recurrence, Attention, Program])
@pytest.mark.parametrize(
    "name", ["range", "lambda", "torch", "print", "torch_forward", "𝐢𝐟", "a b", "OP", "__name__", "x" * 200]
)
def test_a_spec_named_like_what_its_file_calls_is_refused(kind, name):
    with pytest.raises(NameError_) as error:
        kind(name)
    assert "\n" not in str(error.value)


def test_every_name_that_a_file_imports_may_be_that_of_a_spec_or_is_refused():
    for name in (
        "launch",
        "steps_first",
        "TransitionMatrices",
        "dtype_of",
        "tile_of",
        "cdiv",
        "StepKernel",
        "computed_in",
    ):
        spec = spec_names.scanned
        if not refused(spec, {"op": name}):
            assert difference(spec, {"op": name}, torch.float64, "torch") < 1e-9


def test_letters_are_those_of_python():
    r = Recurrence("ρ")
    d = r.dims("δ")
    r.inputs("𝐤 λ", d)
    assert [v.name for v in r.variables] == ["k", "λ"] and r.name == "ρ"
    with pytest.raises(NameError_, match=r"the name 'k' is used twice in ρ, first at .*\('𝒌' is 'k' to Python\)"):
        r.parameter("𝒌", d)
    with pytest.raises(NameError_, match="is the compiler's own"):
        r.parameter(chr(0x14410))


@pytest.mark.parametrize("name", ["B", "T", "H"])
def test_the_axes_of_every_op_are_no_dims(name):
    with pytest.raises(NameError_, match=rf"'{name}' is (an axis of every op|reserved)|the name '{name}' is reserved"):
        Recurrence("r").dims(name)


def test_what_a_solve_leaves_has_its_name_alone():
    def spec(n):
        p = spec_names.program(n)
        return p.validate()

    assert refused(spec, {"o": "x_residual"})


def test_kernels_do_not_depend_on_names(tmp_path):
    """A sample, through Triton's interpreter, which must be chosen before Triton is imported."""
    code = """
from shared import spec_names as s
s.T = 10
chunked = {"p": "matrix1", "q": "i_ok", "k": "λ", "v": "bh", "d": "chunks", "S": "T0", "c": "w"}
stepwise = {"x": "tile", "W": "now", "d": "row", "lam": "num_warps", "h": "grid", "c": "θ"}
for spec, names in ((s.chunked, chunked), (s.stepwise, stepwise)):
    print(s.difference(spec, names, s.torch.float32, "triton"))
"""
    path = tmp_path / "code.py"
    path.write_text(code, encoding="utf-8")
    done = script(path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2 and all(float(x) < 2e-5 for x in done.stdout.split()), done.stdout
