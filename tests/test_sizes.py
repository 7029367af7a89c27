"""Functions, files and classes stay small, and signatures say which type they mean; tests/sizes.json has what doesn't yet.

A number in there can only fall: where code has become smaller, `python tests/shared/sizes.py --write` records it.
"""

import ast
import json
import re
import subprocess

import pytest
from shared import sizes


def test_nothing_is_larger_than_its_limit_or_its_record_and_the_record_is_no_larger_than_it():
    assert sizes.complaints(sizes.measured(sizes.here()), json.loads(sizes.RECORD.read_text())) == []


@pytest.mark.parametrize(
    ("now", "recorded", "word"),
    [(20, None, "make it smaller"), (20, 19, "make it smaller"), (20, 21, "record 20"), (None, 20, "leave it out")],
)
def test_what_is_larger_and_what_is_recorded_too_large_is_told(now, recorded, word):
    def of(n):
        return {k: {} for k in sizes.LIMITS} | {"complexity": {} if n is None else {"a.py:f": n}, sizes.MOST_ANY: 7}

    (said,) = sizes.complaints(of(now), of(recorded))
    assert word in said and "a.py:f" in said
    assert sizes.smaller(of(now), of(recorded))["complexity"].get("a.py:f", 0) <= (recorded or 0)


@pytest.mark.parametrize(("now", "word"), [(8, "say which type"), (6, "record 6")])
def test_any_is_bounded_from_both_sides(now, word):
    of = {k: {} for k in sizes.LIMITS}
    (said,) = sizes.complaints(of | {sizes.MOST_ANY: now}, of | {sizes.MOST_ANY: 7})
    assert word in said


def test_a_line_more_needs_no_new_record():
    assert [sizes.rounded("file lines", n) for n in (601, 650, 651)] == [650, 650, 700]
    assert sizes.rounded("complexity", 17) == 17


def test_any_is_counted_in_arguments_and_results():
    text = 'def f(a: Any, *b: "dict[str, Any]", c: int, **d: t.Any) -> list[Any]:\n    x: Any = 1\n    return x\n'
    assert sizes.any_in_signatures({"codegen/a.py": text, "tests/b.py": text}) == {"codegen": 4}


def test_fields_that_a_class_sets_are_counted():
    frozen = "@dataclass(frozen=True)\nclass A:\n    x: int\n    y: int\n"
    assert sizes.mutable_fields(ast.parse(frozen).body[0]) == 0
    assert sizes.mutable_fields(ast.parse(frozen.replace("(frozen=True)", "")).body[0]) == 2
    setting = "class A:\n    def f(self):\n        self.x, self.y = 1, 2\n        self.x += 1\n        other.z = 3\n"
    assert sizes.mutable_fields(ast.parse(setting).body[0]) == 2


def test_functions_are_named_with_their_class_and_counted_without_their_docstring():
    text = 'class A:\n    def f(self):\n        """One\n        two."""\n        return 1\n'
    ((_, _), (name, node)) = sizes.definitions(ast.parse(text))
    assert (name, sizes.function_lines(node)) == ("A.f", 2)


def test_lines_are_those_of_code():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = """one\ntwo"""\n\n\ndef f():\n    """Says."""\n    return x\n'
    assert sizes.lines({"codegen/ir/a.py": text}) == {"codegen/ir": 4}


def test_generated_files_stay_below_their_bound():
    found = sizes.generated_lines(sizes.generated())
    assert found["as before"] <= sizes.MOST_GENERATED
    assert found.total() == sum(text.count("\n") for text in sizes.generated().values())
    assert {"as before", *sizes.SINCE} == found.keys()


def test_lines_of_generated_files_are_told_apart():
    text = '"""A."""\n\n@gluon.jit\ndef f():\n    pass\n\n\n@triton.jit\ndef steps_kernel():\n    pass\n\ndef g():\n    pass\n'
    assert sizes.generated_lines({"a.py": text}) == {"as before": 4, "roles": 5, "steps of drafts": 4}


@pytest.mark.long
def test_the_page_says_what_its_commits_have():
    text = sizes.PAGE.read_text()
    commit = re.search(r"After: commit (\w+)", text)[1]
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=sizes.ROOT, capture_output=True)
    if known.returncode:
        pytest.skip("a checkout without its history")
    assert sizes.page(commit) == text
